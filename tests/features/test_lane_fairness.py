"""Lanes take turns, with each other and with jobs that have none."""

from __future__ import annotations

import pytest

from toril import NewJob


async def test_lanes_take_turns(queue, hand):
    """A tenant with many jobs does not keep one with three waiting."""
    await queue.add_bulk([NewJob("x", "big", lane="big") for _ in range(500)])
    await queue.add_bulk([NewJob("x", "small", lane="small") for _ in range(3)])
    one, seen = hand(), []
    jobs = await one.take(1)
    while len(seen) < 8:
        seen.append(jobs[0].data)
        jobs = await one.complete(jobs[0], then_take=1)

    assert seen.count("small") == 3
    await one.give_back(jobs[0])


async def test_lanes_that_come_and_go_do_not_starve_one_that_stays(queue, hand):
    """A stream of new lanes, one job each, leaves the old lane its turns."""
    await queue.add_bulk([NewJob("x", "old", lane="zzz") for _ in range(3)])
    one, seen = hand(), []
    for n in range(10):
        await queue.add("x", "new", lane=f"new-{n}")
        (job,) = await one.take(1)
        seen.append(job.data)
        await one.complete(job)

    assert seen.count("old") == 3


async def test_a_lane_with_weight_three_gets_three_turns(queue, hand):
    """Weights: three turns to another lane's one, when not all can run at once."""
    for lane in "abc":
        await queue.add_bulk([NewJob("x", lane, lane=lane) for _ in range(40)])
    await queue.set_lane_weight("b", 3)
    one, seen = hand(), []
    jobs = await one.take(1)
    while len(seen) < 50:
        seen.append(jobs[0].data)
        jobs = await one.complete(jobs[0], then_take=1)
    await one.give_back(jobs[0])

    assert 29 <= seen.count("b") <= 31
    assert abs(seen.count("a") - seen.count("c")) <= 1


@pytest.mark.parametrize("places", [1, 2, 5])
async def test_plain_jobs_and_lanes_share_a_queue_fairly(places, queue, hand):
    """Neither side starves the other, with one place or many."""
    await queue.add_bulk([NewJob("x", "plain") for _ in range(30)])
    await queue.add_bulk([NewJob("x", "lane", lane=str(n)) for n in range(30)])
    one, seen = hand(), []
    for _ in range(20 // places):
        jobs = await one.take(places)
        seen += [job.data for job in jobs]
        for job in jobs:
            await one.complete(job)

    assert len(seen) == 20 // places * places
    assert 9 <= seen.count("plain") <= 11


async def test_what_one_side_does_not_need_the_other_gets(queue, hand):
    """A call is filled, whatever there is more of."""
    await queue.add_bulk([NewJob("x", "plain") for _ in range(9)])
    await queue.add("x", "lane", lane="a")
    assert sorted(job.data for job in await hand("one").take(10)) == ["lane"] + ["plain"] * 9

    await queue.add_bulk([NewJob("x", "lane", lane=str(n)) for n in range(9)])
    await queue.add("x", "plain")
    assert sorted(job.data for job in await hand("two").take(10)) == ["lane"] * 9 + ["plain"]
