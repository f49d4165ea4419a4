"""Asking for groups and their jobs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.features.group_support import World
from toril import FlowProducer, GroupJob, Queue, sync
from toril.errors import InvalidOptionError
from toril.protocol import groups

CALLS = ("fcall", "fcall_ro", "evalsha", "evalsha_ro", "eval", "eval_ro")


async def test_the_state_of_a_group(world: World):
    """SAGA-33: every field."""
    node = await world.order()
    await world.complete("ab")
    await world.hand("c").take_one()

    info = await world.queue("a").get_group_state(node.group_id)

    assert info is not None
    assert info.id == node.group_id
    assert info.name == "order"
    assert info.state == "ACTIVE"
    assert (info.total_jobs, info.completed_count) == (3, 2)
    assert (info.failed_count, info.cancelled_count) == (0, 0)
    assert info.created_at > 1_700_000_000_000
    assert info.updated_at >= info.created_at
    assert not info.is_finished


async def test_an_unknown_group_is_none(world: World):
    """SAGA-33: nor is there one under a name that no group can have."""
    assert await world.queue("a").get_group_state("nonexistent") is None
    assert await world.queue("a").get_group_jobs("nonexistent") == []
    assert await world.queue("a").get_group_state("a:b") is None


async def test_the_jobs_of_a_group_over_all_queues(world: World):
    """SAGA-34, C-32: the running one reads active though nobody wrote it."""
    node = await world.order()
    await world.complete("a")
    await world.hand("b").take_one()

    members = await world.queue("a").get_group_jobs(node.group_id)

    assert [member.status for member in members] == ["completed", "active", "pending"]
    assert [member.queue_name for member in members] == ["a", "b", "c"]
    assert [member.job_id for member in members] == [job.id for job in node.jobs]
    assert [member.job_key for member in members] == [
        f"{world.prefix}:{job.queue_name}:{job.id}" for job in node.jobs
    ]
    assert [member.name for member in members] == ["a", "b", "c"]
    stored = await world.statuses(node)
    assert stored["b"] == "pending"
    assert {member.compensation_status for member in members} == {None}


async def test_members_tell_how_their_undoing_goes(world: World):
    """SAGA-34: which job undoes each, and how that ended."""
    node = await world.order()
    await world.complete("ab")
    await world.fail("c")
    await world.undo_all("a", failing="a")

    members = await world.queue("a").get_group_jobs(node.group_id)

    assert [member.compensation_status for member in members] == ["failed", "pending", None]
    assert [member.compensation_key for member in members] == [
        f"{world.prefix}:a:compensation:{node.group_id}-c0",
        f"{world.prefix}:b:compensation:{node.group_id}-c1",
        None,
    ]


async def test_groups_are_listed_by_state_in_pages(world: World):
    """SAGA-06: the index, the oldest first, filtered before it is cut."""
    nodes = [await world.order("a") for _ in range(6)]
    for node in nodes[::2]:
        await world.queue("a").cancel_group(node.group_id)
    queue = world.queue("a")

    everything = await queue.get_groups()
    failed = await queue.get_groups("FAILED", 1, 2)
    newest = await queue.get_groups(("ACTIVE", "FAILED"), 0, 0, newest_first=True)

    assert {info.id for info in everything} == {node.group_id for node in nodes}
    assert [info.created_at for info in everything] == sorted(i.created_at for i in everything)
    assert len(failed) == 2
    assert all(info.state == "FAILED" for info in failed)
    assert newest[0].created_at == max(info.created_at for info in everything)
    assert await queue.get_groups("COMPLETED") == []
    assert len(await queue.get_groups(start=-2)) == 2
    with pytest.raises(ValueError, match="nonsense"):
        await queue.get_groups("nonsense")


async def test_the_blocking_client_does_all_of_it(world: World):
    """SAGA-01, SAGA-33 … SAGA-37 without an event loop."""
    import asyncio

    def work() -> tuple[Any, ...]:
        options: dict[str, Any] = {"connection": world.url, "prefix": world.prefix}
        with sync.FlowProducer(**options) as flow, sync.Queue("a", **options) as queue:
            node = flow.add_group("order", [{"name": "x", "queueName": "a"}])
            members = queue.get_group_jobs(node.group_id)
            queue.cancel_group(node.group_id)
            return members, queue.get_group_state(node.group_id), queue.get_groups()

    members, info, listed = await asyncio.to_thread(work)

    assert [member.status for member in members] == ["pending"]
    assert info.state == "FAILED"
    assert [group.id for group in listed] == [info.id]


async def test_a_state_that_no_group_can_have_is_refused_by_name(world: World):
    with pytest.raises(InvalidOptionError, match=r"'failed'.*the states are ACTIVE, "):
        await world.queue("a").get_groups("failed")


async def test_a_group_of_a_thousand_is_read_in_slices(
    url: str, prefix: str, client: Any, queue: Queue
):
    """One call for all of them held the server for ten milliseconds."""
    async with FlowProducer(connection=url, prefix=prefix) as flows:
        jobs = [GroupJob("fly", queue_name="q", key=f"k{n}") for n in range(999)]
        last = GroupJob("land", queue_name="q", key="land", after=["k998", "k3"])
        node = await flows.add_group("g", [*jobs, last])
    await queue.get_group_jobs(node.group_id)
    await client.config_resetstat()

    members = await queue.get_group_jobs(node.group_id)

    stats = await client.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): int(one["calls"]) for name, one in stats.items()}
    assert [member.key for member in members] == [*(f"k{n}" for n in range(999)), "land"]
    assert [member.status for member in members] == ["pending"] * 999 + ["planned"]
    assert members[-1].after == ("k3", "k998"), "members of another slice have their names"
    slices = 1000 // groups.MEMBERS_PER_READ
    assert sum(calls.get(name, 0) for name in CALLS) == slices == 5
    assert (calls["hmget"], calls["hget"], calls["exists"]) == (2 * slices + 1000, 1001, 999)
    assert calls["hgetall"] == slices, "of what is undone"
