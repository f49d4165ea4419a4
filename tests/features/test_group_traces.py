"""What groups leave on the server: who is woken, what is counted, and what must not stay."""

from __future__ import annotations

import pytest

from tests.features.group_support import World
from tests.keyspace import keys_under
from toril import GroupJob


async def marker(world: World, queue: str) -> dict[str, float]:
    """What wakes an idle worker: "0" for work that is ready, "1" with the time of what is due."""
    return dict(await world.client.zrange(f"{world.prefix}:{queue}:marker", 0, -1, withscores=True))


async def test_creating_a_group_wakes_workers_of_every_queue(world: World):
    """SAGA-01, SAGA-14: an idle worker does not wait for its next look."""
    await world.order("abcd", b={"delay": 60_000}, c={"priority": 5}, d={"lane": "user:1"})

    assert "0" in await marker(world, "a")
    assert (await marker(world, "b"))["1"] > 1_700_000_000_000
    assert "0" in await marker(world, "c")
    assert await marker(world, "d") != {}
    for name in "abc":
        assert await world.client.get(f"{world.prefix}:{name}:id") == "1"


async def test_undoing_wakes_workers_and_counts_its_jobs(world: World):
    """SAGA-26, SAGA-32: the compensation queue is told of its jobs as any queue is."""
    await world.order()
    await world.complete("ab")

    await world.fail("c")

    for name in "ab":
        assert "0" in await marker(world, f"{name}:compensation")
        assert await world.client.get(f"{world.prefix}:{name}:compensation:id") == "1"
        rows = await world.client.xrange(f"{world.prefix}:{name}:compensation:events")
        assert [row["event"] for _, row in rows] == ["added", "waiting"]


async def test_cancelling_in_a_lane_wakes_a_worker_for_the_next(world: World):
    """SAGA-22: the member held the lane up for others."""
    await world.order("ab", a={"lane": "user:1"})
    await world.queue("a").add("next", lane="user:1")
    await world.client.delete(f"{world.prefix}:a:marker")

    await world.fail("b")

    assert await marker(world, "a") != {}


@pytest.mark.parametrize("ends", ["COMPLETED", "FAILED", "FAILED_COMPENSATION"])
async def test_what_is_over_is_looked_at_no_more(world: World, ends: str):
    """SAGA-17, SAGA-43: no reconciler comes back to it, and nothing of its work is left."""
    node = await world.order()
    await world.complete("ab")
    if ends == "COMPLETED":
        await world.complete("c")
    else:
        await world.fail("c")
        await world.undo_all("ab", failing="a" if ends == "FAILED_COMPENSATION" else "")

    assert await world.state(node) == ends
    base = f"{world.prefix}:a:toril:groups"
    assert await world.client.zcard(f"{base}-open") == 0
    assert await world.client.zcard(f"{base}-ended") == (ends != "FAILED_COMPENSATION")
    record = f"{world.prefix}:a:groups:{node.group_id}"
    left = {key.removeprefix(record) for key in await keys_under(world.client, record)}
    if ends == "COMPLETED":
        assert left == {"", ":jobs", ":plan", ":results"}
    assert ":undo" not in left


async def test_events_of_groups_keep_to_the_length_of_the_stream(world: World):
    """SAGA-38: an owner that runs nothing itself is trimmed by nobody else."""
    await world.client.hset(f"{world.prefix}:orders:meta", "opts.maxLenEvents", 10)
    for _ in range(250):
        jobs = [GroupJob("a", queue_name="a")]
        node = await world.flow.add_group("order", jobs, queue_name="orders")
        await world.queue("orders").cancel_group(node.group_id)

    assert await world.client.xlen(f"{world.prefix}:orders:events") < 150


async def test_repair_and_resolving_are_told_once_when_they_are_sent_again(world: World):
    """SAGA-39: the second answer is the first."""
    from toril.protocol import groups

    node = await world.order("ab")
    await world.complete("a")
    await world.fail("b")
    await world.undo_all("a", failing="a")
    keys = world.queue("a").keys

    retry = groups.retry_compensation(keys, node.group_id, request="r1")
    assert [await world.connection.run(retry) for _ in range(2)] == [1, 1]
    open_groups = f"{world.prefix}:a:toril:groups-open"
    assert await world.client.zrange(open_groups, 0, -1) == [node.group_id]
    await world.undo_all("a", failing="a")
    resolve = groups.resolve(keys, node.group_id, "by phone", request="r2")
    for _ in range(2):
        await world.connection.run(resolve)

    names = await world.event_names()
    assert names[-2:] == ["group:failed", "group:resolved"]
    assert await world.client.zcard(f"{world.prefix}:a:toril:groups-ended") == 1
