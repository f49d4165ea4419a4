"""When a task runs by itself: declared next to the task, stored on the server."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any

import msgspec

from toril.checking import checked_call
from toril.options import Schedule
from toril.protocol import codec
from toril.protocol.scheduling import JobScheduler

PREFIX = "task."
"""The ids of schedulers that code declares begin with it; only these are ever pruned."""


@checked_call
def cron(
    pattern: str,
    *,
    tz: str | None = None,
    start: int | datetime | None = None,
    end: int | datetime | None = None,
    limit: int | None = None,
) -> Schedule:
    """Run at the times of a cron ``pattern`` in the time zone ``tz`` (by default UTC)."""
    return Schedule(cron=pattern, tz=tz, start=start, end=end, limit=limit)


@checked_call
def every(
    interval: timedelta | None = None,
    /,
    *,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    start: int | datetime | None = None,
    end: int | datetime | None = None,
    limit: int | None = None,
) -> Schedule:
    """Run once per interval: ``every(minutes=5)`` or ``every(timedelta(minutes=5))``."""
    length = (interval or timedelta()) + timedelta(
        days=days, hours=hours, minutes=minutes, seconds=seconds
    )
    return Schedule(every=length, start=start, end=end, limit=limit)


class Declared(msgspec.Struct, frozen=True):
    """A schedule in the code, and the scheduler that the server has for it, if any."""

    id: str
    queue_name: str
    schedule: Schedule | None
    """None when no code declares it any more."""
    stored: JobScheduler | None
    is_current: bool = False
    """Does the server have it as the code says?"""

    @property
    def is_over(self) -> bool:
        """Has its end passed, and does the server know no other? It would refuse it."""
        end_ms = None if self.schedule is None else self.schedule.end_ms
        if end_ms is None or end_ms > time.time_ns() // 1_000_000:
            return False
        return self.stored is None or self.stored.end == end_ms


def is_same(schedule: Schedule, template: Any, stored: JobScheduler) -> bool:
    """Whether the server has this schedule, with this job."""
    wanted = (schedule.every_ms, schedule.cron, schedule.limit, schedule.start_ms, schedule.end_ms)
    found = (stored.every, stored.cron, stored.limit, stored.start, stored.end)
    if wanted != found or (schedule.cron and (schedule.tz or "UTC") != (stored.tz or "UTC")):
        return False
    options = codec.wire_options(template)
    if template.attempts is None and template.lane is None:
        options.pop("attempts")
    data = codec.decode(codec.encode(template.data, "data"))
    return (stored.name, stored.data, stored.opts.raw) == (template.name, data, options)
