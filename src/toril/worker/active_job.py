"""The job as its handler sees it: what is stored, and what the handler may do with it.

Every write carries the lock's token, so a worker that has lost a job can no longer write to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from toril.protocol.families import Dependencies, DependenciesCount
from toril.protocol.job import Fields, StoredJob, fence_of, warn_of_progress

if TYPE_CHECKING:
    from toril.worker.writer import JobWriter

E = TypeVar("E", asyncio.Event, threading.Event)

_MAKING = threading.Lock()
"""A handler in a thread and its middleware on the loop may ask for a signal at the same time."""


class Signal(Protocol):
    """Anything that is told that the job should stop, or that its group has turned."""

    def set(self) -> None: ...


class ActiveJob(StoredJob):
    """A job that is being run."""

    __slots__ = (
        "_signals",
        "_writer",
        "cancel_reason",
        "has_turned",
        "is_cancelled",
        "is_lost",
        "is_released",
        "is_running",
        "is_settled",
        "is_stopping",
        "limit",
        "state",
        "token",
    )

    def __init__(
        self,
        prefix: str,
        queue_name: str,
        job_id: str,
        fields: Fields,
        token: str,
        writer: JobWriter,
    ) -> None:
        super().__init__(prefix, queue_name, job_id, fields)
        self.token = token
        self._writer = writer
        self._signals: list[Signal] | None = None
        self.has_turned = False
        self.is_cancelled = False
        self.is_released = False
        self.is_lost = False
        self.is_running = False
        self.is_settled = False
        self.is_stopping = False
        self.cancel_reason = ""
        self.limit: asyncio.Timeout | None = None
        self.state: Any = None
        """What the app's ``lifespan`` yielded."""

    @property
    def signal(self) -> asyncio.Event:
        """Set when the job should stop: it was cancelled, lost its lock, or is being handed back.

        An ``async def`` handler is cancelled as well; the signal is for anything else it has
        started.  The signal is also set, without cancelling anything, when the job's group has
        turned: what the job does from then on will be undone.
        """
        return self.make_signal(asyncio.Event)

    def make_signal(self, kind: type[E]) -> E:
        """The signal as an event of this kind; it is only created when somebody asks for it."""
        with _MAKING:
            for signal in self._signals or ():
                if isinstance(signal, kind):
                    return signal
            made = kind()
            self._signals = [*(self._signals or ()), made]
        self._tell(made)
        return made

    @contextlib.contextmanager
    def signalling(self, signal: Signal) -> Iterator[None]:
        """Also set ``signal`` while this lasts: it reaches the process that runs the handler."""
        with _MAKING:
            self._signals = [*(self._signals or ()), signal]
        self._tell(signal)
        try:
            yield
        finally:
            with _MAKING:
                self._signals = [one for one in self._signals if one is not signal]

    def _tell(self, signal: Signal) -> None:
        is_over = self.is_cancelled or self.is_released or self.is_stopping or self.is_lost
        if is_over or self.has_turned:
            signal.set()

    def set_signals(self) -> None:
        """Tell everyone who checks or waits that the job should stop."""
        for signal in self._signals or ():
            signal.set()

    @property
    def is_suspect(self) -> bool:
        """Did an earlier worker die before it had confirmed that it received this job?

        The job may have killed it, so the next worker confirms receipt before it runs the job.
        """
        return b"x.unheard" in self._fields

    @contextlib.contextmanager
    def stopped_clock(self) -> Iterator[None]:
        """Time spent inside this block does not count towards the job's ``timeout``."""
        limit = self.limit
        if limit is None or limit.expired():
            yield
            return
        loop = asyncio.get_running_loop()
        left_s = (limit.when() or 0.0) - loop.time()
        limit.reschedule(None)
        try:
            yield
        finally:
            if self.limit is limit:
                limit.reschedule(loop.time() + left_s)

    @property
    def fence(self) -> int:
        """Grows each time this job, or a job of its lane, is taken.

        A write with a smaller number than one seen before comes from a worker that has lost the
        job.
        """
        return fence_of(self)

    async def report(self, value: Any) -> None:
        """Report progress: a number, a string or any JSON."""
        await self._writer.progress(self, value)

    async def progress(self, value: Any) -> None:
        """The old name of ``report``."""
        warn_of_progress()
        await self.report(value)

    async def log(self, row: str) -> int:
        """Append a row to the job's log; returns how many rows it has."""
        return await self._writer.log(self, row)

    async def update_data(self, data: Any) -> None:
        """Replace the job's data, for later attempts as well."""
        await self._writer.update_data(self, data)
        self._data = data

    async def extend_lock(self, duration: int) -> None:
        """Extend the lock to ``duration`` ms from now; it is renewed automatically."""
        await self._writer.extend_lock(self, duration)

    async def children_values(self) -> dict[str, Any]:
        """What the completed children returned, by their full keys."""
        values: dict[str, Any] = await self.read_family("children_values")
        return values

    async def failed_children(self) -> dict[str, str]:
        """Why children failed that did not fail this job, by their full keys."""
        reasons: dict[str, str] = await self.read_family("failed_children")
        return reasons

    async def dependencies(self) -> Dependencies:
        """All children of this job, by outcome."""
        children: Dependencies = await self.read_family("dependencies")
        return children

    async def dependencies_count(self) -> DependenciesCount:
        """How many children are completed, pending, ignored and failed."""
        counts: DependenciesCount = await self.read_family("dependencies_count")
        return counts

    async def read_family(self, kind: str) -> Any:
        """What one of the methods above returns, by its name."""
        return await self._writer.read_family(self, kind)
