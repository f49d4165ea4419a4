"""Requests and replies of blocking code: the hand-written twin of ``toril.client.transport``.

A socket belongs to one thread at a time, and to one process: after a fork the child opens its own.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

from toril.client import embedded
from toril.errors import ServerUnavailableError
from toril.protocol import failovers
from toril.protocol.failovers import Told
from toril.protocol.sending import ASKING, Sending, messages
from toril.protocol.slots import Node
from toril.sync.line import Line
from toril.sync.sockets import (
    REPLY_TIMEOUT_S,
    TROUBLES,
    LateError,
    MakeSocket,
    News,
    ReadOnlyError,
    ResponseError,
)

SOCKET_TIMEOUT_S: float | None = REPLY_TIMEOUT_S
"""For the greeting; each request sets its own."""


class ServerTransport:
    """One server: a socket per thread that uses it at the same time."""

    is_cluster = False

    def __init__(
        self,
        make_socket: MakeSocket,
        label: str,
        server: embedded.EmbeddedServer | None = None,
        *,
        finds_primary: bool = False,
        news: Sequence[News] = (),
    ) -> None:
        self._make_socket = make_socket
        self._label = label
        self._server = server
        self.finds_primary = finds_primary
        self._lock = threading.Lock()
        self._free: list[Line] = []
        self._in_use: set[Line] = set()
        self._news = news
        self._is_listening = False
        self._is_open = threading.Event()
        self._is_open.set()
        self.is_closed = False
        _transports.add(self)

    def __str__(self) -> str:
        return self._label

    def exchange(self, sending: Sending, timeout_s: float, *, is_asking: bool = False) -> Any:
        if self._news:
            self._follow_primary()
        line = self._borrow()
        try:
            self._open(line)
            packed = sending.packed(time.monotonic())
            sending.was_sent = True
            if is_asking:
                line.send(ASKING + packed, timeout_s)
                line.read()
            else:
                line.send(packed, timeout_s)
            reply = line.read()
            if sending.replies > 1:
                reply = _with_replicas(line, reply)
            line.end()
        except BaseException as error:
            self._drop(line, error)
            raise
        if not isinstance(reply, Exception):
            self._give_back(line)
            return reply
        # A server that is no longer the master is left: the next lookup may find another one.
        if isinstance(reply, ResponseError) and not isinstance(reply, ReadOnlyError):
            self._give_back(line)
        else:
            self._drop(line)
        raise reply

    def exchange_all(
        self, sendings: Sequence[Sending], timeout_s: float, at_once: int
    ) -> list[Any]:
        """Send on one socket, without waiting for one reply before the next request."""
        answers: list[Any] = []
        if self._news:
            self._follow_primary()
        try:
            line = self._borrow()
        except TROUBLES as error:  # closed: what earlier tries were told is to be judged by each
            return [error] * len(sendings)
        try:
            self._pipeline(line, sendings, timeout_s, at_once, answers)
        except TROUBLES as error:
            self._drop(line, error)
            return answers + [error] * (len(sendings) - len(answers))
        except BaseException:
            self._drop(line)
            raise
        if any(isinstance(answer, ReadOnlyError) for answer in answers):
            self._drop(line)
        else:
            self._give_back(line)
        return answers

    def _pipeline(
        self,
        line: Line,
        sendings: Sequence[Sending],
        timeout_s: float,
        at_once: int,
        answers: list[Any],
    ) -> None:
        self._open(line)
        sent = 0
        while len(answers) < len(sendings):
            if sent < len(sendings) and sent - len(answers) <= at_once // 2:
                part = sendings[sent : len(answers) + at_once]
                for packed, _ in messages(part, time.monotonic()):
                    line.send(packed, timeout_s)
                sent += len(part)
            reply = line.read()
            if sendings[len(answers)].replies > 1:
                reply = _with_replicas(line, reply)
            if isinstance(reply, ResponseError):
                answers.append(reply)
            elif isinstance(reply, Exception):
                raise reply
            else:
                answers.append(sendings[len(answers)].answer(reply))
        line.end()

    def close(self) -> None:
        with self._lock:
            self.is_closed = True
            lines = [*self._free, *self._in_use]
            self._free.clear()
        for line in lines:
            line.close()
        if self._server is not None:
            self._server.close()

    def interrupt(self) -> None:
        with self._lock:
            self.is_closed = True
            lines = list(self._in_use)
        for line in lines:
            line.shut()

    def forget_sockets(self) -> None:
        """In a forked child: the sockets are the parent's, and its threads may hold the lock."""
        self._lock = threading.Lock()
        self._free = []
        self._in_use = set()
        self._is_listening = False
        self._is_open = threading.Event()
        self._is_open.set()

    def _follow_primary(self) -> None:
        """Listen for a failover, and send nothing while one is about to happen."""
        with self._lock:
            has_to_listen = not self._is_listening and not self.is_closed
            self._is_listening = self._is_listening or has_to_listen
        if has_to_listen:
            for news in self._news:
                who = (weakref.ref(self), news)
                threading.Thread(target=_listen, args=who, name="toril-news", daemon=True).start()
        if not self._is_open.wait(failovers.LONGEST_HOLD_S):
            self._is_open.set()

    def hear(self, told: Node | Told) -> None:
        """The primary is about to change, or is now this one: what others still accept is lost."""
        if told is Told.ABOUT_TO_SWITCH:
            self._is_open.clear()
        elif isinstance(told, tuple):
            self._leave_all_but(told)
            self._is_open.set()

    def _leave_all_but(self, primary: Node) -> None:
        with self._lock:
            left = [line for line in self._free if not line.leads_to(*primary)]
            self._free = [line for line in self._free if line.leads_to(*primary)]
            for line in self._in_use:
                if not line.leads_to(*primary):
                    line.shut()
        for line in left:
            line.close()

    def _borrow(self) -> Line:
        left: list[Line] = []
        with self._lock:
            self._refuse_if_closed()
            while self._free:
                line = self._free.pop()
                if line.is_usable:
                    break
                left.append(line)
            else:
                line = Line(self._make_socket())
            self._in_use.add(line)
        for one in left:
            one.close()
        return line

    def _open(self, line: Line) -> None:
        if not line.is_open:
            line.open()
            # If it was closed in the meantime, there was no socket to shut down yet.
            self._refuse_if_closed()

    def _refuse_if_closed(self) -> None:
        if self.is_closed:
            raise ServerUnavailableError(f"the connection to {self._label} is closed")

    def _give_back(self, line: Line) -> None:
        with self._lock:
            self._in_use.discard(line)
            if not self.is_closed:
                self._free.append(line)
                return
        line.close()

    def _drop(self, line: Line, trouble: BaseException | None = None) -> None:
        """A socket that was abandoned in the middle of a call is never used again.

        If it was silent, a firewall may have forgotten it, and with it those that were idle: the
        next try must not wait for one of them.
        """
        left = [line]
        with self._lock:
            self._in_use.discard(line)
            if isinstance(trouble, LateError):
                left += self._free
                self._free = []
        for one in left:
            one.close()


def _with_replicas(line: Line, reply: Any) -> Any:
    """The reply, and how many replicas have the write: that reply comes right after it."""
    reached = line.read()
    return reply if isinstance(reply, Exception) else (reply, reached)


def _listen(who: weakref.ref[ServerTransport], news: News) -> None:
    """Pass a sentinel's announcements to a transport until it is closed or garbage-collected."""
    for told in news():
        transport = who()
        if transport is None or transport.is_closed:
            return
        transport.hear(told)
        del transport


_transports: weakref.WeakSet[ServerTransport] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for transport in _transports:
        transport.forget_sockets()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
