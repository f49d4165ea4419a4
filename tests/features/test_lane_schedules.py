"""Schedulers whose jobs run in a lane: every occurrence is a job of its own and keeps the order."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers import let_pass, wait_until
from toril import NewJob
from toril.errors import InvalidOptionError, UnknownOptionError


async def test_a_scheduler_fills_a_lane_one_job_after_another(queue, work):
    """FIFO-15, FIFO-17: new ids, one at a time, one per tick with two workers."""
    ran, running = [], []

    async def handler(job):
        assert not running
        running.append(job.id)
        ran.append((job.id, job.lane, job.data))
        await asyncio.sleep(0.01)
        running.remove(job.id)

    template = NewJob("tick", {"n": 1}, lane="reports")
    first = await queue.upsert_job_scheduler("s", every=40, template=template)
    assert (first.lane, first.opts.attempts) == ("reports", 3)
    async with work(handler, concurrency=4), work(handler, concurrency=4):
        await wait_until(lambda: len(ran) >= 5)
    await queue.remove_job_scheduler("s")

    ids = [job_id for job_id, _, _ in ran]
    assert len(set(ids)) == len(ids)
    assert ids == sorted(ids)
    assert {(lane, str(data)) for _, lane, data in ran} == {("reports", "{'n': 1}")}


async def test_a_scheduled_job_waits_behind_a_running_one_of_its_lane(queue, work):
    """FIFO-15: the lane's order holds for scheduled and plain additions alike."""
    go = asyncio.Event()
    ran = []

    async def handler(job):
        ran.append(job.name)
        if job.name == "long":
            await go.wait()

    await queue.add("long", lane="reports")
    async with work(handler, concurrency=5):
        await wait_until(lambda: ran == ["long"])
        await queue.upsert_job_scheduler(
            "s", every=30, limit=1, template=NewJob("tick", lane="reports")
        )
        await let_pass(0.1, "the tick is due three times over")
        assert ran == ["long"]
        go.set()
        await wait_until(lambda: ran == ["long", "tick"])
        await queue.wait_until_empty(60_000)


async def test_changing_and_removing_a_scheduler_of_a_lane_leaves_nothing(queue):
    """FIFO-16, FIFO-30: its pending job goes with it, wherever it waits."""
    template = NewJob("tick", lane="reports")
    await queue.upsert_job_scheduler("s", every=60_000, template=template)
    await queue.upsert_job_scheduler("s", every=50_000, template=template)
    await queue.upsert_job_scheduler("s", cron="0 9 * * 1-5", template=template)
    assert await queue.get_delayed_count() == 1

    assert await queue.remove_job_scheduler("s") is True

    assert await queue.get_job_counts("waiting", "delayed") == {"waiting": 0, "delayed": 0}


@pytest.mark.parametrize(
    "repeat", [{"every": 60_000}, {"cron": "0 9 * * 1-5", "tz": "Europe/Berlin"}]
)
async def test_repeat_is_another_word_for_a_scheduler(repeat, queue):
    """FIFO-15, FIFO-16, C-24: removed by its lane and the same schedule, and only by those."""
    job = await queue.add("summary", {"type": "daily"}, lane="reports", repeat=repeat)
    await queue.add("summary", lane="other", repeat=repeat)
    await queue.add("summary", {"type": "daily"}, lane="reports", repeat=repeat)

    assert (job.lane, job.scheduler_id is not None) == ("reports", True)
    assert await queue.get_job_scheduler_count() == 2
    assert await queue.remove_repeating_job("reports", {"every": 1}) is False
    assert await queue.remove_repeating_job("reports", repeat) is True
    assert await queue.remove_repeating_job("reports", repeat) is False
    assert await queue.get_job_scheduler_count() == 1
    await queue.remove_repeating_job("other", repeat)


async def test_repeat_says_what_it_does_not_know(queue):
    """FIFO-15: bad schedules are refused before anything is written."""
    with pytest.raises(UnknownOptionError, match="did you mean 'every'"):
        await queue.add("x", lane="a", repeat={"evry": 5})
    with pytest.raises(InvalidOptionError):
        await queue.add("x", lane="a", repeat={})
    with pytest.raises(InvalidOptionError, match="order_ms"):
        await queue.add("x", lane="a", order_ms=5, repeat={"every": 5})
