"""Jobs as a careless or hostile producer could write them: raw hashes, drawn by a seeded dice.

Each is a job that BullMQ or Toril could have written, with some of its fields, its id, its place or
what lies beside its hash replaced by something that nobody expects there.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

DEEP = 3000
NUMBERS = (
    b"9007199254740991",
    b"9007199254740993",
    b"-1",
    b"0",
    b"-0",
    b"0.5",
    b"1e20",
    b"9223372036854775807",
    b"18446744073709551616",
    b"1e999",
    b"-1e999",
    b"1.7976931348623157e308",
    b"-1.7976931348623157e308",
    b"9" * 400,
    b"-" + b"9" * 400,
    b"9" * 5000,
    b"NaN",
    b"Infinity",
    b"-Infinity",
)
ODD_JSON = (
    b"null",
    b"true",
    b"false",
    b'"3"',
    b'"x"',
    b'""',
    b"[]",
    b"{}",
    b"[1]",
    b'{"id":1}',
    b'{"id":"x"}',
    b'"\\ud800"',
    b'"\xff"',
    b'"\\u0000"',
    b"[" * DEEP + b"]" * DEEP,
    b'{"a":' * DEEP + b"1" + b"}" * DEEP,
)
BYTES = (
    b"",
    b" ",
    b"x",
    b"nan",
    b"inf",
    b"-inf",
    b"0x10",
    b"1e400",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\x00",
    b"\n",
    b"{",
    b'"',
    b"a:b",
    b"\x1b[2J",
    "ü€😀".encode(),
    *NUMBERS,
)
OPTIONS = (
    b"attempts",
    b"backoff",
    b"removeOnComplete",
    b"removeOnFail",
    b"delay",
    b"priority",
    b"lifo",
    b"jobId",
    b"timeout",
    b"kl",
    b"keepLogs",
    b"stackTraceLimit",
    b"idempotencyKey",
    b"group",
    b"grp",
    b"tm",
    b"lane",
    b"orderMs",
    b"onRetry",
    b"onExhausted",
    b"parent",
    b"fpof",
    b"de",
    b"repeat",
    b"timestamp",
    b"nobodyKnowsThis",
)
TEXTS = (
    b"name",
    b"data",
    b"timestamp",
    b"delay",
    b"priority",
    b"ats",
    b"atm",
    b"stc",
    b"processedOn",
    b"finishedOn",
    b"parentKey",
    b"parent",
    b"deid",
    b"defa",
    b"rjk",
    b"nrjid",
    b"stacktrace",
    b"failedReason",
    b"returnvalue",
    b"progress",
    b"pb",
    b"tm",
    b"x.group",
    b"x.lane",
    b"x.fence",
    b"x.waits",
    b"x.lost",
    b"x.unheard",
    b"x.attempts",
    b"x.ended",
    b"x.cancel",
    b"x.replays",
    b"x.history",
    b"x.original",
    b"x.letter",
    b"x.member",
    b"x.data",
    b"x.wrapped",
)
BESIDE = (b"lock", b"dependencies", b"unsuccessful", b"processed", b"failed", b"logs")
KINDS = ("string", "list", "set", "zset", "hash")
PLACES = (
    "wait",
    "prioritized",
    "delayed",
    "active",
    "failed",
    "completed",
    "waiting-children",
    "lane",
    "paused",
)
"""Where a job can be; ``active`` has no lock, as a dead worker leaves it."""

RUNNABLE = ("wait", "prioritized", "delayed", "active", "lane", "paused")


class Hostile(msgspec.Struct, frozen=True):
    """One raw job: where it is, and what lies at its key and beside it."""

    id: bytes
    place: str
    fields: dict[bytes, bytes]
    beside: dict[bytes, str]
    """The kinds of keys beside the hash, by the last parts of their names."""
    kind: str = "hash"
    """Of its own key."""

    def __str__(self) -> str:
        shown = {name: value[:60] for name, value in self.fields.items() if name != b"data"}
        return f"{self.id!r} {self.place} {self.kind} {shown} {self.beside}"


def draw(seed: int) -> Hostile:
    """The hostile job number ``seed``: the same one everywhere."""
    dice = Random(seed)
    fields = {
        b"name": b"bad",
        b"data": b'{"n":1}',
        b"opts": _options(dice),
        b"timestamp": b"1700000000000",
        b"delay": b"0",
        b"priority": b"0",
    }
    for name in dice.sample(TEXTS, dice.choice((0, 0, 1, 2, 4))):
        if dice.random() < 0.15:
            fields.pop(name, None)
        else:
            fields[name] = dice.choice((*BYTES, *ODD_JSON))
    beside = {}
    if dice.random() < 0.25:
        for name in dice.sample(BESIDE, dice.choice((1, 1, 2))):
            beside[name] = dice.choice(KINDS)
    place = dice.choice(PLACES)
    kind = dice.choice(KINDS) if dice.random() < 0.03 else "hash"
    return Hostile(_id(dice, seed), place, fields, beside, kind)


def _id(dice: Random, seed: int) -> bytes:
    plain = b"bad-%d" % seed
    if dice.random() < 0.8:
        return plain
    odd: tuple[bytes, ...] = (
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b" ",
        b":x:",
        b"\n",
        b'"',
        b"\\",
        b"\x00",
        "ü😀".encode(),
        b"long" * 200,
    )
    return plain + dice.choice(odd)


def _options(dice: Random) -> bytes:
    if dice.random() < 0.15:
        return dice.choice((*ODD_JSON, *BYTES))
    pairs = [b'"attempts":%d' % dice.choice((0, 1, 3))]
    names = dice.sample(OPTIONS, dice.choice((0, 1, 1, 2, 4)))
    pairs += [b'"%b":%b' % (name, _value(dice, name)) for name in names]
    dice.shuffle(pairs)
    return b"{" + b",".join(pairs) + b"}"


def _value(dice: Random, name: bytes) -> bytes:
    number = dice.choice((*NUMBERS, *ODD_JSON))
    if name == b"backoff" and dice.random() < 0.7:
        kind = dice.choice((b'"fixed"', b'"exponential"', b'"unknown"', b"1"))
        jitter = dice.choice((b"0.5", *NUMBERS))
        return b'{"type":%b,"delay":%b,"jitter":%b}' % (kind, number, jitter)
    if name.startswith(b"removeOn") and dice.random() < 0.6:
        rule = dice.choice((b"count", b"age", b"limit"))
        return b'{"%b":%b}' % (rule, number)
    return number


async def write(client: Any, base: bytes, job: Hostile) -> None:
    """Put ``job`` where it says it is; ``client`` is a pipeline that sends bytes as they are."""
    key = base + b":" + job.id
    if job.kind == "hash":
        if job.fields:
            client.hset(key, mapping=job.fields)
    else:
        put(client, key, job.kind)
    for name, kind in job.beside.items():
        put(client, key + b":" + name, kind)
    match job.place:
        case "wait" | "paused":
            client.lpush(base + b":wait", job.id)
        case "active":
            client.lpush(base + b":active", job.id)
            client.sadd(base + b":stalled", job.id)
        case "prioritized":
            client.zadd(base + b":prioritized", {job.id: 5 * 2**32})
        case "delayed":
            client.zadd(base + b":delayed", {job.id: 1700000000000 * 4096})
        case "failed" | "completed" | "waiting-children":
            client.zadd(base + b":" + job.place.encode(), {job.id: 1700000000000})
        case "lane":
            lane = b"lane%d" % (len(job.id) % 3)
            place = b"%032d" % 5
            if job.kind == "hash" and b"x.lane" not in job.fields:
                client.hset(key, b"x.lane", place + lane)
            client.zadd(base + b":lanes:waiting", {lane + b" 0" + place + job.id: 0})
            client.zadd(base + b":lanes:index", {lane: 1700000000000})
            client.zadd(base + b":lanes:ready", {lane: 1})


def put(client: Any, key: bytes, kind: str) -> None:
    """Write something odd of this kind."""
    match kind:
        case "string":
            client.set(key, b"odd")
        case "list":
            client.rpush(key, b"odd")
        case "set":
            client.sadd(key, b"odd")
        case "zset":
            client.zadd(key, {b"odd": 1})
        case "hash":
            client.hset(key, b"odd", b"odd")
