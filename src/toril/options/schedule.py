"""When a scheduler runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from toril.checking import shown
from toril.errors import InvalidOptionError
from toril.options.checks import Duration, epoch_ms, flag, milliseconds, refuse_unknown, whole


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """When a scheduler runs: at the interval ``every``, or at the times of a ``cron`` pattern in
    ``tz``.

    Nothing runs before ``start``, after ``end`` or more than ``limit`` times.  ``offset`` shifts
    the grid of ``every``; ``immediately`` lets the first run of a pattern happen now.
    """

    every: Duration | None = None
    cron: str | None = None
    tz: str | None = None
    start: int | datetime | None = None
    end: int | datetime | None = None
    limit: int | None = None
    offset: Duration | None = None
    immediately: bool = False

    def __post_init__(self) -> None:
        if (self.every is None) == (self.cron is None):
            raise InvalidOptionError("a scheduler needs either every= or cron=, but not both")
        for option in ("cron", "tz"):
            text = getattr(self, option)
            if text is not None and not isinstance(text, str):
                raise InvalidOptionError(f"{option}={shown(text)} must be a string")
        flag(self.immediately, "immediately")
        if self.every is not None:
            milliseconds(self.every, "every", least=1)
        if self.start is not None:
            epoch_ms(self.start, "start")
        if self.end is not None:
            epoch_ms(self.end, "end")
        if self.limit is not None:
            whole(self.limit, "limit", least=1)
        if self.offset is not None:
            milliseconds(self.offset, "offset")
        if self.cron is not None and self.offset is not None:
            raise InvalidOptionError("offset is only for every=; a cron pattern says when it runs")
        if self.every is not None and (self.tz is not None or self.immediately):
            raise InvalidOptionError(
                "tz and immediately are only for cron=; every= has no time zone and starts at once"
            )
        if self.immediately and self.start is not None:
            raise InvalidOptionError("immediately and start exclude each other; give one")

    @property
    def every_ms(self) -> int | None:
        return None if self.every is None else milliseconds(self.every, "every", least=1)

    @property
    def offset_ms(self) -> int | None:
        return None if self.offset is None else milliseconds(self.offset, "offset")

    @property
    def start_ms(self) -> int | None:
        return None if self.start is None else epoch_ms(self.start, "start")

    @property
    def end_ms(self) -> int | None:
        return None if self.end is None else epoch_ms(self.end, "end")


Repeat = Mapping[str, Any]
"""A schedule as a mapping: ``every`` or ``cron`` (or ``pattern``), ``tz``, ``limit`` …"""


def schedule_of(repeat: Repeat) -> Schedule:
    """The schedule that ``repeat=`` describes."""
    if not isinstance(repeat, Mapping):
        raise InvalidOptionError(
            f"repeat={shown(repeat)} is not a schedule; write {{'every': 60_000}} or"
            f" {{'cron': '0 9 * * *', 'tz': 'Europe/Berlin'}}"
        )
    given = {"cron" if name == "pattern" else name: value for name, value in repeat.items()}
    refuse_unknown(given, frozenset(Schedule.__struct_fields__), "repeat")
    return Schedule(**given)
