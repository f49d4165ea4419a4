"""The worker: takes jobs from one queue and runs their handlers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from toril.checking import checked
from toril.client.connection import Connection, Target
from toril.client.ids import new_worker_id
from toril.errors import InvalidOptionError, ServerUnusableError, TorilError
from toril.logs import get_logger
from toril.options import (
    BackoffStrategy,
    Duration,
    Keep,
    RateLimit,
    WorkerOptions,
    milliseconds,
)
from toril.protocol import eviction, settling
from toril.protocol.command import plain
from toril.protocol.job import StoredJob
from toril.protocol.keys import Keys
from toril.protocol.reading import worker_name as connection_name
from toril.protocol.settling import Attempt, Policy, Take
from toril.sync.connection import Connection as BlockingConnection
from toril.worker.active_job import ActiveJob
from toril.worker.attempt import perform
from toril.worker.burial import Burial, BurialTarget
from toril.worker.child import refuse_in_child
from toril.worker.crew import GRACE_S, Crew
from toril.worker.events import Callback, Emitter
from toril.worker.executors import Executor, LocalExecutor
from toril.worker.flight import Flight
from toril.worker.group_keeper import GroupKeeper, owners_of
from toril.worker.handlers import Handler, Middleware, Router, wrap
from toril.worker.lease import Lease
from toril.worker.processes import ProcessExecutor
from toril.worker.pump import Pump
from toril.worker.recover import Sweeper
from toril.worker.schedules import Advancer
from toril.worker.watch import Watch
from toril.worker.writer import JobWriter

logger = get_logger("toril.worker")

SILENCE_S = 2.0
REFUSED_FOR_S = 30.0
"""For how long a server that has served before may refuse for good: somebody may be mending it."""

IsFinal = Callable[[StoredJob, BaseException], bool]
"""``(job, error)``: is there no use in trying again after this error?"""


@checked
class Worker:
    """Runs the jobs of queue ``name`` with ``handler``, up to ``concurrency`` at a time.

    ``handler`` is a function of a job or a ``Router``.  ``await worker.run()`` runs until
    ``worker.close()``; ``toril.run(worker)`` does so from a script and minds SIGTERM.
    """

    def __init__(
        self,
        name: str,
        handler: Handler | Router | str,
        *,
        connection: Target = None,
        prefix: str = "bull",
        concurrency: int = 1,
        lock_duration: Duration = 30_000,
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
        executor: str = "local",
        middleware: Sequence[Middleware] = (),
        dead_letter_queue: BurialTarget = None,
        is_final: IsFinal | None = None,
    ) -> None:
        _check_strategy(backoff_strategy)
        self.options = WorkerOptions(
            concurrency=concurrency,
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
        self.handler = handler
        self.target = connection
        """Where its jobs are, as it was told."""
        self.keys = Keys(prefix, name)
        if isinstance(connection, Connection):
            raise InvalidOptionError(
                "a worker needs connections of its own; pass a URL or a client"
            )
        self._burial = None if dead_letter_queue is None else Burial(dead_letter_queue, self.keys)
        policy = Policy(
            keep_completed=_keep(self.options.remove_on_complete),
            keep_failed=_keep(self.options.remove_on_fail),
            max_started_attempts=max_started_attempts,
            backoff_strategy=backoff_strategy,
            is_final=is_final,
            dead_letters=None if self._burial is None else self._burial.policy,
        )
        self._connection = Connection(connection, patience_s=1.0)
        self._connection.check_slots(self.keys, *([self._burial.keys] if self._burial else []))
        self._blocking = Connection(connection, client_name=self._client_name(), patience_s=0.0)
        self._executor: Executor = _make_executor(executor, handler, concurrency)
        run: Any = self._executor.run
        self._handle = wrap(run, middleware)
        self._writer = JobWriter(self._connection, self.keys, self._on_progress)
        self._emitter = Emitter()
        self._crew = Crew(
            self.keys, self._perform, policy, self._writer, self._emitter, self._burial
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._services: list[asyncio.Task[Any]] = []
        self._is_paused = False
        self._interrupting: asyncio.Task[None] | None = None
        self._has_started = False
        self._hurry = asyncio.Event()
        self._closed: asyncio.Event = asyncio.Event()
        self._death: BaseException | None = None
        self._server_error: tuple[float, Exception] | None = None
        self._refused_since: float | None = None
        self._closing: asyncio.Task[None] | None = None

        lock_ms = self._lock_ms()
        flights = [
            Flight(
                self._connection,
                self.keys,
                f"{self.id}-{number}",
                dead_letters=None if self._burial is None else self._burial.keys,
                keep_letters=None if self._burial is None else self._burial.keep,
                on_error=self._on_server_error,
            )
            for number in range(1 if concurrency < 4 else 2)
        ]
        waiting_flight = Flight(
            self._blocking, self.keys, f"{self.id}-w", on_error=self._on_server_error
        )
        self._flights = [*flights, waiting_flight]
        self._pump = self._crew.pump = Pump(
            self._crew,
            flights,
            waiting_flight,
            concurrency=concurrency,
            worker_id=self.id,
            make_take=self._make_take,
        )
        self._watch = Watch(
            self._pump,
            drain_delay_ms=_ms(self.options.drain_delay),
            introduce=self._introduce,
        )
        self._keeper = self._crew.keeper = GroupKeeper(self._connection, owners_of(self.keys))
        self._sweeper = self._crew.sweeper = Sweeper(
            self._connection,
            self.keys,
            interval_ms=_ms(self.options.stalled_interval),
            max_stalled=max_stalled_count,
            on_stalled=lambda job_id: self._emitter.emit("stalled", job_id),
        )
        self._advancer = Advancer(
            self._connection,
            self.keys,
            now_ms=lambda: self._pump.server_ms,
            on_error=self._on_server_error,
        )
        self._lease = self._crew.lease = Lease(
            lambda: BlockingConnection(
                connection,
                patience_s=0.0,
                reply_timeout_s=min(5.0, lock_ms / 3000),
                blocking_margin_s=min(2.0, lock_ms / 3000),
            ),
            self.keys,
            self.id,
            lock_ms=lock_ms,
            on_lost=self._on_lost_in_thread,
            on_cancel=self._on_cancel_in_thread,
            is_wanted=self._is_loop_open,
        )

    def __repr__(self) -> str:
        return f"<Worker of queue {self.name!r} on {self._connection!r}>"

    # ------------------------------------------------------------------ running

    async def run(self) -> None:
        """Take and run jobs until ``close`` is called.

        When the task that awaits this is cancelled, running jobs are stopped and handed back.
        Raises ``ServerUnusableError`` when the server can never serve: a wrong password, missing
        rights, a version that is too old, a replica.
        """
        await self.start()
        try:
            await self._closed.wait()
        except asyncio.CancelledError:
            await self.close(timeout=0)
            raise
        if self._death is not None:
            await self.close(timeout=0)
            raise self._death

    async def start(self) -> None:
        """Begin to take jobs, and return."""
        if self._has_started:
            raise InvalidOptionError("this worker has been started already; make a new one")
        if self._closing is not None:
            raise InvalidOptionError("this worker is closed; make a new one")
        refuse_in_child()
        self._has_started = True
        self._loop = asyncio.get_running_loop()
        self._lease.start()
        for service in (
            self._pump.run(),
            self._watch.run(),
            self._sweeper.run(),
            self._sweeper.run_diversions(),
            self._keeper.run(),
        ):
            task = asyncio.create_task(service)
            task.add_done_callback(self._on_service_end)
            self._services.append(task)
        self._emitter.emit("ready")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(timeout=0 if error_type is asyncio.CancelledError else None)

    async def close(self, timeout: Duration | None = None) -> None:
        """Take nothing more, let running jobs finish within ``timeout``, hand the rest back.

        Without a timeout running jobs may take as long as they need. A second call can only shorten
        the limit: ``close(timeout=0)`` ends a patient one.
        """
        limit_s = None if timeout is None else milliseconds(timeout, "timeout") / 1000
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        if limit_s is not None:
            asyncio.get_running_loop().call_later(limit_s, self._hurry.set)
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self._wind_down()
        finally:
            self._closed.set()

    async def _wind_down(self) -> None:
        self._emitter.emit("closing")
        self._pump.stop_taking()
        if self._has_started:
            doubting = asyncio.create_task(self._hurry_when_nobody_answers())
            # Nothing can be asked of a server that refuses everything.
            grace_s = 0 if isinstance(self._death, ServerUnusableError) else GRACE_S
            pump, *others = self._services
            for service in others:
                service.cancel()
            await self._unless_hurried(asyncio.wait(others), grace_s=grace_s)
            for service in others:
                service.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self._unless_hurried(self._crew.finish())
            await self._crew.release()
            self._pump.close()
            has_settled = await self._unless_hurried(asyncio.wait([pump]), grace_s=grace_s)
            if not has_settled:
                logger.warning(
                    "the worker of queue %r ends while its server does not answer; it holds %d"
                    " jobs, which others take over when their locks expire",
                    self.name,
                    self._pump.running,
                )
                pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)
            if has_settled:
                await self._unless_hurried(self._say_goodbye(), grace_s=grace_s)
            doubting.cancel()
            await asyncio.to_thread(self._lease.close)
        await self._executor.close()
        await self._connection.close()
        await self._blocking.close()
        self._emitter.emit("closed")
        await self._emitter.drain()

    async def _hurry_when_nobody_answers(self) -> None:
        """The time limit of ``close`` is for jobs: without any, a silent server gets little of it.

        A call that is away may have taken jobs which nobody will run; a sweep brings them back.
        """
        while not self._hurry.is_set():
            heard_at = self._pump.last_reply_at
            await asyncio.sleep(SILENCE_S if heard_at else 0)
            if not self._pump.running and self._pump.last_reply_at == heard_at:
                self._hurry.set()
            await asyncio.sleep(0.05)

    async def _unless_hurried(self, work: Coroutine[Any, Any, Any], grace_s: float = 0) -> bool:
        """Wait for ``work``, at most until ``grace_s`` after the time limit of ``close``."""
        task = asyncio.create_task(work)
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait([task, hurry], return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and grace_s:
            await asyncio.wait([task], timeout=grace_s)
        is_done = task.done()
        for one in (task, hurry):
            one.cancel()
        await asyncio.gather(task, hurry, return_exceptions=True)
        return is_done

    async def _say_goodbye(self) -> None:
        try:
            flights = [flight.name for flight in self._flights]
            await self._connection.run(settling.leave(self.keys, flights))
        except TorilError as error:
            logger.warning("the traces of a worker of queue %r remain: %s", self.name, error)

    def pause(self) -> None:
        """Take nothing until ``resume``; running jobs go on."""
        self._is_paused = True
        self._pump.stop_taking()
        if self._loop is not None:
            self._interrupting = self._loop.create_task(self._watch.interrupt())

    def resume(self) -> None:
        """Take jobs again, after ``pause``."""
        self._is_paused = False
        if self._closing is None:
            self._pump.resume_taking()

    # ------------------------------------------------------------------ looking

    @property
    def dead_letter_queue(self) -> str | None:
        """The name of the queue that takes the jobs that failed for good."""
        return None if self._burial is None else self._burial.keys.name

    @property
    def is_running(self) -> bool:
        return self._has_started and not self._closed.is_set()

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    @property
    def is_processing(self) -> bool:
        """Is a job running right now?"""
        return bool(self._crew.jobs)

    @property
    def current_jobs(self) -> list[ActiveJob]:
        return self._crew.jobs

    def current_job(self) -> tuple[ActiveJob, int] | None:
        """The job that has been running longest, and for how many ms; None when idle."""
        jobs = self._crew.jobs
        if not jobs:
            return None
        job = min(jobs, key=lambda job: job.processed_on or 0)
        return job, max(0, round(time.time() * 1000) - (job.processed_on or 0))

    @property
    def last_reply_age(self) -> float | None:
        """Seconds since the server last answered the pump: what a health check should look at."""
        if not self._pump.last_reply_at or self._loop is None:
            return None
        return self._loop.time() - self._pump.last_reply_at

    @property
    def server_error(self) -> Exception | None:
        """Why the server could not be reached, if it has not answered since."""
        if self._server_error is None or self._pump.last_reply_at > self._server_error[0]:
            return None
        return self._server_error[1]

    @property
    def abandoned_threads(self) -> int:
        """How many plain handlers still run although their jobs failed by their ``timeout``."""
        return self._executor.abandoned

    @property
    def dead_lettered(self) -> int:
        """How many jobs this worker has sent to the dead letters."""
        return 0 if self._burial is None else self._burial.count

    def on(self, event: str, callback: Callback) -> None:
        """Call ``callback`` at a local event: active, completed, failed, deadLettered, progress,
        stalled, lost, error, drained, closed …"""
        self._emitter.on(event, callback)

    # ------------------------------------------------------------------ one job

    async def _perform(self, job: ActiveJob) -> Attempt:
        if job.scheduler_id is not None:
            failure = await self._advancer.advance(job)
            if failure is not None:
                return failure
        return await perform(
            self._handle, job, max_started_attempts=self.options.max_started_attempts
        )

    def _make_take(self, count: int, token: str) -> Take:
        return Take(
            count=count,
            token=token,
            lock_ms=self._lock_ms(),
            worker_name=self.options.name,
            limiter=self.options.limiter,
            metrics_points=self.options.metrics_points,
        )

    # ------------------------------------------------------------------ what others tell us

    def _is_loop_open(self) -> bool:
        """Whoever forgets to close a worker must not hold its jobs for ever."""
        return self._loop is not None and not self._loop.is_closed()

    def _on_lost_in_thread(self, job_id: str, token: str) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._crew.lose, job_id, token)

    def _on_cancel_in_thread(self, job_id: str, token: str, reason: str) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._crew.cancel, job_id, token, reason)

    def _on_progress(self, job: ActiveJob, value: Any) -> None:
        if self._emitter.has("progress"):
            self._emitter.emit("progress", job, value)

    def _on_server_error(self, error: Exception) -> None:
        self._server_error = (asyncio.get_running_loop().time(), error)
        self._emitter.emit("error", error)
        if isinstance(error, ServerUnusableError) and self._is_refused_for_good():
            logger.critical("the worker of queue %r ends: %s", self.name, error)
            self._die(error)
            return
        logger.warning("the worker of queue %r waits for its server: %s", self.name, error)

    def _is_refused_for_good(self) -> bool:
        """Has the server never served, or refused for so long that nobody seems to mend it?"""
        heard_at = self._pump.last_reply_at
        if not heard_at:
            return True
        now = asyncio.get_running_loop().time()
        if self._refused_since is None or heard_at > self._refused_since:
            self._refused_since = now
        return now - self._refused_since >= REFUSED_FOR_S

    def _die(self, error: BaseException) -> None:
        if self._closing is None and self._death is None:
            self._death = error
            self._closed.set()

    def _on_service_end(self, task: asyncio.Task[Any]) -> None:
        """Services end only when told to; anything else is a bug that must not go unseen.

        A worker that goes on without what wakes it or brings back stalled jobs looks healthy.
        """
        if task.cancelled() or task.exception() is None or self._closing is not None:
            return
        logger.critical("the worker of queue %r stopped", self.name, exc_info=task.exception())
        error = task.exception()
        assert error is not None
        self._emitter.emit("error", error)
        self._die(error)

    def _lock_ms(self) -> int:
        return _ms(self.options.lock_duration)

    async def _introduce(self) -> None:
        """Be among the queue's workers from the start, also of one who never has to wait for jobs.

        The connection that has the worker's name is the one that waits.
        """
        with contextlib.suppress(TorilError):
            await self._blocking.run(plain("PING", parse=bool, near=self.keys.marker))
            await self._warn_of_eviction()

    async def _warn_of_eviction(self) -> None:
        """What is acknowledged and then evicted is lost, and nothing else would tell of it."""
        policy = await self._blocking.run(eviction.policy(self.keys))
        if harm := eviction.harm(policy):
            logger.warning(
                "the server of queue %r has maxmemory-policy %r: when its memory is full %s;"
                " set it to noeviction, and keep caches on another server",
                self.name,
                policy,
                harm,
            )

    def _client_name(self) -> str:
        """The name under which BullMQ's tools list workers."""
        return connection_name(self.keys, self.options.name)


def _keep(value: bool | int | Keep | None) -> Keep | None:
    return None if value is None else Keep.of(value)


def _ms(value: Duration) -> int:
    return milliseconds(value, "duration")


def _make_executor(executor: str, handler: Handler | Router | str, concurrency: int) -> Executor:
    if executor == "process":
        return ProcessExecutor(handler, processes=concurrency)
    if executor != "local":
        raise InvalidOptionError(f"executor={executor!r} is not known; use 'local' or 'process'")
    if isinstance(handler, Router) or (callable(handler) and not isinstance(handler, str)):
        return LocalExecutor(handler, threads=concurrency)
    raise InvalidOptionError(f"handler {handler!r} is neither a function nor a Router")


def _check_strategy(strategy: BackoffStrategy | Mapping[str, BackoffStrategy] | None) -> None:
    strategies = strategy.values() if isinstance(strategy, Mapping) else [strategy]
    for one in strategies:
        if one is not None and not callable(one):
            raise InvalidOptionError(f"the backoff strategy {one!r} is not callable")
