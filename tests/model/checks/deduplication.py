"""S8: a deduplication id belongs to a job that exists, and each job that has one owns it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.model.checks.names import FINISHED
from tests.model.view import Queue, View


def deduplication_problems(view: View, queue: Queue) -> Iterator[str]:
    for key, owner in queue.deduplication.items():
        place = queue.places.get(owner)
        has_end = view.keys[f"{queue.base}:de:{key}"].has_end
        if (place is None or place in FINISHED) and not has_end:
            yield f"S8: {key} belongs to {owner}, which is in {place}"
        if place is not None and has_end != _may_end(queue, key, owner):
            yield f"S8: {key} of {owner} expires: {has_end}"
    for job_id, job in queue.jobs.items():
        owned = job.get("deid")
        is_over = queue.places.get(job_id) in FINISHED
        owner = queue.deduplication.get(owned) if owned else None
        if owned and not is_over and owner != job_id and not _wants(job).get("ttl"):
            yield f"S8: {job_id} does not own {owned}"
    for key in queue.next_jobs:
        owner = queue.deduplication.get(key)
        if owner is None or queue.places.get(owner) in (None, *FINISHED):
            yield f"S8: a job waits for {key}, which {owner} owns"


def _wants(job: dict[str, str]) -> dict[str, Any]:
    """How the job was to be deduplicated."""
    wanted: dict[str, Any] = json.loads(job.get("opts", "{}")).get("de", {})
    return wanted


def _may_end(queue: Queue, key: str, owner: str) -> bool:
    wanted = _wants(queue.jobs[owner])
    if wanted.get("keepLastIfActive") or key in queue.next_jobs:
        return False
    return bool(wanted.get("ttl"))
