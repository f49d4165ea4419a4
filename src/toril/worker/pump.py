"""The pump: what makes a worker fast, and it is small.

Finished attempts collect while a call is away; the next call carries them all and asks for as
many new jobs as there are free slots.  Under load the batches grow by themselves, idle they are
batches of one, and no timer delays anything.  A second call may be away at the same time when
there is enough for it to carry: the server and Python then work at the same time.

When there is nothing to do, one call waits at the server: a blocking read of the queue's marker
with a take right behind it, which the server runs the moment the marker appears.  The job is then
on its way after one message instead of three.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from toril.protocol.settling import Confirmation, Reply, Result, Settled, Take
from toril.worker.active_job import ActiveJob
from toril.worker.flight import Flight

MOST_PER_CALL = 200
MOST_BYTES_PER_CALL = 500_000
"""Of outcomes. A call that brings more would keep the server from everybody else for too long."""
CONFIRM_AFTER_S = 0.02
LONGEST_HOLD_MS = 30_000


class Owner(Protocol):
    """Whoever runs the jobs that the pump brings."""

    def read(self, words: list[Any], token: str) -> ActiveJob:
        """A job that was just taken, whatever its hash holds; nothing is begun yet."""

    def start_job(self, job: ActiveJob, received: Confirmation) -> None:
        """Run a job that was just taken; ``finish`` is called when it is done."""

    def hand_back(self, job: ActiveJob, received: Confirmation) -> None:
        """Give a job back that came too late to be run."""

    def settled(self, item: Settled, code: Result) -> None:
        """``item`` was written, or refused with ``code``."""

    def drained(self) -> None:
        """The queue gave jobs before and gives none now."""


class Pump:
    """Brings jobs in and their outcomes out, for up to ``concurrency`` jobs at a time."""

    def __init__(
        self,
        owner: Owner,
        flights: list[Flight],
        waiting_flight: Flight,
        *,
        concurrency: int,
        worker_id: str,
        make_take: Callable[[int, str], Take],
    ) -> None:
        self._owner = owner
        self._flights = flights
        self._waiting_flight = waiting_flight
        self._concurrency = concurrency
        self._worker_id = worker_id
        self._make_take = make_take
        self._finished: list[Settled] = []
        self._to_confirm: dict[Confirmation, asyncio.Future[None] | None] = {}
        self._running = 0
        self._leaving = 0
        self._asked_for = 0
        self._request = 0
        self._away = 0
        self._may_find = True
        self._has_found = False
        self._takes = True
        self._held_until = 0.0
        self._is_closing = False
        self._news: list[asyncio.Future[None]] = []
        self._enough = max(1, concurrency // 4)
        self._share = max(1, -(-concurrency // len(flights)))
        self.next_due_ms = 0
        self.clock_offset_ms = 0.0
        self.last_reply_at = 0.0

    @property
    def running(self) -> int:
        """How many jobs are held: running, or done and not yet written."""
        return self._running

    @property
    def server_ms(self) -> int:
        """The server's time, as far as the last reply tells."""
        return int(asyncio.get_running_loop().time() * 1000 + self.clock_offset_ms)

    @property
    def is_idle(self) -> bool:
        """Is there room for a job, and no reason to think that one can be taken?"""
        return not self._may_find and self._free() > 0 and self._away == 0

    async def run(self) -> None:
        """Pump until ``close``, and until everything is written."""
        async with asyncio.TaskGroup() as group:
            for flight in self._flights:
                group.create_task(self._fly(flight))

    def finish(self, item: Settled) -> None:
        """An attempt is over; its outcome leaves with the next call."""
        self._finished.append(item)
        self._wake()

    def keep(self, count: int) -> None:
        """Jobs that were counted as given back are still held: their outcome was refused."""
        self._running += count

    def look_again(self) -> None:
        """There may be something to take."""
        self._may_find = True
        self._wake()

    def stop_taking(self) -> None:
        self._takes = False

    def resume_taking(self) -> None:
        self._takes = True
        self.look_again()

    def close(self) -> None:
        """End when nothing runs and everything is written; take nothing more."""
        self._takes = False
        self._is_closing = True
        self._wake()

    async def land(self) -> None:
        """Wait until no call is away: what it brings is then known."""
        while self._away:
            await self._next_news()

    async def until_idle(self) -> None:
        """Wait until there is nothing to do but to wait for the queue."""
        while not self.is_idle:
            await self._next_news()

    async def wait_and_take(self, block_ms: int) -> None:
        """Wait at the server for up to ``block_ms`` and take what comes.

        The slots asked for are kept free meanwhile. When the wait is cut short, by cancelling or
        by the line, the server is asked what became of it: a job may be on its way already. Only
        when the loop ends, which tells nobody before it cancels, is nothing asked of a server that
        may be silent; a sweep brings back what is lost.
        """
        flight = self._waiting_flight
        wanted = min(self._free(), MOST_PER_CALL)
        request, token = self._number(flight)
        self._asked_for += wanted
        try:
            reply = await flight.wait_and_take(block_ms, self._make_take(wanted, token), request)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and self._takes:
                raise
            reply = await flight.call([], self._make_take(0, token), request)
            self._asked_for -= wanted
            self._digest(flight, request, reply, [], 0, token)
            # Whoever pops the marker must take, or nobody is woken.
            if self._takes:
                self.look_again()
            else:
                await flight.leave()
            raise
        self._asked_for -= wanted
        self._digest(flight, request, reply, [], wanted, token)

    async def _fly(self, flight: Flight) -> None:
        while True:
            while not self._should_depart():
                if self._is_closing and not self._running and not self._away:
                    return
                await self._next_news()
            await self._go(flight)

    def _should_depart(self) -> bool:
        wanted = self._wanted()
        if self._away == 0:
            return bool(self._finished or self._to_confirm) or wanted > 0
        return len(self._finished) >= self._enough or wanted >= self._enough

    async def _go(self, flight: Flight) -> None:
        batch = _first_of(self._finished)
        del self._finished[: len(batch)]
        confirmations, self._to_confirm = self._to_confirm, {}
        # What is settled now is free when the reply comes: ask for it in the same call.
        self._leaving += len(batch)
        wanted = min(self._free(), self._share, MOST_PER_CALL)
        request, token = self._number(flight)
        self._asked_for += wanted
        self._away += 1
        try:
            take = self._make_take(wanted, token)
            reply = await flight.call(batch, take, request, list(confirmations))
        finally:
            self._away -= 1
            self._asked_for -= wanted
            self._leaving -= len(batch)
            for known in confirmations.values():
                if known is not None and not known.done():
                    known.set_result(None)
        self._digest(flight, request, reply, batch, wanted, token)

    def _number(self, flight: Flight) -> tuple[int, str]:
        """The number of the next call, and the token of the jobs that it takes."""
        self._request += 1
        flight.last_request = self._request
        return self._request, f"{self._worker_id}:{self._request}"

    def _digest(
        self,
        flight: Flight,
        request: int,
        reply: Reply,
        batch: list[Settled],
        wanted: int,
        token: str,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.last_reply_at = loop.time()
        self.clock_offset_ms = reply.now_ms - loop.time() * 1000
        jobs = [self._owner.read(words, token) for words in reply.jobs]
        self._running += len(jobs) - len(batch)
        for item, code in zip(batch, reply.results, strict=True):
            self._owner.settled(item, code)
        begin = self._owner.start_job if self._takes else self._owner.hand_back
        for job in jobs:
            begin(job, (flight.name, request))
        if reply.jobs and not batch and not self._free():
            self._to_confirm.setdefault((flight.name, request), None)
        elif reply.jobs:
            loop.call_later(CONFIRM_AFTER_S, self._confirm, flight, request)
        if wanted:
            # Something that is due already, although there are jobs: they were too big to come all.
            is_cut = bool(reply.jobs) and reply.next_due_ms > 0
            self._may_find = len(reply.jobs) == wanted or is_cut
            self.next_due_ms = 0 if is_cut else reply.next_due_ms
            if reply.rate_limit_ms > 0:
                self.hold(min(reply.rate_limit_ms, LONGEST_HOLD_MS))
            elif reply.jobs:
                self._has_found = True
            elif self._has_found:
                self._has_found = False
                self._owner.drained()
        self._wake()

    def _confirm(self, flight: Flight, request: int) -> None:
        """The jobs of this reply have been running for a while, and no later call has said so.

        Until the server knows that they arrived, the death of this worker is not held against
        them. Under load the flight's next call says it, and no call is spent on this; a worker
        that was idle and is full now says it at once.
        """
        is_silent = flight.last_request == request or flight is self._waiting_flight
        if is_silent and self._running:
            self._to_confirm.setdefault((flight.name, request), None)
            self._wake()

    async def confirm(self, received: Confirmation) -> None:
        """Return when the server knows that the jobs of a reply arrived."""
        known = self._to_confirm.get(received)
        if known is None:
            known = self._to_confirm[received] = asyncio.get_running_loop().create_future()
            self._wake()
        await asyncio.shield(known)

    def hold(self, duration_ms: int) -> None:
        """Ask for nothing until a rate limit has passed."""
        loop = asyncio.get_running_loop()
        until = loop.time() + duration_ms / 1000
        self._held_until = max(self._held_until, until)
        loop.call_at(until, self._after_hold)

    def _after_hold(self) -> None:
        if asyncio.get_running_loop().time() >= self._held_until - 0.001:
            self._held_until = 0.0
            self.look_again()

    def _free(self) -> int:
        """How many jobs may be asked for.

        Those whose outcome is on its way run no more: whoever comes in their place is counted.
        """
        if not self._takes:
            return 0
        if self._held_until and asyncio.get_running_loop().time() < self._held_until - 0.001:
            return 0
        running = self._running - self._leaving
        return max(0, self._concurrency - running - self._asked_for)

    def _wanted(self) -> int:
        return min(self._free(), self._share) if self._may_find else 0

    def _next_news(self) -> asyncio.Future[None]:
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._news.append(news)
        return news

    def _wake(self) -> None:
        if self._news:
            waiting, self._news = self._news, []
            for news in waiting:
                if not news.done():
                    news.set_result(None)


def _first_of(finished: list[Settled]) -> list[Settled]:
    """As many as one call may carry, at least one."""
    size = 0
    for count, item in enumerate(finished[:MOST_PER_CALL], 1):
        size += item.size
        if size >= MOST_BYTES_PER_CALL:
            return finished[:count]
    return finished[:MOST_PER_CALL]
