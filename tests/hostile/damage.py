"""Damage to a queue's own keys, drawn by a seeded dice: wrong kinds, and values nobody expects."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from tests.hostile.hashes import BYTES, KINDS, ODD_JSON, put
from toril.protocol.keys import LANE_KEYS, QUEUE_KEYS

KEYS = (
    *sorted(name for name in QUEUE_KEYS if name != "stalled-check"),
    *sorted(f"lanes:{name}" for name in LANE_KEYS),
    "groups",
    "2",
    "groups:g1",
    "groups:g1:jobs",
    "groups:g1:plan",
    "repeat:tick",
    "toril:groups-open",
    "toril:turning",
    "toril:workers",
    "metrics:completed",
    "metrics:completed:data",
)
"""Where damage may be: every fixed key, and those of a letter, a group, a scheduler and workers."""

GROUP_FIELDS = (b"state", b"name", b"createdAt", b"updatedAt", b"totalJobs", b"completedCount")
META_FIELDS = (
    b"paused",
    b"version",
    b"concurrency",
    b"toril.laneConcurrency",
    b"opts.maxLenEvents",
)


class Damage(msgspec.Struct, frozen=True):
    """One thing that is wrong: what a test tells of it, and how it is done."""

    says: str
    do: Callable[[Any, bytes], None]


def draw(dice: Random) -> Damage:
    """Damage to a queue whose keys begin with the base that ``do`` is given."""
    if dice.random() < 0.5:
        name, kind = dice.choice(KEYS), dice.choice(KINDS)

        def replace(client: Any, base: bytes) -> None:
            client.delete(base + b":" + name.encode())
            put(client, base + b":" + name.encode(), kind)

        return Damage(f"a {kind} at {name}", replace)
    text = dice.choice((*BYTES, *ODD_JSON))
    where, write = dice.choice(VALUES)
    field = dice.choice(GROUP_FIELDS if "group" in where else META_FIELDS)
    return Damage(
        f"{text[:40]!r} in {where} {field!r}", lambda client, base: write(client, base, field, text)
    )


def _holder(client: Any, base: bytes, field: bytes, text: bytes) -> None:
    client.hset(base + b":lanes:held", b"ana", text)
    client.zadd(base + b":lanes:index", {b"ana": 1})


def _setting(client: Any, base: bytes, field: bytes, text: bytes) -> None:
    client.hset(base + b":lanes:settings", b"ana", text)


def _lane(client: Any, base: bytes, field: bytes, text: bytes) -> None:
    client.zadd(base + b":lanes:index", {text: 1})
    client.zadd(base + b":lanes:waiting", {text: 0})
    client.zadd(base + b":lanes:delayed", {text: 1})
    client.zadd(base + b":lanes:ready", {text: 1})


def _group(client: Any, base: bytes, field: bytes, text: bytes) -> None:
    client.hset(base + b":groups:g1", field, text)


def _group_id(client: Any, base: bytes, field: bytes, text: bytes) -> None:
    client.zadd(base + b":groups", {text: 1})


def _member(client: Any, base: bytes, field: bytes, text: bytes) -> None:
    client.hset(base + b":groups:g1:jobs", text, text)


def _scheduler(client: Any, base: bytes, field: bytes, text: bytes) -> None:
    client.hset(base + b":repeat:tick", b"every", text)
    client.hset(base + b":repeat:tick", b"opts", text)
    client.zadd(base + b":repeat", {text: 1})


def _meta(client: Any, base: bytes, field: bytes, text: bytes) -> None:
    client.hset(base + b":meta", field, text)


def _event(client: Any, base: bytes, field: bytes, text: bytes) -> None:
    client.xadd(base + b":events", {b"event": text, b"jobId": text, text or b"x": text})


def _letter(client: Any, base: bytes, field: bytes, text: bytes) -> None:
    client.hset(base + b":2", b"x.letter", text)


VALUES = (
    ("a lane's holders", _holder),
    ("a lane's settings", _setting),
    ("a lane's name", _lane),
    ("a group", _group),
    ("a group", _group),
    ("the ids of groups", _group_id),
    ("the members of a group", _member),
    ("a scheduler", _scheduler),
    ("meta", _meta),
    ("an event", _event),
    ("a letter's note", _letter),
)
