"""S10 and T8: what is on its way is in one place, is not lost, and is done once."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.parcels import Parcel, letter_id
from tests.model.slots import tag_of
from tests.model.steps import Step
from tests.model.view import Queue, View

LIMITS = ("toril:received", "toril:group-bell")
"""What a delivery may renew that was made before."""


def parcel_problems(view: View, queue: Queue) -> Iterator[str]:
    for job, parcel_id in queue.in_transit.items():
        parcel = queue.parcels.get(parcel_id)
        if parcel is None:
            yield f"S10: {job} is in transit, and its parcel {parcel_id} is nowhere"
        elif parcel in view.under_way and job in queue.places:
            yield f"S10: {job} is in transit and in {queue.places[job]}"
    for parcel_id, words in queue.refused.items():
        yield f"S10: {queue.parcels[parcel_id].verb} was refused: {words}"
    if queue.parcels.keys() != queue.parcels_due.keys():
        yield f"S10: {queue.parcels.keys()} are there, {queue.parcels_due.keys()} are carried"
    for parcel in queue.parcels.values():
        if parcel.id in _followed(parcel):
            yield f"S10: {parcel.verb} waits for itself"
        if tag_of(parcel.target) == tag_of(queue.base):
            yield f"S10: {parcel.verb} goes to {parcel.target} in the same slot"


def parcel_step_problems(before: View, after: View, step: Step) -> Iterator[str]:
    under_way = {parcel.id for parcel in after.under_way}
    for name, queue in before.queues.items():
        left = after.queues[name].parcels
        for parcel_id, parcel in queue.parcels.items():
            if parcel_id not in left and not _has(after, parcel):
                yield f"T8: {parcel.verb} is gone from {name} and was not delivered"
            elif parcel_id in left and left[parcel_id].body != parcel.body:
                yield f"T8: {parcel.verb} has the id of another parcel: {left[parcel_id].body}"
    for parcel in before.under_way:
        if parcel.id not in under_way and _has(after, parcel):
            yield from (f"T8: {problem}" for problem in _not_done(after, parcel))
    if step.verbs and not _news(before, after) and before.keys != after.keys:
        changed = {
            key for key, cell in after.keys.items() if before.keys.get(key) is not cell
        } | before.keys.keys() - after.keys.keys()
        if any(not key.endswith(LIMITS) for key in changed):
            yield f"T8: {step.name} was no news and changed {sorted(changed)}"


def _followed(parcel: Parcel) -> list[str]:
    """The parcels that it must not overtake."""
    after = parcel.body.get("after") or []
    return [after] if isinstance(after, str) else list(after)


def _has(view: View, parcel: Parcel) -> bool:
    """Has its target received it?"""
    return any(
        queue.base == parcel.target and parcel.id in queue.received
        for queue in view.queues.values()
    )


def _news(before: View, after: View) -> bool:
    """Was anything received for the first time?"""
    return any(
        queue.received.keys() != before.queues[name].received.keys()
        for name, queue in after.queues.items()
    )


def _not_done(after: View, parcel: Parcel) -> Iterator[str]:
    """A job that arrives is there."""
    wanted = ""
    if parcel.verb == "bury":
        wanted = f"{parcel.target}:{letter_id(parcel)}"
    elif parcel.verb == "insert":
        wanted = f"{parcel.target}:{parcel.body['job']['id']}"
    if wanted and after.place_of(wanted) is None:
        yield f"{parcel.verb} was delivered, and {wanted} is nowhere"
