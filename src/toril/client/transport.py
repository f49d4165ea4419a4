"""Requests and replies over a few sockets per loop, without a timer for each request.

This module and its blocking twin are both written by hand: deadlines and sharing of sockets work
differently in threads than on a loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from toril.client import embedded
from toril.client.line import Line
from toril.client.places import PerPlace
from toril.client.sockets import (
    REPLY_TIMEOUT_S,
    TROUBLES,
    LateError,
    MakeSocket,
    News,
    ReadOnlyError,
    ResponseError,
)
from toril.errors import ServerUnavailableError
from toril.protocol import failovers
from toril.protocol.failovers import Told
from toril.protocol.sending import ASKING, Sending, messages
from toril.protocol.slots import Node

MOST_SOCKETS = 16
SOCKET_TIMEOUT_S: float | None = None
"""Not left to redis-py: a watch closes the sockets whose replies are overdue."""
_WATCH_EVERY_S = 0.5


class Sockets:
    """The sockets of one loop to one server, and the timer that watches them."""

    def __init__(self, most: int = MOST_SOCKETS) -> None:
        self._loop = asyncio.get_running_loop()
        self._most = most
        self.free: list[Line] = []
        self.in_use: set[Line] = set()
        self._turns: deque[asyncio.Future[None]] = deque()
        self._is_over = False
        self.watch: asyncio.TimerHandle | None = None
        self.listeners: list[asyncio.Task[None]] = []
        self.is_open = asyncio.Event()
        self.is_open.set()

    def borrow_open(self) -> Line | None:
        """A socket that is free and open."""
        while self.free:
            line = self.free.pop()
            if line.is_open:
                self.in_use.add(line)
                return line
            line.close()  # the server has closed it in the meantime
        return None

    async def room(self) -> None:
        """Wait until a socket is free, or another one may be opened, or nothing is sent any more.

        Whoever has a turn and takes no socket passes the turn on with ``let_next``.
        """
        while len(self.in_use) >= self._most and not self.free and not self._is_over:
            turn: asyncio.Future[None] = self._loop.create_future()
            self._turns.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.let_next()
                raise

    def let_next(self) -> None:
        while self._turns:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def borrow(self, make_socket: MakeSocket) -> Line:
        """A free socket, or a new one that is not open yet."""
        line = self.borrow_open()
        if line is None:
            line = Line(make_socket())
            self.in_use.add(line)
        return line

    @property
    def knows_primary(self) -> bool:
        """Does somebody listen for a failover, and is none about to happen?"""
        return bool(self.listeners) and self.is_open.is_set()

    def give_back(self, line: Line) -> None:
        line.deadline = math.inf
        line.unsent = 0
        self.in_use.discard(line)
        self.free.append(line)
        if self._turns:
            self.let_next()

    def end(self, line: Line, reply: Any) -> None:
        """The caller has its answer. Most errors from a server do not mean that the line is broken.

        A server that is no longer the master is left: the next lookup may find another one.
        """
        is_told = isinstance(reply, ResponseError) and not isinstance(reply, ReadOnlyError)
        if isinstance(reply, Exception) and not is_told:
            self.drop(line)
        else:
            self.give_back(line)

    def drop(self, line: Line) -> None:
        """A socket that was abandoned in the middle of a call is never used again.

        If it was silent, a firewall may have forgotten it, and with it those that were idle: the
        next try must not wait for one of them.
        """
        self.in_use.discard(line)
        if self._loop.is_closed():  # garbage collection after the loop has ended
            line.forsake()
            return
        line.close()
        if isinstance(line.trouble, LateError):
            self._close_idle()
        self.let_next()

    def expect_reply(self, line: Line, timeout_s: float) -> None:
        line.timeout_s = timeout_s
        line.deadline = self._loop.time() + timeout_s
        if self.watch is None:
            self.watch = self._loop.call_later(min(_WATCH_EVERY_S, timeout_s), self._cut_overdue)

    def _cut_overdue(self) -> None:
        now = self._loop.time()
        for line in list(self.in_use):
            line.cut_if_late(now)
        self.watch = None
        due = [line.deadline for line in self.in_use if line.is_open]
        if self.in_use:
            # Not later than the next deadline: half a second is long for the renewal of a short
            # lock.
            wait_s = max(0.0, min([now + _WATCH_EVERY_S, *due]) - now)
            self.watch = self._loop.call_later(wait_s, self._cut_overdue)

    def leave_all_but(self, primary: Node) -> None:
        """Whatever the old server still accepts would be lost."""
        for line in [*self.free]:
            if not line.leads_to(*primary):
                self.free.remove(line)
                line.close()
        for line in list(self.in_use):
            if not line.leads_to(*primary):
                line.cut()

    def interrupt(self) -> None:
        """End the waits, also those for a socket."""
        self._is_over = True
        for line in list(self.in_use):
            line.cut()
        while self._turns:
            self.let_next()

    def cut(self) -> None:
        """Close everything at once, without waiting for anything."""
        if self.watch is not None:
            self.watch.cancel()
        for listener in self.listeners:
            listener.cancel()
        self.interrupt()
        self._close_idle()

    def _close_idle(self) -> None:
        for line in self.free:
            line.close()
        self.free.clear()

    async def close(self) -> None:
        for listener in self.listeners:
            listener.cancel()
        await asyncio.gather(*self.listeners, return_exceptions=True)
        self.cut()

    def forget(self) -> None:
        """Drop the sockets of a loop that is closed."""
        for line in [*self.free, *self.in_use]:
            line.forsake()
        self.free.clear()
        self.in_use.clear()


class ServerTransport:
    """One server, found by a URL, a client or Sentinel: a few sockets, opened when needed.

    A watch that looks twice a second closes sockets whose reply is overdue: a timer for every
    command would cost more than the command.  A reply is overdue after a silence, not after a time:
    a large request or reply may take long on a slow link, and would only be cut again and again.
    """

    is_cluster = False
    most_sockets = MOST_SOCKETS

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
        self.sockets = PerPlace(lambda: Sockets(self.most_sockets), Sockets.forget)
        self.is_closed = False

    def __str__(self) -> str:
        return self._label

    def keep_to(self, sockets: int) -> None:
        """Open at most so many sockets on each loop that is new here."""
        self.most_sockets = sockets

    async def exchange(self, sending: Sending, timeout_s: float, *, is_asking: bool = False) -> Any:
        sockets, line = await self._lend()
        try:
            if not line.is_open:
                await line.open(REPLY_TIMEOUT_S)
            packed = sending.packed(time.monotonic())
            sockets.expect_reply(line, timeout_s)
            sending.was_sent = True
            if is_asking:
                line.send(ASKING)
                await line.arrival()
                line.replies.popleft()
            line.send(packed, sending.replies)
            await line.arrival()
            reply = line.replies.popleft()
            if sending.replies > 1:
                reply = await _with_replicas(line, reply)
        except BaseException:
            sockets.drop(line)
            raise
        sockets.end(line, reply)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def post(self, sending: Sending, timeout_s: float, answered: Callable[[Any], None]) -> bool:
        """Send now, if a socket is free and open; False if nothing was sent.

        ``answered`` gets the reply, or the error, in the turn of the loop that reads it.
        """
        sockets = self.sockets.here()
        if self.is_closed or (self._news and not sockets.knows_primary):
            return False
        packed = sending.packed(time.monotonic())
        line = sockets.borrow_open()
        if line is None:
            return False
        line.send(packed)
        sockets.expect_reply(line, timeout_s)
        line.tell(partial(_hand_over, sockets, line, answered))
        return True

    async def exchange_pair(
        self, first: Sending, second: Sending, timeout_s: float, answered: Callable[[Any], None]
    ) -> tuple[Any, Any]:
        """Send both in one message; returns their replies, which may be errors of the server.

        ``answered`` gets the reply to the second, unless it is an error, in the turn of the loop
        that reads it.
        """
        sockets, line = await self._lend()
        try:
            if not line.is_open:
                await line.open(REPLY_TIMEOUT_S)
            now = time.monotonic()
            packed = first.packed(now) + second.packed(now)
            sockets.expect_reply(line, timeout_s)
            first.was_sent = second.was_sent = True
            line.send(packed, 2)
            replies = await line.arrival_of_two(answered)
        except BaseException:
            sockets.drop(line)
            raise
        for reply in replies:
            if isinstance(reply, Exception):
                sockets.end(line, reply)
                return replies
        sockets.give_back(line)
        return replies

    async def exchange_all(
        self, sendings: Sequence[Sending], timeout_s: float, at_once: int
    ) -> list[Any]:
        """Send on one socket, without waiting for one reply before the next request."""
        answers: list[Any] = []
        try:
            sockets, line = await self._lend()
        except TROUBLES as error:  # closed: what earlier tries were told is to be judged by each
            return [error] * len(sendings)
        try:
            await self._pipeline(sockets, line, sendings, timeout_s, at_once, answers)
        except TROUBLES as error:
            sockets.drop(line)
            return answers + [error] * (len(sendings) - len(answers))
        except BaseException:
            sockets.drop(line)
            raise
        if any(isinstance(answer, ReadOnlyError) for answer in answers):
            sockets.drop(line)
        else:
            sockets.give_back(line)
        return answers

    async def _pipeline(
        self,
        sockets: Sockets,
        line: Line,
        sendings: Sequence[Sending],
        timeout_s: float,
        at_once: int,
        answers: list[Any],
    ) -> None:
        if not line.is_open:
            await line.open(REPLY_TIMEOUT_S)
        sent = 0
        while len(answers) < len(sendings):
            if sent < len(sendings) and sent - len(answers) <= at_once // 2:
                part = sendings[sent : len(answers) + at_once]
                for packed, replies in messages(part, time.monotonic()):
                    line.send(packed, replies)
                sent += len(part)
            if not line.replies:
                sockets.expect_reply(line, timeout_s)
                await line.arrival()
            reply = line.replies.popleft()
            if sendings[len(answers)].replies > 1:
                reply = await _with_replicas(line, reply)
            if isinstance(reply, ResponseError):
                answers.append(reply)
            elif isinstance(reply, Exception):
                raise reply
            else:
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

    async def _lend(self) -> tuple[Sockets, Line]:
        """A line for one caller, as soon as there is one; it may not be open yet."""
        sockets = self.sockets.here()
        if self._news:
            await self._follow_primary(sockets)
        if not sockets.free:
            await sockets.room()
        if self.is_closed:
            raise ServerUnavailableError(f"the connection to {self._label} is closed")
        try:
            return sockets, sockets.borrow(self._make_socket)
        except BaseException:
            sockets.let_next()
            raise

    def interrupt(self) -> None:
        """Send nothing more, and end all waits."""
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


async def _with_replicas(line: Line, reply: Any) -> Any:
    """The reply, and how many replicas have the write: that reply comes right after it."""
    if not line.replies:
        await line.arrival()
    reached = line.replies.popleft()
    return reply if isinstance(reply, Exception) else (reply, reached)


async def _listen(news: News, sockets: Sockets) -> None:
    async for told in news():
        if told is Told.ABOUT_TO_SWITCH:
            sockets.is_open.clear()
        elif isinstance(told, tuple):
            sockets.leave_all_but(told)
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


def _hand_over(sockets: Sockets, line: Line, answered: Callable[[Any], None]) -> None:
    reply = line.replies.popleft() if line.replies and line.is_open else line.trouble
    sockets.end(line, reply)
    answered(reply)
