"""What has to hold in every state, and between a state and the next one.

S1   a job is in exactly one place and has a hash; what has a hash is in a place
S2   a lock belongs to an active job; what is in `stalled` is active
S3   a job's other keys do not outlive it
S4   somebody is told of waiting work: the marker is there unless a worker is on its way
S5   lanes: one holder at most, and that is a job that exists; ready lanes have jobs
S6   groups: the counts are those of the members; the state fits them; who completed is undone
S7   a scheduler has its pending iteration, or it is being taken
S8   a deduplication id belongs to a job that exists

T1   events tell of every change of place, and the last one names the place
T2   what is written about a job fits its change: attempts, results, times, locks
T3   only who holds the lock changes anything of a job; whoever is refused changes nothing
T4   jobs come and go only when a step says so
T5   the head of a lane is taken, and nobody overtakes it
T6   who is first is taken first, and whoever comes stands at the end that is his
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tests.model.actors import POPPED, Call, Worker
from tests.model.view import Queue, View, pairs

PLACE_EVENTS = {
    b"waiting": ("wait", "prioritized"),
    b"delayed": ("delayed",),
    b"active": ("active",),
    b"completed": ("completed", None),
    b"failed": ("failed", None),
    b"waiting-children": ("waiting-children",),
    b"removed": (None,),
}
FINISHED = ("completed", "failed")
_GROUP_EVENTS = {
    "COMPENSATING": b"group:compensating",
    "COMPLETED": b"group:completed",
    "FAILED": b"group:failed",
    "FAILED_COMPENSATION": b"group:failed",
}


def state_problems(view: View, workers: tuple[Worker, ...], *, is_calm: bool) -> Iterator[str]:
    """S1 to S8. ``is_calm`` says that no marker can have been lost with a broken line."""
    yield from (f"S1: unknown key {key}" for key in view.unknown)
    for name, queue in view.queues.items():
        yield from (f"S1: {name}: {problem}" for problem in queue.problems)
        for job_id, place in queue.places.items():
            if "name" not in queue.jobs.get(job_id, ()):
                yield f"S1: {name}: {job_id} is in {place} and has no hash"
        for job_id in queue.jobs.keys() - queue.places.keys():
            yield f"S1: {name}: {job_id} has a hash and is nowhere"
        active = queue.order.get("active", ())
        for job_id in queue.locks.keys() - set(active):
            yield f"S2: {name}: {job_id} is locked and not active"
        for job_id in set(queue.stalled) - set(active):
            yield f"S2: {name}: {job_id} is in stalled and not active"
        for part in queue.parts:
            if part.rpartition(":")[0] not in queue.jobs:
                yield f"S3: {name}: {part} belongs to no job"
        if is_calm:
            yield from _marker(name, queue, workers)
        if queue.lanes_index or queue.lanes_held or queue.lanes_ready:
            yield from _lanes(name, queue)
        yield from _groups(name, queue, view)
        yield from _schedulers(name, queue)
        for key, owner in queue.deduplication.items():
            place = queue.places.get(owner)
            if place is None or place in FINISHED:
                yield f"S8: {name}: {key} belongs to {owner}, which is in {place}"
        for job_id, job in queue.jobs.items():
            owned = job.get("deid")
            is_over = queue.places.get(job_id) in FINISHED
            if owned and not is_over and queue.deduplication.get(owned) != job_id:
                yield f"S8: {name}: {job_id} does not own {owned}"
        yield from _families(name, queue)


def _families(name: str, queue: Queue) -> Iterator[str]:
    """S9: who fails with its child knows it."""
    for job_id, job in queue.jobs.items():
        if queue.places.get(job_id) != "failed" or '"fpof":true' not in job.get("parent", ""):
            continue
        parent_id = job["parentKey"].rpartition(":")[2]
        parent = queue.jobs.get(parent_id)
        if parent and "defa" not in parent and queue.places.get(parent_id) not in FINISHED:
            yield f"S9: {name}: {job_id} failed and its parent does not know"


def _marker(name: str, queue: Queue, workers: tuple[Worker, ...]) -> Iterator[str]:
    has_work = queue.order.get("wait") or queue.order.get("prioritized")
    if not has_work or "paused" in queue.meta or "0" in queue.marker:
        return
    if queue.lanes_index and not queue.lanes_ready and not _has_plain_work(queue):
        return
    if any(worker.queue == name and worker.phase == POPPED for worker in workers):
        return
    yield f"S4: {name}: there is work and no marker"


def _has_plain_work(queue: Queue) -> bool:
    waiting = (*queue.order.get("wait", ()), *queue.order.get("prioritized", ()))
    return any("x.lane" not in queue.jobs.get(job_id, ()) for job_id in waiting)


def _lanes(name: str, queue: Queue) -> Iterator[str]:
    waiting = defaultdict(list)
    for place in ("wait", "delayed"):
        for job_id in queue.order.get(place, ()):
            if lane := queue.jobs.get(job_id, {}).get("x.lane"):
                waiting[lane[32:]].append((job_id, place))
    for lane, holders in queue.lanes_held.items():
        if len(holders) > 1:
            yield f"S5: {name}: lane {lane} is held by {holders}"
        for job_id in holders:
            if job_id not in queue.jobs:
                yield f"S5: {name}: lane {lane} is held by {job_id}, which does not exist"
            elif queue.places.get(job_id) in (*FINISHED, "wait"):
                yield f"S5: {name}: lane {lane} is held by {job_id} in {queue.places[job_id]}"
        if lane in queue.lanes_ready:
            yield f"S5: {name}: lane {lane} is held and ready"
    running = [
        queue.jobs[job_id]["x.lane"][32:]
        for job_id in queue.order.get("active", ())
        if "x.lane" in queue.jobs.get(job_id, ())
    ]
    for lane in running:
        if running.count(lane) > 1:
            yield f"S5: {name}: lane {lane} runs several jobs"
        if lane not in queue.lanes_held:
            yield f"S5: {name}: lane {lane} runs a job and is not held"
    for lane in queue.lanes_ready:
        if not any(place == "wait" for _, place in waiting.get(lane, ())):
            yield f"S5: {name}: lane {lane} is ready and has no job"
    for lane, jobs in waiting.items():
        is_waiting = any(place == "wait" for _, place in jobs)
        if lane not in queue.lanes_index:
            yield f"S5: {name}: lane {lane} has jobs and is not indexed"
        if is_waiting and lane not in queue.lanes_ready and lane not in queue.lanes_held:
            yield f"S5: {name}: lane {lane} has jobs, is not held and not ready"
    if queue.lanes_aside != queue.lanes_delayed:
        yield f"S5: {name}: {queue.lanes_aside} are aside and {queue.lanes_delayed} delayed"
    for lane in queue.lanes_index:
        if lane not in waiting and lane not in queue.lanes_held:
            yield f"S5: {name}: lane {lane} is indexed and empty"


def _number_in(plan: dict[str, str], job_key: str) -> str:
    """The number of a member, by which its compensation is named; packed values are in hex."""
    wanted = job_key.encode().hex()
    return next(number for number, value in plan.items() if number.isdigit() and wanted in value)


def _groups(name: str, queue: Queue, view: View) -> Iterator[str]:
    for group_id, group in queue.groups.items():
        members = queue.group_parts.get(f"{group_id}:jobs", {})
        ends = queue.group_parts.get(f"{group_id}:compensations", {})
        for status in ("completed", "failed", "cancelled"):
            counted = int(group.get(f"{status}Count", 0))
            if counted != list(members.values()).count(status):
                yield f"S6: {name}: group counts {counted} {status} of {members}"
        live = [key for key, status in members.items() if status == "pending"]
        state = group["state"]
        pending = [key for key, status in ends.items() if status == "pending"]
        if int(group.get("x.running", 0)) != len(pending):
            yield f"S6: {name}: group counts {group.get('x.running')} of {ends} under way"
        if state in ("ACTIVE", "COMPLETED") and ends:
            yield f"S6: {name}: group is {state} and is being undone: {ends}"
        if state == "COMPLETED" and set(members.values()) != {"completed"}:
            yield f"S6: {name}: group is COMPLETED with {members}"
        if state == "ACTIVE" and (not live or "failed" in members.values()):
            yield f"S6: {name}: group is ACTIVE with {members}"
        if state.startswith("FAILED") and (live or pending):
            yield f"S6: {name}: group is {state} with {members} and {ends}"
        if state.startswith("FAILED"):
            # A member whose process died may be undone too; tests/model/test_groups knows which.
            plan = queue.group_parts.get(f"{group_id}:plan", {})
            undone = {key.rpartition("-c")[2] for key in ends}
            done = {_number_in(plan, key) for key, end in members.items() if end == "completed"}
            if not done <= undone:
                yield f"S6: {name}: group is {state}, {done} completed and {undone} were undone"
            is_broken = "failed" in ends.values() or "cancelled" in ends.values()
            if is_broken != (state == "FAILED_COMPENSATION"):
                yield f"S6: {name}: group is {state} with {ends}"
        open_groups = view.keys.get(f"{queue.base}:toril:groups-open", ("", []))[1]
        ended = view.keys.get(f"{queue.base}:toril:groups-ended", ("", []))[1]
        if state in ("COMPLETED", "FAILED", "FAILED_COMPENSATION") and group_id in open_groups:
            yield f"S6: {name}: group is {state} and counts as open"
        if state in ("COMPLETED", "FAILED") and group_id not in ended:
            yield f"S6: {name}: group is {state} and does not count as ended"
        if state not in ("ACTIVE", "COMPLETED") and "x.reason" not in group:
            yield f"S6: {name}: group is {state} and nobody knows why"
        if state == "COMPENSATING" and not live and not pending:
            yield f"S6: {name}: group is COMPENSATING and nothing of it is left"
        for key, status in ends.items():
            place = _place_of(key, view)
            if (status == "pending") != (place is not None and place not in FINISHED):
                yield f"S6: {name}: compensation {key} is {status} and in {place}"
        for key, status in members.items():
            place = _place_of(key, view)
            if status == "pending" and (place is None or place in FINISHED):
                yield f"S6: {name}: member {key} is pending and in {place}"
            if status == "completed" and place not in ("completed", None):
                yield f"S6: {name}: member {key} is completed and in {place}"


def _place_of(key: str, view: View) -> str | None:
    for queue in view.queues.values():
        if key.startswith(queue.base + ":"):
            place = queue.places.get(key[len(queue.base) + 1 :])
            if place is not None:
                return place
    return None


def _schedulers(name: str, queue: Queue) -> Iterator[str]:
    for scheduler, at in queue.schedulers.items():
        iteration = f"repeat:{scheduler}:{at:.0f}"
        place = queue.places.get(iteration)
        if place is None or place in FINISHED:
            yield f"S7: {name}: the pending iteration {iteration} is in {place}"
        pending = [
            job_id
            for job_id, place in queue.places.items()
            if job_id.startswith(f"repeat:{scheduler}:") and place in ("wait", "delayed")
        ]
        if len([one for one in pending if not queue.jobs[one].get("ats")]) > 1:
            yield f"S7: {name}: several iterations are pending: {pending}"


def step_problems(
    before: View,
    after: View,
    events: list[list[bytes]],
    step: Any,
    reply: Any,
    now_ms: int,
) -> Iterator[str]:
    """T1 to T5."""
    told: dict[tuple[str, str], list[bytes]] = defaultdict(list)
    for base, *flat in events:
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        queue_name = base.decode().removesuffix(":events").partition(":")[2]
        if b"jobId" in fields:
            told[queue_name, fields[b"jobId"].decode()].append(fields[b"event"])
    keys = before.places.keys() | after.places.keys() | told.keys()
    for name, job_id in keys:
        old = before.places.get((name, job_id))
        new = after.places.get((name, job_id))
        names = told.get((name, job_id), [])
        said = [event for event in names if event in PLACE_EVENTS]
        yield from _told_in_order(name, job_id, old, said)
        if said and new not in PLACE_EVENTS[said[-1]]:
            yield f"T1: {name}: {job_id} is in {new} and the events say {said}"
        if not said and old != new and not step.is_silent:
            yield f"T1: {name}: {job_id} went from {old} to {new} and nobody was told"
        is_exhausted = b"failed" in said and old == "active" and _is_last(before, name, job_id)
        if is_exhausted and b"retries-exhausted" not in names:
            yield f"T1: {name}: {job_id} has no attempt left and nobody was told"
        for event in (b"completed", b"failed"):
            if said.count(event) > 1:
                yield f"T1: {name}: {job_id}: {said}"
        # A dead letter comes from another queue, where `deadLettered` says so; here it waits.
        is_letter = "x.letter" in after.queues[name].jobs.get(job_id, ())
        is_told = b"waiting" in names if is_letter and old is None else b"added" in names
        if (old is None and new is not None) != is_told and not step.is_silent:
            yield f"T4: {name}: {job_id} from {old} to {new}: {names}"
        if old is not None and new is None and not step.may_remove:
            yield f"T4: {name}: {job_id} is gone from {old}"
        old_job = before.queues[name].jobs.get(job_id, {})
        new_job = after.queues[name].jobs.get(job_id, {})
        yield from _fields(name, job_id, old, new, said, old_job, new_job, now_ms)
        if b"active" in said:
            yield from _taken(name, job_id, step, before, after)
    yield from _counters(before, after, told)
    for name in after.queues:
        yield from _order(name, before.queues[name], after.queues[name], told, step)
    yield from _done(before, after, events, step, reply)
    if step.call is not None:
        yield from _settled(step, before, after, reply)


def _is_last(before: View, name: str, job_id: str) -> bool:
    job = before.queues[name].jobs[job_id]
    found = re.search(r'"attempts":(\d+)', job.get("opts", ""))
    attempts = int(found.group(1)) if found else 1
    return int(job.get("atm", 0)) + 1 >= max(attempts, 1)


def _told_in_order(name: str, job_id: str, old: str | None, said: list[bytes]) -> Iterator[str]:
    """A job that is taken was waiting before, and the events say when it began to."""
    is_waiting = old in ("wait", "prioritized")
    for event in said:
        if event == b"active" and not is_waiting:
            yield f"T1: {name}: {job_id} was in {old} and the events say {said}"
        is_waiting = event == b"waiting"


def _done(
    before: View, after: View, events: list[list[bytes]], step: Any, reply: Any
) -> Iterator[str]:
    names = {event[2] for event in events}
    script = step.request.script
    for name, queue in after.queues.items():
        was_paused, is_paused = "paused" in before.queues[name].meta, "paused" in queue.meta
        if is_paused and "0" in queue.marker:
            yield f"T7: {name}: it is paused and the marker calls"
        if is_paused != was_paused and (b"paused" if is_paused else b"resumed") not in names:
            yield f"T7: {name}: paused is {is_paused} and nobody was told"
        if script == "renew" and not reply[0] and step.held in queue.stalled:
            yield f"T7: {name}: {step.held} was renewed and is in stalled"
        found_nothing = step.call is not None and not step.is_repeated and reply and not reply[1]
        has_counter = f"{queue.base}:pc" in after.keys and not queue.order.get("prioritized")
        is_own = step.worker is not None and step.worker.queue == name and not is_paused
        if found_nothing and is_own and step.call.take and has_counter:
            yield f"T7: {name}: nothing has a priority and the counter stays"
        due = queue.scores.get("delayed", {})
        if due and b"delayed" in names and not queue.marker:
            yield f"T7: {name}: {due} are delayed and no marker tells when"
        for group_id, group in queue.groups.items():
            old = before.queues[name].groups.get(group_id, group)
            if script == "cancelGroup" and reply == b"ACTIVE" and group["state"] == "ACTIVE":
                yield f"T7: {name}: the group was cancelled and is ACTIVE"
            told = _GROUP_EVENTS.get(group["state"])
            if old["state"] != group["state"] and told not in names:
                yield f"T7: {name}: the group is {group['state']} and {names} was told"
    changed = after.queues["q"].jobs.get("y", {}) if script == "changePriority" else {}
    if changed and changed.get("priority") != "1":
        yield "T7: y has another priority than the one that it was given"
    if b"deduplicated" not in names and script == "add" and isinstance(reply[1], bytes):
        yield "T7: a job was deduplicated and nobody was told"
    if script == "advanceScheduler" and isinstance(reply, bytes):
        count = [pairs(view.keys["p:q:repeat:tick"][1]).get("ic") for view in (before, after)]
        if count[0] == count[1]:
            yield "T7: an iteration was made and not counted"
    yield from _buried(before, after, names)
    yield from _kept_for_later(before, after, step, reply)
    if script in ("pause", "resume") and ("paused" in after.queues["q"].meta) != (
        script == "pause"
    ):
        yield f"T7: {script} was not done"


def _buried(before: View, after: View, names: set[bytes]) -> Iterator[str]:
    if "q-dlq" not in after.queues:
        return
    letters = after.queues["q-dlq"].places.keys() - before.queues["q-dlq"].places.keys()
    counts = [int(view.queues["q"].meta.get("x.deadLettered", 0)) for view in (before, after)]
    if letters and b"deadLettered" not in names:
        yield f"T7: {letters} are dead letters and nobody was told"
    if counts[1] - counts[0] != len(letters):
        yield f"T7: {letters} are dead letters and {counts} were counted"


def _kept_for_later(before: View, after: View, step: Any, reply: Any) -> Iterator[str]:
    if step.request.script != "add" or not isinstance(reply[1], bytes):
        return
    keeps_last = any(b"keepLastIfActive" in word for word in step.request.words[1:])
    is_active = before.queues["q"].places.get(reply[1].decode()) == "active"
    if keeps_last and is_active and not after.queues["q"].next_jobs:
        yield "T7: the last one was to be kept and is not"


def _order(
    name: str, before: Queue, after: Queue, told: dict[tuple[str, str], list[bytes]], step: Any
) -> Iterator[str]:
    taken = [job for job in before.places if b"active" in told.get((name, job), ())]
    plain = [
        job for job in before.order.get("wait", ()) if "x.lane" not in before.jobs.get(job, ())
    ]
    ranked = before.order.get("prioritized", [])
    for job in taken:
        if told[name, job] != [b"active"]:
            continue
        if job in plain and job != plain[-1]:
            yield f"T6: {name}: {job} was taken before {plain[-1]}"
        if job in ranked and (plain or job != ranked[0]):
            yield f"T6: {name}: {job} was taken before {plain or ranked}"
    came = [
        job
        for job in after.order.get("wait", ())
        if b"waiting" in told.get((name, job), ()) and "x.lane" not in after.jobs.get(job, ())
    ]
    if len(came) != 1 or step.is_silent or step.is_many:
        return
    (job,) = came
    now = [one for one in after.order["wait"] if "x.lane" not in after.jobs.get(one, ())]
    is_front = b"stalled" in told[name, job] or step.is_front
    if job != now[-1 if is_front else 0]:
        yield f"T6: {name}: {job} came and stands in {now}"


def _counters(before: View, after: View, told: dict[Any, list[bytes]]) -> Iterator[str]:
    for name, queue in after.queues.items():
        added = sum(b"added" in names for (where, _), names in told.items() if where == name)
        grown = queue.counter - before.queues[name].counter
        if grown < added:
            yield f"T2: {name}: {added} jobs were added and the counter grew by {grown}"


def _fields(
    name: str,
    job_id: str,
    old: str | None,
    new: str | None,
    said: list[bytes],
    old_job: dict[str, str],
    new_job: dict[str, str],
    now_ms: int,
) -> Iterator[str]:
    now = str(now_ms)
    where = f"T2: {name}: {job_id} from {old} to {new}"
    has_ended = new in FINISHED and old != new
    if has_ended and new_job.get("finishedOn") != now:
        yield f"{where}: finishedOn is {new_job.get('finishedOn')}"
    made = int(new_job.get("atm", 0)) - int(old_job.get("atm", 0))
    if new is not None and old is not None and made not in (0, 1):
        yield f"{where}: {made} attempts were counted"
    if new == "completed" and old != new and ("returnvalue" not in new_job or made != 1):
        yield f"{where}: {new_job}"
    if new == "failed" and old != new:
        if "failedReason" not in new_job or "defa" in new_job:
            yield f"{where}: {new_job}"
        if old == "active" and made != 1:
            yield f"{where}: {made} attempts were counted"
    started = int(new_job.get("ats", 0)) - int(old_job.get("ats", 0))
    if new is not None and started != said.count(b"active"):
        yield f"{where}: {started} starts were counted, events {said}"
    if b"active" in said and new == "active" and new_job.get("processedOn") != now:
        yield f"{where}: processedOn is {new_job.get('processedOn')}"
    if new == "delayed" and old not in ("delayed", None) and int(new_job.get("delay", 0)) == 0:
        yield f"{where}: its delay is 0"
    if (
        old == "delayed"
        and new in ("wait", "prioritized", "active")
        and new_job.get("delay") != "0"
    ):
        yield f"{where}: its delay is {new_job.get('delay')}"
    if (
        old == "active"
        and new == "delayed"
        and "ValueError: no" not in new_job.get("failedReason", "")
    ):
        yield f"{where}: {new_job}"
    if (
        (
            new is not None
            and b"waiting" in said
            and new == "wait"
            and int(new_job.get("priority", 0)) > 0
        )
        and "stc" not in new_job
        and "x.unheard" not in new_job
        and "x.lane" not in new_job
    ):
        yield f"{where}: it has priority {new_job['priority']} and stands in the list"
    if b"stalled" in said and made:
        yield f"{where}: a stalled job counts as an attempt"


def _taken(name: str, job_id: str, step: Any, before: View, after: View) -> Iterator[str]:
    queue = after.queues[name]
    if step.call is None or step.worker is None:
        yield f"T4: {name}: {job_id} was taken by {step.name}"
        return
    token = step.worker.token_of(step.call)
    lock = queue.locks.get(job_id)
    if queue.places.get(job_id) == "active" and lock != token:
        yield f"T2: {name}: {job_id} was taken with {token} and is locked by {lock}"
    lane = queue.jobs.get(job_id, {}).get("x.lane")
    if lane is None:
        return
    own = before.queues[name]
    if own.lanes_ready and lane[32:] in own.lanes_ready[1:] and len(step.call.ended) == 0:
        yield f"T5: {name}: lane {lane[32:]} was served before {own.lanes_ready[0]}"
    for other, job in own.jobs.items():
        place = own.jobs[other].get("x.lane", "")
        if place[32:] != lane[32:] or other == job_id or place >= lane:
            continue
        if after.queues[name].places.get(other) in FINISHED or other not in after.queues[name].jobs:
            continue
        if '"onRetry":"skip"' not in job.get("opts", ""):
            yield f"T5: {name}: {job_id} was taken before {other}"


def _settled(step: Any, before: View, after: View, reply: Any) -> Iterator[str]:
    call: Call = step.call
    if isinstance(reply, int) or step.is_repeated:
        if before.places != after.places:
            yield f"T3: {step.name} was a repetition and changed something"
        return
    queue, later = before.queues[step.worker.queue], after.queues[step.worker.queue]
    for (held, how), code in zip(call.ended, reply[0], strict=True):
        holds = queue.locks.get(held.job_id) == held.token
        was_done = code == 0 or isinstance(code, bytes)
        if was_done != holds and not (holds and code in (-4, -9)):
            yield f"T3: {step.name}: {held.job_id} has the lock {holds} and the answer {code}"
        if not was_done and later.jobs.get(held.job_id, {}).get("returnvalue") != queue.jobs.get(
            held.job_id, {}
        ).get("returnvalue"):
            yield f"T3: {step.name}: {held.job_id} was refused and changed"
        old_job, new_job = queue.jobs.get(held.job_id, {}), later.jobs.get(held.job_id, {})
        made = int(new_job.get("atm", 0)) - int(old_job.get("atm", 0))
        if was_done and how == "fail" and new_job:
            if made != 1:
                yield f"T2: {step.name}: {held.job_id} failed and {made} attempts were counted"
            if "failedReason" not in new_job or "stacktrace" not in new_job:
                yield f"T2: {step.name}: {held.job_id} failed and nobody knows why"
        is_completed = was_done and how == "done" and later.places.get(held.job_id) == "completed"
        value = later.jobs.get(held.job_id, {}).get("returnvalue")
        if is_completed and value != f'"result of {held.job_id}"':
            yield f"T2: {step.name}: {held.job_id} returned {value}"
    for words in reply[1]:
        job_id = words[-1].decode()
        if later.places.get(job_id) != "active":
            yield f"T3: {step.name}: {job_id} was given out and is in {later.places.get(job_id)}"
