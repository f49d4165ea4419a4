"""A call of a task as a value, and the handle of one that was enqueued."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from toril.client.queue import Queue
from toril.errors import GroupValidationError
from toril.options import Duration, FlowJob
from toril.protocol.cancelling import Cancelled
from toril.protocol.job import Job
from toril.protocol.new_group import Compensation
from toril.sync.queue import Queue as BlockingQueue
from toril.tasks.references import Reference
from toril.tasks.signature import Signature

R = TypeVar("R")

INPUTS = "x.inputs"
"""In the arguments of an undo: which of them are results of other members, and whose."""

_UNDO_FIELDS = (
    "attempts",
    "backoff",
    "timeout",
    "delay",
    "priority",
    "lane",
    "remove_on_complete",
    "remove_on_fail",
)


class Call(FlowJob, Generic[R], frozen=True, kw_only=True):
    """A task with its arguments: name, queue, data and options, checked and not yet enqueued.

    You can use it wherever a job is described: ``app.enqueue_many``, ``queue.add_bulk``, the
    ``template`` of a scheduler, a child of a flow, a member of a group, ``outbox.add``.
    """

    signature: Any = None
    references: Mapping[str, Reference] = {}
    """Arguments that are results of other calls; only a group can fill them in.

    They are in ``data`` too, where JSON cannot write them: so nothing else takes such a call.
    """
    undoing: Any = None
    """The task that undoes it if its group fails."""

    @property
    def membership(self) -> Mapping[str, Any]:
        """What a group needs to know about it: its undo, and whose results it uses."""
        inputs = {name: reference.key for name, reference in self.references.items()}
        after = tuple(dict.fromkeys(inputs.values()))
        data = {name: value for name, value in (self.data or {}).items() if name not in inputs}
        undo = self._undo({**data}, inputs)
        return {"data": data, "compensation": undo, "inputs": inputs, "after": after}

    def _undo(self, data: dict[str, Any], inputs: Mapping[str, str]) -> Compensation | None:
        undo = self.undoing
        if undo is None:
            return None
        for missing in sorted(undo.signature.required - data.keys() - inputs.keys()):
            raise GroupValidationError(
                f"{undo.name!r} undoes task {self.name!r} and needs {missing!r}, which this call"
                f" does not have; give it a default, or leave it out"
            )
        if inputs:
            data[INPUTS] = inputs
        known = undo.fixed_options
        options = {name: known[name] for name in _UNDO_FIELDS if known.get(name) is not None}
        return Compensation(undo.name, data, **options)


class Handle(Generic[R]):
    """A job that was enqueued; its result has the type of the task's annotation."""

    __slots__ = ("_queue", "_signature", "duplicated", "id")

    def __init__(
        self, queue: Queue, job_id: str, signature: Signature, *, duplicated: bool = False
    ) -> None:
        self.id = job_id
        self.duplicated = duplicated
        """True when a job with its id, or its deduplication id, was there already."""
        self._queue = queue
        self._signature = signature

    def __repr__(self) -> str:
        return f"<Handle of job {self.id!r} in queue {self._queue.name!r}>"

    @property
    def queue_name(self) -> str:
        return self._queue.name

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the result of the task; raises ``JobFailedError`` if it failed."""
        value: R = self._signature.read_result(await self._queue.wait_for(self.id, timeout))
        return value

    async def state(self) -> str | None:
        """The state of the job: "waiting", "active", "completed" …, or None if it is gone."""
        return await self._queue.get_state(self.id)

    async def job(self) -> Job | None:
        """The job as it is now, or None if it is gone."""
        return await self._queue.get_job(self.id)

    async def cancel(self, reason: str = "cancelled") -> Cancelled:
        """Cancel the job, whether it is waiting or running."""
        return await self._queue.cancel(self.id, reason)


class BlockingHandle(Generic[R]):
    """``Handle`` for blocking code."""

    __slots__ = ("_queue", "_signature", "duplicated", "id")

    def __init__(
        self, queue: BlockingQueue, job_id: str, signature: Signature, *, duplicated: bool = False
    ) -> None:
        self.id = job_id
        self.duplicated = duplicated
        self._queue = queue
        self._signature = signature

    def __repr__(self) -> str:
        return f"<BlockingHandle of job {self.id!r} in queue {self._queue.name!r}>"

    @property
    def queue_name(self) -> str:
        return self._queue.name

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the result of the task; raises ``JobFailedError`` if it failed."""
        value: R = self._signature.read_result(self._queue.wait_for(self.id, timeout))
        return value

    def state(self) -> str | None:
        """The state of the job: "waiting", "active", "completed" …, or None if it is gone."""
        return self._queue.get_state(self.id)

    def job(self) -> Job | None:
        """The job as it is now, or None if it is gone."""
        return self._queue.get_job(self.id)

    def cancel(self, reason: str = "cancelled") -> Cancelled:
        """Cancel the job, whether it is waiting or running."""
        return self._queue.cancel(self.id, reason)
