"""How many replicas must have what was added."""

from __future__ import annotations

import msgspec

from toril.options.checks import Duration, milliseconds, whole


class Replicas(msgspec.Struct, frozen=True):
    """How many replicas must have what was added, and for how long they are waited for."""

    count: int
    timeout_ms: int

    @classmethod
    def of(cls, replicas: int, timeout: Duration) -> Replicas | None:
        """None when nobody is waited for."""
        count = whole(replicas, "replicas", most=100)
        timeout_ms = milliseconds(timeout, "replicas_timeout", least=1)
        return cls(count, timeout_ms) if count else None
