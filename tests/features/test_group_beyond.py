"""Beyond the source: order, deadlines, repair, retention, waiting, and workers of another make."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.features.group_support import World
from tests.helpers import wait_until
from tests.keyspace import keys_under
from toril import (
    Compensation,
    GroupNotFoundError,
    InvalidGroupStateError,
    Keep,
    NewJob,
    WaitTimeoutError,
    Worker,
    compensation_worker,
)
from toril.errors import InvalidOptionError
from toril.protocol import groups
from toril.worker import group_keeper


async def waiting_undos(world: World, names: str = "abc") -> list[str]:
    return [
        job.name
        for name in names
        for job in await world.queue(f"{name}:compensation").get_waiting()
    ]


# ---------------------------------------------------------------------------- order


async def test_in_reverse_order_one_is_undone_after_the_other(world: World):
    """SAGA-24: the last that completed is the first to be undone, whatever their order was."""
    node = await world.order("abcd", compensation_order="reverse")
    await world.complete("bac")
    await world.fail("d")

    for name in "cab":
        assert await waiting_undos(world, "abc") == [f"undo-{name}"]
        await world.undo_all(name)

    assert await world.state(node) == "FAILED"


@pytest.mark.parametrize("by_hand", [False, True])
async def test_in_reverse_order_a_failure_stops_what_stands_before_it(world: World, by_hand: bool):
    """SAGA-31: it goes on when that one is undone."""
    node = await world.order("abc", compensation_order="reverse")
    await world.complete("ab")
    await world.fail("c")

    await world.undo_all("b", failing="b")

    assert await world.state(node) == "FAILED_COMPENSATION"
    assert await world.hand("a:compensation").take() == []
    if by_hand:
        await world.queue("b:compensation").retry(f"{node.group_id}-c1")
    else:
        assert await world.queue("a").retry_compensation(node.group_id) == 1
    await world.undo_all("b")
    await world.undo_all("a")
    assert await world.state(node) == "FAILED"


async def test_in_reverse_order_what_runs_is_waited_for(world: World):
    """SAGA-44: a member that is still running completes last, so it is undone first."""
    node = await world.order("abc", compensation_order="reverse")
    await world.complete("a")
    late = await world.hand("b").take_one()
    await world.fail("c")
    assert await waiting_undos(world) == []

    await world.hand("b").complete(late)

    assert await waiting_undos(world) == ["undo-b"]
    await world.undo_all("ba")
    assert await world.state(node) == "FAILED"


# ---------------------------------------------------------------------------- half done


async def test_a_step_that_may_be_half_done_is_undone_when_it_fails(world: World):
    """SAGA-24: compensate_failed, for one that failed and one cancelled after a start."""
    compensation = {
        name: Compensation(f"undo-{name}", attempts=1, backoff=None, compensate_failed=True)
        for name in "abc"
    }
    node = await world.order(
        compensation=compensation, a={"attempts": 1}, b={"attempts": 3, "backoff": 60_000}
    )
    await world.fail("b")

    await world.fail("a")

    assert await world.statuses(node) == {"a": "failed", "b": "cancelled", "c": "cancelled"}
    assert sorted(await waiting_undos(world)) == ["undo-a", "undo-b"]
    (undo,) = await world.queue("a:compensation").get_waiting()
    assert undo.compensation is not None
    assert undo.compensation.original_return_value is None
    await world.undo_all("ab")
    assert await world.state(node) == "FAILED"


async def test_a_step_that_never_started_is_not_undone(world: World):
    """SAGA-24: cancelled or removed before its first start, there is nothing half done."""
    compensation = {"a": Compensation("undo-a", compensate_failed=True)}
    node = await world.order("ab", compensation=compensation)
    await world.queue("a").remove(node.jobs[0].id)
    assert await world.state(node) == "FAILED"

    again = await world.order("ab", compensation=compensation)
    await world.queue("a").cancel(again.jobs[0].id)
    assert await world.state(again) == "FAILED"
    assert await waiting_undos(world) == []


# ---------------------------------------------------------------------------- repair


async def broken(world: World, names: str = "abc", failing: str = "a", **options: Any) -> Any:
    """A group whose undoing failed for ``failing``."""
    node = await world.order(names, **options)
    await world.complete(names[:-1])
    await world.fail(names[-1])
    order = names[:-1][::-1] if options.get("compensation_order") == "reverse" else names[:-1]
    await world.undo_all(order, failing=failing)
    assert await world.state(node) == "FAILED_COMPENSATION"
    return node


async def test_an_undoing_that_failed_is_tried_again(world: World):
    """SAGA-31: only what failed, with its data, as often as needed."""
    node = await broken(world)

    assert await world.queue("a").retry_compensation(node.group_id) == 1

    assert await world.state(node) == "COMPENSATING"
    assert await waiting_undos(world) == ["undo-a"]
    await world.undo_all("a", failing="a")
    assert await world.state(node) == "FAILED_COMPENSATION"
    assert await world.queue("a").retry_compensation(node.group_id) == 1
    (undo,) = await world.queue("a:compensation").get_waiting()
    assert undo.data["compensationData"] == {"of": "a"}
    await world.undo_all("a")
    assert await world.state(node) == "FAILED"
    assert await world.event_names() == [
        "group:compensating",
        "group:failed",
        "group:retrying",
        "group:failed",
        "group:retrying",
        "group:failed",
    ]


async def test_in_reverse_order_repairs_keep_to_it(world: World):
    """SAGA-31: c is undone, b fails twice, and a waits for it."""
    node = await world.order("abcd", compensation_order="reverse")
    await world.complete("abc")
    await world.fail("d")
    await world.undo_all("cb", failing="b")

    assert await world.queue("a").retry_compensation(node.group_id) == 1

    assert await world.hand("a:compensation").take() == []
    await world.undo_all("b", failing="b")
    assert await world.queue("a").retry_compensation(node.group_id) == 1
    await world.undo_all("ba")
    assert await world.state(node) == "FAILED"


async def test_an_undoing_that_is_gone_is_made_anew(world: World):
    """SAGA-31: somebody removed the failed compensation job; its return value is not lost."""
    node = await broken(world)
    await world.queue("a:compensation").clean("failed")

    await world.queue("a").retry_compensation(node.group_id)

    (undo,) = await world.queue("a:compensation").get_waiting()
    assert undo.data["originalJobId"] == node.jobs[0].id
    await world.undo_all("a")
    assert await world.state(node) == "FAILED"


async def test_a_repair_that_is_sent_again_happens_once(world: World):
    """SAGA-39: the same request gives the same answer."""
    node = await broken(world)
    command = groups.retry_compensation(world.queue("a").keys, node.group_id, request="r")

    assert [await world.connection.run(command) for _ in range(2)] == [1, 1]

    assert await waiting_undos(world) == ["undo-a"]


async def test_what_two_operators_did_to_a_group_is_known_although_it_is_sent_again(world: World):
    """SAGA-39: replies were lost, and another operator acted on the group in between."""
    node = await world.order("ab")
    await world.complete("a")
    keys, run = world.queue("a").keys, world.connection.run
    cancelled = groups.cancel(keys, node.group_id, request="r1")
    await run(cancelled)
    await world.undo_all("a", failing="a")
    repaired = groups.retry_compensation(keys, node.group_id, request="r2")
    assert await run(repaired) == 1
    await world.undo_all("a", failing="a")
    resolved = groups.resolve(keys, node.group_id, "by phone", request="r3")
    await run(resolved)
    before = await world.record(node)

    await run(cancelled)
    assert await run(repaired) == 1
    await run(resolved)

    assert await world.record(node) == before
    assert await waiting_undos(world) == []


async def test_a_group_is_resolved_with_a_note(world: World):
    """SAGA-31: an operator put it right by hand."""
    node = await broken(world)

    await world.queue("a").resolve_group(node.group_id, "refunded by phone")

    info = await world.queue("a").get_group_state(node.group_id)
    assert info is not None
    assert (info.state, info.note) == ("FAILED", "refunded by phone")
    event = (await world.events())[-1]
    assert (event["event"], event["note"]) == ("group:resolved", "refunded by phone")
    with pytest.raises(InvalidGroupStateError):
        await world.queue("a").resolve_group(node.group_id, "again")


async def test_a_group_that_could_not_be_undone_is_closed_only_as_it_was_looked_at(world: World):
    """b was refunded by hand, but meanwhile somebody retries it, and then a cannot be undone."""
    node = await world.order("abc", compensation_order="reverse")
    await world.complete("ab")
    await world.fail("c")
    await world.undo_all("b", failing="b")
    queue = world.queue("a")
    members = await queue.get_group_jobs(node.group_id)
    seen = groups.broken(groups.GroupState.FAILED_COMPENSATION, members)
    assert seen == ["b"]
    assert await queue.retry_compensation(node.group_id) == 1
    await world.undo_all("ba", failing="a")
    assert await world.state(node) == "FAILED_COMPENSATION"
    before = await world.record(node)

    with pytest.raises(InvalidGroupStateError, match=r"FAILED_COMPENSATION now \('a'\)"):
        await queue.resolve_group(node.group_id, "b refunded", expected_members=seen)
    with pytest.raises(InvalidGroupStateError, match="not as expected"):
        await queue.resolve_group(node.group_id, "b refunded", expected_state="BLOCKED")

    assert await world.record(node) == before
    await queue.resolve_group(
        node.group_id,
        "a refunded",
        expected_state="FAILED_COMPENSATION",
        expected_members=["a"],
    )
    assert await world.state(node) == "FAILED"


async def test_an_earlier_run_that_could_not_be_undone_is_nobody_that_a_caller_can_name(
    world: World,
):
    """It is not among the members that are shown, so it is not among those that are compared."""
    node = await world.order("ab")
    await world.complete("a")
    await world.queue("a").retry(node.jobs[0].id, force=True)
    await world.complete("a")
    await world.fail("b")
    hand = world.hand("a:compensation")
    for undo in await hand.take(2):
        await (hand.fail(undo) if undo.id.endswith("2") else hand.complete(undo))
    assert await world.state(node) == "FAILED_COMPENSATION"
    members = await world.queue("a").get_group_jobs(node.group_id)
    seen = groups.broken(groups.GroupState.FAILED_COMPENSATION, members)

    await world.queue("a").resolve_group(node.group_id, "refunded", expected_members=seen)

    assert (seen, await world.state(node)) == ([], "FAILED")


async def test_only_a_broken_group_can_be_repaired(world: World):
    """SAGA-15: every other state refuses and stays."""
    node = await world.order("ab")
    queue = world.queue("a")

    with pytest.raises(InvalidGroupStateError, match="in state ACTIVE"):
        await queue.retry_compensation(node.group_id)
    with pytest.raises(InvalidGroupStateError, match="in state ACTIVE"):
        await queue.resolve_group(node.group_id, "x")
    with pytest.raises(GroupNotFoundError):
        await queue.retry_compensation("nobody")
    with pytest.raises(GroupNotFoundError):
        await queue.resolve_group("nobody", "x")
    with pytest.raises(InvalidOptionError):
        await queue.resolve_group(node.group_id, "")
    assert await world.state(node) == "ACTIVE"


# ---------------------------------------------------------------------------- retention


async def test_finished_groups_stay_until_they_are_cleaned(world: World):
    """SAGA-17: all of them; the broken one even then."""
    done = await world.order("ab")
    await world.complete("ab")
    failed = await world.order("ab")
    await world.fail("a")
    stuck = await broken(world)
    live = await world.order("ab")
    queue = world.queue("a")
    assert len(await queue.get_groups()) == 4
    assert await queue.clean_groups(grace=60_000) == []

    assert len(await queue.clean_groups(limit=1)) == 1
    await queue.clean_groups()

    assert {info.id for info in await queue.get_groups()} == {stuck.group_id, live.group_id}
    left = await keys_under(world.client, f"{world.prefix}:a:groups:")
    assert not any(node.group_id in key for key in left for node in (done, failed))


async def test_a_retention_forgets_the_oldest(world: World):
    """SAGA-17: by count, by age, or at once."""
    queue = world.queue("a")
    for _ in range(5):
        await world.order("a", group_retention=2)
        await world.complete("a")
    assert len(await queue.get_groups()) == 2

    await world.order("a", group_retention=True)
    await world.complete("a")
    assert await queue.get_groups() == []

    for _ in range(2):
        await world.order("a", group_retention=Keep(age=60_000))
        await world.complete("a")
    assert len(await queue.get_groups()) == 2
    ended = f"{world.prefix}:a:toril:groups-ended"
    for group_id in await world.client.zrange(ended, 0, -1):
        await world.client.zadd(ended, {group_id: 1})
    await world.order("a", group_retention=Keep(age=60_000))
    await world.complete("a")
    assert len(await queue.get_groups()) == 1


# ---------------------------------------------------------------------------- deadlines


async def test_a_group_that_is_not_done_in_time_is_cancelled(world: World):
    """SAGA-35: as if somebody had cancelled it; the reason says why."""
    node = await world.order("abc", timeout=60_000)
    await world.complete("a")
    await world.queue("a").reconcile_groups()
    assert await world.state(node) == "ACTIVE"
    await world.client.hset(f"{world.prefix}:a:groups:{node.group_id}", "x.deadline", 1)

    await world.queue("a").reconcile_groups()

    assert await world.state(node) == "COMPENSATING"
    assert (await world.events())[0]["reason"] == "timeout"


async def test_a_group_is_looked_at_again_when_its_time_is_up(world: World):
    """SAGA-35: a look before that does not put it off for longer."""
    node = await world.order("ab", timeout=10_000)
    open_groups = f"{world.prefix}:a:toril:groups-open"
    await world.client.zadd(open_groups, {node.group_id: 1})

    look = await world.connection.run(groups.reconcile(world.queue("a").keys))

    deadline = int((await world.record(node))["x.deadline"])
    assert await world.client.zscore(open_groups, node.group_id) == deadline
    assert look.wait_ms is not None
    assert 0 < look.wait_ms <= 10_000


async def test_a_worker_minds_the_deadlines(world: World, monkeypatch: Any):
    """SAGA-35: within its time, by itself."""
    monkeypatch.setattr(group_keeper, "LOOK_FOR_DUE_S", 0.1)
    node = await world.order("ab", timeout=300, a={"delay": 60_000})

    async with Worker("a", _nothing, connection=world.url, prefix=world.prefix):
        info = await world.queue("a").wait_for_group(node.group_id, timeout=60_000)

    assert (info.state, info.reason) == ("FAILED", "timeout")
    assert info.updated_at - info.created_at >= 300


async def _nothing(job: Any) -> None:
    return None


# ---------------------------------------------------------------------------- waiting


async def test_waiting_for_a_group(world: World):
    """SAGA-38: returns when it is over, however it ends."""
    queue = world.queue("a")
    node = await world.order("ab")
    waiting = asyncio.create_task(queue.wait_for_group(node.group_id, timeout=60_000))
    await world.complete("a")
    await asyncio.sleep(0)
    assert not waiting.done()
    await world.complete("b")

    info = await waiting

    assert (info.state, info.completed_count) == ("COMPLETED", 2)
    assert (await queue.wait_for_group(node.group_id)).state == "COMPLETED"
    failing = await world.order("ab")
    waiting = asyncio.create_task(queue.wait_for_group(failing.group_id))
    await world.fail("a")
    assert (await waiting).state == "FAILED"
    with pytest.raises(GroupNotFoundError):
        await queue.wait_for_group("nobody")
    slow = await world.order("ab")
    with pytest.raises(WaitTimeoutError, match="still ACTIVE"):
        await queue.wait_for_group(slow.group_id, timeout=20)
    await queue.close()


async def test_waiting_for_a_group_that_is_forgotten_at_once(world: World):
    """SAGA-17, SAGA-38: the event tells what the record no longer can."""
    queue = world.queue("a")
    node = await world.order("ab", group_retention=True)
    waiting = asyncio.create_task(queue.wait_for_group(node.group_id, timeout=60_000))

    await wait_until(lambda: any(one._waiters for one in queue._listenings.values()))
    await world.complete("ab")

    info = await waiting
    assert (info.state, info.completed_count) == ("COMPLETED", 2)
    node = await world.order("ab", group_retention=True)
    waiting = asyncio.create_task(queue.wait_for_group(node.group_id, timeout=60_000))
    await wait_until(lambda: any(one._waiters for one in queue._listenings.values()))
    await queue.cancel_group(node.group_id)
    assert (await waiting).state == "FAILED"
    await queue.close()


# ---------------------------------------------------------------------------- workers


async def test_both_workers_in_one_process(world: World):
    """SAGA-32: compensation_worker runs what undoes, beside the worker that does."""
    undone: list[Any] = []
    options: dict[str, Any] = {"connection": world.url, "prefix": world.prefix}

    async def undo(job: Any) -> None:
        undone.append((job.name, job.compensation.original_return_value))

    async def handle(job: Any) -> str:
        if job.name == "b":
            raise ValueError("no")
        return "done"

    node = await world.order("ab", b={"queue_name": "a"})
    async with Worker("a", handle, **options), compensation_worker("a", undo, **options):
        info = await world.queue("a").wait_for_group(node.group_id, timeout=60_000)
    await world.queue("a").close()

    assert info.state == "FAILED"
    assert undone == [("undo-a", "done")]
    other = compensation_worker("a", undo, compensation_queue="{queue}-undo", **options)
    assert other.name == "a-undo"
    await other.close()


# ---------------------------------------------------------------------------- reconciling


async def end_elsewhere(world: World, name: str, outcome: str, value: str, *, at: int = 1) -> None:
    """End a member as a worker would that knows nothing of groups."""
    base = f"{world.prefix}:{name}"
    job_id = await world.client.rpop(f"{base}:wait")
    field = "returnvalue" if outcome == "completed" else "failedReason"
    await world.client.hset(f"{base}:{job_id}", mapping={field: value, "finishedOn": at})
    await world.client.zadd(f"{base}:{outcome}", {job_id: at})


async def test_members_that_ended_unnoticed_are_settled_in_their_order(world: World):
    """SAGA-43: whatever order they are kept in, the last that completed is undone first."""
    names = "abcdef"
    await world.order(names, compensation_order="reverse")
    order = "dbeca"
    for at, name in enumerate(order, 1):
        await end_elsewhere(world, name, "completed", "1", at=at)
    await end_elsewhere(world, "f", "failed", "no", at=9)

    await world.queue("a").reconcile_groups()

    for name in reversed(order):
        assert await waiting_undos(world, names) == [f"undo-{name}"]
        await world.undo_all(name)


async def test_members_that_ended_unnoticed_are_settled(world: World):
    """SAGA-43: completed ones with their return values, then the failure."""
    node = await world.order()
    await end_elsewhere(world, "a", "completed", '{"big":9007199254740993}')
    queue = world.queue("a")

    assert await queue.reconcile_groups() == 1
    assert await world.statuses(node) == {"a": "completed", "b": "pending", "c": "pending"}
    assert await queue.reconcile_groups() == 0
    await end_elsewhere(world, "b", "failed", "out of stock")
    assert await queue.reconcile_groups() == 1

    assert await world.state(node) == "COMPENSATING"
    (undo,) = await world.queue("a:compensation").get_waiting()
    assert json.loads(undo.data_text)["originalReturnValue"] == {"big": 9007199254740993}
    await end_elsewhere(world, "a:compensation", "completed", "null")
    assert await queue.reconcile_groups() == 1
    assert await world.state(node) == "FAILED"
    assert await queue.reconcile_groups() == 0


async def test_a_member_that_is_gone_is_looked_up_in_the_events(world: World):
    """SAGA-43: remove_on_complete of another worker; without an event it has failed, and since
    nobody knows it is undone."""
    node = await world.order()
    for name, event in (("a", {"event": "completed", "returnvalue": "7"}), ("b", None)):
        base = f"{world.prefix}:{name}"
        job_id = await world.client.rpop(f"{base}:wait")
        await world.client.delete(f"{base}:{job_id}")
        if event is not None:
            await world.client.xadd(f"{base}:events", {**event, "jobId": job_id})
            await world.queue("a").reconcile_groups()
            assert await world.statuses(node) == {"a": "completed", "b": "pending", "c": "pending"}

    await world.queue("a").reconcile_groups()

    assert await world.statuses(node) == {"a": "completed", "b": "failed", "c": "cancelled"}
    info = await world.queue("a").get_group_state(node.group_id)
    assert info is not None
    assert info.reason == "it is gone, and nobody knows how it ended"
    (undo,) = await world.queue("a:compensation").get_waiting()
    assert undo.data["originalReturnValue"] == 7
    (undo,) = await world.queue("b:compensation").get_waiting()
    assert undo.data["originalReturnValue"] is None


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_member_that_ended_unnoticed_beside_many_others_is_undone(
    world: World, is_gone: bool
):
    """In a list too long to search it must not count as one that waits."""
    node = await world.order("ab")
    keys = world.queue("b").keys
    job_id = node.jobs[1].id
    await end_elsewhere(world, "b", "completed", "1")
    if is_gone:
        await world.client.delete(keys.job(job_id))
        await world.client.zrem(f"{keys.base}:completed", job_id)
        event = {"event": "completed", "jobId": job_id, "returnvalue": "1", "prev": "active"}
        await world.client.xadd(keys.events, event)
    await world.queue("b").add_bulk([NewJob("plain")] * 2001)

    await world.fail("a")
    assert await world.state(node) == "COMPENSATING"
    assert await world.client.exists(keys.job(job_id)) == (0 if is_gone else 1)
    await world.queue("a").reconcile_groups()

    await world.undo_all("b")
    assert await world.state(node) == "FAILED"


async def test_a_member_that_stalled_to_death_elsewhere_is_undone(world: World):
    """SAGA-43, SAGA-24: BullMQ fails it with these words; one that raised is not undone."""
    for reason, is_undone in (("job stalled more than allowable limit", True), ("no", False)):
        node = await world.order("ab")
        await end_elsewhere(world, "a", "failed", reason)

        await world.queue("a").reconcile_groups()

        assert await world.state(node) == ("COMPENSATING" if is_undone else "FAILED")


async def test_a_member_that_another_tool_removed_is_cancelled(world: World):
    """SAGA-43: its event says so."""
    node = await world.order("ab")
    base = f"{world.prefix}:a"
    job_id = await world.client.rpop(f"{base}:wait")
    await world.client.delete(f"{base}:{job_id}")
    await world.client.xadd(f"{base}:events", {"event": "removed", "jobId": job_id, "prev": "wait"})

    await world.queue("a").reconcile_groups()

    assert await world.statuses(node) == {"a": "cancelled", "b": "cancelled"}
    assert await world.state(node) == "FAILED"


async def test_a_worker_reconciles_what_is_due(world: World, monkeypatch: Any):
    """SAGA-43: by itself, from time to time, also the one that undoes."""
    monkeypatch.setattr(group_keeper, "LOOK_FOR_DUE_S", 0.1)
    node = await world.order("ab")
    for name in "ab":
        await end_elsewhere(world, name, "completed", "1")
    await world.client.zadd(f"{world.prefix}:a:toril:groups-open", {node.group_id: 1})

    async with compensation_worker("a", _nothing, connection=world.url, prefix=world.prefix):
        info = await world.queue("a").wait_for_group(node.group_id, timeout=60_000)
    await world.queue("a").close()

    assert info.state == "COMPLETED"


async def test_reconciling_many_groups_goes_in_slices(world: World):
    """SAGA-43: more groups than one call looks at, some of which stay."""
    nodes = [await world.order("ab") for _ in range(250)]
    for _ in range(120):
        await end_elsewhere(world, "a", "completed", "1")
        await end_elsewhere(world, "b", "completed", "1")

    assert await world.queue("a").reconcile_groups() == 240

    states = [info.state for info in await world.queue("a").get_groups()]
    assert (states.count("COMPLETED"), states.count("ACTIVE")) == (120, 130)
    assert len(nodes) == 250


async def test_an_index_that_another_tool_deleted_is_written_again(world: World):
    """SAGA-06, C-06: BullMQ's search for orphans takes it for one."""
    node = await world.order("ab")
    created_at = (await world.queue("a").get_groups())[0].created_at
    await world.client.delete(f"{world.prefix}:a:groups")

    await world.queue("a").reconcile_groups()

    (info,) = await world.queue("a").get_groups()
    assert (info.id, info.created_at) == (node.group_id, created_at)
