"""BullMQ's ``removeOrphanedJobs`` next to lanes and groups, which it knows nothing of.

It deletes each job under the queue's name that no key of BullMQ's own names.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.features.group_support import World, open_world
from tests.helpers import wait_until
from tests.interop.support import FAR
from toril import NewJob
from toril.protocol import leasing
from toril.protocol.settling import Raised

LANES = ("blocked", "held", "free", "paused")


@pytest.fixture
async def world(url, prefix, client):
    async with open_world(url, prefix, client) as world:
        yield world


async def remove_orphans(peer: Any, *queues: str) -> int:
    return sum([await peer.call("queue.removeOrphanedJobs", queue=name) for name in queues])


async def fill_lanes(world: World) -> Any:
    """Lanes in every state: held, blocked by a retry, ready, paused, and one all delayed."""
    queue, hand = world.queue("q"), world.hand("q")
    await queue.add("x", {"lane": "blocked", "n": 0}, lane="blocked", attempts=3, backoff=FAR)
    (failing,) = await hand.take()
    await hand.settle([(failing, Raised(ValueError("once")))])
    await queue.add("x", {"lane": "held", "n": 0}, lane="held")
    (held,) = await hand.take()
    jobs = [NewJob("x", {"lane": lane, "n": n}, lane=lane) for n in (1, 2, 3) for lane in LANES]
    jobs += [NewJob("x", {"lane": "late", "n": n}, lane="late", delay=FAR) for n in (1, 2, 3)]
    await queue.add_bulk(jobs)
    await queue.pause_lane("paused")
    return held


async def let_lanes_go(world: World, toril: Any) -> dict[str, list[int]]:
    """Run all there is; returns what was run of each lane, in order."""
    queue = world.queue("q")
    await queue.resume_lane("paused")
    await queue.promote_all()
    worker = await toril.start_worker("q", {"*": [["echo"]]})
    await wait_until(lambda: _has_no_lanes(queue))
    await toril.stop_worker(worker)
    seen: dict[str, list[int]] = {}
    for done in await queue.get_completed():
        seen.setdefault(done.data["lane"], []).append(done.data["n"])
    return seen


ALL_RUN = {
    "blocked": [0, 1, 2, 3],
    "held": [0, 1, 2, 3],
    "free": [1, 2, 3],
    "paused": [1, 2, 3],
    "late": [1, 2, 3],
}


async def test_lanes_in_every_state_outlive_a_removal_of_orphans(peer, toril, world, client):
    """Waiting, delayed, held, blocked by a retry, paused: all is there and runs in order."""
    held = await fill_lanes(world)

    assert await remove_orphans(peer, "q") == 0

    counts = await world.queue("q").get_job_counts("waiting", "delayed", "active")
    assert counts == {"waiting": 12, "delayed": 4, "active": 1}
    await world.hand("q").complete(held)
    assert await remove_orphans(peer, "q") == 0
    assert await let_lanes_go(world, toril) == ALL_RUN
    assert not await client.exists(f"{world.prefix}:q:de")


async def test_jobs_that_an_older_version_put_into_lanes_are_kept_after_a_sweep(
    peer, toril, world, client
):
    """It does not say in `de` who waits; nor does it take out whom it took."""
    held = await fill_lanes(world)
    await client.delete(f"{world.prefix}:q:de")
    await client.sadd(f"{world.prefix}:q:de", held.id, *(f"gone-{n}" for n in range(15)))

    await world.connection.follow(
        leasing.sweep(world.queue("q").keys, interval_ms=1, max_stalled=1)
    )

    assert await client.scard(f"{world.prefix}:q:de") == 16
    assert await remove_orphans(peer, "q") == 0
    await world.hand("q").complete(held)
    assert await let_lanes_go(world, toril) == ALL_RUN


async def fill_groups(world: World) -> dict[str, Any]:
    """Groups in every state, by what is the matter with each."""
    nodes = {}
    for matter in ("completed", "unrepaired", "undone"):
        nodes[matter] = await world.order("ab")
        await world.complete("a")
        if matter == "completed":
            await world.complete("b")
            continue
        await world.fail("b")
        if matter == "unrepaired":
            await world.undo_all("a", failing="a")
    nodes["running"] = await world.order("ab", a={"lane": "one"}, b={"lane": "two", "delay": FAR})
    return nodes


STATES = {
    "completed": "COMPLETED",
    "unrepaired": "FAILED_COMPENSATION",
    "undone": "COMPENSATING",
    "running": "ACTIVE",
}


async def test_groups_in_every_state_outlive_a_removal_of_orphans(peer, world):
    """Its members in lanes, what is planned, what undoes, and what could not be undone."""
    nodes = await fill_groups(world)

    assert await remove_orphans(peer, "a", "b") == 0

    assert {matter: await world.state(node) for matter, node in nodes.items()} == STATES
    assert len(await world.queue("a").get_groups()) == 4
    await world.undo_all("a")
    assert await world.state(nodes["undone"]) == "FAILED"
    assert await world.queue("a").retry_compensation(nodes["unrepaired"].group_id) == 1
    await world.undo_all("a")
    assert await world.state(nodes["unrepaired"]) == "FAILED"
    await world.queue("b").promote_all()
    await world.complete("ab")
    assert await world.state(nodes["running"]) == "COMPLETED"


async def test_an_index_of_groups_that_was_lost_before_is_built_again(peer, world, client):
    """With an older version nothing kept it; what is open and what has ended is found again."""
    ended, running = await world.order("ab"), await world.order("ab")
    await world.complete("ab")
    await client.delete(f"{world.prefix}:a:de")
    await remove_orphans(peer, "a")
    assert await world.queue("a").get_groups() == []

    await world.queue("a").reconcile_groups()

    found = [info.id for info in await world.queue("a").get_groups()]
    assert sorted(found) == sorted([ended.group_id, running.group_id])
    await remove_orphans(peer, "a")
    assert len(await world.queue("a").get_groups()) == 2


async def _has_no_lanes(queue):
    return await queue.get_lane_count() == 0
