"""Lanes whose holder died, was swept by others, or is gone."""

from __future__ import annotations

import asyncio

import pytest

from tests.features.lanes import drain, fence_of, lose_lock, sweep
from toril import NewJob
from toril.protocol.settling import Outcome


async def test_a_killed_holder_is_recovered_with_its_order(queue, hand, connection, client):
    """FIFO-12, C-22: the swept job is the next of its lane, and the lane is held by it alone."""
    await queue.add_bulk([NewJob("x", n, lane="a") for n in range(3)])
    dead, alive = hand("dead"), hand("alive")
    (job,) = await dead.take(1)
    await lose_lock(client, queue.keys, job.id)
    assert await alive.take(5) == []

    assert await sweep(connection, client, queue.keys) == [job.id]

    (again,) = await alive.take(5)
    assert (again.id, again.stalled_count) == (job.id, 0)  # nobody is known to have received it
    assert fence_of(again) > fence_of(job)
    assert [item.data for item in await alive.complete(again, then_take=5)] == [1]


async def test_a_worker_that_lost_its_lane_can_neither_complete_nor_release_it(
    queue, hand, connection, client
):
    """FIFO-13: every write of the zombie is refused, whoever holds the lane now."""
    await queue.add_bulk([NewJob("x", n, lane="a") for n in range(3)])
    zombie, other = hand("zombie"), hand("other")
    (job,) = await zombie.take(1)
    await lose_lock(client, queue.keys, job.id)
    completed = Outcome(kind="completed", payloads=(b"null",))
    retried = Outcome(kind="retry", payloads=("no", b"[]"))
    put_off = Outcome(kind="delayed", details={"delay": 5}, payloads=("no", b"[]"))

    for outcome in (completed, retried, put_off, Outcome(kind="returned")):
        token = zombie.held[job.id]
        assert (await zombie.call([(job, outcome)], 0))[0] == [-2]
        zombie.held[job.id] = token
    await sweep(connection, client, queue.keys)
    (again,) = await other.take(5)
    for outcome in (completed, retried, put_off, Outcome(kind="returned")):
        token = zombie.held[job.id]
        assert (await zombie.call([(job, outcome)], 5)) == ([-6], [])
        zombie.held[job.id] = token

    assert (await queue.get_lane("a")).holders == (again.id,)
    assert [item.data for item in await other.complete(again, then_take=5)] == [1]


async def test_a_handler_longer_than_the_lock_keeps_its_lane(queue, work):
    """FIFO-11, FIFO-12: the lock is renewed every third of its time, and nobody else runs."""
    runs = []

    async def handler(job):
        runs.append(job.data)
        await asyncio.sleep(6.4 if job.data == 0 else 0)

    await queue.add_bulk([NewJob("x", n, lane="a") for n in range(2)])
    # Every two seconds it is renewed: a renewal may be late by four.
    options = {"lock_duration": 6000, "stalled_interval": 50}
    async with work(handler, **options), work(handler, **options):
        assert await queue.wait_until_empty(60_000)

    assert runs == [0, 1]


@pytest.mark.no_audit("the lane is broken on purpose, and mended")
@pytest.mark.parametrize("damage", ["finished elsewhere", "hash deleted", "lost from ready"])
async def test_recover_lanes_lets_lanes_go_that_nobody_holds(damage, queue, hand, client):
    """FIFO-20, C-22: returns how many lanes were unblocked, and they run again."""
    keys = queue.keys
    first, _ = await queue.add_bulk([NewJob("x", n, lane="a") for n in range(2)])
    await queue.add("x", lane="healthy")
    one = hand()
    if damage == "lost from ready":
        await client.zrem(keys.lanes_ready, "a")
    else:
        await one.take(1)
        await lose_lock(client, keys, first.id)
        await client.lrem(keys.active, 1, first.id)
    if damage == "finished elsewhere":
        await client.zadd(keys.completed, {first.id: 1})
    if damage == "hash deleted":
        await client.delete(keys.job(first.id))

    await client.delete(keys.marker)
    assert await queue.recover_lanes() == 1
    assert await client.exists(keys.marker) == 1, "a worker that waits is woken"
    assert await queue.recover_lanes() == 0

    jobs = await one.take(5)
    assert sorted(str(job.data) for job in jobs) in (["1", "{}"], ["0", "{}"])


async def test_a_job_that_bullmq_swept_into_the_plain_list_keeps_its_lane(
    queue, hand, client, connection
):
    """FIFO-02, FIFO-12: it holds its lane while it stands in `wait`, and runs from there."""
    keys = queue.keys
    first, _ = await queue.add_bulk([NewJob("x", n, lane="a") for n in range(2)])
    dead, alive = hand("dead"), hand("alive")
    await dead.take(1)
    await lose_lock(client, keys, first.id)
    await client.lrem(keys.active, 1, first.id)
    await client.rpush(keys.wait, first.id)  # what BullMQ's stall check does

    (again,) = await alive.take(5)
    assert again.id == first.id
    assert [job.data for job in await alive.complete(again, then_take=5)] == [1]


async def test_recovery_takes_a_swept_job_back_from_the_plain_list(queue, hand, client):
    """FIFO-20: no worker of BullMQ gets it once a sweep of ours has seen it."""
    keys = queue.keys
    first, _ = await queue.add_bulk([NewJob("x", n, lane="a") for n in range(2)])
    dead, alive = hand("dead"), hand("alive")
    await dead.take(1)
    await lose_lock(client, keys, first.id)
    await client.lrem(keys.active, 1, first.id)
    await client.rpush(keys.wait, first.id)

    assert await queue.recover_lanes() == 1

    assert await client.llen(keys.wait) == 0
    assert [job.id for job in await alive.take(5)] == [first.id]


async def test_a_stray_job_of_a_held_lane_goes_where_it_belongs(queue, hand, client):
    """FIFO-02: what somebody put into `wait` does not run beside the holder of its lane."""
    keys = queue.keys
    failing = await queue.add("x", "A", lane="a", order_ms=1, attempts=1)
    await queue.add("x", "B", lane="a", order_ms=2)
    one = hand()
    (job,) = await one.take(1)
    (running,) = await one.fail(job, then_take=1)
    await client.zrem(keys.failed, failing.id)
    await client.lpush(keys.wait, failing.id)  # what a retry by BullMQ does

    assert await one.take(5) == []
    assert [job.data for job in await one.complete(running, then_take=5)] == ["A"]


@pytest.mark.parametrize("turn", ["plain", "lanes"])
async def test_a_stray_job_comes_before_later_ones_of_its_lane(queue, hand, client, turn):
    """FIFO-02: also for whoever takes a single job, while it is the turn of lanes."""
    keys = queue.keys
    failing = await queue.add("x", "A", lane="a", order_ms=1, attempts=1)
    one = hand()
    (job,) = await one.take(1)
    await one.fail(job)
    await queue.add("x", "B", lane="a", order_ms=2)
    await client.zrem(keys.failed, failing.id)
    await client.lpush(keys.wait, failing.id)  # what a retry by BullMQ does
    await client.hset(keys.meta, "toril.lanesNext", turn)

    assert await drain(one) == ["A", "B"]


async def test_ids_without_a_job_do_not_hold_a_lane(queue, hand, client):
    """FIFO-02: a hash that somebody deleted is passed over."""
    first, _ = await queue.add_bulk([NewJob("x", n, lane="a") for n in range(2)])
    await client.delete(queue.keys.job(first.id))
    one = hand()

    assert await one.take(5) == []
    assert [job.data for job in await one.take(5)] == [1]
