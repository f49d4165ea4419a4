"""What has to hold in every state, and between a state and the next one.

S1   a job is in exactly one place and has a hash; what has a hash is in a place
S2   a lock belongs to an active job and expires; what is in `stalled` is active
S3   a job's other keys do not outlive it
S4   somebody is told of waiting work, and of when more is due
S5   lanes: one holder at most, and that is a job that exists; ready lanes have jobs
S6   groups: the counts are those of the members; the state fits them; who completed is undone
S7   a scheduler has its pending iteration, or it is being taken
S8   a deduplication id belongs to a job that exists
S9   a parent and its children know of each other
S10  what is in transit has its parcel, and every parcel is carried

T1   events tell of every change of place, and the last one names the place
T2   what is written about a job fits its change: attempts, results, times, locks
T3   only who holds the lock changes anything of a job; whoever is refused changes nothing
T4   jobs come and go only when a step says so
T5   the head of a lane is taken, and nobody overtakes it
T6   who is first is taken first, and whoever comes stands at the end that is his
T7   what was asked for was done, counted and told
T8   a parcel is removed only once it was delivered, and is done once

On a cluster a parcel that is under way stands for what it will do: a member that it carries is
there, a member whose end it tells is pending and gone. Once nothing is under way, all of this holds
as in one slot.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.checks.deduplication import deduplication_problems
from tests.model.checks.deeds import deed_problems
from tests.model.checks.events import Events, event_problems
from tests.model.checks.families import family_problems
from tests.model.checks.fields import field_problems
from tests.model.checks.groups import (
    group_problems,
    group_run_problems,
    group_step_problems,
)
from tests.model.checks.lanes import lane_problems
from tests.model.checks.lists import list_problems
from tests.model.checks.locks import lock_problems
from tests.model.checks.order import order_problems
from tests.model.checks.parcels import parcel_problems, parcel_step_problems
from tests.model.checks.places import place_problems
from tests.model.checks.schedulers import scheduler_problems
from tests.model.checks.settling import settling_problems
from tests.model.checks.wakefulness import wake_problems
from tests.model.machine import Result
from tests.model.steps import Step
from tests.model.view import View
from tests.model.world import Node


def state_problems(view: View, node: Node, *, is_calm: bool) -> Iterator[str]:
    """S1 to S10. ``is_calm`` says that no marker can have been lost with a broken line."""
    if view.problems is None:
        view.problems = list(server_problems(view))
    yield from view.problems
    for name, queue in view.queues.items():
        yield from (f"{name}: {problem}" for problem in group_run_problems(view, queue, node))
        if is_calm:
            yield from (f"{name}: {problem}" for problem in wake_problems(name, queue, node))


def server_problems(view: View) -> Iterator[str]:
    """What is wrong with what the server holds, whatever the clients think."""
    yield from (f"S1: unknown key {key}" for key in view.unknown)
    for name, queue in view.queues.items():
        problems = [
            *place_problems(view, queue),
            *lane_problems(queue),
            *group_problems(view, queue),
            *scheduler_problems(queue),
            *deduplication_problems(view, queue),
            *family_problems(view, queue),
            *parcel_problems(view, queue),
        ]
        yield from (f"{name}: {problem}" for problem in problems)


def step_problems(
    before: View, after: View, result: Result, step: Step, now_ms: int
) -> Iterator[str]:
    """T1 to T8."""
    events = Events(result.events)
    changed = _changed(before, after, events)
    yield from event_problems(before, after, events, step, changed)
    yield from field_problems(before, after, events, changed, now_ms)
    yield from order_problems(before, after, events, step)
    yield from deed_problems(before, after, events, step, result.reply)
    yield from lock_problems(after, step, result)
    yield from list_problems(before, after, step, result.reply)
    yield from group_step_problems(before, after, events, step, result.reply)
    if after.layout.is_spread:
        yield from parcel_step_problems(before, after, step)
    if step.call is not None:
        yield from settling_problems(before, after, step, result.reply)


def _changed(before: View, after: View, events: Events) -> list[tuple[str, str]]:
    """(queue, job) of those whose place or hash is another, or of whom something was told."""
    changed = set(events.of_jobs)
    for name, queue in after.queues.items():
        old = before.queues[name]
        for job_id in queue.places.keys() | old.places.keys():
            is_same = queue.jobs.get(job_id) is old.jobs.get(job_id)
            if not is_same or queue.places.get(job_id) != old.places.get(job_id):
                changed.add((name, job_id))
    return sorted(changed)
