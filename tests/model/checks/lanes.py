"""S5: one holder of a lane at most, and that is a job that exists; ready lanes have jobs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.model.checks.names import FINISHED
from tests.model.view import Queue


def lane_problems(queue: Queue) -> Iterator[str]:
    if queue.kept != queue.lanes_jobs:
        yield f"S5: {queue.lanes_jobs} wait in lanes and {queue.kept} are kept from BullMQ"
    if not (queue.lanes_index or queue.lanes_held or queue.lanes_ready or queue.lanes_delayed):
        return
    waiting = defaultdict(list)
    for place in ("wait", "delayed"):
        for job_id in queue.order.get(place, ()):
            lane = queue.lane_of(job_id)
            if lane is not None and job_id in queue.lanes_jobs:
                waiting[lane].append(place)
    capacity = _capacity(queue)
    yield from _holders(queue, capacity, was_lowered=_was_lowered(queue))
    for lane in queue.lanes_ready:
        if "wait" not in waiting[lane]:
            yield f"S5: lane {lane} is ready and has no job"
        if lane in queue.lanes_stopped or lane in queue.lanes_later:
            yield f"S5: lane {lane} is ready, and stopped or held back"
    for lane, places in waiting.items():
        is_waiting = "wait" in places
        if lane not in queue.lanes_index:
            yield f"S5: lane {lane} has jobs and is not indexed"
        is_full = len(queue.lanes_held.get(lane, ())) >= capacity
        is_known = lane in queue.lanes_ready or lane in queue.lanes_later or is_full
        if is_waiting and not is_known and lane not in queue.lanes_stopped:
            yield f"S5: lane {lane} has jobs, is not held and not ready"
    for lane in queue.lanes_index:
        has_work = "wait" in waiting.get(lane, ()) or lane in queue.lanes_held
        if has_work == (lane in queue.lanes_dormant):
            yield f"S5: lane {lane} has work {has_work}, and the index says another thing"
        if not waiting.get(lane) and lane not in queue.lanes_held:
            yield f"S5: lane {lane} is indexed and empty"
    if queue.lanes_aside != queue.lanes_delayed:
        yield f"S5: {queue.lanes_aside} are aside and {queue.lanes_delayed} delayed"
    for lane in queue.lanes_later:
        if lane not in queue.lanes_index:
            yield f"S5: lane {lane} is held back and has nothing"


def is_full(queue: Queue, lane: str) -> bool:
    """Do as many jobs hold it as may?"""
    return len(queue.lanes_held.get(lane, ())) >= _capacity(queue)


def overfull(was: Queue, queue: Queue) -> Iterator[str]:
    """A lane that is full gives no job, also if fewer may hold it than before."""
    for lane, holders in queue.lanes_held.items():
        if len(holders) > _capacity(queue) and set(holders) - set(was.lanes_held.get(lane, ())):
            yield f"T5: lane {lane} is held by {holders}"


def _capacity(queue: Queue) -> int:
    return int(queue.meta.get("toril.laneConcurrency", 1))


def _was_lowered(queue: Queue) -> bool:
    """Could several jobs hold a lane before? Those that hold one then continue."""
    return "toril.lanesShared" in queue.meta and _capacity(queue) == 1


def _holders(queue: Queue, capacity: int, *, was_lowered: bool) -> Iterator[str]:
    for lane, holders in queue.lanes_held.items():
        if len(holders) > capacity and not was_lowered:
            yield f"S5: lane {lane} is held by {holders}"
        for job_id in holders:
            if job_id not in queue.jobs:
                yield f"S5: lane {lane} is held by {job_id}, which does not exist"
            elif queue.places.get(job_id) in (*FINISHED, "wait"):
                yield f"S5: lane {lane} is held by {job_id} in {queue.places[job_id]}"
        if lane in queue.lanes_ready and len(holders) >= capacity and not was_lowered:
            yield f"S5: lane {lane} is held and ready"
    running = Counter()
    for job_id in queue.order.get("active", ()):
        lane = queue.lane_of(job_id)
        if lane is None:
            continue
        running[lane] += 1
        if job_id not in queue.lanes_held.get(lane, ()):
            yield f"S5: {job_id} runs and does not hold lane {lane}"
    for lane, times in running.items():
        if times > capacity and not was_lowered:
            yield f"S5: lane {lane} runs {times} jobs"
