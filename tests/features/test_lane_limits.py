"""How many jobs of a lane run at once, how fast, and lanes that are paused or full."""

from __future__ import annotations

import time

import pytest

from tests.helpers import until_blocked, wait_until
from toril import NewJob, RateLimit
from toril.errors import LaneFullError
from toril.protocol import lanes


async def test_a_lane_may_run_several_jobs_at_once(queue, hand):
    """lane_concurrency: for one lane, for all, and taken back."""
    for lane in "ab":
        await queue.add_bulk([NewJob("x", f"{lane}{n}", lane=lane) for n in range(4)])
    one = hand()

    await queue.set_lane_concurrency("a", 3)
    jobs = {job.data: job for job in await one.take(10)}
    assert sorted(jobs) == ["a0", "a1", "a2", "b0"]

    await queue.set_lane_concurrency(None, 2)
    more = {job.data: job for job in await one.take(10)}
    assert sorted(more) == ["b1"]

    await queue.set_lane_concurrency("a", None)
    assert await one.complete(jobs["a0"], then_take=10) == []
    assert [job.data for job in await one.complete(jobs["a1"], then_take=10)] == ["a3"]


async def test_lowering_the_concurrency_does_not_let_a_held_lane_go(queue, hand):
    """FIFO-02: the lane gives nothing until the last of those that held it together has ended."""
    await queue.add_bulk([NewJob("x", n, lane="a") for n in range(5)])
    await queue.set_lane_concurrency(None, 3)
    one = hand()
    first, second, third = await one.take(10)
    await queue.set_lane_concurrency(None, None)

    assert await one.complete(first, then_take=10) == []
    assert (await queue.get_lane("a")).holders == (second.id, third.id)
    assert await one.complete(second, then_take=10) == []
    assert [job.data for job in await one.complete(third, then_take=10)] == [3]


async def change_concurrency(queue, connection, client, concurrency: int, *, by_us: bool) -> None:
    """The first step of it: the lanes are looked at in later ones, a part at a time."""
    if by_us:
        await connection.run(next(lanes.set_concurrency(queue.keys, concurrency, None)))
    else:  # as a version that knows of no mark
        await client.hset(queue.keys.meta, "toril.laneConcurrency", concurrency)


@pytest.mark.parametrize("lowered", [1, 2])
@pytest.mark.parametrize(("raises", "lowers"), [(True, True), (False, True), (True, False)])
async def test_a_full_lane_is_not_taken_before_somebody_has_looked_at_it(
    queue, hand, connection, client, raises, lowers, lowered
):
    """L1: it was ready when the concurrency of all lanes was lowered."""
    await change_concurrency(queue, connection, client, 3, by_us=raises)
    await queue.add_bulk([NewJob("x", n, lane="a") for n in range(4)])
    one = hand()
    first, second = await one.take(2)
    await change_concurrency(queue, connection, client, lowered, by_us=lowers)
    await queue.add("x", "b", lane="b")

    assert [job.data for job in await one.take(10)] == ["b"]
    lane = await queue.get_lane("a")
    assert (lane.holders, lane.is_ready) == ((first.id, second.id), False)

    later = await one.complete(first, then_take=10)
    if lowered == 1:
        assert later == []
        later = await one.complete(second, then_take=10)
    assert [job.data for job in later] == [2]


async def test_a_rate_limit_holds_a_lane_back_and_no_other(queue, work):
    """Lane a waits for its window and lane c for a long one; lane b runs freely."""
    starts = {"a": [], "b": [], "c": []}

    async def handler(job):
        starts[job.lane].append(job.processed_on)

    await queue.set_lane_rate_limit("a", RateLimit(2, 300))
    await queue.set_lane_rate_limit("c", RateLimit(2, 600_000))
    for lane in "abc":
        await queue.add_bulk([NewJob("x", n, lane=lane) for n in range(4)])
    async with work(handler, concurrency=4):
        await wait_until(lambda: [len(starts[lane]) for lane in "abc"] == [4, 4, 2])

    first, second, third, fourth = starts["a"]
    assert third - first >= 300
    assert first <= second < third <= fourth
    assert (await queue.get_lane("c")).depth == 2
    await queue.drain_lane("c")
    await queue.set_lane_rate_limit("a", None)
    await queue.set_lane_rate_limit("c", None)
    assert await queue.get_lane("a") is None


async def test_a_rate_limit_of_all_lanes_counts_each_for_itself(queue, hand):
    """A lane's own limit goes before that of the queue, and both can be taken back."""
    for lane in "ab":
        await queue.add_bulk([NewJob("x", f"{lane}{n}", lane=lane) for n in range(4)])
    await queue.set_lane_rate_limit(None, RateLimit(1, 60_000))
    await queue.set_lane_rate_limit("b", RateLimit(2, 60_000))
    one = hand()

    async def run_all() -> list[str]:
        seen = []
        while jobs := await one.take(5):
            seen += [job.data for job in jobs]
            for job in jobs:
                await one.complete(job)
        return sorted(seen)

    assert await run_all() == ["a0", "b0", "b1"]
    assert (await queue.get_lane("a")).limited_until > time.time() * 1000 + 30_000
    await queue.set_lane_rate_limit(None, None)
    assert await run_all() == ["a1", "a2", "a3"]
    await queue.set_lane_rate_limit("b", None)
    assert await run_all() == ["b2", "b3"]


async def test_a_limited_lane_whose_last_waiting_job_goes_is_limited_no_more(queue, hand, client):
    """FIFO-30: also while somebody holds it."""
    _, second = await queue.add_bulk([NewJob("x", n, lane="a") for n in range(2)])
    await queue.set_lane_concurrency("a", 2)
    await queue.set_lane_rate_limit("a", RateLimit(1, 60_000))
    (job,) = await hand().take(2)
    assert await client.zrange(queue.keys.lanes_later, 0, -1) == ["a"]

    await queue.remove(second.id)

    assert await client.exists(queue.keys.lanes_later) == 0
    assert (await queue.get_lane("a")).holder == job.id


async def test_a_paused_lane_gives_nothing_until_it_is_resumed(queue, hand):
    """pause_lane: its jobs wait, others run; what runs may end."""
    await queue.add_bulk([NewJob("x", n, lane="a") for n in range(3)])
    await queue.add("x", "b", lane="b")
    one = hand()
    (running,) = [job for job in await one.take(1) if job.lane == "a"]
    await queue.pause_lane("a")

    jobs = await one.complete(running, then_take=5)
    await queue.add("x", 3, lane="a")

    assert [job.data for job in jobs] == ["b"]
    assert await one.take(5) == []
    assert (await queue.get_lane("a")).is_paused
    assert await queue.resume_lane("a") is True
    assert await queue.resume_lane("a") is False
    assert [job.data for job in await one.take(5)] == [1]


async def test_resuming_wakes_an_idle_worker(queue, work, client):
    """FIFO-14: no polling, also after a pause."""
    ran = []

    async def handler(job):
        ran.append(job.data)

    await queue.pause_lane("a")
    await queue.add("x", 1, lane="a")
    async with work(handler):
        await until_blocked(client, 2)
        assert not ran
        await queue.resume_lane("a")
        await wait_until(lambda: ran)


async def test_a_full_lane_refuses_with_its_own_error(queue):
    """max_lane_size: a typed refusal, and nothing is written."""
    await queue.add_bulk([NewJob("x", n, lane="a", max_lane_size=2) for n in range(2)])

    with pytest.raises(LaneFullError, match="'a' would have more than 2 waiting"):
        await queue.add("x", lane="a", max_lane_size=2)

    assert (await queue.get_lane("a")).depth == 2
    await queue.add("x", lane="b", max_lane_size=2)
    assert await queue.get_waiting_count() == 3
