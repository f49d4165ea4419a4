"""The job as a plain ``def`` handler sees it: the same, without ``await``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from toril.errors import LockLostError
from toril.protocol.families import Dependencies, DependenciesCount
from toril.protocol.job import StoredJob, warn_of_progress
from toril.worker.active_job import ActiveJob

T = TypeVar("T")


class ThreadJob(StoredJob):
    """A running job for blocking code; its calls go through the worker's loop.

    A plain function may also return something to await, which then runs on that loop.  There the
    calls are awaited, as in an ``async def`` handler: whoever blocked it would wait for ever.
    """

    __slots__ = ("_job", "_loop", "state")

    def __init__(self, job: ActiveJob, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(job.prefix, job.queue_name, job.id, job._fields)
        self._job = job
        self._loop = loop
        self.state: Any = job.state
        """What the app's ``lifespan`` yielded."""

    @property
    def token(self) -> str:
        return self._job.token

    @property
    def fence(self) -> int:
        """Grows each time this job is taken: refuse writes with a smaller number."""
        return self._job.fence

    @property
    def is_cancelled(self) -> bool:
        """Has somebody asked this job to stop? Long functions should check it now and then."""
        job = self._job
        return job.is_cancelled or job.is_released or job.is_stopping

    @property
    def is_lost(self) -> bool:
        return self._job.is_lost

    @property
    def signal(self) -> threading.Event | asyncio.Event:
        """Set when the job should stop: cancelled, lost, handed back by its worker, or timed out.

        ``job.signal.wait(5)`` sleeps for five seconds, or less if the signal is set.
        """
        return self._job.signal if self._is_on_loop else self._job.make_signal(threading.Event)

    def report(self, value: Any) -> Any:
        """Report progress: a number, a string or any JSON."""
        return self._wait(self._job.report(value))

    def progress(self, value: Any) -> Any:
        """The old name of ``report``."""
        warn_of_progress()
        return self.report(value)

    def log(self, row: str) -> int:
        """Append a row to the job's log; returns how many rows it has."""
        return self._wait(self._job.log(row))

    def update_data(self, data: Any) -> Any:
        """Replace the job's data, for later attempts as well."""
        return self._wait(self._update_data(data))

    async def _update_data(self, data: Any) -> None:
        await self._job.update_data(data)
        self._data = data

    def extend_lock(self, duration: int) -> Any:
        """Extend the lock to ``duration`` ms from now; it is renewed automatically."""
        return self._wait(self._job.extend_lock(duration))

    def children_values(self) -> dict[str, Any]:
        """What the completed children returned, by their full keys."""
        return self._wait(self._job.children_values())

    def failed_children(self) -> dict[str, str]:
        """Why children failed that did not fail this job, by their full keys."""
        return self._wait(self._job.failed_children())

    def dependencies(self) -> Dependencies:
        """All children of this job, by outcome."""
        return self._wait(self._job.dependencies())

    def dependencies_count(self) -> DependenciesCount:
        """How many children are completed, pending, ignored and failed."""
        return self._wait(self._job.dependencies_count())

    @property
    def _is_on_loop(self) -> bool:
        return asyncio._get_running_loop() is self._loop

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        if self._job.is_settled:
            call.close()
            raise LockLostError(
                f"job {self.id!r} was handed back; this run can no longer write to it"
            )
        if self._is_on_loop:
            return call  # type: ignore[return-value]
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()
