"""One socket to the server, for blocking code: the hand-written twin of ``toril.client.line``.

Redis-py opens the socket and greets the server; replies go from the socket through hiredis.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from typing import Any

from toril.sync.sockets import (
    LARGE,
    NOT_YET,
    LateError,
    LineError,
    Reader,
    make_reader,
    unacknowledged,
)

_READ_SIZE = 65536
_LOOK_AFTER_S = 0.5
"""A socket that was idle for longer is checked first: the server may have closed it."""


class Line:
    """A socket that one thread uses at a time; ``opener`` is a redis-py connection.

    A line that was lost, or abandoned in the middle of a call, is never used again.
    """

    __slots__ = ("_opener", "_reader", "_sock", "_timeout_s", "_unsent", "_used_at", "is_open")

    _reader: Reader

    def __init__(self, opener: Any) -> None:
        self._opener = opener
        self._sock: Any = None
        self._timeout_s = -1.0
        self._unsent = 0
        self._used_at = 0.0
        self.is_open = False

    def open(self) -> None:
        """Connect and greet."""
        self._opener.connect()
        self._sock = self._opener._sock
        self._reader = make_reader(self._opener)
        self.is_open = True

    def leads_to(self, host: str, port: int) -> bool:
        """Is this the server at the other end, as far as is known?"""
        return not self.is_open or (self._opener.host, int(self._opener.port)) == (host, port)

    @property
    def is_usable(self) -> bool:
        """Is it open, with nothing unexpected to read, such as its end?"""
        if not self.is_open or self._reader.has_data():
            return False
        if time.monotonic() - self._used_at < _LOOK_AFTER_S:
            return True
        return not _is_readable(self._sock)

    def send(self, packed: bytes, timeout_s: float) -> None:
        if timeout_s != self._timeout_s:
            self._sock.settimeout(timeout_s)
            self._timeout_s = timeout_s
        if len(packed) > LARGE:
            self._send_in_parts(packed)
        else:
            self._sock.sendall(packed)

    def _send_in_parts(self, packed: bytes) -> None:
        """The time of ``sendall`` is for all that it is given: each part has it anew."""
        view = memoryview(packed)
        for start in range(0, len(packed), LARGE):
            self._sock.sendall(view[start : start + LARGE])
        self._unsent = unacknowledged(self._sock)

    def read(self) -> Any:
        """The next reply: a value, or an error from the server."""
        reader = self._reader
        reply = reader.gets()
        while reply is NOT_YET:
            try:
                data = self._sock.recv(_READ_SIZE)
            except TimeoutError:
                if self._is_leaving():
                    continue
                raise LateError("there was no reply in time") from None
            if not data:
                raise LineError("the connection was closed")
            reader.feed(data)
            reply = reader.gets()
        return reply

    def _is_leaving(self) -> bool:
        """Has a part of a large request left since this was last looked at?"""
        before = self._unsent
        if before:
            self._unsent = unacknowledged(self._sock)
        return self._unsent != before

    def end(self) -> None:
        """All replies have been read; anything left was not asked for."""
        self._unsent = 0
        if self._reader.has_data():
            raise LineError("the server sent a reply that nobody asked for")
        self._used_at = time.monotonic()

    def shut(self) -> None:
        """Wake whoever reads from this socket."""
        sock = self._opener._sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.is_open = False
        self._opener.disconnect()


def _is_readable(sock: Any) -> bool:
    if hasattr(select, "poll"):  # select() does not accept file descriptors above 1,023
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([sock], [], [], 0)[0])
