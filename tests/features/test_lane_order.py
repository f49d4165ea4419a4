"""Of the jobs with one lane one runs at a time, in order; lanes run beside each other."""

from __future__ import annotations

import asyncio

from tests.features.lanes import drain
from tests.helpers import wait_until
from toril import NewJob


async def test_a_lane_never_runs_two_jobs_at_once(queue, hand):
    """FIFO-01, FIFO-02: whoever asks, a held lane gives nothing."""
    first = await queue.add("x", 1, lane="user:42", order_ms=5, attempts=2)
    await queue.add("x", 2, lane="user:42", order_ms=6)
    one, two = hand("one"), hand("two")

    (taken,) = await one.take(10)

    assert (taken.id, taken.lane, taken.data) == (first.id, "user:42", 1)
    assert await two.take(10) == []
    assert [job.data for job in await one.complete(taken, then_take=10)] == [2]
    assert await two.take(10) == []


async def test_a_batch_takes_one_job_of_each_lane(queue, hand):
    """FIFO-26: a call that asks for ten gets one of each of three lanes."""
    for n in range(9):
        await queue.add("x", n, lane=f"lane-{n % 3}")

    jobs = await hand().take(10)

    assert sorted(job.data for job in jobs) == [0, 1, 2]


async def test_a_lane_runs_by_order_and_then_by_arrival(queue, hand):
    """FIFO-04: order_ms decides, and equal ones come as they were added."""
    for n, order_ms in enumerate([30, 10, 20, 10, 0, 10]):
        await queue.add("x", n, lane="a", order_ms=order_ms)

    assert await drain(hand()) == [4, 1, 3, 5, 2, 0]


async def test_without_order_ms_arrival_decides(queue, hand):
    """FIFO-01: the order defaults to the server's time of arrival."""
    await asyncio.gather(*(queue.add("x", 0, lane="other") for _ in range(20)))
    for n in range(20):
        await queue.add("x", n, lane="a")
    await queue.drain_lane("other")

    assert await drain(hand()) == list(range(20))


async def test_a_worker_runs_as_many_lanes_as_it_has_places(queue, work):
    """FIFO-03: eight lanes, eight jobs at once, and never two of one lane."""
    running: list[str] = []
    most = 0
    overlaps = []

    async def handler(job):
        nonlocal most
        if job.lane in running:
            overlaps.append(job.lane)
        running.append(job.lane)
        most = max(most, len(running))
        await wait_until(lambda: most == 8)
        await asyncio.sleep(0.002)
        running.remove(job.lane)

    await queue.add_bulk([NewJob("x", n, lane=f"lane-{n % 8}") for n in range(40)])
    async with work(handler, concurrency=20):
        assert await queue.wait_until_empty(60_000)

    assert (most, overlaps) == (8, [])


async def test_the_next_job_of_a_lane_is_taken_by_the_call_that_ends_the_one_before(queue, hand):
    """FIFO-27: completing and taking the next one is one atomic call."""
    await queue.add_bulk([NewJob("x", n, lane="a") for n in range(2)])
    one, two = hand("one"), hand("two")
    (first,) = await one.take(1)

    jobs = await one.complete(first, then_take=1)

    assert [job.data for job in jobs] == [1]
    assert await two.take(1) == []
