"""A handler's context without a server: it behaves like a job, and records what it receives."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from typing import Any, Generic, TypeVar

from toril.options import Deduplication, NewJob
from toril.protocol import codec
from toril.protocol.families import Dependencies, DependenciesCount
from toril.protocol.job import Fields, StoredJob, warn_of_progress

T = TypeVar("T")


class Now(Generic[T]):
    """A result that is already there; awaiting it is optional."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, None, T]:
        yield from ()
        return self.value


class TestContext(StoredJob):
    """What ``make_context`` returns: a ``Context`` for async and for plain handlers.

    ``reports``, ``logs`` and ``updates`` hold what the handler reported, logged and wrote.
    """

    __test__ = False
    """Pytest takes classes whose names begin like this for tests."""

    def __init__(self, fields: Fields, *, job_id: str, queue_name: str, **told: Any) -> None:
        super().__init__("bull", queue_name, job_id, fields)
        self.reports: list[Any] = []
        self.logs: list[str] = []
        self.updates: list[Any] = []
        self.state: Any = told["state"]
        self.token = "test-token"  # noqa: S105 (no secret)
        self.fence: int = told["fence"]
        self.is_cancelled = False
        self.is_lost = False
        self._signal: asyncio.Event | threading.Event | None = None
        self._children: dict[str, Any] = told["children_values"]

    @property
    def signal(self) -> asyncio.Event | threading.Event:
        """Set only if the test sets it; an ``asyncio.Event`` if a loop is running, otherwise a
        ``threading.Event``."""
        if self._signal is None:
            self._signal = asyncio.Event() if _has_loop() else threading.Event()
        return self._signal

    def report(self, value: Any) -> Now[None]:
        """Record the job's progress."""
        codec.encode(value, "the progress")
        self.reports.append(value)
        return Now(None)

    def progress(self, value: Any) -> Now[None]:
        """The old name of ``report``."""
        warn_of_progress()
        return self.report(value)

    def log(self, row: str) -> Now[int]:
        """Record a line of the job's log."""
        self.logs.append(row)
        return Now(len(self.logs))

    def update_data(self, data: Any) -> Now[None]:
        """Record new data; from now on ``data`` returns it."""
        text = codec.encode(data, "the data")
        self.updates.append(data)
        self._fields = {**self._fields, b"data": text}
        self._data = codec.decode(text)
        return Now(None)

    def extend_lock(self, duration: int) -> Now[None]:
        """Do nothing: no other worker can take this job."""
        return Now(None)

    def children_values(self) -> Now[dict[str, Any]]:
        """What ``make_context`` was given."""
        return Now(dict(self._children))

    def failed_children(self) -> Now[dict[str, str]]:
        """None failed."""
        return Now({})

    def dependencies(self) -> Now[Dependencies]:
        """The children that ``make_context`` was given, all completed."""
        return Now(
            Dependencies(processed=dict(self._children), unprocessed=[], ignored={}, failed=[])
        )

    def dependencies_count(self) -> Now[DependenciesCount]:
        """How many there are."""
        return Now(
            DependenciesCount(processed=len(self._children), unprocessed=0, ignored=0, failed=0)
        )


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def make_context(
    name: str = "test",
    data: Any = None,
    *,
    job_id: str = "test-1",
    queue_name: str = "test",
    attempts_made: int = 0,
    stalled_count: int = 0,
    timestamp: int = 1_767_225_600_000,
    fence: int = 1,
    state: Any = None,
    children_values: dict[str, Any] | None = None,
    **options: Any,
) -> TestContext:
    """A context for a handler under test; ``options`` are the options of ``Queue.add``.

    ::

        ctx = make_context("charge", {"order": 1}, attempts_made=2)
        assert await charge(ctx) == "receipt"
        assert ctx.reports == [50]
    """
    job = NewJob(name, data, **options)
    fields: Fields = {
        b"name": name.encode(),
        b"data": b"{}" if data is None else codec.encode(data, f"the data of job {name!r}"),
        b"opts": codec.encode_options(job),
        b"timestamp": timestamp,
        b"processedOn": timestamp,
        b"atm": attempts_made,
        b"ats": attempts_made + 1,
        b"stc": stalled_count,
    }
    if job.priority:
        fields[b"priority"] = job.priority
    if job.deduplication is not None:
        fields[b"deid"] = Deduplication.of(job.deduplication).id.encode()
    return TestContext(
        fields,
        job_id=job_id,
        queue_name=queue_name,
        fence=fence,
        state=state,
        children_values=children_values or {},
    )
