"""Schedules whose next times have jobs already: the clock was ahead, or a scheduler had this id."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tests.features.test_schedulers import FAR, iterations, nothing
from tests.helpers import wait_until
from toril.protocol import scheduling

CRON = "0 * * * *"


async def leave(queue, client, at: int) -> None:
    """The job that an earlier run left for this time."""
    job_id = scheduling.iteration_id("s", at)
    fields = {"name": "old", "data": "{}", "opts": "{}", "finishedOn": 1, "returnvalue": "1"}
    await client.hset(queue.keys.job(job_id), mapping=fields)
    await client.zadd(queue.keys.completed, {job_id: 1})


@pytest.mark.parametrize("taken", [1, 3, 70])
@pytest.mark.parametrize("when", [{"every": FAR}, {"cron": CRON, "immediately": True}])
async def test_a_schedule_goes_on_behind_times_that_are_taken(queue, work, client, when, taken):
    """RULES-10: it would never run again."""
    job = await queue.upsert_job_scheduler("s", **when)
    first = int(job.id.rsplit(":", 1)[1])
    next_ms = first + FAR if "every" in when else (first // FAR + 1) * FAR
    for n in range(taken):
        await leave(queue, client, next_ms + n * FAR)

    async with work(nothing):
        await wait_until(lambda: _has_completed(queue, job.id))

    scheduler = await queue.get_job_scheduler("s")
    assert (scheduler.next_at, scheduler.iterations) == (next_ms + taken * FAR, 2)
    assert await iterations(client, queue) == [first, scheduler.next_at]
    assert await queue.get_state(scheduling.iteration_id("s", scheduler.next_at)) == "delayed"


@pytest.mark.parametrize("when", [{"every": FAR}, {"cron": CRON, "immediately": True}])
async def test_a_schedule_ends_at_its_end_although_the_times_before_it_are_taken(
    queue, work, client, when
):
    """RULES-10: the first free time is too late."""
    end = datetime.now(UTC) + timedelta(hours=2, minutes=30)
    job = await queue.upsert_job_scheduler("s", end=end, **when)
    first = int(job.id.rsplit(":", 1)[1])
    for n in range(1, 4):
        await leave(queue, client, first + n * FAR if "every" in when else (first // FAR + n) * FAR)

    async with work(nothing):
        await wait_until(lambda: _has_completed(queue, job.id))

    assert await iterations(client, queue) == [first]


async def test_a_damaged_interval_does_not_keep_a_worker_busy(queue, work, client):
    """RULES-10: it would ask for the same time for ever."""
    job = await queue.upsert_job_scheduler("s", every=FAR, offset=1)
    await client.hset(f"{queue.keys.repeat}:s", "every", "0")
    await queue.promote(job.id)

    async with work(nothing):
        await asyncio.wait_for(wait_until(lambda: _has_completed(queue, job.id)), 60)


async def _has_completed(queue, job_id):
    return await queue.get_state(job_id) == "completed"
