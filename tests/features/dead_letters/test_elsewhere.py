"""Letters that go back to another queue, or with other data, many at once."""

from __future__ import annotations

import asyncio

import pytest

from tests.features.dead_letters.conftest import DLQ
from tests.features.dead_letters.forging import forge
from toril import Queue
from toril.errors import InvalidNameError, InvalidOptionError
from toril.sync import Queue as BlockingQueue


async def data_of(side, queue="orders"):
    ids = await side.client.lrange(f"{side.prefix}:{queue}:wait", 0, -1)
    async with Queue(queue, connection=side.url, prefix=side.prefix) as found:
        return [(await found.get_job(job_id)).data for job_id in reversed(ids)]


async def test_a_letter_goes_to_another_queue(side):
    first, second, changed = await side.bury("a", "b", "c")
    key = f"{side.prefix}:{DLQ}:{changed}"
    text = await side.client.hget(key, "data")
    await side.client.hset(key, "data", text.replace('"n":2', '"n":  2'))

    for letter_id in (first, changed):
        await side.dlq.replay_dead_letter(letter_id, queue_name="repairs")
    assert await side.dlq.replay_all_dead_letters(queue_name="repairs") == 1

    assert await data_of(side, "repairs") == [{"n": 0}, {"n": 2}, {"n": 1}]
    assert await data_of(side) == []
    told = [e for e in await side.events(DLQ) if e["event"] == "removed"]
    assert {event["queue"] for event in told} == {"repairs"}
    assert second


async def test_the_queue_of_the_letters_is_no_place_to_go_to(side):
    (letter_id,) = await side.bury("a")

    with pytest.raises(InvalidOptionError, match="itself"):
        await side.dlq.replay_dead_letter(letter_id, queue_name=DLQ)
    with pytest.raises(InvalidNameError):
        await side.dlq.replay_all_dead_letters(queue_name="a:b")
    assert await side.dlq.get_dead_letter_count() == 1


async def test_each_letter_is_repaired_by_a_function(side):
    await side.bury(*["charge"] * 5)
    seen = []

    async def repair(data, letter):
        seen.append(letter.source_queue)
        return {**data, "currency": "EUR"}

    assert await side.dlq.replay_all_dead_letters(transform=repair, by="ana") == 5

    assert await data_of(side) == [{"n": n, "currency": "EUR"} for n in range(5)]
    assert seen == ["orders"] * 5
    (job_id, *_) = await side.client.lrange(f"{side.prefix}:orders:wait", 0, 0)
    assert await side.client.hget(f"{side.prefix}:orders:{job_id}", "x.original") == '{"n":4}'


async def test_only_letters_that_pass_are_repaired_and_a_run_is_resumed(side):
    await forge(side.client, side.prefix, DLQ, 150, names=("send", "keep"))
    calls = []

    def repair(data, letter):
        calls.append(data["n"])
        if len(calls) == 30:
            raise RuntimeError("the function has a bug")
        return {"n": data["n"], "new": True}

    with pytest.raises(RuntimeError):
        await side.dlq.replay_all_dead_letters(transform=repair, name="send")
    before = len(await data_of(side))
    assert before == 29
    await side.dlq.replay_all_dead_letters(transform=repair, name="send", resume=True)

    found = await data_of(side)
    assert sorted(data["n"] for data in found) == list(range(0, 150, 2))
    assert all(data["new"] for data in found)
    assert {job.name for job in await side.dlq.get_dead_letter_jobs(0, -1)} == {"keep"}


async def test_the_blocking_queue_repairs_and_redirects_too(side):
    await side.bury("a", "b")

    def act() -> None:
        with BlockingQueue(DLQ, connection=side.url, prefix=side.prefix) as dlq:
            done = dlq.replay_all_dead_letters(
                queue_name="repairs", transform=lambda data, letter: [data["n"]]
            )
            assert done == 2

    await asyncio.to_thread(act)

    assert await data_of(side, "repairs") == [[0], [1]]
