"""S1 to S3: every job is in one place, locks belong to active jobs, nothing outlives its job."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.view import Queue, View

WITH_AN_END = (":lock", ":limiter")


def place_problems(view: View, queue: Queue) -> Iterator[str]:
    yield from (f"S1: {problem}" for problem in queue.problems)
    for job_id, place in queue.places.items():
        if "name" not in queue.jobs.get(job_id, ()):
            yield f"S1: {job_id} is in {place} and has no hash"
    for job_id in queue.jobs.keys() - queue.places.keys():
        yield f"S1: {job_id} has a hash and is nowhere"
    active = queue.order.get("active", ())
    for job_id in queue.locks:
        if job_id not in active:
            yield f"S2: {job_id} is locked and not active"
        if f"{queue.base}:{job_id}:lock" not in queue.expiring:
            yield f"S2: the lock of {job_id} never expires"
    for job_id in queue.stalled:
        if job_id not in active:
            yield f"S2: {job_id} is in stalled and not active"
    for part in queue.parts:
        if part.rpartition(":")[0] not in queue.jobs:
            yield f"S3: {part} belongs to no job"
    counters = (f"{queue.base}:limiter", f"{queue.base}:lanes:rate:")
    for key, cell in view.keys.items():
        if key.startswith(counters) and not cell.has_end:
            yield f"S2: {key} never expires"
