"""T2: what is written about a job fits its change: attempts, results, times."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.checks.events import Events
from tests.model.checks.names import FINISHED, WAITING, is_forced_elsewhere
from tests.model.view import View


def field_problems(
    before: View, after: View, events: Events, changed: list[tuple[str, str]], now_ms: int
) -> Iterator[str]:
    for name, job_id in changed:
        old, new = before.places.get((name, job_id)), after.places.get((name, job_id))
        if new is None:
            continue
        was = before.queues[name].jobs.get(job_id, {})
        job = after.queues[name].jobs.get(job_id, {})
        said = events.places_of(name, job_id)
        problems = [
            *_ended(old, new, was, job, now_ms),
            *_started(new, was, job, said, now_ms),
            *_delayed(old, new, was, job, said),
            *_put_off(before, after, name, job_id, said, now_ms),
        ]
        is_back = "stc" in job or "x.unheard" in job or "x.lane" in job
        if b"waiting" in said and new == "wait" and int(job.get("priority", 0)) and not is_back:
            problems.append(f"it has priority {job['priority']} and stands in the list")
        if b"stalled" in events.of(name, job_id):
            is_told = "cancelMembers" in after.told(f"{after.queues[name].base}:{job_id}")
            problems += _stalled(after, was, job, is_told)
        yield from (f"T2: {name}: {job_id} from {old} to {new}: {one}" for one in problems)


def _put_off(
    before: View, after: View, name: str, job_id: str, said: list[bytes], now_ms: int
) -> Iterator[str]:
    scores = [view.queues[name].scores.get("delayed", {}).get(job_id) for view in (before, after)]
    if None not in scores and scores[0] != scores[1] and b"delayed" not in said:
        yield "it was put off and nobody was told"
    job = after.queues[name].jobs.get(job_id, {})
    if scores[1] is not None and b"delayed" in said:
        due_ms, delay_ms = int(scores[1]) // 4096, int(job.get("delay", 0))
        if due_ms - delay_ms not in (now_ms, int(job["timestamp"])):
            yield f"it is due at {due_ms} and says in {delay_ms}"


def _stalled(after: View, was: dict[str, str], job: dict[str, str], is_told: bool) -> Iterator[str]:
    """Who comes back too often, or to a group that is being undone, is to fail; a job elsewhere
    does not know of the latter while the parcel that tells it is under way, or if it was forced."""
    if _grown("atm", was, job):
        yield "a stalled job counts as an attempt"
    if not (_grown("stc", was, job) or _grown("x.unheard", was, job)):
        yield "it stalled and nobody counted"
    is_scheduled = "rjk" in job
    if _grown("stc", was, job) and int(job["stc"]) > 1 and "defa" not in job and not is_scheduled:
        yield "it stalled too often and is not to fail"
    group, _, number = job.get("x.group", "").rpartition(":")
    record = after.keys.get(group)
    if record is not None and not number.startswith("c"):
        is_undone = record.pairs["state"] not in ("ACTIVE", "BLOCKED")
        if is_undone and "defa" not in job and not is_told and not is_forced_elsewhere(job):
            yield "its group is being undone and it is not to fail"


def _grown(field: str, was: dict[str, str], job: dict[str, str]) -> int:
    return int(job.get(field, 0)) - int(was.get(field, 0))


def _ended(
    old: str | None, new: str, was: dict[str, str], job: dict[str, str], now_ms: int
) -> Iterator[str]:
    made = _grown("atm", was, job)
    if old is not None and made not in (0, 1) and "atm" in job:
        yield f"{made} attempts were counted"
    if new not in FINISHED and old in FINISHED:
        left = [field for field in ("finishedOn", "processedOn", "defa") if field in job]
        if left:
            yield f"it runs again and has {left}"
    if new not in FINISHED or old == new:
        return
    if job.get("finishedOn") != str(now_ms):
        yield f"finishedOn is {job.get('finishedOn')}"
    if new == "completed" and ("returnvalue" not in job or made != 1):
        yield f"it has {job}"
    if new == "failed" and ("failedReason" not in job or "defa" in job):
        yield f"it has {job}"
    if old == "active" and made != 1:
        yield f"{made} attempts were counted"


def _started(
    new: str, was: dict[str, str], job: dict[str, str], said: list[bytes], now_ms: int
) -> Iterator[str]:
    started = _grown("ats", was, job)
    if started != said.count(b"active") and "ats" in job:
        yield f"{started} starts were counted, events {said}"
    if b"active" not in said or new != "active":
        return
    if job.get("processedOn") != str(now_ms):
        yield f"processedOn is {job.get('processedOn')}"
    if "x.lane" in job and _grown("x.fence", was, job) <= 0:
        yield "it is of a lane and has no new fence"


def _delayed(
    old: str | None, new: str, was: dict[str, str], job: dict[str, str], said: list[bytes]
) -> Iterator[str]:
    if new == "delayed" and old not in ("delayed", None) and int(job.get("delay", 0)) == 0:
        yield "its delay is 0"
    if old == "delayed" and new in (*WAITING, "active") and job.get("delay") != "0":
        yield f"its delay is {job.get('delay')}"
    has_failed = _grown("atm", was, job) > 0
    knows_why = "ValueError: no" in job.get("failedReason", "")
    if old == "active" and new == "delayed" and has_failed and not knows_why:
        yield f"it has {job}"
