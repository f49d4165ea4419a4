"""The audit of the keyspace: is what the server holds a queue that BullMQ and we agree on?

Part of the doctor, and run after every test that writes under a prefix. The rules:

    K1  every key has a name of the grammar and the type that goes with it
    K2  a job is in exactly one container, once, and what a container names has a hash
    K3  a lock belongs to an active job and expires
    K4  what is in ``stalled`` is active
    K5  a job's other keys (logs, dependencies, …) do not outlive its hash
    K6  a deduplication key without expiry names a job that exists
    K7  parents and children know each other
    K8  the event stream is bounded; limiter and sweep mutex expire
    K9  schedulers, groups: the index and the records name each other
    K11 lanes: jobs and lanes name each other, and every lane is where it belongs
    K12 parcels: what is in transit has one, and each is due or refused
    K10 when jobs wait and nobody runs any, a marker is there to wake a worker (only on request)
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from toril.doctor import lane_keys


class Reader(Protocol):
    """Reads keys; answers are text."""

    async def scan(self, pattern: str) -> list[str]:
        """The names of the keys that match, in any order, some of them twice."""

    async def ask(self, commands: Sequence[tuple[str, ...]]) -> list[Any]:
        """The answers to read-only commands."""


JOB = "job"

# (what follows "prefix:queue:", type, what it is); the first that matches the name and the type
# wins. Types tell apart what names do not: `failed` is a zset, `41:failed` a hash.
GRAMMAR: Sequence[tuple[str, str, str]] = (
    (r"wait|paused|active", "list", "container"),
    (r"prioritized|delayed|waiting-children|completed|failed", "zset", "container"),
    (r"pc|id", "string", "counter"),
    (r"marker", "zset", "marker"),
    (r"stalled", "set", "stalled"),
    (r"stalled-check|limiter", "string", "expiring"),
    (r"meta", "hash", "meta"),
    (r"events", "stream", "events"),
    (r"repeat", "zset", "scheduler index"),
    (r"repeat:[^:]+:[0-9]+", "hash", JOB),
    (r"repeat:.+", "hash", "scheduler"),
    (r"de", "set", "kept"),
    (r"de:.+", "string", "deduplication"),
    (r"dn:.+", "hash", "deduplication next"),
    (r"metrics:(completed|failed|deadLettered)", "hash", "metrics"),
    (r"metrics:(completed|failed|deadLettered):data", "list", "metrics"),
    (r"groups", "zset", "group index"),
    (r"groups:[^:]+", "hash", "group"),
    (r"groups:[^:]+:.+", "*", "group part"),
    (r"lanes:(waiting|delayed)", "zset", "lane container"),
    (r"lanes:(aside|ready|later|index)", "zset", "lane"),
    (r"lanes:(held|settings|diverting)", "hash", "lane"),
    (r"lanes:rate:.+", "string", "expiring"),
    (r"toril:(replay|purge)-.+", "*", "expiring"),
    (r"toril:turning", "string", "expiring"),
    (r"toril:groups-gone:[^:]+", "hash", "expiring"),
    (r"toril:group-deadlines", "zset", "expiring"),
    (r"toril:group-bell", "list", "expiring"),
    (r"toril:dashboard-log", "stream", "expiring"),
    (r"toril:adds:[^:]+|toril:replies-walk", "string", "expiring"),
    (r"toril:partitions", "string", "own"),
    (r"toril:(parcels|in-transit|refused)", "hash", "parcels"),
    (r"toril:parcels-due", "zset", "parcels"),
    (r"toril:received", "zset", "expiring"),
    (r"toril:.+", "*", "own"),
    (r"(?P<id>.+):lock", "string", "lock"),
    (r"(?P<id>.+):logs", "list", "job part"),
    (r"(?P<id>.+):dependencies", "set", "job part"),
    (r"(?P<id>.+):(processed|failed)", "hash", "job part"),
    (r"(?P<id>.+):unsuccessful", "zset", "job part"),
    (r".+", "hash", JOB),
)
_GRAMMAR = [(re.compile(name), kind, what) for name, kind, what in GRAMMAR]

_LISTS = ("wait", "paused", "active")
_ZSETS = ("prioritized", "delayed", "waiting-children", "completed", "failed")
DEFAULT_MAX_EVENTS = 10_000
# XADD and XTRIM with ~ remove whole nodes of the stream, of 100 entries each by default.
EVENTS_SLACK = 200


@dataclass
class QueueKeys:
    """What one queue holds, read at one time."""

    base: str
    jobs: dict[str, dict[str, str]] = field(default_factory=dict)
    containers: dict[str, list[str]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    ttl_ms: dict[str, int] = field(default_factory=dict)

    @cached_property
    def completed(self) -> frozenset[str]:
        return frozenset(self.containers.get("completed", ()))

    def of_kind(self, *kinds: str) -> Iterator[str]:
        return (rest for rest, kind in self.kinds.items() if kind in kinds)


async def audit(reader: Reader, prefix: str, *, expects_marker: bool = False) -> list[str]:
    """Every violation of the rules above under ``prefix``, as sentences; empty when all is well.

    While jobs are moving, a job can be seen in two places or in none: call it when nothing is
    running, or believe only what is told twice.
    """
    queues, problems = await read(reader, prefix)
    for queue in queues.values():
        checks = [
            _containers(queue),
            _locks(queue),
            _job_parts(queue),
            _deduplication(queue),
            _families(queue, queues),
            _bounds(queue),
            _schedulers(queue),
            _groups(queue),
            _parcels(queue),
            lane_keys.problems(queue.base, queue.values, queue.jobs),
        ]
        if expects_marker:
            checks.append(_marker(queue))
        for check in checks:
            problems += _as_far_as_possible(queue.base, check)
    return problems


def _as_far_as_possible(base: str, check: Iterator[str]) -> Iterator[str]:
    """What a check finds; values that it cannot read end it, and are a finding themselves."""
    try:
        yield from check
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        name = getattr(check, "__name__", "check").lstrip("_").replace("_", " ")
        yield f"K1: {base} has values that nobody writes, and its {name} were not audited: {error}"


async def keys_under(reader: Reader, prefix: str) -> list[str]:
    pattern = re.sub(r"([*?\[\]\\])", r"\\\1", prefix) + "*"
    return sorted(set(await reader.scan(pattern)))


async def read(reader: Reader, prefix: str) -> tuple[dict[str, QueueKeys], list[str]]:
    """All queues under ``prefix`` by their qualified names, and what is wrong with the names."""
    keys = await keys_under(reader, f"{prefix}:")
    types = await _ask(reader, [("TYPE", key) for key in keys])
    queues: dict[str, QueueKeys] = {}
    problems: list[str] = []
    wanted: list[tuple[QueueKeys, str, str]] = []
    for key, kind in zip(keys, types, strict=True):
        if kind == "none":  # it expired since the scan
            continue
        base, rest = _split(key, prefix)
        what = classify(rest, kind)
        if what is None:
            problems.append(f"K1: no rule knows the key {key!r} of type {kind!r}")
            continue
        queue = queues.setdefault(base, QueueKeys(base))
        queue.kinds[rest] = what
        wanted.append((queue, rest, kind))

    values = await _ask(reader, [_read_command(f"{q.base}:{rest}", k) for q, rest, k in wanted])
    ttls = await _ask(reader, [("PTTL", f"{queue.base}:{rest}") for queue, rest, _ in wanted])
    for (queue, rest, kind), value, ttl_ms in zip(wanted, values, ttls, strict=True):
        queue.values[rest] = plain = _plain(value, kind)
        queue.ttl_ms[rest] = ttl_ms
        if kind == "hash":
            queue.kinds[rest] = _look_closer(queue.kinds[rest], plain)
        if queue.kinds[rest] == JOB:
            queue.jobs[rest] = plain
        elif queue.kinds[rest] == "container":
            queue.containers[rest] = list(plain)
        elif queue.kinds[rest] == "lane container":
            queue.containers[rest] = [lane_keys.id_in(member) for member in plain]
    return queues, problems


def classify(rest: str, kind: str) -> str | None:
    """What the key is whose name ends in ``rest`` and whose type is ``kind``."""
    for name, wanted, what in _GRAMMAR:
        if wanted in (kind, "*") and name.fullmatch(rest):
            return what
    return None


def _look_closer(what: str, fields: dict[str, str]) -> str:
    """Other programs give ids with colons, so the name of a key does not always tell what it is."""
    if what in ("scheduler", "job part") and "timestamp" in fields and "opts" in fields:
        return JOB
    return "scheduler" if what == JOB and "ic" in fields and "timestamp" not in fields else what


def _containers(queue: QueueKeys) -> Iterator[str]:
    places: dict[str, list[str]] = defaultdict(list)
    for container, ids in queue.containers.items():
        for job_id, times in Counter(ids).items():
            if times > 1:
                yield f"K2: {queue.base}:{container} holds job {job_id!r} {times} times"
            places[job_id].append(container)
    for job_id, containers in places.items():
        if len(containers) > 1:
            yield f"K2: job {job_id!r} of {queue.base} is in {' and '.join(containers)}"
        if "name" not in queue.jobs.get(job_id, {}):
            yield f"K2: {queue.base}:{containers[0]} holds {job_id!r}, which has no hash"
    for job_id in queue.jobs:
        if job_id not in places:
            yield f"K2: job {job_id!r} of {queue.base} is in no container"
    stalled = set(queue.values.get("stalled", ()))
    for job_id in stalled - set(queue.containers.get("active", ())):
        yield f"K4: job {job_id!r} of {queue.base} is in stalled and not active"


def _locks(queue: QueueKeys) -> Iterator[str]:
    active = set(queue.containers.get("active", ()))
    for rest in queue.of_kind("lock"):
        job_id = rest.removesuffix(":lock")
        if job_id not in active:
            yield f"K3: {queue.base}:{rest} locks a job that is not active"
        if queue.ttl_ms[rest] == -1:
            yield f"K3: {queue.base}:{rest} never expires"


def _job_parts(queue: QueueKeys) -> Iterator[str]:
    for rest in queue.of_kind("job part"):
        if rest.rpartition(":")[0] not in queue.jobs:
            yield f"K5: {queue.base}:{rest} belongs to a job that has no hash"


def _deduplication(queue: QueueKeys) -> Iterator[str]:
    for rest in queue.of_kind("deduplication"):
        owner = queue.values[rest]
        if queue.ttl_ms[rest] == -1 and owner not in queue.jobs:
            yield f"K6: {queue.base}:{rest} names job {owner!r}, which does not exist"


def _families(queue: QueueKeys, queues: dict[str, QueueKeys]) -> Iterator[str]:
    waiting = set(queue.containers.get("waiting-children", ()))
    in_transit = queue.values.get("toril:in-transit", {})
    for job_id in queue.jobs:
        children = queue.values.get(f"{job_id}:dependencies", ())
        if job_id in waiting and not children:
            yield f"K7: job {job_id!r} of {queue.base} waits for children and has none"
        for child_key in children:
            child = _find_job(child_key, queues)
            if child is None and child_key in in_transit:
                continue
            if child is None:
                yield f"K7: job {job_id!r} of {queue.base} depends on {child_key!r}, which is gone"
            elif child.get("parentKey") != f"{queue.base}:{job_id}":
                yield f"K7: {child_key!r} does not know its parent {queue.base}:{job_id}"
            elif _is_completed(child_key, queues):
                yield f"K7: job {job_id!r} of {queue.base} waits for {child_key!r}, which completed"


def _bounds(queue: QueueKeys) -> Iterator[str]:
    limit = int(queue.values.get("meta", {}).get("opts.maxLenEvents", DEFAULT_MAX_EVENTS))
    length = queue.values.get("events", 0)
    if length > limit + EVENTS_SLACK:
        yield f"K8: {queue.base}:events has {length} entries, its limit is {limit}"
    for rest in queue.of_kind("expiring"):
        if queue.ttl_ms[rest] == -1:
            yield f"K8: {queue.base}:{rest} never expires"
    for member in queue.values.get("marker", ()):
        if member not in ("0", "1", "2"):
            yield f"K1: {queue.base}:marker has the unknown member {member!r}"


def _schedulers(queue: QueueKeys) -> Iterator[str]:
    index = set(queue.values.get("repeat", ()))
    records = {rest.removeprefix("repeat:") for rest in queue.of_kind("scheduler")}
    for name in index - records:
        yield f"K9: scheduler {name!r} of {queue.base} is indexed and has no record"
    for name in records - index:
        yield f"K9: scheduler {name!r} of {queue.base} has a record and is not indexed"


def _groups(queue: QueueKeys) -> Iterator[str]:
    index = set(queue.values.get("groups", ()))
    records = {rest.removeprefix("groups:") for rest in queue.of_kind("group")}
    for group_id in index ^ records:
        yield f"K9: group {group_id!r} of {queue.base} is in the index or has a record, not both"
    for group_id in records:
        record = queue.values[f"groups:{group_id}"]
        members = queue.values.get(f"groups:{group_id}:jobs", {})
        if len(members) != int(record.get("totalJobs", -1)):
            yield f"K9: group {group_id!r} counts {record.get('totalJobs')} of {len(members)} jobs"
        for status in ("completed", "failed", "cancelled"):
            counted = int(record.get(f"{status}Count", 0))
            actual = sum(value == status for value in members.values())
            if counted != actual:
                yield f"K9: group {group_id!r} counts {counted} {status} jobs and has {actual}"


def _parcels(queue: QueueKeys) -> Iterator[str]:
    parcels = set(queue.values.get("toril:parcels", ()))
    due, refused = (
        set(queue.values.get(f"toril:{name}", ())) for name in ("parcels-due", "refused")
    )
    for parcel in parcels ^ (due | refused):
        yield f"K12: parcel {parcel!r} of {queue.base} is missing, or neither due nor refused"
    for job_id, parcel in queue.values.get("toril:in-transit", {}).items():
        if parcel not in parcels:
            yield f"K12: job {job_id!r} of {queue.base} is in transit and has no parcel"


def _marker(queue: QueueKeys) -> Iterator[str]:
    is_gated = "paused" in queue.values.get("meta", {}) or queue.containers.get("active")
    has_work = any(queue.values.get(name) for name in ("wait", "prioritized", "lanes:ready"))
    if has_work and not is_gated and not queue.values.get("marker"):
        yield f"K10: {queue.base} has waiting jobs and no marker to wake a worker"


def _split(key: str, prefix: str) -> tuple[str, str]:
    """The qualified queue name and what follows; only one suffix of queue names has a colon."""
    name, _, rest = key.removeprefix(prefix).removeprefix(":").partition(":")
    if rest.startswith("compensation:"):
        name, rest = f"{name}:compensation", rest.removeprefix("compensation:")
    return f"{prefix}:{name}", rest


def _find_job(key: str, queues: dict[str, QueueKeys]) -> dict[str, str] | None:
    for base, queue in queues.items():
        if key.startswith(f"{base}:") and (job := queue.jobs.get(key[len(base) + 1 :])):
            return job
    return None


def _is_completed(key: str, queues: dict[str, QueueKeys]) -> bool:
    return any(
        key[len(base) + 1 :] in queue.completed
        for base, queue in queues.items()
        if key.startswith(f"{base}:")
    )


def _read_command(key: str, kind: str) -> tuple[str, ...]:
    match kind:
        case "list":
            return ("LRANGE", key, "0", "-1")
        case "zset":
            return ("ZRANGE", key, "0", "-1")
        case "set":
            return ("SMEMBERS", key)
        case "hash":
            return ("HGETALL", key)
        case "stream":
            return ("XLEN", key)
        case _:
            return ("GET", key)


def _plain(value: Any, kind: str) -> Any:
    if kind == "hash":
        return {} if value is None else dict(value)
    if kind == "zset":
        return [member[0] if isinstance(member, tuple) else member for member in value or ()]
    if kind in ("list", "set"):
        return list(value or ())
    return value


async def _ask(reader: Reader, commands: list[tuple[str, ...]]) -> list[Any]:
    answers: list[Any] = []
    for start in range(0, len(commands), 1000):
        answers += await reader.ask(commands[start : start + 1000])
    return answers


async def dump(reader: Reader, prefix: str) -> str:
    """Everything under ``prefix`` as text, for the message of a failing test."""
    queues, _ = await read(reader, prefix)
    lines = []
    for queue in queues.values():
        for rest, value in sorted(queue.values.items()):
            lines.append(f"{queue.base}:{rest} = {json.dumps(value, default=str)[:300]}")
    return "\n".join(lines)
