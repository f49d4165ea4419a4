"""Groups beside damage: a key of another kind, in a queue or in a group, hurts nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.features.group_support import World
from tests.helpers import wait_until
from toril import Compensation, GroupJob, Worker
from toril.protocol import groups
from toril.protocol.keys import Keys
from toril.worker.group_keeper import GroupKeeper

pytestmark = pytest.mark.no_audit("keys are damaged on purpose")


async def look(world: World, owner: str = "a") -> Any:
    keys = Keys(world.prefix, owner)
    return await world.connection.run(groups.reconcile(keys, everything=True))


async def asks(world: World, group_id: str, owner: str = "a") -> str | None:
    info = await world.queue(owner).get_group_state(group_id)
    assert info is not None
    return info.asks


async def needing_a_person(world: World, owner: str = "a") -> list[str]:
    plan = groups.needing_a_person(Keys(world.prefix, owner), most=10)
    return [info.id for info in await world.connection.follow(plan)]


@pytest.mark.parametrize("key", ["wait", "meta"])
@pytest.mark.parametrize("order", ["parallel", "reverse", "graph"])
async def test_a_compensation_waits_until_its_queue_is_repaired(world: World, order: str, key: str):
    """It was taken out of what is to be undone and never added: nobody refunded the customer."""
    options: dict[str, Any] = {"compensation_order": order}
    if order == "graph":
        options = {"b": {"after": ["a"]}, "c": {"after": ["b"]}}
    node = await world.order("abc", **options)
    await world.complete("ab")
    damaged = f"{world.prefix}:a:compensation:{key}"
    await world.client.set(damaged, "odd")
    await world.fail("c")
    if order != "parallel":
        await world.undo_all("b")

    assert await world.state(node) == "COMPENSATING"
    told = await asks(world, node.group_id)
    assert told is not None
    assert "undo-a" in told
    assert "WRONGTYPE" in told
    assert await needing_a_person(world) == [node.group_id]
    await look(world)
    assert await world.state(node) == "COMPENSATING"

    await world.client.delete(damaged)
    await look(world)
    assert await asks(world, node.group_id) is None
    assert await needing_a_person(world) == []
    await world.undo_all("a" if order != "parallel" else "ab")
    assert await world.state(node) == "FAILED"
    results = (await world.events())[-1]["compensationResults"]
    assert results.count('"status":"completed"') == 2


@pytest.mark.parametrize("key", ["events", "marker", "id"])
async def test_a_compensation_that_is_in_is_not_added_twice(world: World, key: str):
    """It has its place and its hash; only telling of it went wrong."""
    node = await world.order("ab")
    await world.complete("a")
    damaged = f"{world.prefix}:a:compensation:{key}"
    await world.client.hset(damaged, "odd", "1")
    await world.fail("b")
    await look(world)
    await world.client.delete(damaged)

    await look(world)

    assert len(await world.queue("a:compensation").get_waiting()) == 1
    await world.undo_all("a")
    assert await world.state(node) == "FAILED"


async def test_a_stage_waits_until_its_queue_is_repaired(world: World):
    node = await world.order("ab", b={"after": ["a"]})
    await world.client.set(f"{world.prefix}:b:wait", "odd")
    await world.complete("a")

    assert await world.statuses(node) == {"a": "completed", "b": "planned"}
    told = await asks(world, node.group_id)
    assert told is not None
    assert "job b cannot be added" in told

    await world.client.delete(f"{world.prefix}:b:wait")
    await look(world)
    assert await asks(world, node.group_id) is None
    assert await needing_a_person(world) == []
    await world.complete("b")
    assert await world.state(node) == "COMPLETED"


@pytest.mark.parametrize("key", ["wait", "delayed", "prioritized", "waiting-children", "events"])
async def test_a_group_turns_although_the_queue_of_a_sibling_is_damaged(world: World, key: str):
    node = await world.order("abc")
    await world.complete("a")
    await world.client.delete(f"{world.prefix}:c:{key}")
    await world.client.set(f"{world.prefix}:c:{key}", "odd")

    await world.fail("b")

    assert await world.state(node) == "COMPENSATING" or key == "events"
    await world.undo_all("a")
    await world.client.delete(f"{world.prefix}:c:{key}")
    if key == "wait":  # it was in the list that somebody wrote over
        (c,) = [job.id for job in node.jobs if job.name == "c"]
        await world.queue("c").remove(c)
    assert await world.state(node) == "FAILED"


async def test_a_group_turns_although_its_events_cannot_be_written(world: World):
    node = await world.flow.add_group(
        "order",
        [GroupJob("a", queue_name="a"), GroupJob("b", queue_name="b")],
        {"a": Compensation("undo-a", attempts=1, backoff=None)},
        queue_name="owner",
    )
    await world.complete("a")
    await world.client.set(f"{world.prefix}:owner:events", "odd")
    await world.client.delete(f"{world.prefix}:owner:meta")
    await world.client.set(f"{world.prefix}:owner:meta", "odd")

    await world.fail("b")
    await world.undo_all("a")

    await world.client.delete(f"{world.prefix}:owner:events", f"{world.prefix}:owner:meta")
    assert await world.state(node, "owner") == "FAILED"


async def test_a_group_ends_although_nobody_can_be_told(world: World):
    job = GroupJob("invoice", {}, queue_name="billing")
    node = await world.order("a", on_completed=job)
    await world.client.set(f"{world.prefix}:billing:wait", "odd")
    await world.complete("a")

    assert await world.state(node) == "COMPLETED"
    lines = await world.queue("a").get_group_timeline(node.group_id)
    assert any("cannot add on_completed" in str(line) for line in lines)


@pytest.mark.parametrize("part", ["", ":jobs", ":plan", ":compensations", ":signals"])
async def test_one_damaged_group_does_not_keep_the_others_from_being_looked_at(
    world: World, part: str
):
    """The look broke off at it, so nobody settled what Node had completed of the next one."""
    nodes = [await world.order("ab", b={"after": ["a"]}) for _ in range(3)]
    for node in nodes:
        (a,) = [job.id for job in node.jobs if job.name == "a"]
        await as_node_completes(world, "a", a)
    damaged = nodes[1]
    key = f"{world.prefix}:a:groups:{damaged.group_id}{part}"
    kept = await world.client.dump(key)
    await world.client.delete(key)
    await world.client.set(key, "odd")

    assert (await look(world)).wait_ms != 0

    for node in (nodes[0], nodes[2]):
        assert await world.statuses(node) == {"a": "completed", "b": "pending"}
    await world.client.delete(key)
    if kept:
        return
    assert part in (":compensations", ":signals")
    told = await asks(world, damaged.group_id)
    assert told is not None
    assert "WRONGTYPE" in told
    assert await needing_a_person(world) == [damaged.group_id]
    await look(world)
    assert await needing_a_person(world) == []
    assert await asks(world, damaged.group_id) is None
    assert await world.statuses(damaged) == {"a": "completed", "b": "pending"}


async def as_node_completes(world: World, queue: str, job_id: str) -> None:
    """What a worker that knows nothing of groups leaves behind."""
    base = f"{world.prefix}:{queue}"
    await world.client.lrem(f"{base}:wait", 1, job_id)
    await world.client.zadd(f"{base}:completed", {job_id: 1})
    await world.client.hset(f"{base}:{job_id}", mapping={"finishedOn": 1, "returnvalue": "1"})


async def test_a_damaged_index_of_one_queue_does_not_hide_the_others(world: World, url: str):
    """The keeper of a queue minds the groups of several owners."""
    for owner in ("one", "two"):
        await world.flow.add_group(
            "order",
            [GroupJob("x", queue_name="shared")],
            queue_name=owner,
            timeout=1,
            group_id=owner,
        )
    await world.client.delete(f"{world.prefix}:one:toril:groups-open")
    await world.client.set(f"{world.prefix}:one:toril:groups-open", "odd")

    keeper = GroupKeeper(world.connection, [Keys(world.prefix, "shared")])
    await wait_until(lambda: _has_turned(world, keeper), timeout=30)

    await world.client.delete(f"{world.prefix}:one:toril:groups-open")


async def _has_turned(world: World, keeper: GroupKeeper) -> bool:
    await keeper._keep_due(Keys(world.prefix, "shared"))
    info = await world.queue("two").get_group_state("two")
    return info is not None and str(info.state) == "FAILED"


async def test_a_worker_undoes_as_soon_as_the_queue_is_repaired(world: World, url: str):
    """Nobody has to do anything but repair the key."""
    node = await world.order("ab")
    await world.complete("a")
    damaged = f"{world.prefix}:a:compensation:wait"
    await world.client.set(damaged, "odd")
    await world.fail("b")
    await world.client.delete(damaged)
    await world.client.zadd(
        f"{world.prefix}:a:toril:groups-open", {node.group_id: 0}
    )  # half a minute has passed

    async def handle(job: Any) -> None:
        return None

    async with (
        Worker("a", handle, connection=url, prefix=world.prefix),
        Worker("a:compensation", handle, connection=url, prefix=world.prefix),
    ):
        await wait_until(lambda: _is_failed(world, node), timeout=60)


async def _is_failed(world: World, node: Any) -> bool:
    return await world.state(node) == "FAILED"
