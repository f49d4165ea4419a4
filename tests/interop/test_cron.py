"""Cron patterns are due when BullMQ's own parser says so, for either version of it."""

from __future__ import annotations

import random
from datetime import UTC, datetime

from tests.proving import amount
from toril.errors import InvalidOptionError
from toril.protocol import cron

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Auckland")
# The hours around which clocks are turned in Berlin and New York in 2026.
TURNS = [
    datetime(2026, 3, 29, 1, tzinfo=UTC),
    datetime(2026, 10, 25, 1, tzinfo=UTC),
    datetime(2026, 3, 8, 7, tzinfo=UTC),
    datetime(2026, 11, 1, 6, tzinfo=UTC),
]


def some_field(dice: random.Random, low: int, high: int, star: float) -> str:
    kind = dice.random()
    if kind < star:
        return "*"
    if kind < star + 0.15:
        return f"*/{dice.choice((1, 2, 3, 5, 7, 10, 15))}"
    if kind < star + 0.3:
        first = dice.randint(low, high - 1)
        last = dice.randint(first + 1, high)
        return f"{first}-{last}" + (f"/{dice.randint(1, 5)}" if dice.random() < 0.4 else "")
    if kind < star + 0.4:
        return ",".join(str(value) for value in dice.sample(range(low, high + 1), 3))
    return str(dice.randint(low, high))


def some_pattern(dice: random.Random) -> str:
    weekday = dice.randint(0, 6)
    days = dice.choice(("*", "?", "L", "1-31", some_field(dice, 1, 28, 0.3)))
    some_weekdays = (f"{weekday}#{dice.randint(1, 4)}", f"{weekday}L", some_field(dice, 0, 6, 0.3))
    weekdays = dice.choice(("*", "?", "MON-FRI", "0-6", *some_weekdays))
    fields = [some_field(dice, 0, 59, 0.2), some_field(dice, 0, 23, 0.4), days]
    fields += [dice.choice(("*", "*", "JAN", some_field(dice, 1, 12, 0.5))), weekdays]
    if dice.random() < 0.3:
        fields.insert(0, some_field(dice, 0, 59, 0.1))
    return " ".join(fields)


def some_case(dice: random.Random) -> tuple[str, str, int]:
    ms = dice.randint(1_750_000_000_000, 1_850_000_000_000)
    zone = dice.choice(ZONES)
    if dice.random() < 0.5:
        # Not within the hour after a turn: what was skipped there depends on who asks when.
        seconds = dice.choice((-1, 1)) * dice.randint(2 * 3600, 12 * 3600)
        ms = (round(dice.choice(TURNS).timestamp()) + seconds) * 1000 + dice.choice((0, 1, 999))
        zone = dice.choice(ZONES[1:3])
    return some_pattern(dice), zone, ms


def our_answer(case: tuple[str, str, int]) -> int | None:
    pattern, zone, ms = case
    try:
        return cron.next_after(cron.parse(pattern), ms, cron.zone_of(zone))
    except InvalidOptionError:
        return None


async def test_item_22_patterns_are_due_at_the_same_time(peer):
    dice = random.Random(22)
    cases = [some_case(dice) for _ in range(amount(500, 2000))]
    if peer.version == 5:
        # Its parser reads patterns that choose both days and weekdays in a way of its own.
        cases = [case for case in cases if {case[0].split()[-3], case[0].split()[-1]} & {"*", "?"}]

    theirs = await peer.call("cron.next", cases=cases)

    differing = [
        (case, our_answer(case), their)
        for case, their in zip(cases, theirs, strict=True)
        if our_answer(case) != their
    ]
    assert differing == []


async def test_item_22_what_one_refuses_the_other_refuses(peer):
    refused = ["60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "5-1 * * * *"]
    refused += ["*/0 * * * *", "a * * * *", "0 0 31 2 *"]

    theirs = await peer.call("cron.next", cases=[(pattern, "UTC", 0) for pattern in refused])

    assert theirs == [None] * len(refused)
    assert [our_answer((pattern, "UTC", 0)) for pattern in refused] == theirs
