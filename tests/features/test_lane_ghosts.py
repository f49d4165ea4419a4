"""Jobs of lanes whose hash is gone: whoever deleted it knew of no lanes."""

from __future__ import annotations

import asyncio

import pytest

from tests.features.test_rare_moments import lane_key
from toril import NewJob

HOUR_MS = 3_600_000
STATES = pytest.mark.parametrize(
    ("state", "delay"), [("waiting", None), ("delayed", HOUR_MS)], ids=["waiting", "delayed"]
)


@STATES
async def test_cleaning_takes_jobs_without_a_hash_out_of_their_lane(queue, client, state, delay):
    """FIFO-30: once, and what is real with them."""
    jobs = await queue.add_bulk([NewJob("x", n, lane="l", delay=delay) for n in range(3)])
    ids = [job.id for job in jobs]
    await client.delete(queue.keys.job(ids[0]))

    assert await queue.clean(state, limit=1) == ids[:1]
    assert await queue.clean(state) == ids[1:]
    assert await queue.clean(state) == []

    assert (await queue.get_job_counts(state))[state] == 0
    assert await queue.get_lanes() == []
    assert await client.exists(lane_key(queue, "aside"), f"{queue.keys.base}:de") == 0


@STATES
async def test_cleaning_ends_however_many_jobs_have_no_hash(queue, client, state, delay):
    """FIFO-30: more than one call examines, in a lane that no worker clears."""
    jobs = await queue.add_bulk([NewJob("x", n, lane="l", delay=delay) for n in range(260)])
    await queue.pause_lane("l")
    await client.delete(*(queue.keys.job(job.id) for job in jobs))

    removed = await asyncio.wait_for(queue.clean(state), 60)

    assert sorted(removed) == sorted(job.id for job in jobs)
    assert (await queue.get_job_counts(state))[state] == 0


async def test_cleaning_a_job_without_a_hash_frees_the_lane_that_it_held(queue, hand, client):
    """FIFO-30: it waited for its retry before all others."""
    first, second = await queue.add_bulk(
        [NewJob("x", n, lane="l", backoff=HOUR_MS, attempts=2) for n in range(2)]
    )
    one = hand()
    (job,) = await one.take(1)
    assert await one.fail(job, then_take=1) == []
    await client.delete(queue.keys.job(first.id))

    assert await queue.clean("delayed") == [first.id]

    (job,) = await one.take(1)
    assert job.id == second.id
    await one.complete(job)


async def test_cleaning_a_damaged_job_of_a_lane_takes_it_out(queue, client):
    """FIFO-30: what is under its key is no hash."""
    (job,) = await queue.add_bulk([NewJob("x", lane="l")])
    await client.delete(queue.keys.job(job.id))
    await client.set(queue.keys.job(job.id), "oops")

    assert await queue.clean("waiting") == [job.id]

    assert await queue.clean("waiting") == []
    assert await client.exists(queue.keys.job(job.id)) == 0


@pytest.mark.parametrize("lane", ["l", None], ids=["lane", "plain"])
@pytest.mark.parametrize("how", ["due", "promoted"])
async def test_the_id_of_a_delayed_job_that_was_deleted_is_free_again(
    queue, hand, client, clock, lane, how
):
    """FIFO-30: Node's `job.remove()` deletes the hash, and the place in a lane stays.

    When it was due, a hash came back that held only its delay: an add with its id was refused as a
    duplicate of it, and nothing ran.
    """
    await queue.add("x", "first", job_id="mine", lane=lane, delay=HOUR_MS)
    await client.delete(queue.keys.job("mine"))
    if how == "due":
        clock.ms = HOUR_MS + 1
    else:
        await queue.promote_all()
    one = hand()

    assert await one.take(1) == []
    assert await client.exists(queue.keys.job("mine")) == 0
    again = await queue.add("x", "second", job_id="mine", lane=lane)

    assert not again.duplicated
    (job,) = await one.take(1)
    assert job.data == "second"
    await one.complete(job)
