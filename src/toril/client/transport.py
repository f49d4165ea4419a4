"""Requests and replies over a few sockets of one loop, without a timer for each.

Written by hand, and so is its blocking twin: deadlines and the sharing of sockets have other means
in threads than on a loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from hiredis import pack_command

from toril.client import embedded
from toril.client.sockets import (
    REPLY_TIMEOUT_S,
    TROUBLES,
    MakeSocket,
    News,
    ReadOnlyError,
    ResponseError,
)
from toril.errors import ServerUnavailableError
from toril.protocol import failovers
from toril.protocol.command import Word, as_bytes
from toril.protocol.failovers import Told
from toril.protocol.sending import ASKING, Sending
from toril.protocol.slots import Node

MOST_SOCKETS = 16
SOCKET_TIMEOUT_S: float | None = None
"""Nothing that redis-py should mind: a watch cuts the sockets whose replies are overdue."""
_WATCH_EVERY_S = 0.5
_pack_plain = cast(Callable[[tuple[Word, ...]], bytes], pack_command)


def _pack(words: tuple[Word, ...]) -> bytes:
    try:
        return _pack_plain(words)
    except UnicodeEncodeError:
        return _pack_plain(as_bytes(words))


class ServerTransport:
    """One server, found by a URL, a client or Sentinel: a few sockets, opened when needed.

    A socket whose reply is overdue is cut by a watch that looks twice a second: a timer for every
    command would cost more than the command.
    """

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
        self._free: list[Any] = []
        self._deadlines: dict[Any, float] = {}
        self._watch: asyncio.TimerHandle | None = None
        self._room = asyncio.Semaphore(MOST_SOCKETS)
        self._news = news
        self._listeners: list[asyncio.Task[None]] = []
        self._is_open = asyncio.Event()
        self._is_open.set()
        self.is_closed = False

    def __str__(self) -> str:
        return self._label

    async def exchange(self, sending: Sending, timeout_s: float, *, is_asking: bool = False) -> Any:
        if self._news:
            await self._follow_primary()
        async with self._room:
            socket = self._borrow()
            try:
                if not socket.is_connected:
                    await _connect(socket)
                packed = _pack(sending.request(time.monotonic()))
                self._expect_reply(socket, timeout_s)
                sending.was_sent = True
                if is_asking:
                    packed = ASKING + packed
                await socket.send_packed_command(packed, check_health=False)
                if is_asking:
                    await socket.read_response(disconnect_on_error=False)
                reply = await socket.read_response(disconnect_on_error=False)
            except ReadOnlyError:
                # A master no more: whoever looks again may find another one.
                await self._drop(socket)
                raise
            except ResponseError:
                self._give_back(socket)
                raise
            except BaseException:
                await self._drop(socket)
                raise
            self._give_back(socket)
            return reply

    async def exchange_all(
        self, sendings: Sequence[Sending], timeout_s: float, at_once: int
    ) -> list[Any]:
        """Send on one socket, without waiting for one reply before the next request."""
        answers: list[Any] = []
        if self._news:
            await self._follow_primary()
        async with self._room:
            socket = self._borrow()
            try:
                await self._pipeline(socket, sendings, timeout_s, at_once, answers)
            except TROUBLES as error:
                await self._drop(socket)
                return answers + [error] * (len(sendings) - len(answers))
            except BaseException:
                await self._drop(socket)
                raise
            if any(isinstance(answer, ReadOnlyError) for answer in answers):
                await self._drop(socket)
            else:
                self._give_back(socket)
            return answers

    async def _pipeline(
        self,
        socket: Any,
        sendings: Sequence[Sending],
        timeout_s: float,
        at_once: int,
        answers: list[Any],
    ) -> None:
        if not socket.is_connected:
            await _connect(socket)
        sent = 0
        while len(answers) < len(sendings):
            self._expect_reply(socket, timeout_s)
            if sent < len(sendings) and sent - len(answers) <= at_once // 2:
                part = sendings[sent : len(answers) + at_once]
                now = time.monotonic()
                packed = b"".join([_pack(sending.request(now)) for sending in part])
                for sending in part:
                    sending.was_sent = True
                sent += len(part)
                await socket.send_packed_command(packed, check_health=False)
            try:
                reply = await socket.read_response(disconnect_on_error=False)
            except ResponseError as error:
                answers.append(error)
                continue
            answers.append(sendings[len(answers)].answer(reply))

    async def _follow_primary(self) -> None:
        """Listen for a failover, and send nothing while one is about to happen."""
        if not self._listeners and not self.is_closed:
            loop = asyncio.get_running_loop()
            self._listeners = [loop.create_task(self._listen(news)) for news in self._news]
        if not self._is_open.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(failovers.LONGEST_HOLD_S):
                    await self._is_open.wait()
            self._is_open.set()

    async def _listen(self, news: News) -> None:
        async for told in news():
            if told is Told.ABOUT_TO_SWITCH:
                self._is_open.clear()
            elif isinstance(told, tuple):
                await self._leave_all_but(told)
                self._is_open.set()

    async def _leave_all_but(self, primary: Node) -> None:
        """Whatever another server still takes would be lost."""
        for socket in [*self._free]:
            if socket.is_connected and (socket.host, int(socket.port)) != primary:
                self._free.remove(socket)
                await socket.disconnect(nowait=True)
        for socket in self._deadlines:
            if socket.is_connected and (socket.host, int(socket.port)) != primary:
                _abort(socket)

    def _borrow(self) -> Any:
        if self.is_closed:
            raise ServerUnavailableError(f"the connection to {self._label} is closed")
        socket = self._free.pop() if self._free else self._make_socket()
        self._deadlines[socket] = math.inf
        return socket

    def _give_back(self, socket: Any) -> None:
        del self._deadlines[socket]
        self._free.append(socket)

    async def _drop(self, socket: Any) -> None:
        """A socket that was left in the middle is never used again."""
        del self._deadlines[socket]
        await socket.disconnect(nowait=True)

    def _expect_reply(self, socket: Any, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._deadlines[socket] = loop.time() + timeout_s
        if self._watch is None:
            self._watch = loop.call_later(_WATCH_EVERY_S, self._cut_overdue)

    def _cut_overdue(self) -> None:
        loop = asyncio.get_running_loop()
        for socket, deadline in self._deadlines.items():
            if deadline < loop.time():
                _abort(socket)
        self._watch = None
        if self._deadlines:
            self._watch = loop.call_later(_WATCH_EVERY_S, self._cut_overdue)

    def interrupt(self) -> None:
        """Send nothing any more, and end the waits."""
        self.is_closed = True
        for socket in self._deadlines:
            _abort(socket)

    async def close(self) -> None:
        self.is_closed = True
        for listener in self._listeners:
            listener.cancel()
        await asyncio.gather(*self._listeners, return_exceptions=True)
        if self._watch is not None:
            self._watch.cancel()
        sockets = [*self._free, *self._deadlines]
        self._free.clear()
        for socket in sockets:
            await socket.disconnect(nowait=True)
        if self._server is not None:
            self._server.close()


async def _connect(socket: Any) -> None:
    """Connecting ends with a question and an answer, which a server that hangs never gives."""
    async with asyncio.timeout(REPLY_TIMEOUT_S):
        await socket.connect()


def _abort(socket: Any) -> None:
    if socket._writer is not None:
        socket._writer.transport.abort()
