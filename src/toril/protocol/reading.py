"""Looking at a queue without changing it, in pieces that the server does not notice."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast
from urllib.parse import quote, unquote

import msgspec

from toril.errors import InvalidNameError, InvalidOptionError, ServerRefusalError
from toril.options import MAX_PRIORITY
from toril.protocol import codec
from toril.protocol.command import Command, Plan, Resend, plain, script
from toril.protocol.job import Fields, Job, fields_of
from toril.protocol.keys import Keys, check_known_id, check_prefix, check_queue_name

T = TypeVar("T")

IDS_PER_READ = 1000
JOBS_PER_READ = 500
LOGS_PER_READ = 1000
OWNERS_ASKED = 100
"""How many queues in other slots are asked whether a job is on its way from them."""

# A queue that a BullMQ of version 5 paused keeps in `paused` what would be in `wait`: those are
# older than what came since.
_CONTAINERS: dict[str, tuple[str, ...]] = {
    "waiting": ("paused", "wait", "lanes_waiting"),
    "active": ("active",),
    "delayed": ("delayed", "lanes_delayed"),
    "prioritized": ("prioritized",),
    "waiting_children": ("waiting_children",),
    "completed": ("completed",),
    "failed": ("failed",),
}
STATES = tuple(_CONTAINERS)
"""Where a job can be, in the order in which counts are given."""

IN_TRANSIT = "in_transit"
"""The state of a job that is on its way to a queue in another slot; counted only if asked for."""

UNFINISHED = ("waiting", "active", "prioritized", "delayed")
"""The states of a queue that is not empty yet."""

_FIT = "".join(map(chr, range(0x21, 0x7F)))

_LISTS = ("wait", "paused", "active")
_SORTED_SETS = ("prioritized", "delayed", "waiting_children", "completed", "failed")
_LANE_SETS = ("lanes_waiting", "lanes_delayed")


class Whereabouts(msgspec.Struct, frozen=True):
    """The state of a job, and its return value as JSON or its reason once it is finished."""

    state: str
    outcome: bytes | None = None


class Coming(msgspec.Struct, frozen=True):
    """Which queue in another slot has sent a job, and why this queue refuses it, if it does."""

    owner: Keys
    refused: str | None = None


class WorkerInfo(msgspec.Struct, frozen=True):
    """A worker that is connected to the server, in whatever language it is written."""

    name: str
    """What it calls itself; empty when it has no name."""
    address: str
    age_s: int
    idle_s: int
    raw: dict[str, str]
    """Everything that the server tells of its connection."""


def each_once(parts: Iterable[Sequence[WorkerInfo]]) -> list[WorkerInfo]:
    """The workers of several partitions, each once, however many of them it serves."""
    found = list(parts)
    left: Counter[tuple[str, str]] = Counter()
    for workers in found:
        left |= Counter(map(_who, workers))
    chosen: list[WorkerInfo] = []
    for worker in (worker for workers in found for worker in workers):
        if left[_who(worker)] > 0:
            left[_who(worker)] -= 1
            chosen.append(worker)
    return chosen


def _who(worker: WorkerInfo) -> tuple[str, str]:
    return worker.name, worker.address.rpartition(":")[0]


def check_states(states: Iterable[str], *, beside: str | None = None) -> tuple[str, ...]:
    """The requested states, each once; all if none is named. ``beside`` may be requested too."""
    if isinstance(states, str):
        states = (states,)
    wanted = tuple(dict.fromkeys(str(state).replace("-", "_") for state in states))
    for state in wanted:
        if state not in _CONTAINERS and state != beside:
            raise InvalidOptionError(
                f"{state!r} is not a state of a job; the states are {', '.join(STATES)}"
            )
    return wanted or STATES


def job(keys: Keys, job_id: str, *, duplicated: bool = False) -> Command[Job | None]:
    """One job with everything stored about it, or None."""
    check_known_id(job_id)
    return _job(keys, job_id, duplicated=duplicated)


def _job(keys: Keys, job_id: str, *, duplicated: bool = False) -> Command[Job | None]:
    def parse(reply: list[Any]) -> Job | None:
        fields = fields_of(reply)
        if b"name" not in fields:
            return None
        return Job(keys.prefix, keys.name, job_id, fields, duplicated=duplicated)

    return plain("HGETALL", keys.job(job_id), parse=parse)


LISTED = (
    *("name", "opts", "timestamp", "delay", "priority", "processedOn", "finishedOn", "pb"),
    *("failedReason", "atm", "ats", "stc", "parentKey", "rjk", "defa"),
)
"""What a list shows of a job: neither its payload nor its result, which may be large."""


def head(keys: Keys, job_id: str, *more: str) -> Command[Job | None]:
    """What a list shows of one job, and ``more`` of its fields; or None."""
    names = (*LISTED, *more)

    def parse(reply: list[Any]) -> Job | None:
        fields = listed(reply, names)
        return Job(keys.prefix, keys.name, job_id, fields) if b"name" in fields else None

    return plain("HMGET", keys.job(job_id), *names, parse=parse)


def listed(reply: Sequence[Any], names: Sequence[str] = LISTED) -> Fields:
    """The fields that an ``HMGET`` found."""
    known = zip(names, reply, strict=True)
    return {name.encode(): value for name, value in known if value is not None}


def heads(
    keys: Keys, states: Sequence[str], start: int, end: int, *, newest_first: bool = False
) -> Plan[list[Job]]:
    """Like ``jobs``, but only what a list shows: their payloads are not read."""
    return jobs(keys, states, start, end, newest_first=newest_first, read=head)


def exists(keys: Keys) -> Command[bool]:
    """Whether the queue exists."""
    anything = (keys.meta, keys.id, keys.events, keys.wait, keys.completed, keys.failed)
    return plain("EXISTS", *anything, parse=bool)


def is_found(keys: Keys) -> Command[bool]:
    """Whether a search finds the queue.

    It reads one key: on a cluster, those of a name without a hash tag are in several slots.
    """
    return plain("EXISTS", keys.meta, parse=bool)


def counts(keys: Keys, states: Sequence[str]) -> Command[dict[str, int]]:
    """How many jobs are in each state, all at the same moment."""

    def parse(reply: list[int]) -> dict[str, int]:
        lengths = dict(zip(names, reply, strict=True))
        return {
            state: sum(lengths[name] for name in _CONTAINERS.get(state, (state,)))
            for state in states
        }

    names: tuple[str, ...] = (*_LISTS, *_SORTED_SETS, *_LANE_SETS)
    args = {}
    if IN_TRANSIT in states:
        names = (*names, IN_TRANSIT)
        args["in_transit"] = True
    return script("count", keys, args, parse, resend=Resend.SAME)


def locate(keys: Keys, job_id: str, *, is_brief: bool = False) -> Command[Whereabouts | None]:
    """Where a job is and how it ended; None if it does not exist.

    If it ``is_brief``, only where: a return value may be large.
    """
    check_known_id(job_id)

    def parse(reply: list[bytes]) -> Whereabouts | None:
        if not reply:
            return None
        return Whereabouts(reply[0].decode(), reply[1] if len(reply) > 1 else None)

    return script(
        "locate",
        keys,
        {"id": job_id, "is_brief": True} if is_brief else {"id": job_id},
        parse,
        extra={"job": keys.job(job_id)},
        resend=Resend.SAME,
    )


def coming_from(keys: Keys, job_id: str) -> Plan[Coming | None]:
    """On a cluster: is a job of a group on its way to this queue?

    The queues that own groups with jobs here are asked, which this queue knows for a day after such
    a job came.
    """
    deadlines = keys.own("group-deadlines")
    bases = yield plain("ZREVRANGE", deadlines, "0", str(OWNERS_ASKED - 1), parse=_texts)
    for base in bases:
        owner = keys.sibling(base.removeprefix(f"{keys.prefix}:"))
        parcel = yield plain(
            "HGET", owner.own("in-transit"), keys.job(job_id), parse=codec.text_or_none
        )
        if parcel is not None:
            refused = yield plain("HGET", owner.own("refused"), parcel, parse=codec.text_or_none)
            return Coming(owner, refused)
    return None


def ids(
    keys: Keys, states: Sequence[str], start: int, end: int, *, newest_first: bool
) -> Plan[list[str]]:
    """The ids from ``start`` to ``end``, counted over the states one after another.

    Both ends are included, and negative ones count from the end, as everywhere in Redis.
    """
    containers = [name for state in states for name in _in_order(state, newest_first)]
    lengths: list[int] = yield [_length(keys, name) for name in containers]
    first, last = bounds(start, end, sum(lengths))
    found: dict[str, None] = {}
    reads: list[Command[Any]] = []
    passed = 0
    for name, length in zip(containers, lengths, strict=True):
        low, high = max(first - passed, 0), min(last - passed, length - 1)
        reads += [_range(keys, name, *part, newest_first) for part in _parts(low, high)]
        passed += length
    for index in range(0, len(reads), 4):
        pages: list[list[str]] = yield reads[index : index + 4]
        # A job that moves on meanwhile may be seen twice.
        found.update(dict.fromkeys(job_id for page in pages for job_id in page))
    return list(found)


def jobs(
    keys: Keys,
    states: Sequence[str],
    start: int,
    end: int,
    *,
    newest_first: bool,
    read: Callable[[Keys, str], Command[Job | None]] = _job,
) -> Plan[list[Job]]:
    """The jobs whose ids ``ids`` gives.

    Jobs that are gone, and ids without a job, are left out, and the next ones take their place: a
    page is short only at the end.
    """
    wanted = yield from ids(keys, states, start, end, newest_first=newest_first)
    found = yield from jobs_of(keys, wanted, read)
    seen = set(wanted)
    while (missing := len(wanted) - len(found)) > 0 <= end:
        end, first = end + max(missing, JOBS_PER_READ), end + 1
        following = yield from ids(keys, states, first, end, newest_first=newest_first)
        if not following:
            break
        new = [job_id for job_id in following if job_id not in seen]
        seen.update(new)
        found += (yield from jobs_of(keys, new, read))[:missing]
    return found


def jobs_of(
    keys: Keys,
    wanted: Sequence[str],
    read: Callable[[Keys, str], Command[Job | None]] = _job,
) -> Plan[list[Job]]:
    """The jobs with these ids; what is gone is left out."""
    found: list[Job] = []
    for index in range(0, len(wanted), JOBS_PER_READ):
        part = [read(keys, job_id) for job_id in wanted[index : index + JOBS_PER_READ]]
        page: list[Job | None] = yield from readable(part)
        found += [job for job in page if job is not None]
    return found


def readable(reads: Sequence[Command[T]]) -> Plan[list[T]]:
    """The answers, without those of keys that hold another type."""
    try:
        answers: list[T] = yield cast(list[Command[Any]], reads)
    except ServerRefusalError:
        pass
    else:
        return answers
    found: list[T] = []
    for read in reads:
        try:
            found.append((yield read))
        except ServerRefusalError:
            continue
    return found


def logs(keys: Keys, job_id: str, start: int, end: int, *, newest_first: bool) -> Plan[list[str]]:
    """Rows of a job's log."""
    check_known_id(job_id)
    key = f"{keys.job(job_id)}:logs"
    length: int = yield log_count(keys, job_id)
    low, high = bounds(start, end, length)
    rows: list[str] = []
    for first, last in _parts(low, high, LOGS_PER_READ):
        if newest_first:
            page: list[str] = yield plain("LRANGE", key, -last - 1, -first - 1, parse=_texts)
            page.reverse()
        else:
            page = yield plain("LRANGE", key, first, last, parse=_texts)
        rows += page
    return rows


def log_count(keys: Keys, job_id: str) -> Command[int]:
    """How many rows a job's log has."""
    check_known_id(job_id)
    return plain("LLEN", f"{keys.job(job_id)}:logs", parse=int)


def counts_per_priority(keys: Keys, priorities: Sequence[int]) -> Plan[dict[int, int]]:
    """How many jobs wait with each priority; 0 is that of jobs without one."""
    for priority in priorities:
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise InvalidOptionError(f"priority {priority!r} is not a whole number")
        if not 0 <= priority <= MAX_PRIORITY:
            raise InvalidOptionError(f"priority {priority} is not between 0 and {MAX_PRIORITY}")
    paused, *found = yield [
        _length(keys, "paused"),
        *(_waiting_with(keys, priority) for priority in priorities),
    ]
    return {
        priority: count + (paused if priority == 0 else 0)
        for priority, count in zip(priorities, found, strict=True)
    }


def worker_names(keys: Keys) -> str:
    """The name that every worker of the queue gives its connection, or begins it with."""
    return fit(f"{keys.prefix}:{base64.b64encode(keys.name.encode()).decode()}")


def worker_name(keys: Keys, name: str | None) -> str:
    """The name of the connection of a worker that calls itself ``name``."""
    whole = worker_names(keys)
    return f"{whole}:w:{fit(name.replace('%', '%25'))}" if name else whole


def fit(name: str) -> str:
    """``name`` as the server lets a connection be called: visible ASCII, the rest as in URLs."""
    return quote(name, safe=_FIT)


def workers(keys: Keys) -> Command[list[WorkerInfo]]:
    """The workers of the queue that are connected now."""
    whole = worker_names(keys)

    def parse(reply: bytes) -> list[WorkerInfo]:
        return [
            _worker(fields, rest.removeprefix(":w:"))
            for rest, fields in _connections(reply, whole)
            if not rest or rest.startswith(":w:")
        ]

    return plain("CLIENT", "LIST", "TYPE", "normal", parse=parse, near=keys.marker)


def workers_by_queue(
    prefix: str, *, near: str | None = None
) -> Command[dict[str, list[WorkerInfo]]]:
    """The workers of all queues under ``prefix`` that are connected now.

    A cluster answers with those that are connected to the node that has the key ``near``.
    """
    check_prefix(prefix)

    def parse(reply: bytes) -> dict[str, list[WorkerInfo]]:
        found: dict[str, list[WorkerInfo]] = {}
        for name, fields in _connections(reply, fit(f"{prefix}:")):
            encoded, _, own = name.partition(":w:")
            if (queue := _queue_in(encoded)) is not None:
                found.setdefault(queue, []).append(_worker(fields, own))
        return found

    return plain("CLIENT", "LIST", "TYPE", "normal", parse=parse, near=near or f"{prefix}:")


def _connections(reply: bytes, start: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The connections whose names begin with ``start``: the rest of the name, and all facts."""
    for line in codec.text(reply).splitlines():
        fields = dict(pair.split("=", 1) for pair in line.split(" ") if "=" in pair)
        name = fields.get("name", "")
        if name.startswith(start):
            yield name[len(start) :], fields


def _worker(fields: dict[str, str], name: str) -> WorkerInfo:
    return WorkerInfo(
        name=unquote(name),
        address=fields.get("addr", ""),
        age_s=int(fields.get("age", 0)),
        idle_s=int(fields.get("idle", 0)),
        raw=fields,
    )


def _queue_in(encoded: str) -> str | None:
    """The queue that a worker named its connection after; None when it is no worker's name."""
    try:
        name = base64.b64decode(encoded, validate=True).decode()
        check_queue_name(name)
    except (ValueError, InvalidNameError):
        return None
    return name


def _in_order(state: str, newest_first: bool) -> tuple[str, ...]:
    containers = _CONTAINERS[state]
    return containers[::-1] if newest_first else containers


def bounds(start: int, end: int, length: int) -> tuple[int, int]:
    """The first and the last place that are meant, of ``length``."""
    low = start if start >= 0 else max(length + start, 0)
    high = end if end >= 0 else length + end
    return low, min(high, length - 1)


def _parts(low: int, high: int, size: int = IDS_PER_READ) -> Iterator[tuple[int, int]]:
    for first in range(low, high + 1, size):
        yield first, min(first + size - 1, high)


def _length(keys: Keys, name: str) -> Command[int]:
    return plain("LLEN" if name in _LISTS else "ZCARD", getattr(keys, name), parse=int)


def _range(keys: Keys, name: str, first: int, last: int, newest_first: bool) -> Command[list[str]]:
    key = getattr(keys, name)
    if name not in _LISTS:
        verb = "ZREVRANGE" if newest_first else "ZRANGE"
        parse = ids_in_lanes if name in _LANE_SETS else _names
        return plain(verb, key, first, last, parse=parse)
    if newest_first:
        return plain("LRANGE", key, first, last, parse=_names)
    # The oldest is at the right end.
    return plain("LRANGE", key, -last - 1, -first - 1, parse=lambda reply: _names(reply)[::-1])


def _waiting_with(keys: Keys, priority: int) -> Command[int]:
    if priority == 0:
        return _length(keys, "wait")
    low, high = priority << 32, ((priority + 1) << 32) - 1
    return plain("ZCOUNT", keys.prioritized, low, high, parse=int)


def ids_in_lanes(reply: list[bytes]) -> list[str]:
    """A member is lane, space, mark, 32 digits, id; lanes are written without spaces."""
    return [codec.name(item.partition(b" ")[2][33:]) for item in reply]


def _names(reply: list[bytes]) -> list[str]:
    return [codec.name(item) for item in reply]


def _texts(reply: list[bytes]) -> list[str]:
    return [codec.text(item) for item in reply]
