"""The part of the keyspace audit that knows lanes (K11).

Everything about a lane follows from its jobs and from who holds it, so all that is kept is compared
with what follows: no shadow may drift.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

WORDS_KEPT = frozenset({"groups", "compensation"})
"""What ``de`` names beside jobs: beginnings of keys that BullMQ would take for jobs."""

Values = Mapping[str, Any]
Jobs = Mapping[str, Mapping[str, str]]


def id_in(member: str) -> str:
    """The id in a member: lane, space, mark, 32 digits, id."""
    return member.partition(" ")[2][33:]


def lane_in(member: str) -> str:
    return member.partition(" ")[0]


def problems(base: str, values: Values, jobs: Jobs) -> Iterator[str]:
    """Every violation of K11 in the queue ``base``."""
    found = (*_members(values, jobs), *_holders(values, jobs), *_places(values), *_kept(values))
    for problem in found:
        yield f"K11: {base}: {problem}"


def _members(values: Values, jobs: Jobs) -> Iterator[str]:
    for name in ("lanes:waiting", "lanes:delayed"):
        for member in values.get(name, ()):
            lane, _, rest = member.partition(" ")
            field = jobs.get(id_in(member), {}).get("x.lane")
            if field != rest[1:33] + lane:
                yield f"{name} holds {member!r}, whose job says {field!r}"


def _holders(values: Values, jobs: Jobs) -> Iterator[str]:
    active = set(values.get("active", ()))
    waits_for_children = set(values.get("waiting-children", ()))
    blocked = {id_in(m) for m in values.get("lanes:delayed", ()) if m.partition(" ")[2][:1] == "-"}
    holders = holders_by_lane(values)
    for lane, ids in holders.items():
        if len(ids) > _capacity(values, lane):
            yield f"lane {lane!r} is held by {ids}, more than it may be"
        for job_id in ids:
            if job_id not in active | blocked | waits_for_children:
                yield f"lane {lane!r} is held by {job_id!r}, which neither runs nor blocks it"
    for job_id in active | blocked:
        lane = jobs.get(job_id, {}).get("x.lane", "")[32:]
        if lane and job_id not in holders.get(lane, ()):
            yield f"job {job_id!r} runs or blocks and does not hold its lane {lane!r}"


def _places(values: Values) -> Iterator[str]:
    waiting = {lane_in(member) for member in values.get("lanes:waiting", ())}
    holders = holders_by_lane(values)
    ready, later = set(values.get("lanes:ready", ())), set(values.get("lanes:later", ()))
    delayed, aside = set(values.get("lanes:delayed", ())), set(values.get("lanes:aside", ()))
    if aside != delayed:
        yield f"lanes:aside is {sorted(aside)} instead of {sorted(delayed)}"
    index = set(values.get("lanes:index", ()))
    known = waiting | set(holders) | {lane_in(member) for member in delayed}
    if index != known:
        yield f"lanes:index is {sorted(index)} instead of {sorted(known)}"
    for lane in (ready | later) - waiting:
        yield f"lane {lane!r} is ready or limited and has nothing to run"
    for lane in ready & later:
        yield f"lane {lane!r} is both ready and limited"
    for lane in waiting:
        settings = _settings(values, lane)
        is_stopped = "paused" in settings or "halted" in settings
        is_full = len(holders.get(lane, ())) >= _capacity(values, lane)
        if lane in ready and (is_stopped or is_full):
            yield f"lane {lane!r} is ready, though it is stopped or held"
        if lane not in ready | later and not is_stopped and not is_full:
            yield f"lane {lane!r} could run and is not ready"


def _kept(values: Values) -> Iterator[str]:
    kept = set(values.get("de", ())) - WORDS_KEPT
    waiting = {
        id_in(member)
        for name in ("lanes:waiting", "lanes:delayed")
        for member in values.get(name, ())
    }
    if missing := sorted(waiting - kept):
        yield f"de does not name {missing}: BullMQ's removeOrphanedJobs would delete them"
    if kept - waiting:
        yield f"de names {sorted(kept - waiting)}, which wait in no lane"


def holders_by_lane(values: Values) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for lane, value in values.get("lanes:held", {}).items():
        found[lane] = value.split("\n")[1:]
    return dict(found)


def _settings(values: Values, lane: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(values.get("lanes:settings", {}).get(lane, "{}"))
    return found


def _capacity(values: Values, lane: str) -> int:
    default = int(values.get("meta", {}).get("toril.laneConcurrency", 1))
    return int(_settings(values, lane).get("concurrency", default))
