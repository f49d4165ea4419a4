"""What happened to which step: events for a history table, and counts for a dashboard."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from toril.checking import checked
from toril.logs import get_logger

logger = get_logger("toril.steps")

STARTED = "started"
SUCCEEDED = "succeeded"
FAILED = "failed"
REFUSED = "refused"
DEFERRED = "deferred"
INTERRUPTED = "interrupted"


class StepEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened to one attempt of a step.

    ``kind`` is ``"started"`` and then ``"succeeded"``, ``"failed"`` or one that does not count as
    an attempt: ``"refused"`` (the claim was), ``"deferred"`` (by a signal such as ``DelayedError``)
    or ``"interrupted"`` (the worker is closing and hands the job back).
    """

    kind: str
    queue: str
    job_id: str
    workflow_id: str
    step_id: str
    attempt: int
    at_ms: int
    duration_ms: float = 0.0
    error: BaseException | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.workflow_id, self.step_id


Observer = Callable[[StepEvent], Any]
"""Called for every event, plain or async; what it raises is logged and changes nothing."""


async def tell(observers: Sequence[Observer], event: StepEvent) -> None:
    """Tell every observer, one after the other."""
    for observer in observers:
        try:
            answer = observer(event)
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            logger.exception("an observer of steps failed at %r", event.kind)


class StepCounts(msgspec.Struct):
    """How the attempts of one step ended."""

    started: int = 0
    succeeded: int = 0
    failed: int = 0
    refused: int = 0
    deferred: int = 0
    interrupted: int = 0
    duration_ms: float = 0.0


@checked
class StepMetrics:
    """An observer that counts by (workflow, step); it remembers the ``limit`` latest of them."""

    def __init__(self, *, limit: int = 10_000) -> None:
        self._limit = limit
        self._counts: OrderedDict[tuple[str, str], StepCounts] = OrderedDict()
        self.total = StepCounts()

    def __call__(self, event: StepEvent) -> None:
        counts = self._counts.setdefault(event.key, StepCounts())
        self._counts.move_to_end(event.key)
        if len(self._counts) > self._limit:
            self._counts.popitem(last=False)
        for target in (counts, self.total):
            setattr(target, event.kind, getattr(target, event.kind) + 1)
            target.duration_ms += event.duration_ms

    def get(self, workflow_id: str, step_id: str) -> StepCounts:
        """The counts of one step; all zero if it was never seen."""
        return self._counts.get((workflow_id, step_id), StepCounts())

    @property
    def steps(self) -> dict[tuple[str, str], StepCounts]:
        return dict(self._counts)
