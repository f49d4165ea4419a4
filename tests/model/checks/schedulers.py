"""S7: a scheduler has its pending iteration, or it is being taken."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.checks.names import FINISHED
from tests.model.view import Queue


def scheduler_problems(queue: Queue) -> Iterator[str]:
    for scheduler, at in queue.schedulers.items():
        iteration = f"repeat:{scheduler}:{at:.0f}"
        place = queue.places.get(iteration)
        if place is None or place in FINISHED:
            yield f"S7: the pending iteration {iteration} is in {place}"
        if place == "delayed" and queue.scores["delayed"][iteration] // 4096 != at:
            yield f"S7: {iteration} is due at {queue.scores['delayed'][iteration] // 4096}"
        pending = [
            job_id
            for job_id, place in queue.places.items()
            if job_id.startswith(f"repeat:{scheduler}:") and place in ("wait", "delayed")
        ]
        if len([one for one in pending if not queue.jobs[one].get("ats")]) > 1:
            yield f"S7: several iterations are pending: {pending}"
