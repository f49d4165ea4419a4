"""How many jobs may start per time."""

from __future__ import annotations

import msgspec

from toril.options.checks import Duration, milliseconds, whole


class RateLimit(msgspec.Struct, frozen=True):
    """At most ``max`` jobs start per ``duration``."""

    max: int
    duration: Duration

    def __post_init__(self) -> None:
        whole(self.max, "limiter max", least=1)
        milliseconds(self.duration, "limiter duration", least=1)

    @property
    def duration_ms(self) -> int:
        return milliseconds(self.duration, "limiter duration", least=1)

    def __eq__(self, other: object) -> bool:
        """The server returns a limit in milliseconds, however it was set."""
        if not isinstance(other, RateLimit):
            return NotImplemented
        return (self.max, self.duration_ms) == (other.max, other.duration_ms)

    def __hash__(self) -> int:
        return hash((self.max, self.duration_ms))
