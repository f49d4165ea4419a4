"""The hash of a job of a group is deleted by hand, and its id stays where it was.

Somebody ran `DEL`, or the server evicted it.  No event tells of it.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.features.group_support import World
from toril.protocol import leasing
from toril.protocol.refusals import Refusal

GONE = "it is gone, and nobody knows how it ended"

LISTS = ("wait", "active", "paused")
SETS = ("prioritized", "delayed", "completed", "failed")

pytestmark = pytest.mark.no_audit("a job is damaged on purpose")


async def delete_hash(world: World, queue: str, job_id: str) -> None:
    assert await world.client.delete(world.queue(queue).keys.job(job_id)) == 1


async def places(world: World, queue: str, job_id: str) -> list[str]:
    """Where the id of a job still is."""
    base, client = world.queue(queue).keys.base, world.client
    lists = {name: await client.lrange(f"{base}:{name}", 0, -1) for name in LISTS}
    sets = {name: await client.zrange(f"{base}:{name}", 0, -1) for name in SETS}
    return [name for name, ids in (lists | sets).items() if job_id in ids]


async def sweep(world: World, queue: str) -> None:
    keys = world.queue(queue).keys
    for _ in range(2):
        await world.client.delete(f"{keys.base}:stalled-check")
        await world.connection.follow(leasing.sweep(keys, interval_ms=30_000, max_stalled=1))


async def ended(world: World, node: Any) -> tuple[str | None, str | None]:
    info = await world.queue("a").get_group_state(node.group_id)
    assert info is not None
    return str(info.state), info.reason


# ---------------------------------------------------------------------------- members


@pytest.mark.parametrize(
    ("options", "place"),
    [({}, "wait"), ({"priority": 3}, "prioritized"), ({"delay": 60_000}, "delayed")],
)
async def test_a_member_that_waits_is_undone_as_if_it_had_run(
    world: World, options: Any, place: str
):
    """It may have run elsewhere; a compensation that finds nothing to undo does nothing."""
    node = await world.order("ab", b=options)
    await world.complete("a")
    lost = node.jobs[1].id
    assert await places(world, "b", lost) == [place]
    await delete_hash(world, "b", lost)

    assert await world.queue("a").reconcile_groups() == 1

    assert await world.statuses(node) == {"a": "completed", "b": "failed"}
    await world.undo_all("ab")
    assert await ended(world, node) == ("FAILED", GONE)


async def test_a_member_that_waits_without_a_hash_never_runs(world: World):
    """The take that meets it clears its place, and the next worker is called."""
    node = await world.order("ab")
    await world.queue("a").add("other")
    await delete_hash(world, "a", node.jobs[0].id)

    assert await world.hand("a").take() == []
    assert await places(world, "a", node.jobs[0].id) == []
    assert await world.client.zrange(world.queue("a").keys.marker, 0, -1) == ["0"]
    job = await world.hand("a").take_one("other")
    await world.hand("a").complete(job)

    await world.queue("a").reconcile_groups()
    assert await world.statuses(node) == {"a": "failed", "b": "cancelled"}
    await world.undo_all("a")
    assert await ended(world, node) == ("FAILED", GONE)


async def test_a_member_that_runs_cannot_say_how_it_ended(world: World):
    """Its worker is refused, so nobody knows, and it is undone; its place is cleared."""
    node = await world.order("ab")
    running = await world.hand("a").take_one("a")
    await delete_hash(world, "a", running.id)

    assert await world.hand("a").complete(running, value=7) == [int(Refusal.MISSING)]
    assert await world.statuses(node) == {"a": "pending", "b": "pending"}
    await world.queue("a").reconcile_groups()

    assert await world.statuses(node) == {"a": "failed", "b": "cancelled"}
    await world.undo_all("a")
    assert await ended(world, node) == ("FAILED", GONE)
    await world.hand("a").lose(running)
    await sweep(world, "a")
    assert await places(world, "a", running.id) == []


async def test_a_member_that_has_completed_counts_as_before(world: World):
    """Its group knows its result."""
    node = await world.order("ab", b={"after": ["a"], "inputs": {"of_a": "a"}})
    await world.complete("a", {"a": 7})
    await delete_hash(world, "a", node.jobs[0].id)

    await world.queue("a").reconcile_groups()

    assert await world.statuses(node) == {"a": "completed", "b": "pending"}
    job = await world.hand("b").take_one("b")
    assert job.data == {"n": "b", "of_a": 7}
    await world.hand("b").complete(job)
    assert await world.state(node) == "COMPLETED"
    assert await world.queue("a").get_group_results(node.group_id) == {"a": 7, "b": None}


async def test_a_member_that_has_completed_is_undone_with_its_result(world: World):
    node = await world.order("ab")
    await world.complete("a", {"a": 7})
    await delete_hash(world, "a", node.jobs[0].id)

    await world.fail("b")

    (undo,) = await world.queue("a:compensation").get_waiting()
    assert undo.data["originalReturnValue"] == 7
    await world.undo_all("a")
    assert await ended(world, node) == ("FAILED", "ValueError: no")


# ---------------------------------------------------------------------------- compensations


@pytest.mark.parametrize("place", ["wait", "active"])
async def test_a_compensation_that_is_gone_has_failed_and_can_be_retried(world: World, place: str):
    """A person decides: nobody knows whether it was done."""
    node = await world.order("ab")
    await world.complete("a")
    await world.fail("b")
    (undo,) = await world.queue("a:compensation").get_waiting()
    hand = world.hand("a:compensation")
    running = await hand.take_one("undo-a") if place == "active" else None
    await delete_hash(world, "a:compensation", undo.id)
    if running is not None:
        assert await hand.complete(running) == [int(Refusal.MISSING)]
        await hand.lose(running)
        await sweep(world, "a:compensation")

    assert await world.queue("a").reconcile_groups() == 1

    assert await world.state(node) == "FAILED_COMPENSATION"
    assert await world.queue("a").retry_compensation(node.group_id) == 1
    await world.undo_all("a")
    assert await world.state(node) == "FAILED"
    assert await places(world, "a:compensation", undo.id) in ([], ["completed"])


async def test_a_compensation_that_has_completed_counts_as_before(world: World):
    node = await world.order("abc", compensation_order="reverse")
    await world.complete("ab")
    await world.fail("c")
    (undo,) = await world.queue("b:compensation").get_waiting()
    await world.undo_all("b")
    await delete_hash(world, "b:compensation", undo.id)

    await world.queue("a").reconcile_groups()

    assert await world.state(node) == "COMPENSATING"
    await world.undo_all("a")
    assert await world.state(node) == "FAILED"
