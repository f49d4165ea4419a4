"""The per-minute metrics that workers keep, as BullMQ stores them."""

from __future__ import annotations

from typing import Any

import msgspec

from toril.errors import InvalidOptionError
from toril.protocol import codec
from toril.protocol.command import Plan, plain
from toril.protocol.keys import Keys

KINDS = ("completed", "failed")


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs ended in a certain way, in all and minute by minute."""

    count: int
    """All of them, since metrics are kept."""
    data: list[int]
    """How many in each minute, the newest first; the minute under way is not among them."""
    points: int
    """How many minutes are stored in all."""
    last_at: int | None
    """When a minute was last written down, in ms since the epoch."""


def _minutes(reply: list[bytes]) -> list[int]:
    return [codec.number(count) or 0 for count in reply]


def metrics(keys: Keys, kind: str, start: int, end: int) -> Plan[Metrics]:
    """The metrics of ``kind``, with the minutes from ``start`` to ``end``."""
    if kind not in KINDS:
        raise InvalidOptionError(f"there are no metrics for {kind!r}; use {' or '.join(KINDS)}")
    key = f"{keys.base}:metrics:{kind}"
    answers: list[Any] = yield [
        plain("HMGET", key, "count", "prevTS", parse=lambda reply: [*map(codec.number, reply)]),
        plain("LRANGE", f"{key}:data", start, end, parse=_minutes),
        plain("LLEN", f"{key}:data", parse=int),
    ]
    (count, last_at), data, points = answers
    return Metrics(count=count or 0, data=data, points=points, last_at=last_at)
