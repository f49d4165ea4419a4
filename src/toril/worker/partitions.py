"""The worker of a queue with partitions: one worker for each partition, and what they share.

Each partition has its own pump, which knows nothing about the others except how much room they
leave it.  The room is the worker's ``concurrency``: a pump may take what is free, less what is owed
to those that asked before it and have fewer jobs than their fair share.  So a busy partition never
starves another one that has work, and one that is alone may use everything.  A pump that gets room
after a wait keeps it for a moment, so that its calls carry many jobs; taking turns after every job
would make many small calls.

An empty partition waits at the server for its marker, and reserves no room in the meantime.  If the
marker comes when there is no room, it is put back for another worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from toril.checking import checked
from toril.client.connection import Connection, Target
from toril.client.ids import new_worker_id
from toril.errors import (
    InvalidOptionError,
    PartitionMismatchError,
    ServerError,
    ServerUnusableError,
)
from toril.logs import get_logger
from toril.options import DeadLetterOptions, Duration, RateLimit, milliseconds
from toril.protocol import partitioning
from toril.protocol.keys import Keys, hash_tag
from toril.protocol.settling import Reply, Settled
from toril.worker.active_job import ActiveJob
from toril.worker.burial import BurialTarget
from toril.worker.child import refuse_in_child
from toril.worker.crew import GRACE_S, call_for_no_job
from toril.worker.events import Callback, Emitter
from toril.worker.executors import Executor
from toril.worker.fate import Fate
from toril.worker.flight import Flight, Trip
from toril.worker.handlers import Handler, Router
from toril.worker.lease import Berth, Lease
from toril.worker.outbox import Confirmations
from toril.worker.pump import MOST_PER_CALL, Pump
from toril.worker.wiring import Design, Parts, make_executor
from toril.worker.worker import Worker

logger = get_logger("toril.worker")

ASK_AGAIN_S = 1.0
MOST_SOCKETS = 4
"""How many calls to one server are in flight at a time; it executes one after the other."""
TURN_S = 0.1
"""How long a partition that had to wait may take jobs before others get their share."""
LEND_AFTER_S = 2.0
"""How long a call may go unanswered before others may use the room that it asks for."""
_OF_THE_WHOLE = frozenset({"ready", "closing", "closed"})


class Budget:
    """How many jobs the pumps of a worker may hold together, and which pumps wait for room."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunk = max(1, limit // 4)
        self._pumps: list[SharingPump] = []
        self._line: dict[SharingPump, float] = {}
        """Which pumps wait for room, and since when."""
        self._refused: set[SharingPump] = set()
        self._alarm: asyncio.TimerHandle | None = None

    def join(self, pump: SharingPump) -> None:
        self._pumps.append(pump)

    def grant(self, pump: SharingPump) -> int:
        """How many jobs a pump may ask for now; one that gets none is woken when there is room."""
        free = self._limit - sum(one.load for one in self._pumps)
        if free > 0 and self._line and not pump.has_its_turn:
            free -= self._owed_before(pump)
        if free > 0 and (free >= self._chunk or not self._may_wait(pump)):
            return free
        self._refused.add(pump)
        if pump.is_hungry:
            self._line.setdefault(pump, asyncio.get_running_loop().time())
        return 0

    def _may_wait(self, pump: SharingPump) -> bool:
        """Whether a pump in line should wait a little longer for more room: a call for a few jobs
        costs the server nearly as much as a call for many."""
        since = self._line.get(pump)
        loop = asyncio.get_running_loop()
        if since is None or loop.time() >= since + TURN_S:
            return False
        if self._alarm is None:
            self._alarm = loop.call_at(since + TURN_S, self._ring)
        return True

    def _ring(self) -> None:
        self._alarm = None
        self.nudge()

    def _owed_before(self, pump: SharingPump) -> int:
        at_work = sum(1 for one in self._pumps if one.load or one.is_hungry)
        fair = max(1, self._limit // max(at_work, 1))
        owed = 0
        for other in list(self._line):
            if other is pump:
                break
            if other.is_hungry:
                owed += max(0, fair - other.load)
            else:
                del self._line[other]
        return owed

    def served(self, pump: SharingPump) -> None:
        """A pump uses its grant: if it wants more, it goes to the end of the line.

        If others are before it, it has only what they leave, and no turn: in a turn it would take
        what is owed to them as well.
        """
        if pump in self._line:
            is_first = next(iter(self._line)) is pump
            del self._line[pump]
            if is_first:
                pump.begin_turn()

    @property
    def excess(self) -> int:
        """How many jobs more the pumps hold or have asked for than they may."""
        return max(0, sum(one.load for one in self._pumps) - self._limit)

    def nudge(self) -> None:
        """Some room may be free again."""
        if self._refused:
            refused, self._refused = self._refused, set()
            for pump in refused:
                pump.notice()

    @property
    def has_found(self) -> bool:
        """Did any pump find a job when it last looked?"""
        return any(pump.has_found for pump in self._pumps)


class SharingPump(Pump):
    """A pump that shares its room with others."""

    def __init__(self, budget: Budget, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._budget = budget
        self._turn_ends_at = 0.0
        self._lent = 0
        self._has_lent = False
        budget.join(self)

    @property
    def load(self) -> int:
        """How many jobs it holds or has asked for, without those whose outcome is being sent, and
        without the room that is lent."""
        return self._outbox.held - self._leaving + self._asked_for - self._lent

    @property
    def is_hungry(self) -> bool:
        """Would it take a job if there were room?"""
        return self._may_find and super()._free() > 0

    @property
    def is_idle(self) -> bool:
        """Is there nothing to do but wait?  True even without room: a pump that waits hears of new
        jobs, and gets its turn when there is room again."""
        return not self._may_find and self._away == 0 and super()._free() > 0

    @property
    def has_found(self) -> bool:
        return self._has_found

    @property
    def has_its_turn(self) -> bool:
        return self._loop.time() < self._turn_ends_at

    def begin_turn(self) -> None:
        self._turn_ends_at = self._loop.time() + TURN_S

    def notice(self) -> None:
        """There may be room."""
        self._depart()

    def _free(self) -> int:
        own = super()._free()
        return min(own, self._budget.grant(self)) if own else 0

    def _make_trip(
        self,
        flight: Flight,
        wanted: int,
        batch: Sequence[Settled] = (),
        confirmations: Confirmations | None = None,
    ) -> Trip:
        if wanted:
            self._budget.served(self)
        return super()._make_trip(flight, wanted, batch, confirmations)

    async def _call(self, trip: Trip) -> Reply:
        """The room that a call asks for is lent while its server does not answer: perhaps only the
        node of this partition is gone."""
        count = trip.take.count
        is_lent = False

        def lend() -> None:
            nonlocal is_lent
            is_lent = True
            self._lent += count
            self._budget.nudge()

        alarm = self._loop.call_later(LEND_AFTER_S, lend) if count else None
        try:
            return await super()._call(trip)
        finally:
            if alarm is not None:
                alarm.cancel()
            if is_lent:
                self._lent -= count
                self._has_lent = True

    def _may_start(self, count: int) -> int:
        """If others use the room that these jobs were to have, they are handed back."""
        has_lent, self._has_lent = self._has_lent, False
        most = super()._may_start(count)
        return max(0, most - self._budget.excess) if has_lent else most

    def _note_arrival(self, trip: Trip) -> None:
        """Without room there is usually another call soon, so no extra call is made to confirm
        that these jobs arrived."""
        self._confirm_later(trip)

    def _take_in(self, trip: Trip, reply: Reply) -> None:
        super()._take_in(trip, reply)
        self._budget.nudge()

    async def wait_and_take(self, block_ms: int) -> None:
        """Wait at the server without reserving room, and take jobs when something comes."""
        flight = self._waiting_flight
        if not self._takes:
            return  # paused since the watch asked
        self._is_waiting = True
        try:
            marker = await flight.pop_marker(block_ms)
        except BaseException as error:
            if self._is_end_of_loop(error):
                raise
            self._is_waiting = False
            await self._after_broken_wait()
            raise
        finally:
            self._is_waiting = False
        wanted = min(self._free(), MOST_PER_CALL)
        if not wanted:
            if marker is not None:
                await flight.put_back(marker)
            self.look_again()
            # The marker is still there when this pump has looked and found nothing: without a
            # pause it would be popped and put back for as long as the worker is full.
            await asyncio.sleep(TURN_S)
            return
        trip = self._make_trip(flight, wanted)
        self._asked_for += wanted
        try:
            reply = await self._call(trip)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and self._takes:
                raise
            same = Trip(flight, trip.request, self._make_take(0, trip.take.token))
            reply = await flight.call(same)
            self._asked_for -= wanted
            self._take_in(same, reply)
            await self._after_broken_wait()
            raise
        self._asked_for -= wanted
        self._take_in(trip, reply)

    async def _after_broken_wait(self) -> None:
        """Whoever popped the marker must take a job, or nobody else is woken."""
        if self._takes:
            self.look_again()
        else:
            await self._waiting_flight.leave()


class Crier(Emitter):
    """Tells the listeners of the whole worker what happens in one partition."""

    def __init__(self, whole: Emitter, budget: Budget) -> None:
        super().__init__()
        self._whole = whole
        self._budget = budget

    @property
    def tells_errors(self) -> bool:  # type: ignore[override]
        return self._whole.tells_errors

    def has(self, event: str) -> bool:
        return event not in _OF_THE_WHOLE and self._whole.has(event)

    def emit(self, event: str, *args: Any) -> None:
        if event in _OF_THE_WHOLE or (event == "drained" and self._budget.has_found):
            return
        self._whole.emit(event, *args)

    def call(self, event: str, callback: Callback, *args: Any) -> None:
        self._whole.call(event, callback, *args)


class Shared:
    """What the workers of all partitions share; opened for the first of them."""

    executor: Executor
    connection: Connection
    budget: Budget

    def __init__(self) -> None:
        self.emitter = Emitter()
        self._is_open = False
        self._parts: list[SharingParts] = []
        self._lease: Lease | None = None

    def join(self, parts: SharingParts) -> None:
        self._parts.append(parts)

    def start_lease(self) -> None:
        """Start one lease for all partitions of a server; on a cluster each has its own."""
        if self._lease is None and not self.connection.is_cluster:
            berths = [parts.berth for parts in self._parts]
            self._lease = self._parts[0].lease_for(*berths)
            self._lease.start()

    async def end_lease(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            await lease.close()

    def open(self, design: Design) -> None:
        """All designs are alike except for their names, so the first one is used."""
        if self._is_open:
            return
        self.executor = make_executor(design)
        self.connection = Connection(design.target, patience_s=1.0)
        self.connection.keep_to(MOST_SOCKETS)
        self.budget = Budget(design.options.concurrency)
        self._is_open = True

    async def release(self) -> None:
        await self.end_lease()
        await self.executor.close()
        await self.connection.close()


class SharedLease:
    """One partition's place in the shared lease; on a cluster, a lease of its own."""

    def __init__(self, parts: SharingParts, shared: Shared) -> None:
        self._parts = parts
        self._shared = shared
        self._own: Lease | None = None

    def start(self) -> None:
        if self._shared.connection.is_cluster:
            self._own = self._parts.lease_for(self._parts.berth)
            self._own.start()
        else:
            self._shared.start_lease()

    async def close(self) -> None:
        if self._own is not None:
            await self._own.close()


class SharingParts(Parts):
    """The parts of the worker of one partition."""

    def __init__(self, design: Design, shared: Shared) -> None:
        shared.open(design)
        self._shared = shared
        super().__init__(design)
        shared.join(self)

    @property
    def berth(self) -> Berth:
        return self._berth()

    def lease_for(self, *berths: Berth) -> Lease:
        return self._lease_of(*berths)

    def _make_lease(self) -> Any:
        return SharedLease(self, self._shared)

    def _connect(self, target: Target) -> Connection:
        return self._shared.connection

    def _make_executor(self) -> Executor:
        return self._shared.executor

    def _make_emitter(self) -> Emitter:
        return Crier(self._shared.emitter, self._shared.budget)

    def _pump_of(self, *args: Any, **options: Any) -> Pump:
        return SharingPump(self._shared.budget, *args, **options)

    async def release(self) -> None:
        await self.blocking.close()


class Part(Worker):
    """The worker of one partition: a plain one, except for what it shares."""

    def __init__(self, name: str, shared: Shared, **options: Any) -> None:
        self._shared = shared
        super().__init__(name, **options)

    def _put_together(self, design: Design) -> Parts:
        return SharingParts(design, self._shared)

    @property
    def fate(self) -> Fate:
        return self._parts.fate

    def runs_caller(self) -> bool:
        return self._parts.crew.runs_caller()

    def hurry_after(self, limit_ms: int) -> None:
        self._life.hurry_after(limit_ms / 1000)


@checked
class PartitionedWorker(Worker):
    """``Worker(name, handler, partitions=n)``."""

    def __init__(
        self,
        name: str,
        handler: Handler | Router | str,
        *,
        connection: Target = None,
        prefix: str = "bull",
        limiter: RateLimit | None = None,
        dead_letter_queue: BurialTarget = None,
        partitions: int = 1,
        **options: Any,
    ) -> None:
        self.keys = Keys(prefix, name)
        partitioning.check(self.keys, partitions)
        self.name, self.handler, self.target = name, handler, connection
        self._count = partitions
        self.id = new_worker_id()
        self._shared = Shared()
        limits: Sequence[RateLimit | None] = [None] * partitions
        if limiter is not None:
            limits = partitioning.share_rate(limiter, partitions)
        self._workers = [
            Part(
                partitioning.name_of(name, number),
                self._shared,
                handler=handler,
                connection=connection,
                prefix=prefix,
                limiter=limits[number],
                dead_letter_queue=grave_of_part(dead_letter_queue, name, number),
                **options,
            )
            for number in range(partitions)
        ]
        self.options = self._workers[0].options
        self._fate = Fate()
        self._absence: Exception | None = None
        """Why the worker could not start asking the server yet."""
        self._is_paused = False
        self._has_started = False
        self._closing: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._starting: asyncio.Task[None] | None = None
        self._watches: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        where = self._shared.connection
        return f"<Worker of queue {self.name!r} in {self._count} partitions on {where!r}>"

    # ------------------------------------------------------------------ running

    async def run(self) -> None:
        """Take and run jobs until ``close`` is called, as a plain worker does."""
        await self.start()
        try:
            await self._fate.is_over.wait()
        except asyncio.CancelledError:
            await self.close(timeout=0)
            raise
        if self._fate.cause is not None:
            await self.close(timeout=0)
            raise self._fate.cause

    async def start(self) -> None:
        """Start taking jobs, and return.

        Raises ``PartitionMismatchError`` if the queue has a different number of partitions.
        """
        if self._has_started:
            raise InvalidOptionError("this worker has already been started; make a new one")
        if self._closing is not None:
            raise InvalidOptionError("this worker is closed; make a new one")
        refuse_in_child()
        self._has_started = True
        try:
            await self._agree()
        except PartitionMismatchError:
            await self.close(timeout=0)
            raise
        except ServerError as error:
            if self._fate.is_closing:
                return  # whoever closes it while it starts is no reason to fail
            logger.warning("the worker of queue %r waits for its server: %s", self.name, error)
            self._absence = error
            self._starting = asyncio.create_task(self._start_when_served())
            return
        await self._start_parts()

    async def _agree(self) -> None:
        await self._shared.connection.meet()
        command = partitioning.agree(self.keys, self._count)
        known = await self._shared.connection.run(command)
        try:
            known.refuse(self.keys, self._count)
        except PartitionMismatchError as error:
            self._fate.seal(error)
            raise

    async def _start_when_served(self) -> None:
        while True:
            await asyncio.sleep(ASK_AGAIN_S)
            try:
                await self._agree()
            except PartitionMismatchError:
                return
            except ServerUnusableError as error:
                self._fate.seal(error)
                return
            except ServerError:
                continue
            await self._start_parts()
            return

    async def _start_parts(self) -> None:
        self._absence = None
        for worker in self._workers:
            if self._fate.is_closing:
                return  # whoever closes it while it starts is no reason to fail
            await worker.start()
            self._watches.append(asyncio.create_task(self._follow(worker.fate)))
        self._shared.emitter.emit("ready")

    async def _follow(self, fate: Fate) -> None:
        """If one cannot continue, all of them stop."""
        await fate.is_over.wait()
        if fate.cause is not None:
            self._fate.seal(fate.cause)

    async def close(self, timeout: Duration | None = None) -> None:
        limit = None if timeout is None else milliseconds(timeout, "timeout")
        self._shared.emitter.excuse()
        if limit is not None:
            asyncio.get_running_loop().call_later(limit / 1000, self._hurry.set)
        if self._closing is None:
            self._fate.is_closing = True
            self._closing = asyncio.create_task(self._close(limit))
        elif limit is not None:
            for worker in self._workers:
                worker.hurry_after(limit)
        if not any(worker.runs_caller() for worker in self._workers):
            await asyncio.shield(self._closing)

    async def _close(self, limit: int | None) -> None:
        call_for_no_job()
        self._shared.emitter.emit("closing")
        try:
            if self._starting is not None:
                self._starting.cancel()
                await asyncio.gather(self._starting, return_exceptions=True)
            await asyncio.gather(*(worker.close(timeout=limit) for worker in self._workers))
            for watch in self._watches:
                watch.cancel()
            await asyncio.gather(*self._watches, return_exceptions=True)
            await self._shared.release()
            self._shared.emitter.emit("closed")
            await self._shared.emitter.drain(self._hurry, GRACE_S)
        finally:
            self._fate.is_over.set()

    def pause(self) -> None:
        self._is_paused = True
        for worker in self._workers:
            worker.pause()

    def resume(self) -> None:
        self._is_paused = False
        for worker in self._workers:
            worker.resume()

    # ------------------------------------------------------------------ looking

    @property
    def partitions(self) -> int:
        return self._count

    @property
    def dead_letter_queue(self) -> str | None:
        return self._workers[0].dead_letter_queue

    @property
    def is_running(self) -> bool:
        return self._has_started and not self._fate.is_over.is_set()

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    @property
    def is_processing(self) -> bool:
        return any(worker.is_processing for worker in self._workers)

    @property
    def current_jobs(self) -> list[ActiveJob]:
        return [job for worker in self._workers for job in worker.current_jobs]

    def current_job(self) -> tuple[ActiveJob, int] | None:
        found = [one for worker in self._workers if (one := worker.current_job()) is not None]
        return max(found, key=lambda one: one[1], default=None)

    @property
    def last_reply_age(self) -> float | None:
        """Seconds since the server last answered, for the partition with the longest silence."""
        ages = [worker.last_reply_age for worker in self._workers]
        known = [age for age in ages if age is not None]
        return max(known) if len(known) == len(ages) else None

    @property
    def server_error(self) -> Exception | None:
        errors = [self._absence, *(worker.server_error for worker in self._workers)]
        return next((error for error in errors if error is not None), None)

    @property
    def abandoned_threads(self) -> int:
        return self._shared.executor.abandoned

    @property
    def dead_lettered(self) -> int:
        return sum(worker.dead_lettered for worker in self._workers)

    def on(self, event: str, callback: Callback) -> None:
        self._shared.emitter.on(event, callback)


def grave_of_part(target: BurialTarget, name: str, number: int) -> BurialTarget:
    """Where one partition sends its dead letters.

    A dead letter queue whose hash tag is the name of this queue, such as ``{mail}-dlq``, is
    partitioned in the same way.  Any other takes the letters of all partitions; on a cluster its
    name needs a hash tag, and the letters travel there.
    """
    if target is None:
        return None
    options = DeadLetterOptions.of(target)
    given = options.queue_name
    grave = given if isinstance(given, str) else given.name
    if hash_tag(grave) != (hash_tag(name) or name):
        return target
    return DeadLetterOptions(
        partitioning.name_of(grave, number),
        on_dead_letter=options.on_dead_letter,
        include_stalled=options.include_stalled,
        keep_source=options.keep_source,
        keep=options.keep,
    )
