"""Taking jobs by hand: for code that calls the queue, instead of being called by a worker.

The outcome of a job is decided and written as for a worker's handlers, by ``settling.decide`` and
the settle script.  The calls of one manual worker are numbered and made one after another.  A call
whose reply was lost stays open and is sent again before the next one, so that a job is neither
taken nor settled twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
import weakref
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from toril.checking import checked
from toril.client.background import Background, is_set_within
from toril.client.connection import Connection, Target
from toril.client.ids import new_worker_id
from toril.client.sockets import REPLY_TIMEOUT_S
from toril.client.taken_job import TakenJob
from toril.errors import (
    AmbiguousResultError,
    FailedChildrenError,
    InvalidOptionError,
    JobNotInStateError,
    LockLostError,
    PendingChildrenError,
    RefusedError,
    ServerError,
    ServerUnavailableError,
    TorilError,
    UnrecoverableError,
)
from toril.logs import get_logger
from toril.options import BackoffStrategy, Duration, Keep, RateLimit, WorkerOptions, milliseconds
from toril.protocol import lanes, leasing, scheduling, settling
from toril.protocol.burying import BurialPolicy, grave_of
from toril.protocol.command import Command
from toril.protocol.job import Fields, fields_of
from toril.protocol.keys import Keys
from toril.protocol.reading import worker_name as connection_name
from toril.protocol.settling import (
    Attempt,
    Outcome,
    Policy,
    Raised,
    Released,
    Reply,
    Settled,
    Take,
)

logger = get_logger("toril.client")

LONGEST_WAIT_MS = 10_000
_PLAIN_FIELDS: tuple[bytes, ...] = (b"name", b"ats", b"atm")
"""What can be read of a damaged job."""


@checked
class ManualWorker:
    """Takes jobs from queue ``name`` one by one, for you to complete or fail.

    The locks of taken jobs are renewed for as long as you hold the jobs, unless ``renew`` is False:
    then call ``job.extend_lock(ms)`` before ``lock_duration`` is over.  The other options are those
    of ``Worker``.  Tasks, and threads in ``toril.sync``, may share one.
    """

    def __init__(
        self,
        name: str,
        *,
        connection: Target = None,
        prefix: str = "bull",
        lock_duration: Duration = 30_000,
        renew: bool = True,
        stalled_interval: Duration = 30_000,
        max_stalled_count: int = 1,
        max_started_attempts: int | None = None,
        drain_delay: Duration = 5_000,
        worker_name: str | None = None,
        limiter: RateLimit | None = None,
        remove_on_complete: bool | int | Keep | None = None,
        remove_on_fail: bool | int | Keep | None = None,
        backoff_strategy: BackoffStrategy | Mapping[str, BackoffStrategy] | None = None,
        metrics_points: int | None = None,
        dead_letter_queue: Any = None,
    ) -> None:
        self.options = WorkerOptions(
            lock_duration=lock_duration,
            stalled_interval=stalled_interval,
            max_stalled_count=max_stalled_count,
            max_started_attempts=max_started_attempts,
            drain_delay=drain_delay,
            name=worker_name,
            limiter=limiter,
            remove_on_complete=remove_on_complete,
            remove_on_fail=remove_on_fail,
            metrics_points=metrics_points,
        )
        self.id = new_worker_id()
        self.name = name
        self.keys = Keys(prefix, name)
        burial, self._grave = _burial(dead_letter_queue, self.keys)
        self._policy = Policy(
            keep_completed=_keep(self.options.remove_on_complete),
            keep_failed=_keep(self.options.remove_on_fail),
            max_started_attempts=max_started_attempts,
            backoff_strategy=backoff_strategy,
            dead_letters=burial,
        )
        self._lock_ms = self.options.lock_ms
        self._connection = _own_connection(connection)
        self._connection.check_slots(self.keys, *([self._grave] if self._grave else []))
        self._blocking = self._connection.twin(client_name=connection_name(self.keys, worker_name))
        self._renews = renew
        self._interval_s = self._lock_ms / 3000
        self._renewer = _renewer(self._connection, self._interval_s)
        self._renewing = Background(self._renew, self._renewer, f"the locks of queue {name!r}")
        self._closing = asyncio.Event()
        self._turn = asyncio.Lock()
        self._request = 0
        self._open: tuple[Command[Reply], str, Settled | None] | None = None
        self._arrived: deque[TakenJob] = deque()
        # The lock of a job that nobody refers to any more is not renewed: it returns to the queue.
        self._held: weakref.WeakValueDictionary[str, TakenJob] = weakref.WeakValueDictionary()
        self._next_sweep = 0.0

    def __repr__(self) -> str:
        return f"<ManualWorker of queue {self.name!r} on {self._connection!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------ taking

    async def get_next_job(self, timeout: Duration | None = None) -> TakenJob | None:
        """Take the next job; None if there is none within ``timeout`` (0 does not wait at all).

        Without a timeout it waits until a job comes; after ``close`` it returns None.  If the
        server does not answer it raises ``ServerError``, and the next call returns the job that
        may have been taken.
        """
        deadline = math.inf
        if timeout is not None:
            deadline = time.monotonic() + milliseconds(timeout, "timeout") / 1000
        while not self._closing.is_set():
            await self._sweep_when_due()
            job, wait_ms, is_limited = await self._take()
            if job is not None:
                if await self._may_run(job):
                    return job
                continue
            now = time.monotonic()
            if now >= deadline or self._closing.is_set():
                return None
            wait_s = max(0.0, min(deadline - now, wait_ms / 1000, self._next_sweep - now))
            if is_limited:
                await asyncio.sleep(wait_s)
            else:
                await self._wait_for_marker(max(1, int(wait_s * 1000)))
        return None

    async def _take(self) -> tuple[TakenJob | None, int, bool]:
        """A job, or how long to wait for one, and whether a rate limit is the reason."""
        async with self._turn:
            if self._closing.is_set():
                return None, 0, False
            await self._answer_open()
            if self._arrived:
                return self._arrived.popleft(), 0, False
            reply = await self._call(None, 1)
            if self._arrived:
                return self._arrived.popleft(), 0, False
        if reply.rate_limit_ms > 0:
            return None, min(reply.rate_limit_ms, LONGEST_WAIT_MS), True
        if reply.next_due_ms:
            return None, min(max(1, reply.next_due_ms - reply.now_ms), LONGEST_WAIT_MS), False
        return None, self.options.drain_delay_ms, False

    async def _wait_for_marker(self, block_ms: int) -> None:
        try:
            await self._blocking.run(leasing.wait_for_marker(self.keys, block_ms=block_ms))
        except BaseException as error:
            if isinstance(error, ServerError) and self._closing.is_set():
                return
            # Whoever pops the marker must take a job, or nobody else is woken.
            with contextlib.suppress(TorilError):
                await self._connection.run(settling.leave(self.keys, [f"{self.id}-w"]))
            raise

    async def _may_run(self, job: TakenJob) -> bool:
        """Do what a worker does before it runs a job; False if the job must not run."""
        try:
            # Whatever becomes of this job, its schedule goes on.
            refusal = None if job.scheduler_id is None else await self._advance(job)
            refusal = refusal or self._refusal_to_run(job)
            if refusal is not None:
                await self._settle(job, refusal)
                return False
            if job.is_suspect:
                # It may have killed its last worker: the server must know that it arrived here.
                async with self._turn:
                    await self._answer_open()
                    await self._call(None, 0)
        except RefusedError:
            return False
        except Exception as error:
            if isinstance(error, (ServerUnavailableError, AmbiguousResultError)):
                self._put_back(job)
                raise
            # The same would happen again: leave it to the sweep, which eventually gives it up.
            logger.exception("job %r can neither be handed out nor failed", job.id)
            return False
        except BaseException:
            self._put_back(job)
            raise
        return True

    def _put_back(self, job: TakenJob) -> None:
        """The next call continues with it."""
        if not job.is_settled:
            self._arrived.appendleft(job)

    def _refusal_to_run(self, job: TakenJob) -> Raised | None:
        if job.damage is not None:
            return Raised(UnrecoverableError(f"job {job.id!r} cannot be read: {job.damage}"))
        return settling.refusal_to_run(job, self._policy.max_started_attempts)

    async def _advance(self, job: TakenJob) -> Raised | None:
        """Create the next job of the schedule before this one runs."""
        now_ms = job.processed_on or 0
        try:
            await self._connection.follow(scheduling.advance(self.keys, job, now_ms))
        except ServerError:
            raise
        except TorilError as error:
            return Raised(error)
        return None

    # ------------------------------------------------------------------ settling

    async def _settle(self, job: TakenJob, attempt: Attempt) -> None:
        async with self._turn:
            await self._answer_open()
            if job.is_settled or (job.code is not None and type(job.attempt) is not type(attempt)):
                job.is_settled = True
                raise JobNotInStateError(
                    f"job {job.id!r} was already settled; take the next one with get_next_job()"
                )
            if job.code is None:
                job.attempt = attempt
                await self._write(
                    job, settling.decide(job, attempt, self._policy, dice=random.random())
                )
            code, job.code = job.code, None
            while isinstance(code, int) and code > 0:
                await self._write(job, settling.nothing_to_wait_for(code))
                code, job.code = job.code, None
            error: TorilError | None = None
            if isinstance(code, list):
                error = settling.damage(job.id, code)
                outcome = settling.decide(job, Raised(error), self._policy, dice=0.0)
                await self._write(job, outcome)
                code, job.code = job.code, None
            elif isinstance(code, int) and code < 0:
                error = settling.refusal(code, job.id)
            if isinstance(error, (PendingChildrenError, FailedChildrenError)):
                raise error
            job.is_settled = True
            self._held.pop(job.token, None)
            job.is_lost = isinstance(error, LockLostError)
            if error is not None:
                raise error
        if isinstance(code, bytes) and job.opts.lane and job.opts.on_exhausted == "divert":
            await self._divert()

    async def _write(self, job: TakenJob, outcome: Outcome) -> None:
        await self._call(Settled(job.id, job.token, outcome, job), 0)

    async def _divert(self) -> None:
        """Send the rest of a lane to the dead letters; if that fails, a sweep does it."""
        with contextlib.suppress(TorilError):
            await self._connection.follow(lanes.divert(self.keys))

    # ------------------------------------------------------------------ one call after another

    async def _call(self, item: Settled | None, count: int) -> Reply:
        self._request += 1
        token = f"{self.id}:{self._request}"
        take = Take(
            count=count,
            token=token,
            lock_ms=self._lock_ms,
            worker_name=self.options.name,
            limiter=self.options.limiter,
            metrics_points=self.options.metrics_points,
        )
        command = settling.settle(
            self.keys,
            [] if item is None else [item],
            take,
            flight=self.id,
            request=self._request,
            dead_letters=self._grave,
        )
        self._open = (command, token, item)
        return await self._answer()

    async def _answer_open(self) -> None:
        """Find out the result of a call whose reply was lost, by repeating it."""
        if self._open is not None:
            await self._answer()

    async def _answer(self) -> Reply:
        assert self._open is not None
        command, token, item = self._open
        try:
            reply = await self._connection.run(command)
        except (ServerUnavailableError, AmbiguousResultError):
            raise
        except Exception:
            self._open = None  # an error answer: sending it again would not change it
            raise
        self._open = None
        for words in reply.jobs:
            job = self._read(words, token)
            for older in self._held.values():
                older.is_lost = older.is_lost or older.id == job.id
            self._arrived.append(job)
            self._held[token] = job
            if self._renews and not self._renewing.is_running:
                self._renewing.start()
        if item is not None:
            assert isinstance(item.job, TakenJob)
            item.job.code = reply.results[0]
        return reply

    def _read(self, words: list[Any], token: str) -> TakenJob:
        """The job, or what can be read of it: then it fails, without holding up others."""
        job_id = words.pop().decode("utf-8", "surrogateescape")
        fields = fields_of(words)
        try:
            return TakenJob(self, job_id, fields, token)
        except Exception as error:  # noqa: BLE001 (nothing that is stored may stop its reader)
            readable: Fields = {name: fields[name] for name in _PLAIN_FIELDS if name in fields}
            job = TakenJob(self, job_id, readable, token)
            job.damage = error
            return job

    # ------------------------------------------------------------------ in the background

    async def _renew(self) -> None:
        wait_s = self._interval_s
        while not await is_set_within(self._closing, wait_s):
            try:
                await self._renew_once()
                wait_s = self._interval_s
            except Exception as error:  # noqa: BLE001 (if this ended, every lock would be lost)
                if not self._closing.is_set():
                    logger.warning("the locks of taken jobs cannot be renewed: %s", error)
                wait_s = min(0.2, self._interval_s / 4)

    async def _renew_once(self) -> None:
        jobs = {job.id: job for job in list(self._held.values()) if not job.is_lost}
        locks = [(job.id, job.token) for job in jobs.values()]
        if not locks:
            return
        renewal = await self._renewer.run(leasing.renew(self.keys, locks, lock_ms=self._lock_ms))
        for job_id in renewal.lost:
            jobs[job_id].is_lost = not jobs[job_id].is_settled
        for job_id, reason in renewal.cancelled:
            jobs[job_id].cancel_reason = reason

    async def _sweep_when_due(self) -> None:
        """Bring back the jobs of workers that died, as every worker does."""
        if time.monotonic() < self._next_sweep:
            return
        interval_ms = self.options.stalled_interval_ms
        self._next_sweep = time.monotonic() + interval_ms / 1000
        plan = leasing.sweep(
            self.keys, interval_ms=interval_ms, max_stalled=self.options.max_stalled_count
        )
        try:
            await self._connection.follow(plan)
        except TorilError as error:
            logger.warning("cannot search for stalled jobs: %s", error)

    # ------------------------------------------------------------------ the end

    async def close(self) -> None:
        """Hand back the jobs that are still held, and close the connections."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._blocking.interrupt()
        try:
            async with self._turn:
                await self._answer_open()
            for job in list(self._held.values()):
                if not job.is_settled and not job.is_lost:
                    released = Released(is_begun=job not in self._arrived)
                    with contextlib.suppress(RefusedError):
                        await self._settle(job, released)
            await self._connection.run(settling.leave(self.keys, [self.id]))
        except TorilError as error:
            logger.warning(
                "a manual worker of queue %r stops while its server does not answer; the jobs that"
                " it holds come back when their locks expire: %s",
                self.name,
                error,
            )
        finally:
            try:
                await self._renewing.stop()
            finally:
                await self._blocking.close()
                await self._connection.close()


def _own_connection(target: Target) -> Connection:
    if isinstance(target, Connection):
        raise InvalidOptionError(
            "a manual worker needs its own connections; pass a URL or a client"
        )
    return Connection(target)


def _renewer(connection: Connection, interval_s: float) -> Connection:
    """Leaves a line that went silent while there is still time to renew the locks on another."""
    return connection.twin(reply_timeout_s=min(REPLY_TIMEOUT_S, interval_s), patience_s=0.0)


def _burial(dead_letter_queue: Any, keys: Keys) -> tuple[BurialPolicy | None, Keys | None]:
    """What happens to jobs that failed for good, and the queue they go to."""
    if dead_letter_queue is None:
        return None, None
    letters, grave = grave_of(dead_letter_queue, keys)
    if letters.on_dead_letter is not None:
        raise InvalidOptionError(
            "on_dead_letter is called by a Worker only; a ManualWorker's caller knows what it"
            " failed"
        )
    kept = BurialPolicy(include_stalled=letters.include_stalled, keep_source=letters.keep_source)
    return kept, grave


def _keep(value: bool | int | Keep | None) -> Keep | None:
    return None if value is None else Keep.of(value)
