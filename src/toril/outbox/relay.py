"""The relay: turns the rows of an outbox into jobs.

It claims a batch, adds the jobs, and records that it did.  If it dies in between, the rows are
claimed again and their jobs added again, with the same ids: the server remembers them, including
those that have run and were removed since, so that each row becomes one job.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, Self, TypeVar

import msgspec
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from toril.checking import checked
from toril.client.agreeing import Agreeing
from toril.client.connection import Connection, Target
from toril.client.ids import new_job_id
from toril.errors import (
    CrossSlotError,
    GroupExistsError,
    InvalidInputError,
    InvalidOptionError,
    LaneFullError,
    PartitionMismatchError,
    ServerError,
    ServerRefusalError,
    ServerUnavailableError,
    ServerUnusableError,
    TorilError,
)
from toril.logs import get_logger
from toril.options import Backoff, Duration, Replicas, milliseconds, whole
from toril.outbox import storing
from toril.outbox.database import open_database
from toril.outbox.homes import Homes, find_homes, sent_before
from toril.outbox.listening import listen
from toril.outbox.outbox import Outbox
from toril.outbox.packing import Packing, Parcel
from toril.outbox.rows import OutboxRow, prepare
from toril.outbox.schema import DISPATCHED, DONE, PARKED, PENDING
from toril.outbox.starts import GROUP, Start, fates_of_groups, kind_of, open_start
from toril.outbox.storing import Claim, OutboxStats
from toril.protocol import adding, codec
from toril.protocol.adding import Added
from toril.protocol.command import Command, plain
from toril.protocol.confirming import Fate, confirm
from toril.protocol.keys import Keys
from toril.sql import MOST_TRIES, is_passing

logger = get_logger("toril.outbox")

T = TypeVar("T")

_ROWS_PER_PRUNE = 1000
_STATS_EVERY_S = 5.0
_SHORTEST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_LONGEST_WAIT_MS = 3_600_000
_NODE_WAIT_MS = 5000
_PASSING_WAIT_MS = 1000
_MOST_ROWS_PER_BATCH = 5000
_NO_ROOM = "LaneFullError: its lane is full; it waits for room"
_GROWS = "PartitionMismatchError: its queue grows, or has another number of partitions; it waits"


class RelayMetrics(msgspec.Struct):
    """What a relay has done since it was created, and the state of the outbox at its last look."""

    dispatched: int = 0
    duplicates: int = 0
    put_off: int = 0
    parked: int = 0
    lanes_full: int = 0
    """How often a row had to wait because there was no room in its lane."""
    confirmed: int = 0
    dispatched_again: int = 0
    pruned: int = 0
    errors: int = 0
    depth: int = 0
    lag_ms: int = 0
    parked_now: int = 0
    """How many rows are parked, by any relay; ``parked`` counts those that this relay parked."""
    measured_at: float | None = None
    """When it last looked how far the outbox is, by ``time.monotonic()``."""


class Sent(msgspec.Struct, frozen=True):
    """The result of one row: its job is in the queue, or why not."""

    row: OutboxRow
    error: Exception | None = None
    is_duplicate: bool = False
    is_held: bool = False
    """It was not sent, because the row before it in its lane could not be sent."""

    @property
    def is_in(self) -> bool:
        return self.error is None and not self.is_held

    @property
    def has_no_room(self) -> bool:
        return isinstance(self.error, LaneFullError)

    @property
    def must_wait(self) -> bool:
        """Was it refused for a temporary reason: a full lane, a growing queue?"""
        return isinstance(self.error, LaneFullError | PartitionMismatchError)

    @property
    def is_untouched(self) -> bool:
        """Did it fail through no fault of its own?"""
        return self.is_held or _is_the_servers(self.error)

    @property
    def is_at_fault(self) -> bool:
        return self.error is not None and not (self.must_wait or self.is_untouched)


def _is_the_servers(error: Exception | None) -> bool:
    """Is it a problem with the server, and not with the row or its queue?

    A key of the wrong type only affects that queue; missing rights affect all of them.
    """
    if isinstance(error, ServerUnusableError):
        return True
    return isinstance(error, ServerError) and not isinstance(error, ServerRefusalError)


@checked
class Relay:
    """Relays one outbox to one server; any number of relays may share the work.

    ``confirm`` keeps a row until its job is finished, and adds the job again if the server lost it.
    ``remember`` is how long the server remembers which rows it received: longer than a relay that
    died half-way may be down.  ``keep`` is how long rows stay after they are done.
    A parked row stops its lane until it is unparked or discarded; with ``on_parked="skip"`` the
    lane continues without it.
    With ``replicas`` a row is done when that many replicas have its job; until then it is relayed
    again, which adds nothing twice.
    The number of partitions of a queue is read from the server; ``partitions``, such as
    ``{"mail": 16}``, gives it for queues that nobody has opened yet.
    ``toril.run(relay)`` runs it until SIGTERM, alone or together with workers.
    """

    def __init__(
        self,
        engine: Engine | AsyncEngine,
        outbox: Outbox,
        *,
        connection: Target = None,
        prefix: str = "bull",
        batch_size: int = 500,
        poll_interval: Duration = 1000,
        lease: Duration = 30_000,
        max_attempts: int = 10,
        on_parked: Literal["halt", "skip"] = "halt",
        backoff: Backoff | Duration | None = None,
        confirm: bool = False,
        confirm_interval: Duration = 30_000,
        remember: Duration = timedelta(days=7),
        keep: Duration = timedelta(hours=24),
        listens: bool = True,
        replicas: int = 0,
        replicas_timeout: Duration = 1000,
        partitions: Mapping[str, int] | None = None,
    ) -> None:
        self.outbox = outbox
        self.table = outbox.table
        self.prefix = prefix
        self.confirm = confirm
        self.metrics = RelayMetrics()
        self._engine = engine
        self._batch_size = whole(batch_size, "batch_size", least=1, most=_MOST_ROWS_PER_BATCH)
        self._poll_s = milliseconds(poll_interval, "poll_interval", least=1) / 1000
        self._max_attempts = whole(max_attempts, "max_attempts", least=1)
        self._backoff = Backoff.of(
            Backoff.exponential(1000, jitter=0.5) if backoff is None else backoff
        )
        self._confirm_ms = milliseconds(confirm_interval, "confirm_interval", least=1)
        self._remember_ms = milliseconds(remember, "remember", least=1)
        self._keep_ms = milliseconds(keep, "keep")
        self._replicas = Replicas.of(replicas, replicas_timeout)
        if confirm:
            _check_memory(self._remember_ms, self._confirm_ms)
        Keys(prefix, "any")
        self._claim = Claim(
            relay=new_job_id(),
            limit=self._batch_size,
            lease_ms=milliseconds(lease, "lease", least=1000),
            halts=_halts(on_parked),
        )
        self._database = open_database(engine)
        self._listens = listens
        self._owns_connection = not isinstance(connection, Connection)
        self._connection = _connected(connection)
        self._agreeing = Agreeing(self._connection, prefix, partitions, asks=True)
        self._news = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._is_closing = False
        self._error: Exception | None = None
        self._looked_at: float | None = None
        self._next_chores = {"prune": 0.0, "stats": 0.0}
        if confirm:
            self._next_chores["confirm"] = 0.0

    @property
    def is_running(self) -> bool:
        return self._running is not None and not self._running.done() and not self._is_closing

    @property
    def server_error(self) -> Exception | None:
        """Why the database or the server could not be reached at the last try."""
        return self._error

    @property
    def last_reply_age(self) -> float | None:
        """How many seconds it is late in looking at the outbox again."""
        if self._looked_at is None:
            return None
        return max(0.0, time.monotonic() - self._looked_at - self._poll_s)

    def __repr__(self) -> str:
        return f"<Relay of {self.outbox!r} to {self._connection!r}>"

    # ------------------------------------------------------------------ running

    async def run(self) -> None:
        """Relay until ``close`` is called."""
        if self._running is not None or self._is_closing:
            raise InvalidOptionError("this relay was already started; make a new one")
        self._running = asyncio.ensure_future(self._loop())
        hearing = asyncio.ensure_future(self._hear())
        try:
            await asyncio.shield(self._running)
        except asyncio.CancelledError:
            await self.close(timeout=0)
            raise
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
            await self._release()

    async def close(self, timeout: Duration | None = None) -> None:
        """Finish the current batch within ``timeout``, and stop."""
        self._is_closing = True
        self._news.set()
        if self._running is None:
            await self._release()
            return
        limit_s = None if timeout is None else milliseconds(timeout, "timeout") / 1000
        await asyncio.wait([self._running], timeout=limit_s)
        if not self._running.done():
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def wake(self) -> None:
        """Look for rows now: for a service that writes rows and relays them itself."""
        self._news.set()

    async def _loop(self) -> None:
        pause_s = 0.0
        while not self._is_closing:
            self._news.clear()
            try:
                count = await self._run_some(until=min(self._next_chores.values()))
                await self._do_chores()
                pause_s, self._error, self._looked_at = 0.0, None, time.monotonic()
            except (ServerError, SQLAlchemyError, OSError) as error:
                self.metrics.errors += 1
                self._error = error
                pause_s = min(2 * pause_s or _SHORTEST_PAUSE_S, _LONGEST_PAUSE_S)
                logger.warning("%r will try again in %.1f s: %s", self, pause_s, error)
                await self._measure_in_trouble(error)
                await self._rest(pause_s * random.uniform(0.5, 1), is_deaf=True)
                continue
            if count < self._batch_size:
                await self._rest(self._poll_s * random.uniform(0.8, 1))

    async def _rest(self, seconds: float, *, is_deaf: bool = False) -> None:
        """Wait for news, or after an error until the time is over or the relay is closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
                while is_deaf and not self._is_closing:
                    self._news.clear()
                    await self._news.wait()

    async def _hear(self) -> None:
        if self._listens:
            await listen(self._engine, self.outbox.channel, self._news.set)

    async def _release(self) -> None:
        await self._database.close()
        if self._owns_connection:
            await self._connection.close()

    # ------------------------------------------------------------------ relaying

    async def run_once(self) -> int:
        """Relay one batch; returns how many rows it had."""
        return await _again_if_it_may_pass(self._run_once)

    async def _run_once(self) -> int:
        if storing.has_row_locks(self._database.dialect.name):
            async with self._database.transaction() as ask:
                rows = await ask(storing.claim_pending, self.table, self._claim)
                sent = await self._send(rows)
                await ask(self._write_down, sent)
        else:
            # Its one write lock must not be held while this loop does something else.
            rows = await self._database.run(storing.claim_pending, self.table, self._claim)
            sent = await self._send(rows)
            await self._database.run(self._write_down, sent)
        self._count(sent)
        for item in sent:
            if item.error is not None and _is_the_servers(item.error):
                raise item.error
        return len(rows)

    async def drain(self) -> int:
        """Relay until no row is due; returns how many there were."""
        total = 0
        while count := await self._run_some(until=math.inf):
            total += count
        return total

    async def _run_some(self, until: float) -> int:
        """One batch; if it was full, more of them until one is not or the time is over.

        They are then relayed two at a time: while the server adds the jobs of one, the database
        finds or marks the rows of the other.
        """
        total = await self.run_once()
        if total < self._batch_size or self._is_closing:
            return total
        legs = [self._run_on(until) for _ in range(self._database.most_transactions)]
        counts = await asyncio.gather(*legs, return_exceptions=True)
        for count in counts:
            if isinstance(count, BaseException):
                raise count
            total += count
        return total

    async def _run_on(self, until: float) -> int:
        total = 0
        while not self._is_closing:
            count = await self.run_once()
            total += count
            if count < self._batch_size or time.monotonic() >= until:
                break
        return total

    async def _send(self, rows: Sequence[OutboxRow]) -> list[Sent]:
        """Add the jobs of these rows in one round trip.

        Now and then a second one asks which queues have partitions.
        Each queue has its own calls, so on a cluster queues may be anywhere.
        """
        results: dict[int, Sent] = {}
        known: set[str] = set()
        held: set[tuple[str, str | None]] = set()
        packing = Packing()
        starting: list[tuple[OutboxRow, Start]] = []
        homes = await find_homes(self._agreeing, rows)
        for row in await self._sendable(rows, homes, results):
            if (row.queue, row.lane) in held:
                results[row.seq] = Sent(row, is_held=True)
                continue
            try:
                if kind_of(row) is not None:
                    starting.append((row, self._open_start(row, homes)))
                    continue
                queue = homes.queue_of(row)
                if queue not in known:
                    self._connection.check_slots(Keys(self.prefix, queue))
                    known.add(queue)
                packing.put(row, prepare(row, once_ms=self._remember_ms), queue)
            except Exception as error:  # noqa: BLE001 (no row may stop the others)
                fault = _fault_of(row, error)
                results[row.seq] = Sent(row, fault)
                if row.lane is not None and (self._claim.halts or not self._parks(row, fault)):
                    held.add((row.queue, row.lane))
        async for sent in self._send_parcels(packing.parcels, starting):
            lane = (sent.row.queue, sent.row.lane)
            if lane in held:
                # Refused because of the row before it, for a reason other than a full lane.
                results[sent.row.seq] = Sent(sent.row, is_held=True)
                continue
            results[sent.row.seq] = sent
            if sent.row.lane is not None and not (sent.is_in or sent.has_no_room):
                held.add(lane)
        return [results[row.seq] for row in rows]

    async def _sendable(
        self, rows: Sequence[OutboxRow], homes: Homes, results: dict[int, Sent]
    ) -> list[OutboxRow]:
        """The rows that can be sent now; the outcome of the others is already in ``results``."""
        for row in rows:
            refusal = homes.refused.get(row.queue)
            if isinstance(refusal, PartitionMismatchError | ServerError):
                results[row.seq] = Sent(row, refusal)
        left = [row for row in rows if row.seq not in results]
        try:
            there = await sent_before(self._connection, homes, self.prefix, left, self._remember_ms)
        except ServerError as error:
            results |= {row.seq: Sent(row, error) for row in left if homes.queues_before(row)}
            there = set()
        results |= {row.seq: Sent(row, is_duplicate=True) for row in left if row.seq in there}
        return [row for row in left if row.seq not in results]

    def _open_start(self, row: OutboxRow, homes: Homes) -> Start:
        start = open_start(
            row,
            self.prefix,
            once_ms=self._remember_ms,
            replicas=self._replicas,
            placing=homes.placing(row),
        )
        self._connection.check_slots(*start.queues)
        return start

    async def _send_parcels(
        self, parcels: Sequence[Parcel], starting: Sequence[tuple[OutboxRow, Start]] = ()
    ) -> AsyncIterator[Sent]:
        commands: list[Command[Any]] = [
            adding.add(
                Keys(self.prefix, parcel.queue),
                parcel.jobs,
                keeps_order=True,
                behind=parcel.behind,
                replicas=self._replicas,
            )
            for parcel in parcels
        ]
        commands += [start.command for _, start in starting]
        answers = await self._connection.run_each(commands) if commands else []
        for (row, _), answer in zip(starting, answers[len(parcels) :], strict=True):
            if isinstance(answer, Exception):
                yield Sent(row, answer)
            else:
                yield Sent(row, is_duplicate=answer)
        for parcel, answer in zip(parcels, answers, strict=False):
            if not isinstance(answer, Exception):
                for sent in _answered(parcel, answer):
                    yield sent
            elif len(parcel.rows) == 1 or _is_the_servers(answer):
                for row in parcel.rows:
                    yield Sent(row, answer)
            else:
                async for sent in self._send_one_by_one(parcel):
                    yield sent

    async def _send_one_by_one(self, parcel: Parcel) -> AsyncIterator[Sent]:
        """Send one by one, to find the row at fault; what follows it in its lane is held back."""
        held: set[str | None] = set()
        for row, job in zip(parcel.rows, parcel.jobs, strict=True):
            if row.lane in held:
                yield Sent(row, is_held=True)
                continue
            alone = Parcel(parcel.queue)
            alone.put(row, job)
            alone.behind = [last for last in parcel.behind if last.entry["lane"] == row.lane]
            async for sent in self._send_parcels([alone]):
                if not sent.is_in and row.lane is not None:
                    held.add(row.lane)
                yield sent

    def _write_down(self, connection: Any, sent: Sequence[Sent]) -> None:
        seqs = [item.row.seq for item in sent if item.is_in]
        storing.mark_dispatched(connection, self.table, seqs, self._confirm_ms)
        untouched = [item.row.seq for item in sent if item.is_untouched]
        # One node of a cluster may be down, and its rows must not hold up those of other nodes.
        wait_ms = _NODE_WAIT_MS if self._connection.is_cluster else 0
        storing.let_go(connection, self.table, untouched, wait_ms=wait_ms)
        for item in sent:
            if item.is_at_fault:
                assert item.error is not None
                self._put_off(connection, item.row, item.error)
        for error, seqs in (
            (_NO_ROOM, [item.row.seq for item in sent if item.has_no_room]),
            (_GROWS, [item.row.seq for item in sent if item.must_wait and not item.has_no_room]),
        ):
            storing.let_wait(connection, self.table, seqs, error=error, wait_ms=_PASSING_WAIT_MS)

    def _put_off(self, connection: Any, row: OutboxRow, error: Exception) -> None:
        made = row.attempts + 1
        parks = self._parks(row, error)
        storing.put_off(
            connection,
            self.table,
            row.seq,
            error=_told(error),
            wait_ms=min(self._backoff.wait_ms(made, random.random()), _LONGEST_WAIT_MS),
            parks=parks,
        )
        log = logger.error if parks else logger.warning
        what = "is parked" if parks else "will be retried"
        log("row %d of %r (job %s) %s: %s", row.seq, self.outbox, row.id, what, error)

    def _parks(self, row: OutboxRow, error: Exception | None) -> bool:
        """A row that is itself wrong will not be right later.

        A queue whose keys are in several slots may only need a relay with another prefix.
        """
        is_wrong = isinstance(error, InvalidInputError | GroupExistsError) and not isinstance(
            error, CrossSlotError
        )
        return is_wrong or row.attempts + 1 >= self._max_attempts

    def _count(self, sent: Sequence[Sent]) -> None:
        for item in sent:
            if item.is_in:
                self.metrics.dispatched += 1
                self.metrics.duplicates += item.is_duplicate
            elif item.is_untouched:
                continue
            elif item.has_no_room:
                self.metrics.lanes_full += 1
            elif item.must_wait:
                self.metrics.put_off += 1
            elif self._parks(item.row, item.error):
                self.metrics.parked += 1
            else:
                self.metrics.put_off += 1

    # ------------------------------------------------------------------ chores

    async def _do_chores(self) -> None:
        now = time.monotonic()
        if self.confirm and now >= self._next_chores["confirm"]:
            count = await self.confirm_once()
            is_behind = count >= self._batch_size
            self._next_chores["confirm"] = 0.0 if is_behind else now + self._confirm_ms / 4000
        if now >= self._next_chores["prune"]:
            count = await self.prune_once()
            is_behind = count >= _ROWS_PER_PRUNE
            self._next_chores["prune"] = 0.0 if is_behind else now + 60.0
        if now >= self._next_chores["stats"]:
            await self._measure()
            self._next_chores["stats"] = now + _STATS_EVERY_S

    async def confirm_once(self) -> int:
        """Check the state of dispatched jobs that are due; returns how many there were."""
        return await _again_if_it_may_pass(self._confirm_once)

    async def _confirm_once(self) -> int:
        if storing.has_row_locks(self._database.dialect.name):
            async with self._database.transaction() as ask:
                rows = await ask(storing.claim_dispatched, self.table, self._claim)
                fates, trouble = await self._fates(rows)
                await ask(self._write_fates, fates)
        else:
            rows = await self._database.run(storing.claim_dispatched, self.table, self._claim)
            fates, trouble = await self._fates(rows)
            await self._database.run(self._write_fates, fates)
        self._count_fates(fates)
        if trouble is not None:
            raise trouble
        return len(rows)

    async def _fates(
        self, rows: Sequence[OutboxRow]
    ) -> tuple[dict[Fate, list[int]], ServerError | None]:
        """The fate of these rows' jobs; if it cannot be found out now, ask again later."""
        homes = await find_homes(self._agreeing, rows)
        by_queue: dict[str, list[OutboxRow]] = defaultdict(list)
        fates: dict[Fate, list[int]] = defaultdict(list)
        trouble: ServerError | None = None
        for row in rows:
            refusal = homes.refused.get(row.queue)
            if isinstance(refusal, PartitionMismatchError | ServerError):
                fates[Fate.TO_RUN].append(row.seq)
                trouble = refusal if isinstance(refusal, ServerError) else trouble
                continue
            by_queue[homes.queue_of(row)].append(row)
        for queue, part in by_queue.items():
            try:
                answers = await self._ask_fates(Keys(self.prefix, queue), part, homes)
            except ServerError as error:
                if self._is_all_away(error):
                    raise
                trouble = error
                answers = [Fate.TO_RUN] * len(part)
            for row, fate in zip(part, answers, strict=True):
                fates[fate].append(row.seq)
        return fates, trouble

    async def _ask_fates(self, keys: Keys, rows: Sequence[OutboxRow], homes: Homes) -> list[Fate]:
        """The fates of jobs and roots of flows, by one call, and of groups, by their records."""
        of_groups = [row for row in rows if kind_of(row) == GROUP]
        of_jobs = [row for row in rows if kind_of(row) != GROUP]
        fates: dict[int, Fate] = {}
        if of_jobs:
            jobs = [(row.id, row.key) for row in of_jobs]
            answers = await self._connection.run(confirm(keys, jobs, remember_ms=self._remember_ms))
            fates.update(zip((row.seq for row in of_jobs), answers, strict=True))
        if of_groups:
            plan = fates_of_groups(keys, [row.id for row in of_groups])
            answers = await self._connection.follow(plan)
            fates.update(zip((row.seq for row in of_groups), answers, strict=True))
        for row in rows:
            # Added before its queue grew: it stays where it was.
            for name in homes.queues_before(row) if fates[row.seq] is Fate.LOST else ():
                there = Keys(self.prefix, name)
                [fates[row.seq]] = await self._ask_fates(there, [row], Homes())
                if fates[row.seq] is not Fate.LOST:
                    break
        return [fates[row.seq] for row in rows]

    def _is_all_away(self, error: Exception | None) -> bool:
        """Is there no point in asking about another queue?  On a cluster there is."""
        return isinstance(error, ServerUnavailableError) and not self._connection.is_cluster

    def _write_fates(self, connection: Any, fates: dict[Fate, list[int]]) -> None:
        finished = [*fates[Fate.FINISHED], *fates[Fate.GONE]]
        storing.mark_done(connection, self.table, finished)
        storing.look_again(connection, self.table, fates[Fate.TO_RUN], self._confirm_ms)
        storing.dispatch_again(connection, self.table, fates[Fate.LOST])

    def _count_fates(self, fates: dict[Fate, list[int]]) -> None:
        self.metrics.confirmed += len(fates[Fate.FINISHED]) + len(fates[Fate.GONE])
        if lost := fates[Fate.LOST]:
            self.metrics.dispatched_again += len(lost)
            logger.error("the server lost %d jobs; they will be dispatched again", len(lost))
            self._news.set()

    async def prune_once(self) -> int:
        """Delete old rows that are done; returns how many."""
        statuses = (DONE,) if self.confirm else (DISPATCHED, DONE)
        count: int = await self._database.run(self._prune, statuses)
        self.metrics.pruned += count
        return count

    def _prune(self, connection: Any, statuses: tuple[str, ...]) -> int:
        return storing.prune(
            connection, self.table, statuses, keep_ms=self._keep_ms, limit=_ROWS_PER_PRUNE
        )

    async def stats(self) -> OutboxStats:
        """How many rows are in each status, and how long the oldest pending one has waited."""
        stats: OutboxStats = await self._database.run(storing.stats, self.table)
        self._note(stats)
        return stats

    async def _measure(self) -> None:
        """Look how far it is, and whether the server is there: a relay without rows would not
        notice otherwise."""
        await self._count_rows()
        await self._connection.run(plain("PING", parse=bool))

    async def _measure_in_trouble(self, error: Exception) -> None:
        """Count the rows that wait for a server: whoever watches the lag has to see them."""
        looked_at = self.metrics.measured_at or 0.0
        if isinstance(error, ServerError) and time.monotonic() - looked_at >= _STATS_EVERY_S:
            with contextlib.suppress(SQLAlchemyError, OSError):
                await self._count_rows()

    async def _count_rows(self) -> None:
        """Count what is still to do: counting everything ever dispatched would be slow."""
        self._note(await self._database.run(storing.stats, self.table, (PENDING, PARKED)))

    def _note(self, stats: OutboxStats) -> None:
        self.metrics.measured_at = time.monotonic()
        self.metrics.depth, self.metrics.lag_ms = stats.pending, stats.lag_ms
        self.metrics.parked_now = stats.parked

    async def get_parked(self, limit: int = 100) -> list[OutboxRow]:
        """The rows that could not be dispatched, with their errors."""
        rows: list[OutboxRow] = await self._database.run(storing.get_parked, self.table, limit)
        return rows

    async def unpark(self, *job_ids: str) -> int:
        """Give parked rows another chance: those with these ids, or all; returns how many."""
        count: int = await self._database.run(storing.unpark, self.table, list(job_ids))
        self._news.set()
        return count

    async def discard(self, *job_ids: str, queue: str | None = None) -> int:
        """Delete parked rows with these ids, so that their lanes continue; returns how many.

        If rows of several queues have one of these ids, nothing is deleted without ``queue``.
        """
        ids = list(job_ids)
        count: int = await self._database.run(storing.discard, self.table, ids, queue)
        self._news.set()
        return count


def _check_memory(remember_ms: int, confirm_ms: int) -> None:
    if remember_ms < 10 * confirm_ms:
        raise InvalidOptionError(
            f"remember={remember_ms} ms is too short for confirm_interval={confirm_ms} ms: a job"
            f" that ran and was removed in between would be considered lost and run again; make it"
            f" at least ten times as long"
        )


def _halts(on_parked: str) -> bool:
    if on_parked not in ("halt", "skip"):
        raise InvalidOptionError(f"on_parked={on_parked!r} must be 'halt' or 'skip'")
    return on_parked == "halt"


def _connected(target: Target) -> Connection:
    """Rows stay claimed while it waits for the server, so this is a short wait."""
    return target if isinstance(target, Connection) else Connection(target, patience_s=2.0)


def _answered(parcel: Parcel, answers: Sequence[Added | Exception]) -> list[Sent]:
    return [
        Sent(row, answer)
        if isinstance(answer, Exception)
        else Sent(row, is_duplicate=answer.is_duplicate)
        for row, answer in zip(parcel.rows, answers, strict=True)
    ]


def _fault_of(row: OutboxRow, error: Exception) -> Exception:
    """What we refuse is known; any other error also means that the row is wrong."""
    if isinstance(error, TorilError):
        return error
    return InvalidOptionError(f"outbox row {row.seq} cannot be a job: {_told(error)}")


def _told(error: Exception) -> str:
    """What is wrong, as text that every database takes: it may repeat what is in the row."""
    words = codec.words_of(error).replace("\0", "\\x00")
    return f"{type(error).__name__}: {words}"


async def _again_if_it_may_pass(step: Callable[[], Awaitable[T]]) -> T:
    """Repeat a step that conflicted with another transaction, or whose connection had died.

    The server knows the jobs that it has already added, and does not add them twice.
    """
    for _ in range(MOST_TRIES - 1):
        try:
            return await step()
        except DBAPIError as error:
            if not is_passing(error):
                raise
    return await step()
