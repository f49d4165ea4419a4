"""S9: a parent and its children know of each other."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.model.checks.names import FINISHED
from tests.model.view import Queue, View


def family_problems(view: View, queue: Queue) -> Iterator[str]:
    for job_id, job in queue.jobs.items():
        if "parentKey" in job:
            yield from _child(view, queue, job_id, job)
        if queue.places.get(job_id) == "waiting-children":
            dependencies = view.keys.get(f"{queue.base}:{job_id}:dependencies")
            if dependencies is None:
                yield f"S9: {job_id} waits for children and has none"
            if "x.waits" in job:
                yield f"S9: {job_id} waits for children and counts how often it waited for none"
    for key, cell in view.keys.items():
        if key.endswith(":dependencies") and key.startswith(queue.base):
            for child in cell.content:
                if view.place_of(child) is None and not view.told(child):
                    yield f"S9: {key} names {child}, which does not exist"


def _child(view: View, queue: Queue, job_id: str, job: dict[str, str]) -> Iterator[str]:
    parent_key = job["parentKey"]
    key, place = f"{queue.base}:{job_id}", queue.places.get(job_id)
    if view.told(key):  # its parent, or the child itself, will hear of it
        return
    if parent_key not in view.keys:
        # One that runs elsewhere is left alone when its parent is removed with its children.
        if view.layout.is_spread and place not in FINISHED and "ats" not in job:
            yield f"S9: {job_id} is in {place}, and its parent was removed with its children"
        return
    flags = json.loads(job["parent"])
    lists = {
        part: view.keys[f"{parent_key}:{part}"].content
        for part in ("dependencies", "processed", "failed", "unsuccessful")
        if f"{parent_key}:{part}" in view.keys
    }
    is_pending = key in lists.get("dependencies", ())
    keeps_waiting = place == "failed" and not any(
        flags.get(flag) for flag in ("fpof", "cpof", "idof", "rdof")
    )
    if is_pending != (place not in FINISHED or keeps_waiting):
        yield f"S9: {job_id} is in {place}, and its parent counts on it: {is_pending}"
    if place == "completed" and key not in lists.get("processed", ()):
        yield f"S9: {job_id} completed and its parent does not know its result"
    if place != "failed":
        return
    if flags.get("fpof") and key not in lists.get("unsuccessful", ()):
        yield f"S9: {job_id} failed and its parent does not know"
    if (flags.get("cpof") or flags.get("idof")) and key not in lists.get("failed", ()):
        yield f"S9: {job_id} failed and its parent does not know why"
    parent = view.keys[parent_key].pairs
    is_over = view.place_of(parent_key) in FINISHED
    if flags.get("fpof") and "defa" not in parent and not is_over:
        yield f"S9: {job_id} failed and its parent is not to fail"
