"""How many dead letters stay, and for how long."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.features.dead_letters.conftest import DLQ
from tests.features.dead_letters.forging import forge
from tests.helpers import wait_until
from toril import DeadLetterOptions, Keep
from toril.errors import InvalidOptionError


async def bury(side, count, keep):
    """Let jobs fail into a queue that keeps so many letters."""
    for number in range(count):
        await side.orders.add("charge", {"n": 1000 + number})
    options = DeadLetterOptions(DLQ, keep=keep)
    async with side.failing(dead_letter_queue=options) as worker:
        await wait_until(lambda: worker.dead_lettered == count)


async def numbers(side):
    jobs = await side.dlq.get_dead_letter_jobs(0, -1, newest_first=False)
    return [job.data["n"] for job in jobs]


async def test_the_newest_letters_stay(side):
    await forge(side.client, side.prefix, DLQ, 10)

    await bury(side, 4, 5)

    assert await numbers(side) == [9, 1000, 1001, 1002, 1003]
    keys = [key async for key in side.client.scan_iter(match=f"{side.prefix}:{DLQ}:[0-9]*")]
    assert len(keys) == 5
    cleaned = [event for event in await side.events(DLQ) if event["event"] == "cleaned"]
    assert sum(int(event["count"]) for event in cleaned) == 9
    assert await side.client.hget(f"{side.prefix}:{DLQ}:meta", "x.purged") == "9"


async def test_letters_go_when_they_are_old_and_others_come(side):
    await forge(side.client, side.prefix, DLQ, 6)

    await bury(side, 1, Keep(age=timedelta(days=30)))

    assert await numbers(side) == [1000]


async def test_one_call_removes_a_bounded_number(side):
    await forge(side.client, side.prefix, DLQ, 200)

    await bury(side, 1, Keep(count=10))
    first = await side.dlq.get_dead_letter_count()
    await bury(side, 1, Keep(count=10))

    assert (first, await side.dlq.get_dead_letter_count()) == (150, 100)


async def test_other_jobs_and_a_list_that_is_being_turned_are_left(side):
    job = await side.dlq.add("mine", {"n": 1})
    await bury(side, 2, 1)
    assert await side.dlq.get_dead_letter_count() == 3

    await side.dlq.remove(job.id)
    await side.client.set(f"{side.prefix}:{DLQ}:toril:turning", "{}", px=60_000)
    await bury(side, 1, 1)
    assert await side.dlq.get_dead_letter_count() == 3

    await side.client.delete(f"{side.prefix}:{DLQ}:toril:turning")
    await bury(side, 1, 1)
    assert await side.dlq.get_dead_letter_count() == 1


@pytest.mark.parametrize("keep", [0, True, False, -1, Keep(count=0), Keep(age=0)])
def test_a_retention_that_would_keep_nothing_is_refused(keep):
    with pytest.raises(InvalidOptionError):
        DeadLetterOptions(DLQ, keep=keep)


async def test_the_log_of_a_queue_that_only_takes_letters_stays_short(side):
    await side.client.hset(f"{side.prefix}:{DLQ}:meta", "opts.maxLenEvents", 10)

    await bury(side, 300, None)

    assert len(await side.events(DLQ)) < 250
