"""Requests and replies over a few sockets of each loop, without a timer for each.

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
from toril.client.places import PerPlace
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


class Sockets:
    """The sockets of one loop to one server, and what watches them there."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.free: list[Any] = []
        self.deadlines: dict[Any, float] = {}
        self.room = asyncio.Semaphore(MOST_SOCKETS)
        self.watch: asyncio.TimerHandle | None = None
        self.listeners: list[asyncio.Task[None]] = []
        self.is_open = asyncio.Event()
        self.is_open.set()

    def give_back(self, socket: Any) -> None:
        del self.deadlines[socket]
        self.free.append(socket)

    async def drop(self, socket: Any) -> None:
        """A socket that was left in the middle is never used again."""
        self.deadlines.pop(socket, None)
        if self._loop.is_closed():  # what waited here is swept up after its loop
            _forsake(socket)
        else:
            await socket.disconnect(nowait=True)

    def expect_reply(self, socket: Any, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self.deadlines[socket] = loop.time() + timeout_s
        if self.watch is None:
            self.watch = loop.call_later(_WATCH_EVERY_S, self._cut_overdue)

    def _cut_overdue(self) -> None:
        loop = asyncio.get_running_loop()
        for socket, deadline in self.deadlines.items():
            if deadline < loop.time():
                _abort(socket)
        self.watch = None
        if self.deadlines:
            self.watch = loop.call_later(_WATCH_EVERY_S, self._cut_overdue)

    async def leave_all_but(self, primary: Node) -> None:
        """Whatever another server still takes would be lost."""
        for socket in [*self.free]:
            if socket.is_connected and (socket.host, int(socket.port)) != primary:
                self.free.remove(socket)
                await socket.disconnect(nowait=True)
        for socket in self.deadlines:
            if socket.is_connected and (socket.host, int(socket.port)) != primary:
                _abort(socket)

    def interrupt(self) -> None:
        """End the waits."""
        for socket in list(self.deadlines):
            _abort(socket)

    def cut(self) -> None:
        """Close everything at once, without waiting for anything."""
        if self.watch is not None:
            self.watch.cancel()
        for listener in self.listeners:
            listener.cancel()
        self.interrupt()
        for socket in self.free:
            _abort(socket)
        self.free.clear()

    async def close(self) -> None:
        for listener in self.listeners:
            listener.cancel()
        await asyncio.gather(*self.listeners, return_exceptions=True)
        if self.watch is not None:
            self.watch.cancel()
        sockets = [*self.free, *self.deadlines]
        self.free.clear()
        for socket in sockets:
            await socket.disconnect(nowait=True)

    def forget(self) -> None:
        """Let go of the sockets of a loop that is closed."""
        for socket in [*self.free, *self.deadlines]:
            _forsake(socket)
        self.free.clear()
        self.deadlines.clear()


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
        self._news = news
        self.sockets = PerPlace(Sockets, Sockets.forget)
        self.is_closed = False

    def __str__(self) -> str:
        return self._label

    async def exchange(self, sending: Sending, timeout_s: float, *, is_asking: bool = False) -> Any:
        sockets = self.sockets.here()
        if self._news:
            await self._follow_primary(sockets)
        async with sockets.room:
            socket = self._borrow(sockets)
            try:
                if not socket.is_connected:
                    await _connect(socket)
                packed = _pack(sending.request(time.monotonic()))
                sockets.expect_reply(socket, timeout_s)
                sending.was_sent = True
                if is_asking:
                    packed = ASKING + packed
                await socket.send_packed_command(packed, check_health=False)
                if is_asking:
                    await socket.read_response(disconnect_on_error=False)
                reply = await socket.read_response(disconnect_on_error=False)
            except ReadOnlyError:
                # A master no more: whoever looks again may find another one.
                await sockets.drop(socket)
                raise
            except ResponseError:
                sockets.give_back(socket)
                raise
            except BaseException:
                await sockets.drop(socket)
                raise
            sockets.give_back(socket)
            return reply

    async def exchange_all(
        self, sendings: Sequence[Sending], timeout_s: float, at_once: int
    ) -> list[Any]:
        """Send on one socket, without waiting for one reply before the next request."""
        answers: list[Any] = []
        sockets = self.sockets.here()
        if self._news:
            await self._follow_primary(sockets)
        async with sockets.room:
            socket = self._borrow(sockets)
            try:
                await self._pipeline(sockets, socket, sendings, timeout_s, at_once, answers)
            except TROUBLES as error:
                await sockets.drop(socket)
                return answers + [error] * (len(sendings) - len(answers))
            except BaseException:
                await sockets.drop(socket)
                raise
            if any(isinstance(answer, ReadOnlyError) for answer in answers):
                await sockets.drop(socket)
            else:
                sockets.give_back(socket)
            return answers

    async def _pipeline(
        self,
        sockets: Sockets,
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
            sockets.expect_reply(socket, timeout_s)
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

    async def _follow_primary(self, sockets: Sockets) -> None:
        """Listen for a failover, and send nothing while one is about to happen."""
        if not sockets.listeners and not self.is_closed:
            loop = asyncio.get_running_loop()
            sockets.listeners = [loop.create_task(_listen(news, sockets)) for news in self._news]
        if not sockets.is_open.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(failovers.LONGEST_HOLD_S):
                    await sockets.is_open.wait()
            sockets.is_open.set()

    def _borrow(self, sockets: Sockets) -> Any:
        if self.is_closed:
            raise ServerUnavailableError(f"the connection to {self._label} is closed")
        socket = sockets.free.pop() if sockets.free else self._make_socket()
        sockets.deadlines[socket] = math.inf
        return socket

    def interrupt(self) -> None:
        """Send nothing any more, and end the waits."""
        self.is_closed = True
        for loop, sockets in self.sockets.items():
            _tell(loop, sockets.interrupt, sockets)

    async def close(self) -> None:
        self.is_closed = True
        here = asyncio.get_running_loop()
        for loop, sockets in self.sockets.items():
            if loop is here:
                await sockets.close()
            else:
                _tell(loop, sockets.cut, sockets)
        if self._server is not None:
            self._server.close()


async def _listen(news: News, sockets: Sockets) -> None:
    async for told in news():
        if told is Told.ABOUT_TO_SWITCH:
            sockets.is_open.clear()
        elif isinstance(told, tuple):
            await sockets.leave_all_but(told)
            sockets.is_open.set()


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[[], None], sockets: Sockets) -> None:
    """Do it on the loop that the sockets belong to, if it is still there."""
    if loop is asyncio._get_running_loop():
        what()
        return
    try:
        loop.call_soon_threadsafe(what)
    except RuntimeError:  # closed
        sockets.forget()


async def _connect(socket: Any) -> None:
    """Connecting ends with a question and an answer, which a server that hangs never gives."""
    async with asyncio.timeout(REPLY_TIMEOUT_S):
        await socket.connect()


def _forsake(socket: Any) -> None:
    """Close a socket whose loop is closed, without a call to that loop: it would raise."""
    writer, socket._writer, socket._reader = socket._writer, None, None
    if writer is None:
        return
    line = writer.get_extra_info("socket")
    with contextlib.suppress(RuntimeError):
        writer.transport.abort()
    with contextlib.suppress(AttributeError, OSError):
        line._sock.close()
        writer.transport._sock = None  # or it would warn that nobody closed it


def _abort(socket: Any) -> None:
    if socket._writer is not None:
        socket._writer.transport.abort()
