"""Removing, cancelling and moving jobs of lanes by hand; nothing is left behind."""

from __future__ import annotations

import pytest

from tests.features.lanes import drain
from tests.helpers import wait_until
from tests.keyspace import lasting_keys
from toril import NewJob


async def test_removing_jobs_keeps_the_lane_in_order(queue, hand):
    """FIFO-30: a waiting head, a delayed retry that blocks, and the last job of a lane."""
    a, b, c = await queue.add_bulk([NewJob("x", n, lane="l", backoff=60_000) for n in "abc"])
    one = hand()
    (job,) = await one.take(1)
    assert await one.fail(job, then_take=1) == []

    assert await queue.remove(b.id) is True
    assert await queue.remove(a.id) is True  # it blocks its lane
    (job,) = await one.take(1)
    assert job.id == c.id
    await one.complete(job)

    assert await queue.get_lanes() == []


async def test_cancelling_jobs_of_a_lane(queue, hand):
    """A waiting one fails at once, and the lane goes on."""
    a, b = await queue.add_bulk([NewJob("x", n, lane="l", on_exhausted="halt") for n in "ab"])

    await queue.cancel(a.id)

    assert await queue.get_state(a.id) == "failed"
    assert [job.id for job in await hand().take(5)] == [b.id]


async def test_draining_a_lane_leaves_the_others(queue, hand):
    """drain_lane: what waits goes, with delayed=True also what waits for a time."""
    await queue.add_bulk([NewJob("x", n, lane="a") for n in range(450)])
    kept = await queue.add("x", "kept", lane="b")
    later = await queue.add("x", "later", lane="b", delay=60_000)
    await queue.add("x", lane="a", delay=60_000)
    (running,) = await hand().take(1)

    assert await queue.drain_lane("a") == 449
    assert await queue.drain_lane("a", delayed=True) == 1

    assert await queue.get_lanes() == ["a", "b"]
    assert {job.id for job in await queue.get_jobs()} == {running.id, kept.id, later.id}


@pytest.mark.parametrize("how", ["drain", "clean", "obliterate"])
async def test_bulk_removal_knows_lanes(how, queue, client, prefix):
    """FIFO-30: nothing of a lane is left behind."""
    await queue.add_bulk([NewJob("x", n, lane=f"l{n % 7}") for n in range(40)])
    await queue.add_bulk([NewJob("x", n, lane=f"l{n % 3}", delay=60_000) for n in range(5)])

    if how == "drain":
        assert await queue.drain(delayed=True) == 45
    elif how == "clean":
        assert len(await queue.clean("waiting")) == 40
        assert len(await queue.clean("delayed")) == 5
    else:
        assert await queue.obliterate(force=True) == 45
        assert await lasting_keys(client, prefix) == []
    assert not [key for key in await lasting_keys(client, prefix) if ":lanes:" in key]


async def test_an_empty_lane_leaves_no_keys(queue, hand, client, prefix):
    """FIFO-30: after the last job only what every queue has is there."""
    await queue.add_bulk(
        [NewJob("x", n, lane=f"l{n % 5}", remove_on_complete=True) for n in range(25)]
    )

    assert len(await drain(hand())) == 25

    names = {key.removeprefix(f"{prefix}:q:") for key in await lasting_keys(client, prefix)}
    assert names <= {"meta", "id", "events", "marker", "toril:replies"}


async def test_retention_trims_finished_jobs_of_lanes(queue, hand):
    """FIFO-31: remove_on_complete and remove_on_fail as everywhere."""
    await queue.add_bulk([NewJob("x", n, lane="a", remove_on_complete=3) for n in range(8)])

    await drain(hand())

    assert [job.data for job in await queue.get_completed()] == [5, 6, 7]


async def test_changing_the_delay_and_promoting_work_in_lanes(queue, hand):
    """FIFO-28: also when an operator changes the time."""
    a = await queue.add("x", "a", lane="l", delay=60_000)
    b = await queue.add("x", "b", lane="l", delay=60_000)
    one = hand()

    await queue.change_delay(a.id, 1)
    (first,) = [await wait_until(one.take_one)]
    await queue.promote(b.id)

    assert first.data == "a"
    assert await one.take(5) == []
    assert [job.data for job in await one.complete(first, then_take=1)] == ["b"]


async def test_promoting_all_lets_lanes_in_as_well(queue, hand):
    """FIFO-28: a retry that blocks its lane included."""
    await queue.add("x", "a", lane="l", backoff=60_000)
    await queue.add("x", "b", lane="l", delay=60_000)
    one = hand()
    (job,) = await one.take(1)
    await one.fail(job)

    assert await queue.promote_all() == 2

    assert await drain(one) == ["a", "b"]
