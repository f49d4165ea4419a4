"""What a change leaves behind: who is woken, what is told, and what is gone."""

from __future__ import annotations

import pytest

from tests.client.support import events_of
from tests.features.lanes import lose_lock
from toril import Deduplication, FlowJob, FlowProducer, NewJob, Queue
from toril.errors import ServerError
from toril.protocol import settling


async def marked(client, queue) -> list[tuple[str, float]]:
    """What tells waiting workers to look, and when."""
    return await client.zrange(queue.keys.marker, 0, -1, withscores=True)


@pytest.mark.parametrize("lane", [None, "a"])
async def test_a_job_that_is_due_earlier_is_announced(lane, queue, client):
    job = await queue.add("x", delay=3_600_000, lane=lane)
    await client.delete(queue.keys.marker)

    await queue.change_delay(job.id, 60_000)

    ((_, due),) = await marked(client, queue)
    now_s, _ = await client.time()
    assert 0 < due / 1000 - now_s <= 61


async def test_cleaning_a_lost_holder_lets_its_lane_go(queue, hand, client):
    first, second = await queue.add_bulk([NewJob("x", lane="a") for _ in range(2)])
    worker = hand()
    await worker.take(1)
    await lose_lock(client, queue.keys, first.id)
    await client.delete(queue.keys.marker)

    assert await queue.clean("active") == [first.id]

    assert [member for member, _ in await marked(client, queue)] == ["0"]
    assert [job.id for job in await worker.take(1)] == [second.id]


ONE = Deduplication("one", replace=True)

# Each takes away a job that keeps its lane until its next attempt.


async def cancelled(queue, job_id):
    await queue.cancel(job_id)


async def replaced(queue, job_id):
    await queue.add("x", delay=3_600_000, deduplication=ONE)


async def removed(queue, job_id):
    await queue.remove(job_id)


async def drained(queue, job_id):
    await queue.drain(delayed=True)


async def drained_from_its_lane(queue, job_id):
    await queue.drain_lane("a", delayed=True)


@pytest.mark.parametrize("way", [cancelled, replaced, removed, drained, drained_from_its_lane])
async def test_who_takes_a_holder_away_announces_the_next_of_its_lane(way, queue, hand, client):
    worker = hand()
    await queue.add("x", lane="a", backoff=3_600_000, deduplication=ONE)
    holder = await worker.take_one()
    await worker.fail(holder)
    # No drain takes the pending job of a scheduler.
    behind = await queue.upsert_job_scheduler(
        "s", every=3_600_000, template=NewJob("tick", lane="a")
    )
    assert await worker.take(1) == []
    await client.delete(queue.keys.marker)

    await way(queue, holder.id)

    assert ("0", 0) in await marked(client, queue)
    assert [job.id for job in await worker.take(1)] == [behind.id]


async def test_a_lane_of_a_paused_queue_is_announced_by_nobody(queue, hand, client):
    holder, _ = await queue.add_bulk([NewJob("x", lane="a", backoff=3_600_000)] * 2)
    worker = hand()
    await worker.fail(await worker.take_one())
    await queue.pause()
    await client.delete(queue.keys.marker)

    await queue.cancel(holder.id)

    assert await marked(client, queue) == []


@pytest.mark.no_audit("a key is damaged on purpose")
@pytest.mark.parametrize("lane", [None, "a"])
async def test_what_a_bulk_has_added_before_it_failed_is_announced(lane, queue, client):
    await client.hset(f"{queue.keys.base}:de:one", "odd", "1")
    jobs = [NewJob("x", lane=lane), NewJob("y", deduplication=Deduplication("one"))]

    with pytest.raises(ServerError, match="WRONGTYPE"):
        await queue.add_bulk(jobs)

    assert ("0", 0) in await marked(client, queue)
    await client.delete(f"{queue.keys.base}:de:one")


@pytest.mark.no_audit("a key is damaged on purpose")
async def test_a_lane_whose_worker_cannot_be_told_fails_no_call(url, prefix, queue, client, hand):
    """The parent's queue has a damaged marker; the call has taken the next job already."""
    async with FlowProducer(connection=url, prefix=prefix) as flows:
        child = FlowJob("c", queue_name="q")
        flow = await flows.add(FlowJob("p", queue_name="above", lane="a", children=[child]))
    other = await queue.add("x")
    damaged = f"{prefix}:above:marker"
    await client.set(damaged, "odd")
    worker = hand()
    first = await worker.take_one()

    taken = await worker.complete(first, then_take=1)

    assert [job.id for job in taken] == [other.id]
    await client.delete(damaged)
    async with Queue("above", connection=url, prefix=prefix) as above:
        assert await above.get_state(flow.job.id) == "waiting"


@pytest.mark.no_audit
@pytest.mark.parametrize("verb", ["drain", "drain_lane"])
@pytest.mark.parametrize("has_hash", [True, False])
async def test_nothing_is_left_of_a_lane_that_is_drained(verb, has_hash, queue, client):
    """Nor of ids in it whose jobs somebody deleted."""
    jobs = await queue.add_bulk(
        [NewJob("x", lane="a"), NewJob("x", lane="a"), NewJob("x", lane="a", delay=3_600_000)]
    )
    if not has_hash:
        await client.delete(*[queue.keys.job(job.id) for job in jobs])

    if verb == "drain":
        await queue.drain(delayed=True)
    else:
        await queue.drain_lane("a", delayed=True)

    # Draining the whole queue leaves a lane whose jobs were deleted to whoever takes from it.
    is_whole = has_hash or verb == "drain_lane"
    names = ("waiting", "delayed", "aside", *(("index", "ready") if is_whole else ()))
    assert await client.exists(*[f"{queue.keys.base}:lanes:{name}" for name in names]) == 0
    assert await client.smembers(f"{queue.keys.base}:de") <= {"groups", "compensation"}
    if has_hash and verb == "drain_lane":
        told = await events_of(client, queue, "removed")
        assert sorted((row["jobId"], row["prev"]) for row in told) == sorted(
            zip([job.id for job in jobs], ["wait", "wait", "delayed"], strict=True)
        )


async def test_a_job_under_an_id_that_exists_is_told(queue, client):
    await queue.add("x", job_id="a")

    await queue.add("x", job_id="a")

    assert [row["jobId"] for row in await events_of(client, queue, "duplicated")] == ["a"]


async def test_jobs_that_are_promoted_together_are_announced(queue, client):
    await queue.add_bulk([NewJob("x", delay=3_600_000) for _ in range(3)])
    await client.delete(queue.keys.marker)

    await queue.promote_all()

    assert [member for member, _ in await marked(client, queue)] == ["0"]


async def test_a_worker_that_goes_leaves_its_work_to_another(queue, connection, client):
    await queue.add("x")
    await client.delete(queue.keys.marker)

    await connection.run(settling.leave(queue.keys, ["nobody"]))

    assert [member for member, _ in await marked(client, queue)] == ["0"]


async def test_a_lane_that_is_due_later_is_announced_by_its_recovery(queue, client):
    await queue.add("x", lane="a", delay=3_600_000)
    await client.delete(queue.keys.marker)

    await queue.recover_lanes()

    ((_, due),) = await marked(client, queue)
    now_s, _ = await client.time()
    assert 3_000 < due / 1000 - now_s <= 3_601


@pytest.mark.parametrize("verb", ["pause", "remove"])
async def test_the_pending_job_of_a_scheduler_is_told_to_be_gone(verb, queue, client):
    await queue.upsert_job_scheduler("s", cron="0 0 1 1 *")
    (pending,) = await queue.get_delayed()

    if verb == "pause":
        await queue.schedulers.pause("s")
    else:
        await queue.remove_job_scheduler("s")

    told = await events_of(client, queue, "removed")
    assert [(row["jobId"], row["prev"]) for row in told] == [(pending.id, "delayed")]


async def test_a_job_in_a_lane_is_announced(queue, client):
    await queue.add("x", lane="a")

    assert [member for member, _ in await marked(client, queue)] == ["0"]


async def test_jobs_that_are_retried_together_are_announced(queue, hand, client):
    job = await queue.add("x", attempts=1)
    worker = hand()
    (taken,) = await worker.take(1)
    await worker.fail(taken)
    await client.delete(queue.keys.marker)

    assert await queue.retry_all() == 1

    assert [member for member, _ in await marked(client, queue)] == ["0"]
    assert await queue.get_state(job.id) == "waiting"
