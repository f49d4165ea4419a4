"""Looking at parents and children. A child is named by its full key, ``prefix:queue:id``."""

from __future__ import annotations

from typing import Any

import msgspec

from toril.options import whole
from toril.protocol import codec
from toril.protocol.command import Command, Plan, Resend, plain, script
from toril.protocol.flows import FlowNode
from toril.protocol.job import Job, fields_of
from toril.protocol.keys import Keys, check_known_id, split_job_key
from toril.protocol.reading import LISTED, listed

PER_READ = 1000
MOST_JOBS = 10_000


class Dependencies(msgspec.Struct, frozen=True, kw_only=True):
    """The children of a job, by what came of them."""

    processed: dict[str, Any]
    """Completed ones, with their return values."""
    unprocessed: list[str]
    """Those that the parent still waits for."""
    ignored: dict[str, str]
    """Failed ones that do not fail their parent, with their reasons."""
    failed: list[str]
    """Failed ones that take their parent with them."""


class DependenciesCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many children of a job are completed, pending, failed without and with consequences."""

    processed: int
    unprocessed: int
    ignored: int
    failed: int


def children_values(keys: Keys, job_id: str) -> Plan[dict[str, Any]]:
    """What the completed children returned, in the order in which they were given."""
    job = _job(keys, job_id)
    found = yield from _scan("HSCAN", f"{job}:processed")
    if len(found) > 2:
        given = codec.children_of((yield plain("HGET", job, "opts", parse=lambda reply: reply)))
    else:
        given = []
    places = {key: place for place, key in enumerate(given)}
    values = {codec.name(name): codec.decode_or_text(value) for name, value in _pairs(found)}

    def place(key: str) -> tuple[int, str]:
        """Ids that clients choose sort by the order in which their jobs were added."""
        return places.get(key, len(places)), split_job_key(key, keys.prefix)[2]

    return {key: values[key] for key in sorted(values, key=place)}


def failed_pending(keys: Keys, job_id: str) -> Plan[list[str]]:
    """Children that a parent waits for and that have failed for good: some of the first hundred."""
    _, found = yield _scan_once("SSCAN", f"{_job(keys, job_id)}:dependencies", b"0", 100)
    children = sorted(codec.name(key) for key in found[:100])
    scores: list[Any] = yield [
        plain("ZSCORE", f"{prefix}:{name}:failed", child_id, parse=lambda reply: reply)
        for prefix, name, child_id in (split_job_key(key, keys.prefix) for key in children)
    ]
    return [key for key, score in zip(children, scores, strict=True) if score is not None]


def failed_children(keys: Keys, job_id: str) -> Plan[dict[str, str]]:
    """Why children failed that do not fail their parent."""
    found = yield from _scan("HSCAN", f"{_job(keys, job_id)}:failed")
    return {codec.name(name): codec.text(reason) for name, reason in _pairs(found)}


def dependencies(keys: Keys, job_id: str) -> Plan[Dependencies]:
    """All children of a job."""
    job = _job(keys, job_id)
    processed = yield from children_values(keys, job_id)
    ignored = yield from failed_children(keys, job_id)
    unprocessed = yield from _scan("SSCAN", f"{job}:dependencies")
    failed = yield from _scan("ZSCAN", f"{job}:unsuccessful")
    return Dependencies(
        processed=processed,
        unprocessed=sorted({codec.name(key) for key in unprocessed}),
        ignored=ignored,
        failed=sorted({codec.name(key) for key, _ in _pairs(failed)}),
    )


def dependencies_count(keys: Keys, job_id: str) -> Plan[DependenciesCount]:
    """How many children there are of each kind."""
    job = _job(keys, job_id)
    counts: list[int] = yield [
        plain("HLEN", f"{job}:processed", parse=int),
        plain("SCARD", f"{job}:dependencies", parse=int),
        plain("HLEN", f"{job}:failed", parse=int),
        plain("ZCARD", f"{job}:unsuccessful", parse=int),
    ]
    processed, unprocessed, ignored, failed = counts
    return DependenciesCount(
        processed=processed, unprocessed=unprocessed, ignored=ignored, failed=failed
    )


def tree(
    keys: Keys, job_id: str, *, depth: int, max_children: int, payloads: bool = True
) -> Plan[FlowNode | None]:
    """A job and what is below it, ``depth`` levels in all, at most ``max_children`` of each job.

    Without ``payloads`` only what a list shows of each job is read.
    """
    whole(depth, "depth", least=1, most=1000)
    whole(max_children, "max_children", least=1, most=PER_READ)
    check_known_id(job_id)
    jobs: dict[str, Job] = {}
    below: dict[str, list[str]] = {}
    level = [keys.job(job_id)]
    while level and len(jobs) < MOST_JOBS and len(below) < MOST_JOBS:
        found: list[Job | None] = yield [_read(key, keys, payloads) for key in level]
        jobs |= {key: job for key, job in zip(level, found, strict=True) if job is not None}
        depth -= 1
        if depth == 0:
            break
        parents = [key for key in level if key in jobs]
        level = yield from _children_of(keys, parents, max_children, below)
        level = [key for key in level if key not in jobs]
    return _grow(keys.job(job_id), jobs, below)


def _children_of(
    home: Keys, level: list[str], max_children: int, below: dict[str, list[str]]
) -> Plan[list[str]]:
    found: list[set[str]] = (
        (yield [_names_of_children(home, key, max_children) for key in level]) if level else []
    )
    for key, children in zip(level, found, strict=True):
        below[key] = sorted(children)[:max_children]
    return [child for key in level for child in below[key]]


def _names_of_children(home: Keys, key: str, most: int) -> Command[set[str]]:
    """Some children of each kind; what they returned is stored beside their names, and not read."""

    def parse(reply: list[list[bytes]]) -> set[str]:
        return {codec.name(name) for names in reply for name in names}

    kinds = ("dependencies", "processed", "failed", "unsuccessful")
    extra = {kind: f"{key}:{kind}" for kind in kinds}
    return script("glanceChildren", home, {"most": most}, parse, extra=extra, resend=Resend.SAME)


def _grow(root: str, jobs: dict[str, Job], below: dict[str, list[str]]) -> FlowNode | None:
    """The tree of what was read. Children come after their parents in ``jobs``."""
    nodes: dict[str, FlowNode] = {}
    for key in reversed(jobs):
        children = (nodes[child] for child in below.get(key, ()) if child in nodes)
        ordered = sorted(children, key=lambda node: (node.job.timestamp, node.job.id))
        nodes[key] = FlowNode(jobs[key], tuple(ordered))
    return nodes.get(root)


def _read(key: str, home: Keys, payloads: bool) -> Command[Job | None]:
    prefix, name, job_id = split_job_key(key, home.prefix)

    def parse(reply: list[Any]) -> Job | None:
        fields = fields_of(reply) if payloads else listed(reply)
        return Job(prefix, name, job_id, fields) if b"name" in fields else None

    if payloads:
        return plain("HGETALL", key, parse=parse)
    return plain("HMGET", key, *LISTED, parse=parse)


def _scan(verb: str, key: str) -> Plan[list[bytes]]:
    """Everything in a hash, set or zset, in pieces that the server does not notice."""
    found: list[bytes] = []
    cursor = b"0"
    while True:
        cursor, page = yield _scan_once(verb, key, cursor, PER_READ)
        found += page
        if cursor == b"0":
            return found


def _scan_once(
    verb: str, key: str, cursor: bytes, count: int
) -> Command[tuple[bytes, list[bytes]]]:
    return plain(verb, key, cursor, "COUNT", count, parse=lambda reply: (reply[0], reply[1]))


def _pairs(words: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(words[::2], words[1::2], strict=True))


def _job(keys: Keys, job_id: str) -> str:
    check_known_id(job_id)
    return keys.job(job_id)
