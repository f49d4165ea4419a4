"""The pump: what makes a worker fast, in a small file.

Finished attempts collect while a call is in flight; the next call carries them all and asks for as
many new jobs as there are free slots.  Under load the batches grow by themselves, when idle they
are batches of one, and no timer delays anything.  A second call may be in flight at the same time
if there is enough for it to carry: then the server and Python work in parallel.

A turn of the event loop costs about as much as everything else that is done for a job.  So a call
is sent in the turn in which the last running job ends, and the jobs it brings start in the turn
that reads the reply.

When there is nothing to do, one call waits at the server: a blocking read of the queue's marker
followed by a take, which the server runs as soon as the marker appears.  The job then arrives after
one message instead of three.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context

from toril.protocol.settling import Reply, Settled, Take
from toril.worker.crew import Crew
from toril.worker.flight import Flight, Trip
from toril.worker.outbox import Confirmations, Outbox
from toril.worker.pulse import Pulse

MOST_PER_CALL = 200
MOST_BYTES_PER_CALL = 500_000
"""Of outcomes. A call that carries more would block the server for everybody else for too long."""
LEAST_LOAD = 5
"""Outcomes that are worth a call in the middle of a turn, if the server has nothing else to do."""
CONFIRM_AFTER_S = 0.02
LONGEST_HOLD_MS = 30_000


class Pump:
    """Fetches jobs and sends their outcomes, for up to ``concurrency`` jobs at a time."""

    _context: Context
    _loop: asyncio.AbstractEventLoop
    _tasks: asyncio.TaskGroup

    def __init__(
        self,
        crew: Crew,
        outbox: Outbox,
        pulse: Pulse,
        flights: Sequence[Flight],
        waiting_flight: Flight,
        *,
        concurrency: int,
        worker_id: str,
        make_take: Callable[[int, str], Take],
    ) -> None:
        self._crew = crew
        self._outbox = outbox
        self._pulse = pulse
        self._here = list(flights)
        self._waiting_flight = waiting_flight
        self._concurrency = concurrency
        self._worker_id = worker_id
        self._make_take = make_take
        self._leaving = 0
        self._asked_for = 0
        self._request = 0
        self._away = 0
        self._may_find = True
        self._has_found = False
        self._takes = True
        self._is_waiting = False
        """Does a call wait at the server that nobody has recalled?"""
        self._held_until = 0.0
        self._is_closing = False
        self._is_busy = False
        self._departs_soon = False
        self._over: asyncio.Future[None] | None = None
        self._waiting_for_idleness: list[asyncio.Future[None]] = []
        self._waiting_for_landing: list[asyncio.Future[None]] = []
        self._enough = max(1, concurrency // 4)
        self._share = max(1, -(-concurrency // len(flights)))
        self._first_load = min(self._share, max(LEAST_LOAD, concurrency // 8))
        self.next_due_ms = 0
        outbox.tell(self._on_news)

    @property
    def running(self) -> int:
        """How many jobs are held: running, or finished but not yet written."""
        return self._outbox.held

    @property
    def is_idle(self) -> bool:
        """Is there room for a job, and no reason to think that one can be taken?"""
        return not self._may_find and self._away == 0 and self._free() > 0

    # ------------------------------------------------------------------ from start to end

    async def run(self) -> None:
        """Pump until ``close``, and until everything is written."""
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._over = self._loop.create_future()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._depart()
                await self._over
        finally:
            _wake(self._waiting_for_landing)  # a pump that was stopped early hears no reply

    def look_again(self) -> None:
        """There may be something to take."""
        self._may_find = True
        self._depart()

    def stop_taking(self) -> None:
        self._takes = False

    def resume_taking(self) -> None:
        self._takes = True
        self.look_again()

    def recall(self) -> bool:
        """The wait at the server is to end: True if it has to be cancelled for that.

        Once is enough, and while its result is asked for it ends by itself: a second cancellation
        would lose the jobs that are on their way.
        """
        is_waiting, self._is_waiting = self._is_waiting, False
        return is_waiting

    def close(self) -> None:
        """End when nothing runs and everything is written; take nothing more."""
        self._takes = False
        self._is_closing = True
        self._depart()

    async def land(self) -> None:
        """Wait until no call is in flight: then it is known which jobs have come."""
        while self._away and self._over is not None and not self._over.done():
            await _join(self._waiting_for_landing)

    async def until_idle(self) -> None:
        """Wait until there is nothing to do but wait for the queue."""
        while not self.is_idle:
            await _join(self._waiting_for_idleness)

    # ------------------------------------------------------------------ calls that leave

    def _on_news(self) -> None:
        """There is something to send: at once if no other job can end in this turn of the loop, or
        if it is worth a call although others will. Handlers that wait for the same time end in one
        turn: the server works on the first of them while Python is busy with the rest."""
        if self._is_busy:
            return  # it departs when it is no longer busy
        finished = len(self._outbox.finished)
        load = self._share if self._away else self._first_load
        if finished == self._outbox.held - self._leaving or (finished >= load and self._here):
            self._depart()
        elif not self._departs_soon and self._over is not None:
            self._departs_soon = True
            self._loop.call_soon(self._depart)

    def _depart(self) -> None:
        """Send a call on each flight for which there is something to do."""
        self._departs_soon = False
        if self._over is None or self._over.done() or self._is_busy:
            return
        self._is_busy = True
        try:
            while self._here and self._should_depart():
                self._go(self._here.pop())
            if self._is_closing and not self._outbox.held and not self._away:
                self._over.set_result(None)
        except Exception as error:  # noqa: BLE001 (whoever runs the pump must know)
            self._over.set_exception(error)
        finally:
            self._is_busy = False

    def _should_depart(self) -> bool:
        wanted = min(self._free(), self._share) if self._may_find else 0
        outbox = self._outbox
        if self._away == 0:
            return bool(outbox.finished or outbox.to_confirm) or wanted > 0
        return len(outbox.finished) >= self._enough or wanted >= self._enough

    def _go(self, flight: Flight) -> None:
        batch = _first_of(self._outbox.finished)
        del self._outbox.finished[: len(batch)]
        # The slots of settled jobs are free when the reply comes: fill them in the same call.
        self._leaving += len(batch)
        wanted = min(self._free(), self._share, MOST_PER_CALL)
        trip = self._make_trip(flight, wanted, batch, self._outbox.take_confirmations())
        self._asked_for += wanted
        self._away += 1
        if not flight.post(trip, self._landed):
            self._tasks.create_task(self._fly(trip), context=self._context.copy())

    def _make_trip(
        self,
        flight: Flight,
        wanted: int,
        batch: Sequence[Settled] = (),
        confirmations: Confirmations | None = None,
    ) -> Trip:
        """The next call: its number is also in the token of the jobs that it takes."""
        self._request += 1
        flight.last_request = self._request
        take = self._make_take(wanted, f"{self._worker_id}:{self._request}")
        return Trip(flight, self._request, take, batch, confirmations)

    async def wait_and_take(self, block_ms: int) -> None:
        """Wait at the server for up to ``block_ms`` and take what comes.

        The requested slots stay free in the meantime. If the wait is cut short, by cancellation or
        a lost connection, the server is asked for its result: a job may already be on its way. The
        exception is a loop that ends, which cancels without notice (neither ``recall`` nor
        ``stop_taking``): then nothing is asked, since the server may be silent, and a sweep brings
        back what is lost.
        """
        flight = self._waiting_flight
        wanted = min(self._free(), MOST_PER_CALL)
        if not wanted:
            # A job has just ended, and the call that reports it asks for all the room there is. Who
            # waits without room pops the marker for nothing, and nobody else is woken by it.
            return
        trip = self._make_trip(flight, wanted)
        self._asked_for += wanted
        has_landed = False

        def landed(reply: Reply) -> None:
            nonlocal has_landed
            has_landed = True
            self._asked_for -= wanted
            self._context.run(self._take_in, trip, reply)

        self._is_waiting = True
        try:
            await flight.wait_and_take(block_ms, trip, landed)
        except BaseException as error:
            if has_landed or self._is_end_of_loop(error):
                raise
            self._is_waiting = False
            same = Trip(flight, trip.request, self._make_take(0, trip.take.token))
            reply = await flight.call(same)
            self._asked_for -= wanted
            self._take_in(same, reply)
            # Whoever pops the marker must take a job, or nobody else is woken.
            if self._takes:
                self.look_again()
            else:
                await flight.leave()
            raise
        finally:
            self._is_waiting = False

    def _is_end_of_loop(self, error: BaseException) -> bool:
        """Was the wait cancelled by nobody who told this pump?"""
        return isinstance(error, asyncio.CancelledError) and self._takes and self._is_waiting

    async def _fly(self, trip: Trip) -> None:
        """Make a call that could not be posted, or whose reply did not come."""
        try:
            reply = await self._call(trip)
        finally:
            trip.end()
        self._receive(trip, reply)

    async def _call(self, trip: Trip) -> Reply:
        """The reply to a call, however long its server needs."""
        return await trip.flight.call(trip)

    # ------------------------------------------------------------------ replies that come

    def _landed(self, trip: Trip, reply: Reply | None) -> None:
        """Runs in the turn that reads the reply, so in the context of whoever opened the socket."""
        self._context.run(self._receive, trip, reply)

    def _receive(self, trip: Trip, reply: Reply | None) -> None:
        over = self._over
        if over is None or over.done():
            return
        if reply is None:
            self._tasks.create_task(self._fly(trip))
            return
        self._away -= 1
        self._asked_for -= trip.take.count
        self._leaving -= len(trip.batch)
        self._here.append(trip.flight)
        trip.end()
        try:
            self._take_in(trip, reply)
        except Exception as error:  # noqa: BLE001 (whoever runs the pump must know)
            if not over.done():
                over.set_exception(error)

    def _take_in(self, trip: Trip, reply: Reply) -> None:
        """Start the jobs that came, and report the results of the outcomes that were sent."""
        self._is_busy = True
        try:
            self._digest(trip, reply)
        finally:
            self._is_busy = False
        self._depart()
        if self._waiting_for_landing and not self._away:
            _wake(self._waiting_for_landing)
        if self._waiting_for_idleness and self.is_idle:
            _wake(self._waiting_for_idleness)

    def _digest(self, trip: Trip, reply: Reply) -> None:
        crew, token = self._crew, trip.take.token
        self._pulse.hear(reply.now_ms)
        jobs = [crew.read(words, token) for words in reply.jobs]
        self._outbox.held += len(jobs) - len(trip.batch)
        for item, code in zip(trip.batch, reply.results, strict=True):
            crew.settled(item, code)
        if jobs:
            most, received = self._may_start(len(jobs)), trip.name
            for job in jobs[:most]:
                crew.start_job(job, received)
            for job in jobs[most:]:
                crew.hand_back(job, received)
            self._note_arrival(trip)
        if trip.take.count:
            # Something is already due although jobs came: all of them were too big for one reply.
            is_cut = bool(jobs) and 0 < reply.next_due_ms <= reply.now_ms
            self._may_find = len(jobs) == trip.take.count or is_cut
            self.next_due_ms = 0 if is_cut else reply.next_due_ms
            if reply.rate_limit_ms > 0:
                self.hold(min(reply.rate_limit_ms, LONGEST_HOLD_MS))
            elif jobs:
                self._has_found = True
            elif self._has_found:
                self._has_found = False
                crew.drained()

    def _may_start(self, count: int) -> int:
        """How many of the jobs that came may be started; the others are handed back."""
        return count if self._takes else 0

    def _note_arrival(self, trip: Trip) -> None:
        """Until the server knows that jobs arrived, the death of this worker is not held against
        them. Under load the flight's next call confirms it, without an extra call; a worker that
        was idle and is full now confirms it at once."""
        if not trip.batch and not self._free():
            self._outbox.confirm_soon(trip.name)
            return
        self._confirm_later(trip)

    def _confirm_later(self, trip: Trip) -> None:
        flight = trip.flight
        flight.unheard = trip.request
        flight.confirm_at = self._pulse.heard_at + CONFIRM_AFTER_S
        if flight.confirming is None:
            flight.confirming = self._loop.call_at(flight.confirm_at, self._confirm, flight)

    def _confirm(self, flight: Flight) -> None:
        """Jobs have been running for a while: confirm it unless a later call of the flight has."""
        flight.confirming = None
        is_silent = flight.last_request == flight.unheard or flight is self._waiting_flight
        if not is_silent or not self._outbox.held:
            return
        if flight.confirm_at > self._loop.time() + 0.001:  # set by a later reply
            flight.confirming = self._loop.call_at(flight.confirm_at, self._confirm, flight)
            return
        self._outbox.confirm_soon((flight.name, flight.unheard))

    # ------------------------------------------------------------------ how much to ask for

    def hold(self, duration_ms: int) -> None:
        """Ask for nothing until a rate limit has passed."""
        until = self._loop.time() + duration_ms / 1000
        self._held_until = max(self._held_until, until)
        self._loop.call_at(until, self._after_hold)

    def _after_hold(self) -> None:
        if self._loop.time() >= self._held_until - 0.001:
            self._held_until = 0.0
            self.look_again()

    def _free(self) -> int:
        """How many jobs may be asked for.

        Jobs whose outcome is being sent no longer run: the jobs that replace them are counted.
        """
        if not self._takes:
            return 0
        if self._held_until and self._loop.time() < self._held_until - 0.001:
            return 0
        running = self._outbox.held - self._leaving
        return max(0, self._concurrency - running - self._asked_for)


def _first_of(finished: list[Settled]) -> list[Settled]:
    """As many outcomes as one call may carry, at least one."""
    size = 0
    for count, item in enumerate(finished[:MOST_PER_CALL], 1):
        size += item.size
        if size >= MOST_BYTES_PER_CALL:
            return finished[:count]
    return finished[:MOST_PER_CALL]


def _join(waiting: list[asyncio.Future[None]]) -> asyncio.Future[None]:
    news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting.append(news)
    return news


def _wake(waiting: list[asyncio.Future[None]]) -> None:
    for news in waiting:
        if not news.done():
            news.set_result(None)
    waiting.clear()
