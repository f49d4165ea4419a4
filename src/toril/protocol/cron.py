"""When a cron pattern is due next, in its own time zone.

The pattern is read by ``cronsim``, over the clock on the wall; what the clock does when daylight
saving begins and ends is decided here, as npm's ``cron-parser`` does it, because a schedule may be
advanced by Node and by Python in turn:

- A time that the clock skips counts from before the change: 02:30 becomes 03:30.
- A time that comes twice is the first of the two, unless the pattern is for every hour.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from toril.errors import InvalidOptionError

_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@hourly": "0 * * * *",
}


# A range of one value, with or without a step, is that value.
_SINGLE_RANGE = re.compile(r"^(\d+)-\1(/\d+)?$")
_EIGHT_YEARS_MS = 2_922 * 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# No clock is ever turned by more than this.
_LARGEST_CHANGE = timedelta(hours=3)


class Cron(msgspec.Struct, frozen=True):
    """A parsed pattern: its fields, and whether it is for every hour."""

    pattern: str
    fields: str
    is_hourly: bool


@lru_cache(maxsize=1024)
def parse(pattern: str) -> Cron:
    """Read a pattern of five fields, or six with the seconds before them."""
    if not isinstance(pattern, str):
        raise InvalidOptionError(f"cron={pattern!r} is not a string")
    text = _MACROS.get(pattern.strip().lower(), pattern).upper()
    fields = text.split()
    if len(fields) not in (5, 6):
        raise _not_understood(pattern, f"it has {len(fields)} fields, and needs 5 or 6")
    if "W" in fields[-3]:
        raise _not_understood(pattern, "BullMQ's workers do not know 'W'")
    fields[-3] = _plain_days(fields[-3], "1-31")
    fields[-1] = _plain_days(fields[-1], "0-6")
    weekdays = re.sub(r"(?<![^,])7(?![^,])", "0", fields[-1])
    fields = [_plain(field, pattern) for field in (*fields[:-1], weekdays)]
    plain = " ".join(fields)
    try:
        CronSim(plain, datetime(2000, 1, 1))  # noqa: DTZ001 (the clock on the wall)
    except (CronSimError, ValueError, AssertionError) as error:
        raise _not_understood(pattern, str(error) or "it makes no sense") from error
    return Cron(pattern, plain, fields[-4] in ("*", "*/1", "0-23"))


def next_after(cron: Cron, after_ms: int, zone: tzinfo) -> int | None:
    """The first time of the pattern after ``after_ms``; None if there is none in fifty years."""
    after = _EPOCH + timedelta(milliseconds=after_ms)
    local = after.astimezone(zone).replace(tzinfo=None)
    begin, end = local, None
    if _changes_around(after, zone):
        begin, end = local - _LARGEST_CHANGE, local + _LARGEST_CHANGE
    found: datetime | None = None
    for wall in CronSim(cron.fields, begin):
        if found is not None and (end is None or wall > end):
            break
        for moment in _moments(wall, zone, cron):
            if moment > after and (found is None or moment < found):
                found = moment
        if end is None and found is not None and not _is_skipped(wall, zone):
            break
        if end is None and found is not None:
            end = wall + _LARGEST_CHANGE
    return None if found is None else round((found - _EPOCH).total_seconds() * 1000)


def last_before(cron: Cron, before_ms: int, zone: tzinfo) -> int | None:
    """The last time of the pattern before ``before_ms``; None if there is none in eight years."""
    back_ms = 60_000
    while back_ms < _EIGHT_YEARS_MS:
        moment = next_after(cron, before_ms - back_ms - 1, zone)
        if moment is not None and moment < before_ms:
            while (later := next_after(cron, moment, zone)) is not None and later < before_ms:
                moment = later
            return moment
        back_ms *= 4
    return None


def zone_of(name: str) -> ZoneInfo:
    """The time zone of this name."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        raise InvalidOptionError(
            f"tz={name!r} is not a time zone; use a name such as 'Europe/Berlin' or 'UTC'"
        ) from None


def _plain_days(field: str, all_days: str) -> str:
    """A field of days as both sides understand it.

    With a star in one of the two fields of days, ``cronsim`` asks for both to fit. In BullMQ that
    is so for a bare star alone.
    """
    if field == "?":
        return "*"
    return f"{all_days}{field[1:]}" if field.startswith("*/") else field


def _plain(field: str, pattern: str) -> str:
    items = ["*" if item == "?" else _SINGLE_RANGE.sub(r"\1", item) for item in field.split(",")]
    if len(set(items)) < len(items):
        raise _not_understood(pattern, f"{field!r} names a value twice")
    return ",".join(items)


def _moments(wall: datetime, zone: tzinfo, cron: Cron) -> Iterator[datetime]:
    """When the clock shows ``wall``: once, or twice if it is turned back."""
    first = wall.replace(tzinfo=zone)
    yield first.astimezone(UTC)
    if cron.is_hourly and not _is_skipped(wall, zone):
        second = first.replace(fold=1)
        if second.utcoffset() != first.utcoffset():
            yield second.astimezone(UTC)


def _is_skipped(wall: datetime, zone: tzinfo) -> bool:
    moment = wall.replace(tzinfo=zone)
    return moment.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != wall


def _changes_around(moment: datetime, zone: tzinfo) -> bool:
    before, later = moment - _LARGEST_CHANGE, moment + _LARGEST_CHANGE
    return before.astimezone(zone).utcoffset() != later.astimezone(zone).utcoffset()


def _not_understood(pattern: str, why: str) -> InvalidOptionError:
    return InvalidOptionError(
        f"cron={pattern!r} is not understood: {why}; write '[second] minute hour day month weekday'"
        f", such as '0 9 * * 1-5'"
    )
