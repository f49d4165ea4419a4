"""What a handler receives: one type for handlers on the loop, in threads and in processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from toril.protocol.codec import CompensationPayload, JobOpts
from toril.protocol.dead_letter import DeadLetterMetadata

if TYPE_CHECKING:
    # Every type checker ships this module; a default makes a bare ``Context`` mean any data.
    from typing_extensions import TypeVar

    class AnyData:
        """Data of unspecified type.  ``Any`` itself would make mypy give up on overloads."""

        def __getitem__(self, key: Any, /) -> Any: ...
        def __getattr__(self, name: str, /) -> Any: ...
        def __iter__(self) -> Any: ...
        def __len__(self) -> int: ...

    D_co = TypeVar("D_co", covariant=True, default=AnyData)
else:
    from typing import TypeVar

    D_co = TypeVar("D_co", covariant=True)


class StopSignal(Protocol):
    """An ``asyncio.Event`` in an ``async def`` handler, a ``threading.Event`` in a plain one."""

    def is_set(self) -> bool: ...
    def wait(self) -> Any: ...


@runtime_checkable
class Context(Protocol[D_co]):
    """The job that a handler runs, and what the handler can do with it.

    ``Context[OrderData]`` says what its ``data`` is.  The methods that reach the server are awaited
    in an ``async def`` handler, and simply called in a plain one.
    """

    id: str
    name: str
    queue_name: str
    prefix: str
    opts: JobOpts

    @property
    def data(self) -> D_co: ...
    @property
    def data_text(self) -> bytes: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def attempts_made(self) -> int: ...
    @property
    def attempts_started(self) -> int: ...
    @property
    def stalled_count(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def delay(self) -> int: ...
    @property
    def processed_on(self) -> int | None: ...
    @property
    def lane(self) -> str | None: ...
    @property
    def group_id(self) -> str | None: ...
    @property
    def parent_key(self) -> str | None: ...
    @property
    def scheduler_id(self) -> str | None: ...
    @property
    def deduplication_id(self) -> str | None: ...
    @property
    def idempotency_key(self) -> str:
        """The same string for every attempt and redelivery: for databases and payment providers."""

    @property
    def compensation(self) -> CompensationPayload | None: ...
    @property
    def dead_letter(self) -> DeadLetterMetadata | None: ...
    @property
    def telemetry(self) -> str | None: ...
    @property
    def token(self) -> str: ...
    @property
    def fence(self) -> int:
        """Grows each time this job is taken: refuse writes with a smaller number."""

    @property
    def state(self) -> Any:
        """What the app's ``lifespan`` yielded: pools, clients, settings."""

    @property
    def signal(self) -> StopSignal:
        """Set when the job should stop: it was cancelled, lost its lock, or is being handed back.

        An event to check or to wait for.
        """

    @property
    def is_cancelled(self) -> bool: ...
    @property
    def is_lost(self) -> bool: ...

    def report(self, value: Any) -> Any:
        """Report progress: a number, a string or any JSON."""

    def log(self, row: str) -> Any:
        """Append a row to the job's log; returns how many rows it has."""

    def update_data(self, data: Any) -> Any:
        """Replace the job's data, for later attempts as well."""

    def extend_lock(self, duration: int) -> Any:
        """Extend the lock to ``duration`` ms from now; it is renewed automatically."""

    def children_values(self) -> Any:
        """What the completed children returned, by their full keys."""

    def failed_children(self) -> Any:
        """Why children failed that did not fail this job, by their full keys."""

    def dependencies(self) -> Any:
        """All children of this job, by outcome."""

    def dependencies_count(self) -> Any:
        """How many children are completed, pending, ignored and failed."""
