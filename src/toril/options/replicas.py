"""How many replicas must have what was added."""

from __future__ import annotations

import msgspec

from toril.options.checks import Duration, milliseconds, whole


class Replicas(msgspec.Struct, frozen=True):
    """How many replicas must have what was added, and how long to wait for them."""

    count: int
    timeout_ms: int

    @classmethod
    def of(cls, replicas: int, timeout: Duration) -> Replicas | None:
        """None if there is no replica to wait for."""
        count = whole(replicas, "replicas", most=100)
        timeout_ms = milliseconds(timeout, "replicas_timeout", least=1)
        return cls(count, timeout_ms) if count else None
