"""T7: pausing and going on lose nobody and let nobody overtake."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.model.slots import Q
from tests.model.steps import Step
from tests.model.view import Queue, View


def list_problems(before: View, after: View, step: Step, reply: Any) -> Iterator[str]:
    if step.request.script not in ("pause", "resume") or reply:
        return
    was, now = before.queues[Q], after.queues[Q]
    is_version_6 = was.meta.get("version", "").startswith("bullmq:6")
    moves = step.request.script == "resume" or not is_version_6
    wanted = _listed(was, "wait") + _listed(was, "paused")
    place = "wait" if step.request.script == "resume" else "paused"
    if moves and _listed(now, place) != wanted:
        yield f"T7: {step.request.script}: {wanted} stood there, {_listed(now, place)} stand now"


def _listed(queue: Queue, place: str) -> list[str]:
    """The jobs in the list, without those of lanes."""
    return [job_id for job_id in queue.order.get(place, ()) if queue.lane_of(job_id) is None]
