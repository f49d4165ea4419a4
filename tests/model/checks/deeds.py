"""T7: what was asked for was done, counted and told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tests.model.actors import HOLD_LANE, LIMIT
from tests.model.checks.events import Events
from tests.model.parcels import letter_id
from tests.model.slots import LETTERS, Q
from tests.model.steps import NUMBERED, Step
from tests.model.view import PREFIX, View


def deed_problems(
    before: View, after: View, events: Events, step: Step, reply: Any
) -> Iterator[str]:
    script = step.request.script
    for name, queue in after.queues.items():
        was, names = before.queues[name], events.names(name)
        added = names.count(b"added")
        if queue.counter - was.counter < added:
            yield f"T7: {name}: {added} jobs were added; counted {queue.counter - was.counter}"
        was_paused, is_paused = "paused" in was.meta, "paused" in queue.meta
        if is_paused and "0" in queue.marker:
            yield f"T7: {name}: it is paused and the marker calls"
        if is_paused != was_paused and (b"paused" if is_paused else b"resumed") not in names:
            yield f"T7: {name}: paused is {is_paused} and nobody was told"
        if script == "renew" and not reply[0] and step.held in queue.stalled:
            yield f"T7: {name}: {step.held} was renewed and is in stalled"
        yield from (f"T7: {name}: {problem}" for problem in _counters(after, name, step, reply))
        yield from (
            f"T7: {name}: {problem}" for problem in _metrics(before, after, name, events, step)
        )
    if script in ("pause", "resume"):
        is_paused = "paused" in after.queues[Q].meta
        if is_paused != (script == "pause"):
            yield f"T7: {script} was not done"
    yield from _drained(after, events, step, reply)
    yield from _replayed(before, after, step, reply)
    yield from _limited(after, step, reply)
    yield from _lane_changed(after, step)
    yield from _confirmed(after, step)
    yield from _cancelled_again(before, after, step, reply)
    yield from _made_once(before, after, events, step, reply)
    yield from _changed_priority(after, step, reply)
    yield from _deduplicated(before, after, events, step, reply)
    yield from _advanced(before, after, step, reply)
    yield from _buried(before, after, events)
    yield from _purged(before, after, events, step)
    yield from _removed(after, events, step, reply)


def _cancelled_again(before: View, after: View, step: Step, reply: Any) -> Iterator[str]:
    """Whoever asks again because the reply was lost hears what was said, whatever others did to the
    group since, and changes nothing; if it was refused, that is the state of the group by now."""
    if step.request.script != "cancelGroup" or not step.first_answer:
        return
    if (reply == b"ACTIVE") != (step.first_answer == b"ACTIVE"):
        yield f"T7: {step.name} said {reply!r}, and {step.first_answer!r} the first time"
    if after.keys != before.keys:
        yield f"T7: {step.name} changed something"


def _made_once(before: View, after: View, events: Events, step: Step, reply: Any) -> Iterator[str]:
    """What adds and arrives again hears what was said, and changes nothing."""
    if not step.is_repeated or step.request.script not in NUMBERED:
        return
    if repr(reply).encode() != step.first_answer:
        yield f"T7: {step.name} said {reply!r}, and {step.first_answer!r} the first time"
    if after.keys != before.keys or events.of_jobs:
        yield f"T7: {step.name} changed something"


def _counters(after: View, name: str, step: Step, reply: Any) -> Iterator[str]:
    """Whoever finds nothing to take drops the counter of the priorities."""
    queue = after.queues[name]
    if step.call is None or step.worker is None or step.worker.queue != name:
        return
    found_nothing = not step.is_repeated and not isinstance(reply, int) and not reply[1]
    is_open = "paused" not in queue.meta and not reply[2] and "concurrency" not in queue.meta
    has_counter = f"{queue.base}:pc" in after.keys and not queue.order.get("prioritized")
    if found_nothing and step.call.take and is_open and has_counter:
        yield "nothing has a priority and the counter stays"


def _metrics(before: View, after: View, name: str, events: Events, step: Step) -> Iterator[str]:
    """Every end is counted, if the worker counts."""
    if step.worker is None or step.worker.queue != name or not step.worker.habits.points:
        return
    for kind in ("completed", "failed", "deadLettered"):
        key = f"{after.queues[name].base}:metrics:{kind}"
        cells = [view.keys.get(key) for view in (before, after)]
        if cells[1] is not None and "prevTS" not in cells[1].pairs:
            yield f"{kind} is counted since nobody knows when"
        counts = [int(cell.pairs["count"]) if cell else 0 for cell in cells]
        if counts[1] - counts[0] != events.names(name).count(kind.encode()):
            yield f"{kind} was counted from {counts[0]} to {counts[1]}"


def _drained(after: View, events: Events, step: Step, reply: Any) -> Iterator[str]:
    """`drained` tells that the last job has ended, and nothing else."""
    if step.call is None or step.worker is None or step.is_repeated or isinstance(reply, int):
        return
    name = step.worker.queue
    queue, names = after.queues[name], events.names(name)
    has_ended = b"completed" in names or b"failed" in names
    is_left = any(queue.order.get(place) for place in ("wait", "prioritized", "active"))
    is_held = "paused" in queue.meta and step.call.take > 0
    is_drained = has_ended and not (is_left or reply[1] or reply[2] or reply[3] or is_held)
    if is_drained != (b"drained" in names):
        yield f"T7: {name}: drained is {is_drained}, and {names} was told"


def _replayed(before: View, after: View, step: Step, reply: Any) -> Iterator[str]:
    if step.request.script != "replayDeadLetter" or not isinstance(reply, bytes):
        return
    counts = [int(view.queues[LETTERS].meta.get("x.replayed", 0)) for view in (before, after)]
    if counts[1] - counts[0] != (before.places != after.places):
        yield f"T7: a letter was replayed, and {counts} were counted"
    job = after.queues[Q].jobs.get("again") or _on_its_way(after, "again")
    if before.places != after.places and not ("x.replays" in job and "x.history" in job):
        yield f"T7: a letter was replayed as {job}"


def _on_its_way(after: View, job_id: str) -> list[str]:
    """The fields that a job has which comes back to another slot."""
    for parcel in after.under_way:
        if parcel.verb == "insert" and parcel.body["job"]["id"] == job_id:
            return list(parcel.body["job"]["more"])
    return []


def _limited(after: View, step: Step, reply: Any) -> Iterator[str]:
    """A job that says so holds its queue back, until a take finds that the time is over."""
    if step.call is None or step.worker is None or step.is_repeated or isinstance(reply, int):
        return
    queue = after.queues[step.worker.queue]
    for (held, how), code in zip(step.call.ended, reply[0], strict=True):
        if how == HOLD_LANE and code == 0 and queue.lane_of(held.job_id) not in queue.lanes_later:
            yield f"T7: {held.job_id} was to hold its lane back and does not"
    codes = zip(step.call.ended, reply[0], strict=True)
    if any(how == LIMIT and code == 0 for (_, how), code in codes):
        if not (queue.is_limited and "x.held" in queue.meta):
            yield "T7: the queue was to be held back and is not"
    elif step.call.take and not reply[2] and "x.held" in queue.meta:
        yield "T7: the queue is held back no more and says so"


def _lane_changed(after: View, step: Step) -> Iterator[str]:
    if step.request.script == "setLane" and step.name.startswith(("pause", "resume")):
        is_stopped = "l" in after.queues[Q].lanes_stopped
        if is_stopped != step.name.startswith("pause"):
            yield f"T7: {step.name}: the lane is stopped: {is_stopped}"


def _confirmed(after: View, step: Step) -> Iterator[str]:
    """What is known to have arrived is not handed out again, nor excused when it stalls."""
    if not step.confirmed:
        return
    replies = after.keys[f"{PREFIX}:{Q}:toril:replies"].pairs
    last = replies[step.confirmed].encode("utf-8", "surrogateescape")[:-16]  # without its number
    if step.held in msgspec.msgpack.decode(last, strict=False)["taken"]:
        yield f"T7: {step.name}: the last reply has not arrived"


def _changed_priority(after: View, step: Step, reply: Any) -> Iterator[str]:
    changed = after.queues[Q].jobs.get("y", {})
    if step.request.script == "changePriority" and reply == 0 and changed.get("priority") != "1":
        yield "T7: y has another priority than the one that it was given"


def _deduplicated(
    before: View, after: View, events: Events, step: Step, reply: Any
) -> Iterator[str]:
    if step.request.script != "add" or step.is_repeated:
        return
    for (name, job_id), told in events.of_jobs.items():
        owned = after.queues[name].jobs.get(job_id, {}).get("deid")
        if b"added" in told and owned and after.queues[name].deduplication.get(owned) != job_id:
            yield f"T7: {job_id} was added and does not own {owned}"
    if b"removed" in events.names(Q) and after.queues[Q].next_jobs:
        yield "T7: a job was replaced, and another one still waits for its turn"
    if not isinstance(reply[1], bytes):
        return
    replaces = any(b'"replace":true' in word for word in step.request.words[1:])
    if b"deduplicated" not in events.names(Q) and not replaces:
        yield "T7: a job was deduplicated and nobody was told"
    is_beside_5 = after.queues[Q].meta.get("version", "").startswith("bullmq:5")
    if is_beside_5 and b"debounced" not in events.names(Q):
        yield "T7: a job was deduplicated and BullMQ 5 was not told"
    keeps_last = any(b"keepLastIfActive" in word for word in step.request.words[1:])
    is_active = before.queues[Q].places.get(reply[1].decode()) == "active"
    if keeps_last and is_active and not after.queues[Q].next_jobs:
        yield "T7: the last one was to be kept and is not"
    for kept in after.queues[Q].next_jobs.values() if keeps_last and is_active else ():
        if kept.keys() != {"name", "data", "opts", "jid", "x.job"}:
            yield f"T7: the last one was to be kept alone, and {sorted(kept)} are"


def _advanced(before: View, after: View, step: Step, reply: Any) -> Iterator[str]:
    if step.request.script != "advanceScheduler" or not isinstance(reply, bytes):
        return
    counts = [view.keys[f"{PREFIX}:{Q}:repeat:tick"].pairs.get("ic", 0) for view in (before, after)]
    if int(counts[1]) - int(counts[0]) != 1:
        yield f"T7: an iteration was made, and {counts} were counted"


def _buried(before: View, after: View, events: Events) -> Iterator[str]:
    if LETTERS not in after.queues:
        return
    letters = _letters(after) - _letters(before)
    counts = [int(view.queues[Q].meta.get("x.deadLettered", 0)) for view in (before, after)]
    if letters and b"deadLettered" not in events.names(Q):
        yield f"T7: {letters} are dead letters and nobody was told"
    if counts[1] - counts[0] != len(letters):
        yield f"T7: {letters} are dead letters and {counts} were counted"


def _letters(view: View) -> set[str]:
    """Those that are there, and those on their way."""
    return view.queues[LETTERS].places.keys() | {
        letter_id(parcel) for parcel in view.under_way if parcel.verb == "bury"
    }


def _purged(before: View, after: View, events: Events, step: Step) -> Iterator[str]:
    """Every letter that waits is gone, counted and told of; one that is being run is not."""
    if step.request.script != "purgeDeadLetters":
        return
    was, now = before.queues[LETTERS], after.queues[LETTERS]
    gone = was.places.keys() - now.places.keys()
    counts = [int(queue.meta.get("x.purged", 0)) for queue in (was, now)]
    if counts[1] - counts[0] != len(gone):
        yield f"T7: {gone} were purged and {counts} were counted"
    if (b"cleaned" in events.names(LETTERS)) != bool(gone):
        yield f"T7: {gone} were purged, and {events.names(LETTERS)} was told"
    is_first = not any(key.startswith(f"{was.base}:toril:purge-") for key in before.keys)
    if is_first and now.order.get("wait"):
        yield f"T7: {now.order['wait']} were to be purged"
    if any(was.places[job_id] != "wait" for job_id in gone):
        yield f"T7: {gone} were purged, and not all of them waited"


def _removed(after: View, events: Events, step: Step, reply: Any) -> Iterator[str]:
    """A parent that is to be removed is not let go, and does not name who was removed before it."""
    if step.request.script != "remove":
        return
    for (name, job_id), told in events.of_jobs.items():
        if b"removed" in told and len(told) > 1:
            yield f"T7: {name}: {job_id} was removed, and {told} was told"
    if isinstance(reply, int) or not reply[0]:
        return
    for part in ("dependencies", "processed", "failed", "unsuccessful"):
        cell = after.keys.get(f"{PREFIX}:{Q}:p:{part}")
        for child in cell.content if cell is not None else ():
            is_job = child.startswith(f"{PREFIX}:")
            if is_job and after.place_of(child) is None and not after.told(child):
                yield f"T7: {child} was removed and is among the {part} of its parent"
