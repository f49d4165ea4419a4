"""T5 and T6: who is first is taken first, nobody overtakes in a lane, and whoever comes stands at
the end that is his."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.checks.events import Events
from tests.model.checks.lanes import is_full, overfull
from tests.model.checks.names import FINISHED
from tests.model.steps import Step
from tests.model.view import Queue, View


def order_problems(before: View, after: View, events: Events, step: Step) -> Iterator[str]:
    for name, queue in after.queues.items():
        was = before.queues[name]
        problems = [
            *_taken(name, was, queue, events, step),
            *_came(name, queue, events, step),
            *_stayed(name, was, queue, events),
            *_began(name, queue, events),
            *_due_first(name, queue, events),
            *_shared(was, queue, step),
            *_turns(before, after, queue),
            *overfull(was, queue),
        ]
        yield from (f"{name}: {problem}" for problem in problems)


def _taken(name: str, was: Queue, queue: Queue, events: Events, step: Step) -> Iterator[str]:
    here = [
        job_id
        for place in ("wait", "prioritized")
        for job_id in was.order.get(place, ())
        if b"removed" not in events.of(name, job_id) and was.lane_of(job_id) is None
    ]
    plain = [job_id for job_id in here if was.places[job_id] == "wait"]
    ranked = [job_id for job_id in here if was.places[job_id] == "prioritized"]
    for (where, job_id), told in events.of_jobs.items():
        if where != name or b"active" not in told or step.request.script == "bullTake":
            continue
        if step.call is None:
            yield f"T4: {job_id} was taken by {step.name}"
        if queue.lane_of(job_id) is not None:
            yield from _taken_of_lane(job_id, was, queue, step)
        if told != [b"active"]:
            continue
        taken = step.call.take if step.call is not None else 0
        if job_id in plain and job_id not in plain[-taken:]:
            yield f"T6: {job_id} was taken before {plain[-taken:]}"
        if job_id in ranked and job_id not in ranked[: max(taken - len(plain), 0)]:
            yield f"T6: {job_id} was taken before {plain or ranked}"


def _taken_of_lane(job_id: str, was: Queue, queue: Queue, step: Step) -> Iterator[str]:
    lane, field = queue.lane_of(job_id), queue.jobs[job_id]["x.lane"]
    is_plain_take = step.call is not None and not step.call.ended
    ready = [other for other in was.lanes_ready if not is_full(was, other)]
    if is_plain_take and lane in ready[1:]:
        yield f"T5: lane {lane} was served before {ready[0]}"
    had_its_turn = was.places.get(job_id) == "active" or job_id in was.lanes_started
    if had_its_turn or job_id in was.lanes_held.get(lane or "", ()):
        return
    for other, job in was.jobs.items():
        if was.lane_of(other) != lane or other == job_id or job["x.lane"] >= field:
            continue
        is_gone = queue.places.get(other) in (*FINISHED, None)
        may_be_overtaken = '"onRetry":"skip"' in job.get("opts", "")
        runs = other in queue.lanes_held.get(lane or "", ())
        if not is_gone and not may_be_overtaken and not runs and was.places[other] != "delayed":
            yield f"T5: {job_id} was taken before {other}"


def _came(name: str, queue: Queue, events: Events, step: Step) -> Iterator[str]:
    listed = [job_id for job_id in queue.order.get("wait", ()) if queue.lane_of(job_id) is None]
    came = [job_id for job_id in listed if b"waiting" in events.of(name, job_id)]
    if len(came) != 1 or step.is_silent:
        return
    told = events.of(name, came[0])
    before = _previous(events, name, came[0])
    is_lifo = '"lifo":true' in queue.jobs[came[0]].get("opts", "") and "delayed" not in before
    is_front = b"stalled" in told or step.is_front or "waiting-children" in before or is_lifo
    if came[0] != listed[-1 if is_front else 0]:
        yield f"T6: {came[0]} came and stands in {listed}"


def _stayed(name: str, was: Queue, queue: Queue, events: Events) -> Iterator[str]:
    """Who goes on waiting keeps his place, unless he goes from the plain list to his lane."""
    admitted = queue.lanes_jobs - was.lanes_jobs
    for place in ("wait", "paused"):
        before, now = was.order.get(place, []), queue.order.get(place, [])
        stayed = [
            job_id
            for job_id in before
            if job_id in now and job_id not in admitted and not events.places_of(name, job_id)
        ]
        after = [job_id for job_id in now if job_id in stayed]
        if stayed != after:
            yield f"T6: {stayed} stand as {after} now"


def _began(name: str, queue: Queue, events: Events) -> Iterator[str]:
    """Who is taken stands in front of those that run."""
    active = queue.order.get("active", [])
    began = [job_id for job_id in active if b"active" in events.of(name, job_id)]
    if began and set(began) != set(active[: len(began)]):
        yield f"T6: {began} were taken and stand in {active}"


def _due_first(name: str, queue: Queue, events: Events) -> Iterator[str]:
    """Who was due stands before the one that comes back in the same moment."""
    due = [
        job_id
        for job_id in queue.order.get("wait", ())
        if "delayed" in _previous(events, name, job_id) and queue.lane_of(job_id) is None
    ]
    for (where, job_id), told in events.of_jobs.items():
        is_plain = queue.lane_of(job_id) is None and '"lifo":true' not in _opts(queue, job_id)
        came_back = told == [b"waiting", b"active"] and "active" in _previous(events, name, job_id)
        if due and where == name and came_back and is_plain:
            yield f"T6: {job_id} came back and was taken before {due}"


def _shared(was: Queue, queue: Queue, step: Step) -> Iterator[str]:
    """Plain jobs and lanes take turns."""
    plain = [job_id for job_id in was.order.get("wait", ()) if was.lane_of(job_id) is None]
    is_take = step.call is not None and not step.call.ended and step.call.take == 1
    both = bool(was.lanes_ready) and bool(plain) and "paused" not in was.meta
    turns = [one.meta.get("toril.lanesNext") for one in (was, queue)]
    if is_take and both and was is not queue and not step.is_repeated and turns[0] == turns[1]:
        yield f"T6: it is the turn of {turns[0]} again"


def _turns(before: View, after: View, queue: Queue) -> Iterator[str]:
    """A lane that is ready anew does not stand before those that were."""
    key = f"{queue.base}:lanes:ready"
    if key not in before.keys or key not in after.keys:
        return
    was, now = before.keys[key].scores, after.keys[key].scores
    for lane, turn in now.items():
        others = [was[other] for other in now if other in was]
        if lane not in was and others and turn < max(others):
            yield f"T5: lane {lane} has turn {turn} and came after {was}"


def _opts(queue: Queue, job_id: str) -> str:
    return queue.jobs.get(job_id, {}).get("opts", "")


def _previous(events: Events, name: str, job_id: str) -> set[str]:
    return {
        fields.get(b"prev", b"").decode()
        for queue, fields in events.all
        if queue == name and fields.get(b"jobId") == job_id.encode()
    }
