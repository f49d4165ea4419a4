"""The options of a new job, written as BullMQ stores them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from toril.options import LANE_ATTEMPTS, Backoff, Deduplication, Keep, NewJob
from toril.protocol.codec.foreign_options import Retention
from toril.protocol.codec.payload import decode, to_json

PLAIN_OPTIONS = b'{"attempts":0}'
"""The options of a job added without any, as BullMQ writes them."""


def encode_options(job: NewJob, parent: tuple[str, str] | None = None) -> bytes:
    """The options of a new job as BullMQ stores them; ``parent`` is an id and a qualified queue."""
    options = wire_options(job)
    if parent is not None:
        options["parent"] = {"id": parent[0], "queue": parent[1]}
        if policy := job.child_policy:
            options[_CHILD_POLICIES[policy]] = True
    return PLAIN_OPTIONS if len(options) == 1 and options["attempts"] == 0 else to_json(options)


def wire_options(job: NewJob) -> dict[str, Any]:
    """The options of a new job under their names on the wire."""
    attempts = LANE_ATTEMPTS if job.attempts is None and job.lane else job.attempts
    options: dict[str, Any] = {"attempts": attempts or 0}
    for name, wire_name in _PLAIN_NAMES:
        value = getattr(job, name)
        if value is not None:
            options[wire_name] = value if type(value) in _PLAIN else job.normalised(name)
    if job.backoff is not None:
        options["backoff"] = _wire_backoff(Backoff.of(job.backoff))
    if job.remove_on_complete is not None:
        options["removeOnComplete"] = _wire_keep(job.remove_on_complete)
    if job.remove_on_fail is not None:
        options["removeOnFail"] = _wire_keep(job.remove_on_fail)
    if job.deduplication is not None:
        options["de"] = _wire_deduplication(Deduplication.of(job.deduplication))
    return options


def with_children(options: bytes, children: Sequence[str]) -> bytes:
    """The options of a parent that remember in which order its children were given."""
    return to_json({**decode(options), _CHILDREN: children})


def children_of(options: bytes | None) -> list[str]:
    """The full keys of a parent's children in the order given, if its options remember it."""
    try:
        raw = decode(options, {})
    except ValueError:
        return []
    children = raw.get(_CHILDREN) if isinstance(raw, Mapping) else None
    return [str(key) for key in children] if isinstance(children, list) else []


_CHILDREN = "x.children"


def encode_parent(job: NewJob, parent: tuple[str, str]) -> bytes:
    """What a child knows about its parent; its policy is read from here if it fails."""
    wire: dict[str, Any] = {"id": parent[0], "queueKey": parent[1]}
    if policy := job.child_policy:
        wire[_CHILD_POLICIES[policy]] = True
    return to_json(wire)


_CHILD_POLICIES = {
    "fail_parent_on_failure": "fpof",
    "continue_parent_on_failure": "cpof",
    "ignore_dependency_on_failure": "idof",
    "remove_dependency_on_failure": "rdof",
}

_PLAIN_NAMES = (
    ("job_id", "jobId"),
    ("delay", "delay"),
    ("priority", "priority"),
    ("lifo", "lifo"),
    ("timestamp", "timestamp"),
    ("keep_logs", "kl"),
    ("stack_trace_limit", "stackTraceLimit"),
    ("size_limit", "sizeLimit"),
    ("timeout", "timeoutMs"),
    ("expires", "expiresMs"),
    ("idempotency_key", "idempotencyKey"),
    ("telemetry", "tm"),
    ("lane", "lane"),
    ("order_ms", "orderMs"),
    ("ordering_delay", "orderingDelay"),
    ("on_retry", "onRetry"),
    ("on_exhausted", "onExhausted"),
    ("max_lane_size", "maxLaneSize"),
)
_PLAIN = frozenset((int, str, bool))
"""What stands on the wire as it is; times may be given otherwise."""

_WIRE_NAMES = {wire: name for name, wire in _PLAIN_NAMES} | {
    "keepLogs": "keep_logs",
    "removeOnComplete": "remove_on_complete",
    "removeOnFail": "remove_on_fail",
    "queueName": "queue_name",
    "compensateFailed": "compensate_failed",
    "grp": "group",
}


def python_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options under Python's names, whichever of the two were used."""
    named = {_WIRE_NAMES.get(name, name): value for name, value in options.items()}
    for name in ("remove_on_complete", "remove_on_fail"):
        if isinstance(named.get(name), Mapping):
            named[name] = _keep_of_wire(named[name])
    return named


def _keep_of_wire(wire: Mapping[str, Any]) -> Keep:
    """A retention as the wire has it, its age in seconds."""
    age = wire.get("age")
    return Keep(
        count=wire.get("count"),
        age=None if age is None else age * 1000,
        limit=wire.get("limit"),
    )


def encode_options_of_member(job: NewJob, group_id: str, group_name: str) -> bytes:
    """The options of a job that belongs to a group."""
    return to_json({**wire_options(job), "group": {"id": group_id, "name": group_name}})


def encode_wire_options(options: Mapping[str, Any]) -> bytes:
    """Options that already have their names on the wire."""
    return to_json(options)


def _wire_backoff(backoff: Backoff) -> dict[str, Any]:
    wire: dict[str, Any] = {"type": backoff.type, "delay": backoff.delay}
    if backoff.jitter:
        wire["jitter"] = backoff.jitter
    return wire


def _wire_keep(keep: Keep | bool | int) -> bool | int | Retention:
    if not isinstance(keep, Keep):
        return True if keep == 0 and keep is not False else keep
    if keep.age is None and keep.limit is None:
        if keep.count is None:
            return False
        return True if keep.count == 0 else keep.count
    return keep_args(keep) or {}


def _wire_deduplication(deduplication: Deduplication) -> dict[str, Any]:
    wire: dict[str, Any] = {"id": deduplication.id}
    if deduplication.ttl is not None:
        wire["ttl"] = deduplication.ttl_ms
    for name, wire_name in (
        ("extend", "extend"),
        ("replace", "replace"),
        ("keep_last_if_active", "keepLastIfActive"),
        ("reschedule", "reschedule"),
    ):
        if getattr(deduplication, name):
            wire[wire_name] = True
    return wire


def keep_args(keep: Keep | None) -> Retention | None:
    """A retention as scripts and the wire have it: the age in whole seconds."""
    if keep is None:
        return None
    wire: Retention = {}
    if keep.count is not None:
        wire["count"] = keep.count
    if (age_ms := keep.age_ms) is not None:
        wire["age"] = math.ceil(age_ms / 1000)
    if keep.limit is not None:
        wire["limit"] = keep.limit
    return wire or None
