"""What a queue tells about its lanes, and what looking costs."""

from __future__ import annotations

import asyncio
import time

from tests.helpers import let_pass, until_blocked, wait_until
from toril import NewJob


async def test_counts_ids_and_states_include_the_jobs_of_lanes(queue, hand):
    """FIFO-21, FIFO-22, FIFO-23: counts, ids by state and lanes in one picture."""
    jobs = await queue.add_bulk([NewJob("x", n, lane=f"l{n % 2}") for n in range(4)])
    delayed = await queue.add("x", lane="l0", delay=60_000)
    plain = await queue.add("x")
    one = hand()
    (active,) = await one.take(1)

    counts = await queue.get_job_counts()
    ids = await queue.get_job_ids("active", "waiting", "delayed")

    waiting = {job.id for job in [*jobs, plain]} - {active.id}
    assert {name: counts[name] for name in ("active", "waiting", "delayed")} == {
        "active": 1, "waiting": 4, "delayed": 1,
    }  # fmt: skip
    assert (set(ids["waiting"]), ids["active"], ids["delayed"]) == (
        waiting, [active.id], [delayed.id],
    )  # fmt: skip
    assert {await queue.get_state(job_id) for job_id in waiting} == {"waiting"}
    assert {job.id for job in await queue.get_waiting()} == waiting
    assert sorted(await queue.get_lanes(0, 99)) == ["l0", "l1"]
    assert await queue.get_lane_count() == 2


async def test_a_lane_tells_its_depth_head_and_holder(queue, hand):
    """FIFO-22: get_lane, and None for a lane nobody knows."""
    jobs = await queue.add_bulk([NewJob("x", n, lane="user:42") for n in range(3)])
    before_ms = round(time.time() * 1000) - 1
    await hand().take(1)

    lane = await queue.get_lane("user:42")

    assert (lane.name, lane.depth, lane.head) == ("user:42", 2, jobs[1].id)
    assert (lane.holder, lane.holders) == (jobs[0].id, (jobs[0].id,))
    assert before_ms <= lane.held_since <= time.time() * 1000 + 1
    assert (lane.weight, lane.concurrency, lane.limited_until) == (1, 1, None)
    assert await queue.get_lane("nobody") is None


async def test_waiting_until_empty_minds_lanes(queue, hand):
    """FIFO-19: False while a lane has jobs, True when they are done."""
    await queue.add("x", lane="a")
    assert await queue.wait_until_empty(50) is False
    one = hand()
    (job,) = await one.take(1)
    assert await queue.wait_until_empty(50) is False

    await one.complete(job)

    assert await queue.wait_until_empty(60_000) is True


async def test_a_worker_tells_what_it_is_doing(queue, work):
    """FIFO-24: is_processing and current_job."""
    go = asyncio.Event()
    worker = work(lambda job: go.wait())
    async with worker:
        assert (worker.is_processing, worker.current_job()) == (False, None)
        added = await queue.add("x", lane="a")
        job, running_ms = await wait_until(worker.current_job)
        assert (job.id, job.lane, worker.is_processing) == (added.id, "a", True)
        assert 0 <= running_ms < 5000
        go.set()
        await queue.wait_until_empty(60_000)


async def test_an_idle_worker_does_not_poll(queue, work, client, monkeypatch):
    """FIFO-14: with lanes that wait for a time or are paused, a second costs a few commands."""
    await queue.add("x", lane="later", delay=60_000)
    await queue.pause_lane("stopped")
    await queue.add("x", lane="stopped")
    worker = work(lambda job: None)
    sweeper, has_swept = worker._parts.sweeper, asyncio.Event()
    sweep = sweeper.sweep

    async def sweep_and_tell():
        found = await sweep()
        has_swept.set()
        return found

    monkeypatch.setattr(sweeper, "sweep", sweep_and_tell)
    async with worker:
        await has_swept.wait()  # it does so at its start, in several calls
        await until_blocked(client, 2)
        before = (await client.info("stats"))["total_commands_processed"]
        await let_pass(1.0, "who polls would be counted")
        after = (await client.info("stats"))["total_commands_processed"]

    assert after - before <= 5
