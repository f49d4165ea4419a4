"""How a worker takes, locks and returns its jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from toril.checking import shown
from toril.errors import InvalidOptionError
from toril.options.checks import Duration, check_text, milliseconds, whole
from toril.options.keep import Keep
from toril.options.rate_limit import RateLimit

BackoffStrategy = Callable[[int, str, BaseException, Any], int]
"""``(attempts_made, type, error, job) -> ms``; a negative number fails the job for good."""


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker takes, locks and returns its jobs."""

    concurrency: int = 1
    lock_duration: Duration = 30_000
    stalled_interval: Duration = 30_000
    max_stalled_count: int = 1
    max_started_attempts: int | None = None
    drain_delay: Duration = 5_000
    name: str | None = None
    limiter: RateLimit | None = None
    remove_on_complete: bool | int | Keep | None = None
    remove_on_fail: bool | int | Keep | None = None
    metrics_points: int | None = None

    def __post_init__(self) -> None:
        whole(self.concurrency, "concurrency", least=1, most=100_000)
        if self.name is not None:
            check_text(self.name, "worker_name")
        if self.limiter is not None and not isinstance(self.limiter, RateLimit):
            raise InvalidOptionError(
                f"limiter={shown(self.limiter)} is not a limit; write RateLimit(max=10,"
                f" duration=1000)"
            )
        for option, least in (("lock_duration", 50), ("stalled_interval", 20), ("drain_delay", 1)):
            milliseconds(getattr(self, option), option, least=least)
        whole(self.max_stalled_count, "max_stalled_count")
        if self.max_started_attempts is not None:
            whole(self.max_started_attempts, "max_started_attempts", least=1)
        if self.remove_on_complete is not None:
            Keep.of_option(self.remove_on_complete, "remove_on_complete")
        if self.remove_on_fail is not None:
            Keep.of_option(self.remove_on_fail, "remove_on_fail")
        if self.metrics_points is not None:
            whole(self.metrics_points, "metrics_points", least=1)

    @property
    def lock_ms(self) -> int:
        return milliseconds(self.lock_duration, "lock_duration")

    @property
    def stalled_interval_ms(self) -> int:
        return milliseconds(self.stalled_interval, "stalled_interval")

    @property
    def drain_delay_ms(self) -> int:
        return milliseconds(self.drain_delay, "drain_delay")
