"""Which lanes are listed: those with a job that waits, for its turn or for a time, or runs."""

from __future__ import annotations

import pytest

from toril import Deduplication, NewJob
from toril.errors import InvalidOptionError


@pytest.fixture
def hand(hand):
    return hand()


async def test_a_lane_whose_jobs_are_all_delayed_is_listed_last(queue, hand):
    """FIFO-22: it counts, behind those at work, and get_lane says how many wait for a time."""
    await queue.add_bulk([NewJob("x", lane="sleeping", delay=60_000) for _ in range(3)])
    await queue.add("x", lane="working")

    lane = await queue.get_lane("sleeping")

    assert await queue.get_lanes() == ["working", "sleeping"]
    assert await queue.get_lane_count() == 2
    assert (lane.depth, lane.delayed, lane.head, lane.is_ready) == (0, 3, None, False)
    assert [job.lane for job in await hand.take(9)] == ["working"]


async def test_a_delayed_lane_wakes_and_falls_asleep_again(queue, hand):
    """FIFO-22, FIFO-28: whichever job of it comes first, and whatever is left behind."""
    early, late = await queue.add_bulk(
        [NewJob("x", n, lane="a", delay=60_000 + n) for n in range(2)]
    )
    await queue.promote(early.id)
    await queue.add("x", lane="b")
    assert await queue.get_lanes() == ["a", "b"]

    first, second = await hand.take(9)
    await hand.complete(first)
    assert (first.id, await queue.get_lanes()) == (early.id, ["b", "a"])
    await hand.complete(second)
    assert await queue.get_lanes() == ["a"]

    await queue.promote(late.id)
    (third,) = await hand.take(9)
    await hand.complete(third)
    assert await queue.get_lanes() == []


async def test_a_plain_job_wakes_a_delayed_lane_at_once(queue, hand):
    """FIFO-28: what waits for a time does not hold its lane up."""
    await queue.add("x", lane="a", delay=60_000)

    job = await queue.add("x", lane="a")

    assert [taken.id for taken in await hand.take(9)] == [job.id]
    lane = await queue.get_lane("a")
    assert (lane.holder, lane.depth, lane.delayed) == (job.id, 0, 1)


async def test_a_retry_that_blocks_its_lane_counts_as_delayed(queue, hand):
    """FIFO-07: the lane is held by it, and listed as one at work."""
    blocking = await queue.add("x", lane="a", backoff=60_000)
    await queue.add("x", lane="sleeping", delay=60_000)
    (job,) = await hand.take(1)

    await hand.fail(job)

    lane = await queue.get_lane("a")
    assert (lane.holder, lane.depth, lane.delayed) == (blocking.id, 0, 1)
    assert await queue.get_lanes() == ["a", "sleeping"]


@pytest.mark.parametrize("how", ["remove", "drain", "replace", "clean", "obliterate"])
async def test_a_delayed_lane_is_forgotten_with_its_last_job(how, queue, client, prefix):
    """FIFO-30: however that goes; the audit looks for what is left behind."""
    job = await queue.add(
        "x", lane="a", delay=60_000, deduplication=Deduplication("d", replace=True)
    )
    match how:
        case "remove":
            await queue.remove(job.id)
        case "drain":
            assert await queue.drain_lane("a", delayed=True) == 1
        case "replace":
            await queue.add(
                "x", lane="b", delay=60_000, deduplication=Deduplication("d", replace=True)
            )
            assert await queue.get_lanes() == ["b"]
            await queue.drain(delayed=True)
        case "clean":
            assert len(await queue.clean("delayed", 0)) == 1
        case "obliterate":
            await queue.obliterate(force=True)

    assert await queue.get_lanes() == []
    assert await client.exists(queue.keys.lanes_index, queue.keys.lanes_aside) == 0


async def test_draining_one_lane_does_not_read_the_delayed_jobs_of_others(queue, client):
    """The work is that of the lane, not of the queue."""
    await queue.add_bulk([NewJob("x", lane=f"other-{n}", delay=60_000) for n in range(1500)])
    await queue.add("x", lane="a", delay=60_000)
    await client.config_resetstat()

    assert await queue.drain_lane("a", delayed=True) == 1

    stats = await client.info("commandstats")
    assert stats["cmdstat_fcall"]["calls"] == 2
    assert "cmdstat_zrange" not in stats


async def test_the_jobs_of_one_lane_are_listed_in_order(queue, hand):
    """FIFO-22: who holds it, who waits by order and arrival, who is delayed; of no other lane."""
    for order_ms in (5, 3, 4):
        await queue.add("x", order_ms, lane="a b%", order_ms=order_ms)
    await queue.add_bulk([NewJob("x", lane=lane) for lane in ("a", "a b", "a b%c")])
    await queue.add("x", 6, lane="a b%", delay=60_000)
    (held,) = [job for job in await hand.take(9) if job.lane == "a b%"]

    found = [job.data for job in await queue.get_lane_jobs("a b%")]

    assert (held.data, found) == (3, [3, 4, 5, 6])
    assert [job.data for job in await queue.get_lane_jobs("a b%", 1, 2)] == [4, 5]
    assert [job.data for job in await queue.get_lane_jobs("a b%", -2)] == [5, 6]
    assert await queue.get_lane_jobs("nobody") == []


async def test_a_long_lane_is_listed_in_pages(queue, monkeypatch):
    monkeypatch.setattr("toril.protocol.lanes.IDS_PER_READ", 3)
    await queue.add_bulk([NewJob("x", n, lane="a") for n in range(8)])

    assert [job.data for job in await queue.get_lane_jobs("a")] == list(range(8))
    assert [job.data for job in await queue.get_lane_jobs("a", 2, 5)] == [2, 3, 4, 5]


async def test_paused_and_halted_lanes_are_listed(queue, hand):
    """FIFO-22: with jobs or without, those that were stopped first before the others."""
    await queue.add("x", lane="bad", attempts=1, on_exhausted="halt")
    (job,) = await hand.take(1)
    await hand.fail(job)
    await queue.set_lane_weight("heavy", 3)
    await queue.pause_lane("z y")
    await queue.add("x", lane="free")

    assert await queue.get_lanes(state="paused") == ["z y"]
    assert await queue.get_lanes(state="halted") == ["bad"]
    assert sorted(await queue.get_lanes(state="stopped")) == ["bad", "z y"]
    assert len(await queue.get_lanes(1, 1, state="stopped")) == 1
    with pytest.raises(InvalidOptionError, match="asleep"):
        await queue.get_lanes(state="asleep")
