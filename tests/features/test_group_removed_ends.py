"""A member that ended elsewhere, unnoticed, and is removed before its group was looked at."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.features.group_support import World
from tests.features.test_group_beyond import waiting_undos
from toril.options import Keep

STALLED = "job stalled more than allowable limit"


async def end_elsewhere(world: World, name: str, outcome: str, value: str) -> str:
    """End the job that waits there as a worker would that knows nothing of groups; its id."""
    queue = world.queue(name)
    job_id: str = await world.client.rpop(queue.keys.wait)
    field = "returnvalue" if outcome == "completed" else "failedReason"
    ended = {field: value, "finishedOn": 1, "processedOn": 1, "ats": 1, "atm": 1}
    await world.client.hset(queue.keys.job(job_id), mapping=ended)
    await world.client.zadd(f"{queue.keys.base}:{outcome}", {job_id: 1})
    event = {"event": outcome, "jobId": job_id, field: value, "prev": "active"}
    await world.client.xadd(queue.keys.events, event)
    return job_id


async def remove(world: World, name: str, outcome: str, job_id: str) -> None:
    assert await world.queue(name).remove(job_id)


async def clean(world: World, name: str, outcome: str, job_id: str) -> None:
    assert await world.queue(name).clean(outcome) == [job_id]


async def retain(world: World, name: str, outcome: str, job_id: str) -> None:
    """A worker of ours ends another job there, and keeps only that."""
    keep: dict[str, Any] = {"remove_on_complete": Keep(count=1), "remove_on_fail": Keep(count=1)}
    await world.queue(name).add("x", attempts=1, **keep)
    job = await world.hand(name).take_one("x")
    await (world.hand(name).complete if outcome == "completed" else world.hand(name).fail)(job)


async def remove_elsewhere(world: World, name: str, outcome: str, job_id: str) -> None:
    """A program that knows nothing of groups removes it, and says what it was."""
    keys = world.queue(name).keys
    await world.client.delete(keys.job(job_id))
    await world.client.zrem(f"{keys.base}:{outcome}", job_id)
    await world.client.xadd(keys.events, {"event": "removed", "jobId": job_id, "prev": outcome})


WAYS = [remove, clean, retain, remove_elsewhere]


@pytest.mark.parametrize("way", WAYS)
async def test_a_member_that_completed_elsewhere_has_completed_although_it_is_removed(
    world: World, way: Any
):
    """SAGA-43: its group goes on, and undoes it with what it returned if another one fails."""
    node = await world.order("ab")
    job_id = await end_elsewhere(world, "b", "completed", '{"receipt":7}')

    await way(world, "b", "completed", job_id)
    await world.queue("a").reconcile_groups()

    assert await world.queue("b").get_job(job_id) is None
    assert await world.statuses(node) == {"a": "pending", "b": "completed"}
    await world.fail("a")
    (undo,) = await world.queue("b:compensation").get_waiting()
    assert json.loads(undo.data_text)["originalReturnValue"] == {"receipt": 7}


@pytest.mark.parametrize(("reason", "is_undone"), [("out of stock", False), (STALLED, True)])
@pytest.mark.parametrize("way", WAYS)
async def test_a_member_that_failed_elsewhere_has_failed_although_it_is_removed(
    world: World, way: Any, reason: str, is_undone: bool
):
    """SAGA-43, SAGA-24: the group turns for its reason; what stalled may have done its work."""
    node = await world.order("ab")
    job_id = await end_elsewhere(world, "b", "failed", reason)

    await way(world, "b", "failed", job_id)
    await world.queue("a").reconcile_groups()

    assert await world.statuses(node) == {"a": "cancelled", "b": "failed"}
    info = await world.queue("a").get_group_state(node.group_id)
    assert info is not None
    assert info.reason == reason
    assert await waiting_undos(world, "b") == (["undo-b"] if is_undone else [])


@pytest.mark.parametrize("way", WAYS)
async def test_what_was_undone_elsewhere_is_undone_although_the_job_is_removed(
    world: World, way: Any
):
    """SAGA-43: the same for the job that undoes a member."""
    node = await world.order("ab")
    await world.complete("a")
    await world.fail("b")
    job_id = await end_elsewhere(world, "a:compensation", "completed", "null")

    await way(world, "a:compensation", "completed", job_id)
    await world.queue("a").reconcile_groups()

    assert await world.state(node) == "FAILED"


async def test_a_member_that_was_retried_elsewhere_and_then_removed_is_cancelled(world: World):
    """SAGA-43: it had failed, and waited again; the newest event counts."""
    node = await world.order("ab")
    job_id = await end_elsewhere(world, "b", "failed", "out of stock")
    keys = world.queue("b").keys
    await world.client.zrem(keys.failed, job_id)
    await world.client.xadd(keys.events, {"event": "waiting", "jobId": job_id, "prev": "failed"})
    await world.client.delete(keys.job(job_id))
    await world.client.xadd(keys.events, {"event": "removed", "jobId": job_id, "prev": "wait"})

    await world.queue("a").reconcile_groups()

    assert await world.statuses(node) == {"a": "cancelled", "b": "cancelled"}
