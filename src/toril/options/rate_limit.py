"""How many jobs start in which time."""

from __future__ import annotations

import msgspec

from toril.options.checks import Duration, milliseconds, whole


class RateLimit(msgspec.Struct, frozen=True):
    """At most ``max`` jobs are started in any window of ``duration``."""

    max: int
    duration: Duration

    def __post_init__(self) -> None:
        whole(self.max, "limiter max", least=1)
        duration = milliseconds(self.duration, "limiter duration", least=1)
        msgspec.structs.force_setattr(self, "duration", duration)
