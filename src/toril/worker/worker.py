"""The worker: takes jobs from one queue and runs their handlers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, cast

from toril.checking import checked
from toril.client.connection import Target
from toril.errors import InvalidOptionError
from toril.options import (
    BackoffStrategy,
    Duration,
    Keep,
    RateLimit,
    WorkerOptions,
    milliseconds,
)
from toril.protocol.keys import Keys
from toril.worker.active_job import ActiveJob
from toril.worker.burial import BurialTarget
from toril.worker.events import Callback
from toril.worker.handlers import Handler, Middleware, Router
from toril.worker.life import Life
from toril.worker.wiring import Design, IsFinal, Parts


@checked
class Worker:
    """Runs the jobs of queue ``name`` with ``handler``, up to ``concurrency`` at a time.

    ``handler`` is a function of a job or a ``Router``.  ``await worker.run()`` runs until
    ``worker.close()``; ``toril.run(worker)`` does so from a script and handles SIGTERM.
    ``partitions`` must match the ``Queue``: one ``concurrency`` covers all of them.
    """

    def __new__(cls, *args: Any, partitions: int = 1, **options: Any) -> Self:
        if partitions == 1 or cls is not Worker:
            return super().__new__(cls)
        from toril.worker.partitions import PartitionedWorker

        return cast(Self, object.__new__(PartitionedWorker))

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
        partitions: int = 1,
    ) -> None:
        if partitions != 1:
            raise InvalidOptionError(
                f"a subclass of Worker cannot have partitions={partitions!r}; use Worker itself"
            )
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
        self.name, self.handler, self.target = name, handler, connection
        self.keys = Keys(prefix, name)
        design = Design(
            keys=self.keys,
            handler=handler,
            target=connection,
            options=self.options,
            executor=executor,
            middleware=middleware,
            backoff_strategy=backoff_strategy,
            dead_letter_queue=dead_letter_queue,
            is_final=is_final,
        )
        self._parts = self._put_together(design)
        self._life = Life(self._parts)
        self.id = self._parts.worker_id

    def _put_together(self, design: Design) -> Parts:
        return Parts(design)

    def __repr__(self) -> str:
        return f"<Worker of queue {self.name!r} on {self._parts.connection!r}>"

    # ------------------------------------------------------------------ running

    async def run(self) -> None:
        """Take and run jobs until ``close`` is called.

        If the task that awaits this is cancelled, running jobs are stopped and handed back.
        Raises ``ServerUnusableError`` if the server cannot be used: a wrong password, missing
        permissions, a version that is too old, a replica.
        """
        await self._life.run()

    async def start(self) -> None:
        """Start taking jobs, and return."""
        await self._life.start()

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
        """Take no more jobs, let running ones finish within ``timeout``, hand back the rest.

        Without a timeout, running jobs may take as long as they need. A second call can only
        shorten the limit: ``close(timeout=0)`` ends the wait.

        A handler of this worker may call it too: then it returns at once, and the worker ends after
        the handler's job.
        """
        await self._life.close(None if timeout is None else milliseconds(timeout, "timeout") / 1000)

    def pause(self) -> None:
        """Take no jobs until ``resume``; running jobs continue."""
        self._life.pause()

    def resume(self) -> None:
        """Take jobs again, after ``pause``."""
        self._life.resume()

    # ------------------------------------------------------------------ looking

    @property
    def partitions(self) -> int:
        """How many partitions of its queue it serves; 1 for a plain queue."""
        return 1

    @property
    def dead_letter_queue(self) -> str | None:
        """The name of its dead letter queue."""
        burial = self._parts.burial
        return None if burial is None else burial.keys.name

    @property
    def is_running(self) -> bool:
        return self._life.loop is not None and not self._parts.fate.is_over.is_set()

    @property
    def is_paused(self) -> bool:
        return self._life.is_paused

    @property
    def is_processing(self) -> bool:
        """Whether a job is running right now."""
        return bool(self._parts.crew.jobs)

    @property
    def current_jobs(self) -> list[ActiveJob]:
        return self._parts.crew.jobs

    def current_job(self) -> tuple[ActiveJob, int] | None:
        """The job that has been running longest, and for how many ms; None if idle."""
        jobs = self._parts.crew.jobs
        if not jobs:
            return None
        job = min(jobs, key=lambda job: job.processed_on or 0)
        return job, max(0, round(time.time() * 1000) - (job.processed_on or 0))

    @property
    def last_reply_age(self) -> float | None:
        """Seconds since the server last answered; use it in health checks."""
        last_sign_at, loop = self._parts.pulse.last_sign_at, self._life.loop
        return None if loop is None or not last_sign_at else loop.time() - last_sign_at

    @property
    def server_error(self) -> Exception | None:
        """Why the server could not be reached, if it has not answered since."""
        return self._parts.outage.error

    @property
    def abandoned_threads(self) -> int:
        """How many plain handlers are still running although their jobs have timed out."""
        return self._parts.executor.abandoned

    @property
    def dead_lettered(self) -> int:
        """How many jobs this worker has sent to the dead letters."""
        burial = self._parts.burial
        return 0 if burial is None else burial.count

    def on(self, event: str, callback: Callback) -> None:
        """Call ``callback`` for a local event: active, completed, failed, deadLettered, progress,
        stalled, lost, error, drained, closed …"""
        self._parts.emitter.on(event, callback)
