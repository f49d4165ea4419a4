"""Lanes together with deduplication, flows, groups and workers that close."""

from __future__ import annotations

import asyncio

from tests.features.lanes import drain
from tests.helpers import wait_until
from tests.keyspace import audit
from toril import NewJob, UnrecoverableError


async def test_deduplication_in_a_lane(queue, hand):
    """The owner waits in its lane; a debounced one is replaced while it is delayed."""
    from toril import Deduplication

    once = Deduplication("d")
    first = await queue.add("x", 1, lane="a", deduplication=once)
    second = await queue.add("x", 2, lane="a", deduplication=once)
    assert (second.id, second.duplicated) == (first.id, True)
    debounce = Deduplication("e", replace=True)
    await queue.add("x", 3, lane="b", delay=60_000, deduplication=debounce)
    newest = await queue.add("x", 4, lane="b", delay=60_000, deduplication=debounce)

    assert [job.id for job in await queue.get_delayed()] == [newest.id]
    assert await drain(hand()) == [1]


async def test_the_last_one_kept_by_deduplication_enters_its_lane(queue, hand):
    """keep_last_if_active: the pending job is added to its lane when the owner ends."""
    from toril import Deduplication

    keep_last = Deduplication("d", keep_last_if_active=True)
    await queue.add("x", 1, lane="a", deduplication=keep_last)
    one = hand()
    (job,) = await one.take(1)
    await queue.add("x", 2, lane="a", deduplication=keep_last)

    jobs = await one.complete(job, then_take=5)

    assert [(job.data, job.lane) for job in jobs] == [(2, "a")]


async def test_a_parent_in_a_lane_enters_it_when_its_children_are_done(url, prefix, queue, hand):
    """A flow's parent takes its place in its lane only then."""
    from toril import FlowJob, FlowProducer

    async with FlowProducer(connection=url, prefix=prefix) as flow:
        child = FlowJob("child", "child", queue_name="q")
        await flow.add(
            FlowJob("parent", "parent", queue_name="q", lane="a", order_ms=5, children=[child])
        )
    await queue.add("x", "other", lane="a", order_ms=9)
    one = hand()
    jobs = {job.data: job for job in await one.take(5)}
    assert set(jobs) == {"child", "other"}

    assert await one.complete(jobs["child"], then_take=5) == []
    assert [job.data for job in await one.complete(jobs["other"], then_take=5)] == ["parent"]


async def test_unrecoverable_errors_let_the_lane_go_on(queue, work):
    """FIFO-08: whatever attempts are left."""
    ran = []

    async def handler(job):
        ran.append(job.data)
        if job.data == 0:
            raise UnrecoverableError("no")

    await queue.add_bulk([NewJob("x", n, lane="a") for n in range(2)])
    async with work(handler):
        assert await queue.wait_until_empty(60_000)

    assert ran == [0, 1]


async def test_closing_a_worker_waits_for_its_job(queue, work):
    """FIFO-18: the job of a lane ends within the limit, or goes back to its lane's front."""
    started = []

    async def handler(job):
        started.append(job.data)
        await asyncio.sleep(0.1 if job.data == 0 else 60)

    await queue.add_bulk([NewJob("x", n, lane="a") for n in range(2)])
    worker = work(handler)
    await worker.start()
    await wait_until(lambda: started == [0, 1])
    await worker.close(timeout=50)

    assert await queue.get_job_counts("completed", "active", "waiting") == {
        "completed": 1, "active": 0, "waiting": 1,
    }  # fmt: skip
    lane = await queue.get_lane("a")
    assert (lane.holder, lane.depth) == (None, 1)


async def test_the_audit_sees_a_lane_that_is_held_by_nobody(queue, client, prefix):
    """The audit after every test is no formality."""
    await queue.add("x", lane="a")
    await client.hset(queue.keys.lanes_held, "a", "1\nnobody")

    problems = await audit(client, prefix)

    assert any("held by 'nobody'" in problem for problem in problems)
    await client.delete(queue.keys.lanes_held)


async def test_members_of_a_group_that_wait_in_lanes_are_cancelled(url, prefix, queue, hand):
    """A failing member takes its siblings out of their lanes, and those go on."""
    from toril import FlowProducer, GroupJob

    async with FlowProducer(connection=url, prefix=prefix) as flow:
        names = ("fails", "waits", "later")
        jobs = [GroupJob(name, queue_name="q", data=name, lane="a", attempts=1) for name in names]
        group = await flow.add_group(name="g", jobs=jobs)
    await queue.add("x", "other", lane="a")
    one = hand()
    (job,) = await one.take(1)

    (after,) = await one.fail(job, then_take=5)

    assert (job.data, after.data) == ("fails", "other")
    assert (await queue.get_group_state(group.group_id)).state == "FAILED"
