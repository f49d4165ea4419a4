"""When a cron pattern is due, and what the clock does in spring and autumn."""

from __future__ import annotations

from datetime import datetime

import pytest

from toril.errors import InvalidOptionError
from toril.protocol import cron


def following(pattern: str, after: str, count: int = 1, tz: str = "Europe/Berlin") -> list[str]:
    """The next ``count`` times after the local time ``after``, with their offsets."""
    zone = cron.zone_of(tz)
    moment = datetime.fromisoformat(after)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone)
    ms = round(moment.timestamp() * 1000)
    times = []
    for _ in range(count):
        found = cron.next_after(cron.parse(pattern), ms, zone)
        assert found is not None
        assert found > ms
        ms = found
        times.append(datetime.fromtimestamp(ms / 1000, zone).strftime("%m-%d %H:%M:%S%z"))
    return times


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("0 9 * * 1-5", "06-15 09:00:00+0200"),
        ("*/15 * * * *", "06-13 10:45:00+0200"),
        ("*/10 * * * * *", "06-13 10:31:10+0200"),
        ("30 0 9 * * *", "06-14 09:00:30+0200"),
        ("0 0 L * *", "06-30 00:00:00+0200"),
        ("0 0 * * 5L", "06-26 00:00:00+0200"),
        ("0 0 * * MON#1", "07-06 00:00:00+0200"),
        ("0 0 1 JAN *", "01-01 00:00:00+0100"),
        ("0 0 ? * sun", "06-14 00:00:00+0200"),
        ("0 0 15 * 1", "06-15 00:00:00+0200"),
        ("0 0 */10 * 3", "06-17 00:00:00+0200"),
        ("@daily", "06-14 00:00:00+0200"),
        ("@hourly", "06-13 11:00:00+0200"),
        ("@yearly", "01-01 00:00:00+0100"),
    ],
)
def test_the_grammar(pattern, expected):
    assert following(pattern, "2026-06-13T10:31:00") == [expected]


@pytest.mark.parametrize(
    "pattern",
    [
        *("", "* * * *", "* * * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *"),
        *("* * * * 8", "5-1 * * * *", "*/0 * * * *", "a * * * *", "* * LW * *", "1,1 * * * *"),
        *("0 0 31 2 *", "H * * * *", "0 0 * * 1#6", "@sometimes", "* * * * 0,7"),
    ],
)
def test_what_is_not_understood_is_refused(pattern):
    with pytest.raises(InvalidOptionError, match="not understood"):
        cron.parse(pattern)


def test_what_is_no_text_is_refused():
    with pytest.raises(InvalidOptionError):
        cron.parse(5)
    with pytest.raises(InvalidOptionError, match="time zone"):
        cron.zone_of("Mars/Olympus")


def test_what_never_comes_is_none():
    pattern = cron.parse("0 0 30 2 1#1")  # the thirtieth, or the first Monday, of February
    assert cron.next_after(pattern, 0, cron.zone_of("UTC")) is not None
    never = cron.Cron("x", "* * */20 * 1L", False)
    assert cron.next_after(never, 0, cron.zone_of("UTC")) is None


# In Berlin the clock goes from 02:00 to 03:00 on 29 March 2026, and back on 25 October.


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        # A time that is skipped counts from before the change.
        ("30 2 * * *", ["03-29 03:30:00+0200", "03-30 02:30:00+0200"]),
        ("0 0 2 * * *", ["03-29 03:00:00+0200", "03-30 02:00:00+0200"]),
        ("0 3 * * *", ["03-29 03:00:00+0200", "03-30 03:00:00+0200"]),
        # What would run twice at the same moment runs once.
        ("30 2,3 * * *", ["03-29 03:30:00+0200", "03-30 02:30:00+0200"]),
        ("30 * * * *", ["03-29 01:30:00+0100", "03-29 03:30:00+0200", "03-29 04:30:00+0200"]),
        (
            "*/20 * * * *",
            [
                *("03-29 01:00:00+0100", "03-29 01:20:00+0100", "03-29 01:40:00+0100"),
                *("03-29 03:00:00+0200", "03-29 03:20:00+0200"),
            ],
        ),
    ],
)
def test_in_spring(pattern, expected):
    assert following(pattern, "2026-03-29T00:50:00", len(expected)) == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        # A time that comes twice is the first of the two …
        ("30 2 * * *", ["10-25 02:30:00+0200", "10-26 02:30:00+0100"]),
        ("15 1-3 * * *", ["10-25 01:15:00+0200", "10-25 02:15:00+0200", "10-25 03:15:00+0100"]),
        # … unless the pattern is for every hour.
        ("0 * * * *", ["10-25 01:00:00+0200", "10-25 02:00:00+0200", "10-25 02:00:00+0100"]),
        (
            "*/30 * * * *",
            [
                *("10-25 01:00:00+0200", "10-25 01:30:00+0200", "10-25 02:00:00+0200"),
                *("10-25 02:30:00+0200", "10-25 02:00:00+0100", "10-25 02:30:00+0100"),
                "10-25 03:00:00+0100",
            ],
        ),
    ],
)
def test_in_autumn(pattern, expected):
    assert following(pattern, "2026-10-25T00:50:00", len(expected)) == expected


def test_the_second_of_two_equal_hours_belongs_to_the_day_before():
    assert following("30 2 * * *", "2026-10-25T02:10:00+01:00") == ["10-26 02:30:00+0100"]


def test_a_day_in_every_zone_has_one_noon():
    for tz in ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Auckland"):
        days = following("0 12 * * *", "2026-01-01T13:00:00", 400, tz)
        assert len({day[:5] for day in days}) >= 365
        assert all(day[6:14] == "12:00:00" for day in days)


@pytest.mark.parametrize(
    "pattern",
    ["* * * * *", "*/5 * * * * *", "*/7 * * * *", "30 2 * * *", "0 9 * * 1-5", "0 0 L * *",
     "0 0 29 2 *", "@yearly"],
)  # fmt: skip
@pytest.mark.parametrize("before", ["2026-06-13T10:31", "2026-03-29T12:00", "2026-10-25T12:00"])
def test_the_time_before_is_the_one_whose_next_is_this(pattern, before):
    zone, parsed = cron.zone_of("Europe/Berlin"), cron.parse(pattern)
    asked = round(datetime.fromisoformat(before).replace(tzinfo=zone).timestamp() * 1000)
    due = cron.next_after(parsed, asked, zone)

    last = cron.last_before(parsed, due, zone)

    assert last is not None
    assert last < due
    assert cron.next_after(parsed, last, zone) == due


def test_a_pattern_that_has_no_time_before_is_given_up():
    leap_day = round(datetime.fromisoformat("1904-02-29T00:00+00:00").timestamp() * 1000)

    assert cron.last_before(cron.parse("0 0 29 2 *"), leap_day, cron.zone_of("UTC")) is None
