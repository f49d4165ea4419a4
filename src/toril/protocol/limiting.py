"""Limits of a whole queue: how many jobs run at once, and how many start in a period."""

from __future__ import annotations

from typing import Any

from toril.options import Duration, RateLimit, milliseconds, whole
from toril.protocol import codec
from toril.protocol.command import Command, Plan, Resend, plain, script
from toril.protocol.keys import Keys


def set_concurrency(keys: Keys, most: int) -> Command[None]:
    """Let at most ``most`` jobs of the queue run at once, over all workers."""
    return _change(keys, {"concurrency": whole(most, "concurrency", least=1)})


def remove_concurrency(keys: Keys) -> Command[None]:
    return _change(keys, remove=["concurrency"])


def concurrency(keys: Keys) -> Command[int | None]:
    """How many jobs of the queue may run at once; None without a limit."""
    return plain("HGET", keys.meta, "concurrency", parse=codec.number)


def set_rate(keys: Keys, limit: RateLimit) -> Command[None]:
    """Let at most ``limit.max`` jobs start in ``limit.duration``, over all workers."""
    return _change(keys, {"max": limit.max, "duration": limit.duration_ms})


def remove_rate(keys: Keys) -> Command[None]:
    return _change(keys, remove=["max", "duration"])


def rate(keys: Keys) -> Command[RateLimit | None]:
    """The queue's own rate limit, or None."""

    def parse(reply: list[Any]) -> RateLimit | None:
        most, duration = map(codec.number, reply)
        return RateLimit(most, duration) if most and duration else None

    return plain("HMGET", keys.meta, "max", "duration", parse=parse)


def hold(keys: Keys, duration: Duration) -> Command[None]:
    """Stop all workers from taking jobs for ``duration``."""
    duration_ms = milliseconds(duration, "duration", least=1)
    return script("hold", keys, {"duration_ms": duration_ms}, lambda _: None, resend=Resend.SAME)


def release(keys: Keys) -> Command[None]:
    """Begin a new window: nothing is counted, and no worker is held."""
    return _change(keys, starts_anew=True)


def wait_ms(keys: Keys, most: int | None = None) -> Plan[int]:
    """For how long no job may start because of a rate limit; 0 if one may start now.

    ``most`` is the ``max`` of a worker's limiter; without it the queue's own limit counts, and
    without that any window under way.
    """
    limit = most
    if limit is None:
        limit = yield plain("HGET", keys.meta, "max", parse=codec.number)
    started = yield plain("GET", keys.limiter, parse=codec.number)
    ttl: int = yield plain("PTTL", keys.limiter, parse=int)
    if limit is not None and (started or 0) < limit:
        return 0
    return max(0, ttl)


def is_maxed(keys: Keys) -> Plan[bool]:
    """Whether as many jobs run as may run at once."""
    most: int | None = yield concurrency(keys)
    if most is None:
        return False
    running: int = yield plain("LLEN", keys.active, parse=int)
    return running >= most


def _change(
    keys: Keys,
    fields: dict[str, int] | None = None,
    *,
    remove: list[str] | None = None,
    starts_anew: bool = False,
) -> Command[None]:
    words = [word for name, value in (fields or {}).items() for word in (name, str(value))]
    return script(
        "setLimits",
        keys,
        {"set": words, "remove": remove or [], "starts_anew": starts_anew},
        lambda _: None,
        resend=Resend.SAME,
    )
