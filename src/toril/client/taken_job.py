"""A job that was taken by hand: its holder decides the outcome.

Every write carries the token of the job's lock, so nothing is written to a job that was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toril.checking import by_hand, checked
from toril.errors import (
    DelayedError,
    InvalidInputError,
    LockLostError,
    WaitingChildrenError,
)
from toril.options import Duration, milliseconds
from toril.protocol import codec, editing, families, leasing
from toril.protocol.job import Fields, StoredJob, fence_of, warn_of_progress
from toril.protocol.settling import Attempt, Raised, Released, Result, Returned

if TYPE_CHECKING:
    from toril.client.manual_worker import ManualWorker


@checked
class TakenJob(StoredJob):
    """A job of ``ManualWorker.get_next_job``, held until one of the methods below ends it.

    ``complete``, ``fail`` and the ``move_to_…`` methods raise ``LockLostError`` if the lock was
    lost: somebody else runs the job again, and nothing is written.
    """

    __slots__ = (
        "__weakref__",
        "_holder",
        "attempt",
        "cancel_reason",
        "code",
        "damage",
        "is_lost",
        "is_settled",
        "token",
    )

    @by_hand
    def __init__(self, holder: ManualWorker, job_id: str, fields: Fields, token: str) -> None:
        super().__init__(holder.keys.prefix, holder.keys.name, job_id, fields)
        self._holder = holder
        self.token = token
        """The token of the job's lock."""
        self.is_settled = False
        self.is_lost = False
        """Whether the lock was lost; updated when it is renewed or something is written."""
        self.cancel_reason: str | None = None
        self.attempt: Attempt | None = None
        self.code: Result | None = None
        self.damage: Exception | None = None

    @property
    def is_cancelled(self) -> bool:
        """Whether the job was cancelled; updated when its lock is renewed."""
        return self.cancel_reason is not None

    @property
    def is_suspect(self) -> bool:
        """Did an earlier worker die before it had confirmed that it received this job?"""
        return self.raw(b"x.unheard") is not None

    @property
    def fence(self) -> int:
        """Grows each time this job, or a job of its lane, is taken."""
        return fence_of(self)

    # ------------------------------------------------------------------ how it ends

    async def complete(self, value: Any = None) -> None:
        """Complete the job with ``value``.

        Raises ``PayloadError``, and changes nothing, if ``value`` cannot be written as JSON.
        """
        codec.encode(value, f"the return value of job {self.id!r}")
        await self._holder._settle(self, Returned(value))

    @by_hand
    async def fail(self, error: BaseException) -> None:
        """Fail the attempt, as if a handler had raised ``error``.

        The job is retried after its backoff if it has attempts left; otherwise it fails for good,
        and becomes a dead letter if there is a queue for them.
        """
        if not isinstance(error, BaseException):
            raise InvalidInputError(
                f"job {self.id!r} cannot fail with {error!r}; give an exception, such as"
                f" ValueError({error!r})"
            )
        await self._holder._settle(self, Raised(error))

    async def move_to_delayed(self, delay: Duration) -> None:
        """Run it again after ``delay``; the attempt does not count."""
        await self._holder._settle(self, Raised(DelayedError(milliseconds(delay, "delay"))))

    async def move_to_waiting_children(self) -> None:
        """Let it wait until its children have finished; it can then be taken again."""
        await self._holder._settle(self, Raised(WaitingChildrenError()))

    async def move_to_wait(self) -> None:
        """Hand it back to the front of the queue; the attempt does not count."""
        await self._holder._settle(self, Released(is_begun=True))

    # ------------------------------------------------------------------ while it is held

    async def extend_lock(self, duration: Duration) -> None:
        """Extend the lock to ``duration`` from now."""
        lock_ms = milliseconds(duration, "duration", least=1)
        renewal = await self._run(
            leasing.renew(self._holder.keys, [(self.id, self.token)], lock_ms=lock_ms)
        )
        for _, reason in renewal.cancelled:
            self.cancel_reason = reason
        if renewal.lost:
            self.is_lost = True
            raise LockLostError(f"the lock of job {self.id!r} is not held with this token")

    async def report(self, value: Any) -> None:
        """Report progress: a number, a string or any JSON."""
        keys = self._holder.keys
        await self._run(editing.update_progress(keys, self.id, value, token=self.token))

    async def progress(self, value: Any) -> None:
        """The old name of ``report``."""
        warn_of_progress()
        await self.report(value)

    async def log(self, row: str) -> int:
        """Append a row to the job's log; returns how many rows it has."""
        keep = self.opts.keep_logs
        command = editing.add_log(self._holder.keys, self.id, row, keep=keep, token=self.token)
        rows: int = await self._run(command)
        return rows

    async def update_data(self, data: Any) -> None:
        """Replace the job's data, for later attempts as well."""
        await self._run(editing.update_data(self._holder.keys, self.id, data, token=self.token))
        self._data = data

    async def children_values(self) -> dict[str, Any]:
        """What the completed children returned, by their full keys."""
        connection = self._holder._connection
        return await connection.follow(families.children_values(self._holder.keys, self.id))

    async def failed_children(self) -> dict[str, str]:
        """Why children failed that did not fail this job, by their full keys."""
        connection = self._holder._connection
        return await connection.follow(families.failed_children(self._holder.keys, self.id))

    async def dependencies(self) -> families.Dependencies:
        """All children of this job, by outcome."""
        connection = self._holder._connection
        return await connection.follow(families.dependencies(self._holder.keys, self.id))

    async def dependencies_count(self) -> families.DependenciesCount:
        """How many children are completed, pending, ignored and failed."""
        connection = self._holder._connection
        return await connection.follow(families.dependencies_count(self._holder.keys, self.id))

    async def _run(self, command: Any) -> Any:
        return await self._holder._connection.run(command)
