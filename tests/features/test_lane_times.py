"""Jobs of a lane that wait for a time, and the window in which a late one goes first."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from tests.helpers import until_blocked, wait_until

WAIT_MS = 60_000
SOON_MS = 300
"""How long before its end the clock is turned forward to; whoever is early is seen in this time."""


@pytest.mark.parametrize("how", ["delay", "run_at"])
async def test_a_delayed_job_never_runs_early_on_any_path(how, queue, hand, clock):
    """FIFO-27, FIFO-28, C-23: neither a plain take nor a complete-and-take returns it early."""
    now_ms = round(time.time() * 1000)
    await queue.add("x", "first", lane="a", order_ms=1)
    options = {"delay": WAIT_MS} if how == "delay" else {"run_at": now_ms + WAIT_MS}
    late = await queue.add("x", "late", lane="a", order_ms=0, **options)
    one = hand()

    (first,) = await one.take(5)
    assert first.data == "first"
    assert await one.complete(first, then_take=5) == []
    assert await queue.get_state(late.id) == "delayed"
    assert (await queue.get_job_counts("delayed", "waiting")) == {"delayed": 1, "waiting": 0}

    clock.ms = WAIT_MS - SOON_MS
    job = await wait_until(one.take_one)
    assert job.data == "late"
    assert job.processed_on >= now_ms + WAIT_MS


async def test_an_idle_worker_is_woken_when_a_delayed_job_of_a_lane_is_due(queue, work, client):
    """FIFO-14, FIFO-28: a worker that asks once a minute still runs it in time."""
    ran = []

    async def handler(job):
        ran.append(job)

    async with work(handler):
        await until_blocked(client, 2)
        await queue.add("x", lane="a", delay=timedelta(milliseconds=200))
        await wait_until(lambda: ran)

    assert ran[0].processed_on - ran[0].timestamp >= 200


async def test_a_late_job_with_an_earlier_order_runs_first_within_the_window(queue, hand, clock):
    """FIFO-05: what arrives within ordering_delay is sorted in."""
    now_ms = round(time.time() * 1000)
    options = {"lane": "a", "ordering_delay": WAIT_MS}
    await queue.add("x", "second", order_ms=now_ms, **options)
    one = hand()
    assert await one.take(1) == []

    await queue.add("x", "first", order_ms=now_ms - 100, **options)

    clock.ms = WAIT_MS - 100 - SOON_MS
    seen = [(await wait_until(one.take_one))]
    assert seen[0].processed_on >= now_ms + WAIT_MS - 101
    await one.complete(seen[0])
    seen.append(await wait_until(one.take_one))
    assert [job.data for job in seen] == ["first", "second"]
    assert seen[1].processed_on >= now_ms + WAIT_MS - 1


async def test_an_order_in_the_past_is_not_held_back(queue, hand):
    """FIFO-05: an event older than the window runs at once."""
    await queue.add("x", 1, lane="a", order_ms=5, ordering_delay=60_000)

    assert [job.data for job in await hand().take(1)] == [1]
