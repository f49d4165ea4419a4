"""Work that is done once per key, remembered on the server."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from toril.protocol import codec
from toril.protocol.command import Command, Resend, script
from toril.protocol.keys import Keys


class Begun(msgspec.Struct, frozen=True):
    """May the work begin? Not if it is done (``result``), nor if it is being done (``busy_ms``)."""

    is_done: bool = False
    result: Any = None
    busy_ms: int = 0


def begin(
    keys: Keys, scope: str, key: str, *, job_id: str, fence: int, lease_ms: int
) -> Command[Begun]:
    """Begin the work of ``key`` for ``lease_ms``; a later attempt of the same job takes over."""
    return script(
        "beginOnce",
        keys,
        {"job": job_id, "fence": fence, "ms": lease_ms},
        _parse,
        extra={"record": _record(keys, scope, key)},
        resend=Resend.SAME,
    )


def end(
    keys: Keys, scope: str, key: str, *, job_id: str, fence: int, result: bytes, ttl_ms: int
) -> Command[bool]:
    """Write down what the work gave; False when another attempt has taken over."""
    return script(
        "endOnce",
        keys,
        {"job": job_id, "fence": fence, "ms": ttl_ms},
        bool,
        extra={"record": _record(keys, scope, key)},
        payloads=[result],
        resend=Resend.SAME,
    )


def abandon(keys: Keys, scope: str, key: str, *, job_id: str, fence: int) -> Command[bool]:
    """The work failed: the next attempt may begin at once."""
    return script(
        "abandonOnce",
        keys,
        {"job": job_id, "fence": fence},
        bool,
        extra={"record": _record(keys, scope, key)},
        resend=Resend.SAME,
    )


def _record(keys: Keys, scope: str, key: str) -> str:
    name = hashlib.sha256(f"{len(scope)}:{scope}{key}".encode()).hexdigest()[:40]
    return keys.own(f"idempotency:{name}")


def _parse(reply: list[Any]) -> Begun:
    code = reply[0]
    if code == 2:
        return Begun(is_done=True, result=codec.decode(reply[1]))
    return Begun(busy_ms=max(1, reply[1]) if code == 0 else 0)
