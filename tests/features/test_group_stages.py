"""Stages: members that become jobs when others have completed, and are undone the other way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.features.group_support import World, job, open_world, start, state, undone
from tests.helpers import wait_until
from tests.worker import jobs
from toril import (
    Compensation,
    FlowProducer,
    GroupJob,
    GroupSignal,
    Queue,
    UnrecoverableError,
    Worker,
)
from toril.client.connection import Connection
from toril.errors import (
    AmbiguousResultError,
    GroupExistsError,
    GroupNotFoundError,
    GroupValidationError,
    InvalidGroupStateError,
    InvalidOptionError,
    JobNotFoundError,
)
from toril.options import Keep
from toril.protocol import groups, leasing
from toril.protocol.command import skew
from toril.protocol.new_group import RETENTION


async def statuses(world: World) -> dict[str, str]:
    return {member.key: member.status for member in await world.queue("a").get_group_jobs("g")}


async def waiting(world: World, *names: str) -> str:
    """Those of these queues in which a job waits."""
    return "".join(
        [name[-1:] if ":" not in name else name[0] for name in names if await count(world, name)]
    )


async def count(world: World, name: str) -> int:
    counts = await world.queue(name).get_job_counts()
    return counts["waiting"] + counts["delayed"] + counts["prioritized"]


async def to_undo(world: World, names: str) -> str:
    return "".join([name for name in names if await count(world, f"{name}:compensation")])


# ---------------------------------------------------------------------------- starting


async def test_the_same_call_finds_the_group_and_starts_nothing(world: World):
    """A retry of the request that starts a saga is no second saga."""
    first = await start(world, job("a"), job("b", "a"))
    again = await start(world, job("a"), job("b", "a"))

    assert (first.is_new, again.is_new) == (True, False)
    assert [one.id for one in first.jobs] == [one.id for one in again.jobs]
    assert await count(world, "a") == 1
    assert (await world.queue("b").get_job(first.jobs[1].id)) is None


async def test_another_group_under_the_id_is_refused_with_what_differs(world: World):
    await start(world, job("a"), job("b", "a"))

    with pytest.raises(GroupExistsError, match="member 'b'") as refused:
        await start(world, job("a"), job("b", "a", data={"n": 2}))

    assert refused.value.differences == ["member 'b'"]
    assert await count(world, "a") == 1


async def test_a_group_that_is_forgotten_is_not_started_again(world: World):
    first = await start(world, job("a"), group_retention=True)
    await world.complete("a")
    assert await world.queue("a").get_group_state("g") is None

    again = await start(world, job("a"), group_retention=True)

    assert not again.is_new
    assert again.jobs[0].id == first.jobs[0].id
    assert await count(world, "a") == 0
    with pytest.raises(GroupExistsError):
        await start(world, job("a"))


@pytest.mark.parametrize("group_id", ["mine", None])
async def test_a_lost_reply_names_the_group(world: World, monkeypatch: Any, group_id: str | None):
    """So that the caller can look, or start it again."""
    connection = Connection(world.url, patience_s=0.2)
    exchange = connection._transport.exchange

    async def losing(sending: Any, timeout_s: float) -> Any:
        await exchange(sending, timeout_s)
        raise ConnectionResetError("lost")

    flow = FlowProducer(connection=connection, prefix=world.prefix)
    with monkeypatch.context() as patched:
        patched.setattr(connection._transport, "exchange", losing)
        with pytest.raises(AmbiguousResultError) as lost:
            await flow.add_group("order", [job("a"), job("b", "a")], group_id=group_id)

    assert group_id in (None, lost.value.id)
    assert lost.value.id is not None
    info = await world.flow.get_group_state(lost.value.id)
    assert info is not None
    assert info.state == "ACTIVE"
    assert await count(world, "a") == 1
    if group_id is not None:
        again = await flow.add_group("order", [job("a"), job("b", "a")], group_id=group_id)
        assert not again.is_new
    await connection.close()


async def test_a_number_may_be_the_id_of_a_group(world: World):
    await start(world, job("a"), group_id="42")

    info = await world.queue("a").get_group_state("42")

    assert info is not None
    assert info.id == "42"


async def test_any_queue_and_the_producer_know_the_group(world: World):
    """The owner is looked for; what cannot be the id of a group is no group."""
    node = await world.flow.add_group("order", [job("a"), job("b")], queue_name="orders")

    for name in ("a", "b", "orders", "elsewhere"):
        found = await world.queue(name).get_group_state(node.group_id)
        assert found is not None
        assert found.id == node.group_id
    assert (await world.flow.get_group_state(node.group_id)) is not None
    assert len(await world.flow.get_group_jobs(node.group_id)) == 2
    await world.queue("b").cancel_group(node.group_id)
    assert (await world.queue("a").wait_for_group(node.group_id, 60_000)).state == "FAILED"
    for unknown in ("a:b", "", "42", "never"):
        assert await world.flow.get_group_state(unknown) is None
        assert await world.queue("a").get_group_state(unknown) is None
        assert await world.queue("a").get_group_jobs(unknown) == []
        with pytest.raises(GroupNotFoundError):
            await world.queue("a").get_group_results(unknown)
        with pytest.raises(GroupNotFoundError):
            await world.queue("a").get_group_timeline(unknown)
        with pytest.raises(GroupNotFoundError):
            await world.queue("a").cancel_group(unknown)


async def test_nothing_is_sent_of_a_definition_that_is_wrong(world: World):
    with pytest.raises(GroupValidationError, match=r"'a' after 'b' after 'a'"):
        await start(world, job("a", "b"), job("b", "a"))

    assert [key async for key in world.client.scan_iter(f"{world.prefix}:*")] == []


# ---------------------------------------------------------------------------- forward


async def test_a_member_becomes_a_job_when_its_predecessors_have_completed(world: World):
    await start(world, job("a"), job("b", "a"), job("c", "a"), job("d", "b", "c"))
    assert await waiting(world, *"abcd") == "a"
    assert await statuses(world) == {"a": "pending", "b": "planned", "c": "planned", "d": "planned"}

    await world.complete("a")
    assert await waiting(world, *"abcd") == "bc"
    await world.complete("b")
    assert await waiting(world, *"abcd") == "c"
    await world.complete("c")
    assert await waiting(world, *"abcd") == "d"
    await world.complete("d")

    assert await state(world) == "COMPLETED"
    left = [key async for key in world.client.scan_iter(f"{world.prefix}:a:groups:g:*")]
    assert {key.rpartition(":")[2] for key in left} == {"jobs", "plan", "results"}


async def test_results_go_into_the_data_byte_for_byte(world: World):
    """Numbers beyond a float, escapes and nesting are as the member wrote them."""
    values = {"n": 12345678901234567890123, "t": 'a"\\\u20ac\u0000', "f": 1.10, "l": [{}, []]}
    await start(
        world,
        job("a"),
        job("b", data={}),
        job("c", "a", "b", data={"own": 1}, inputs={"of a": "a", 'of "b"': "b"}),
        job("d", "a", data=None, inputs={"x": "a"}),
    )
    await world.complete("a", {"a": values})
    await world.complete("b")

    c = await world.hand("c").take_one("c")
    d = await world.hand("d").take_one("d")
    assert c.data == {"own": 1, "of a": values, 'of "b"': None}
    assert d.data == {"x": values}
    raw = await world.client.hget(f"{world.prefix}:c:{c.id}", "data")
    stored = await world.client.hget(f"{world.prefix}:a:groups:g:results", "0")
    assert stored in raw


async def test_options_of_a_later_stage_are_kept(world: World):
    await start(
        world,
        job("a"),
        job("b", "a", priority=3, queue_name="q"),
        job("c", "a", delay=60_000, queue_name="q"),
        job("d", "a", lane="l", queue_name="q", attempts=7),
    )
    await world.complete("a")

    counts = await world.queue("q").get_job_counts()
    assert (counts["prioritized"], counts["delayed"]) == (1, 1)
    d = (await world.hand("q").take(4))[-1]
    assert (d.name, d.opts.attempts, d.opts.group.id) == ("d", 7, "g")
    assert "0" in dict(
        await world.client.zrange(f"{world.prefix}:q:marker", 0, -1, withscores=True)
    )


async def test_workers_run_a_staged_group(world: World):
    """A sequence over three queues, by workers that wait."""
    seen: list[tuple[str, Any]] = []

    async def handle(job: Any) -> Any:
        seen.append((job.name, job.data))
        return job.name.upper()

    workers = [
        Worker(name, handle, connection=world.url, prefix=world.prefix) for name in ("a", "b", "c")
    ]
    async with workers[0], workers[1], workers[2]:
        await start(
            world,
            job("a"),
            job("b", "a", inputs={"a": "a"}),
            job("c", "b", inputs={"b": "b", "a": "a"}),
        )
        info = await world.queue("a").wait_for_group("g", 60_000)

    assert info.state == "COMPLETED"
    assert seen[2] == ("c", {"n": "c", "b": "B", "a": "A"})


async def test_a_custom_id_that_was_taken_meanwhile_fails_the_member(world: World):
    await start(world, job("a"), job("b", "a", job_id="mine"), undo="a")
    await world.queue("b").add("other", job_id="mine")

    await world.complete("a")

    assert await statuses(world) == {"a": "completed", "b": "failed"}
    assert await to_undo(world, "ab") == "a"
    info = await world.queue("a").get_group_state("g")
    assert info is not None
    assert "mine" in str(info.reason)


async def test_a_thousand_members_of_one_stage_are_released_in_slices(world: World):
    members = [job(f"b{n}", "a", queue_name="b") for n in range(600)]
    await start(world, job("a"), *members)
    await world.complete("a")
    assert await count(world, "b") < 600

    await world.queue("a").reconcile_groups()

    assert await count(world, "b") == 600


async def test_large_payloads_are_released_in_slices(world: World):
    members = [job(f"b{n}", "a", queue_name="b", data={"x": "y" * 200_000}) for n in range(6)]
    await start(world, job("a"), *members)
    await world.complete("a")
    assert await count(world, "b") < 6

    for _ in range(3):
        await world.queue("a").reconcile_groups()

    assert await count(world, "b") == 6


async def test_who_knows_nothing_of_stages_strands_nobody(world: World):
    """A worker of an older version writes what it knows; the next look goes on from there."""
    await start(world, job("a"), job("b", "a", inputs={"x": "a"}), undo="a")
    key = f"{world.prefix}:a:groups:g"
    (a, *_) = await world.queue("a").get_group_jobs("g")
    job_a = await world.hand("a").take_one("a")
    await world.client.hdel(f"{world.prefix}:a:{job_a.id}", "x.group")
    await world.hand("a").complete(job_a, value=[1])
    await world.client.hset(f"{key}:jobs", a.job_key, "completed")
    await world.client.hincrby(key, "completedCount", 1)
    assert await waiting(world, "b") == ""

    await world.queue("a").reconcile_groups()

    assert (await world.hand("b").take_one("b")).data == {"n": "b", "x": [1]}


async def test_a_group_that_was_turned_by_others_ends(world: World):
    """An older worker leaves planned members planned; they are cancelled at the next look."""
    await start(world, job("a"), job("b", "a"), undo="a")
    key = f"{world.prefix}:a:groups:g"
    a = await world.hand("a").take_one("a")
    await world.client.hset(key, mapping={"state": "COMPENSATING", "x.reason": "no"})
    await world.hand("a").complete(a)
    await world.undo_all("a")
    assert await state(world) == "COMPENSATING"

    await world.queue("a").reconcile_groups()

    assert await state(world) == "FAILED"
    assert await statuses(world) == {"a": "completed", "b": "cancelled"}


# ---------------------------------------------------------------------------- back


async def test_undoing_goes_back_through_the_graph(world: World):
    """What came later is undone first, side by side where the graph allows."""
    await start(
        world,
        job("a"),
        job("b", "a"),
        job("c", "a"),
        job("d", "b", "c"),
        job("e", "d"),
        undo="abcd",
    )
    await world.complete("abcd")
    await world.fail("e", "no way")

    assert await to_undo(world, "abcd") == "d"
    await world.undo_all("d")
    assert await to_undo(world, "abcd") == "bc"
    await world.undo_all("c")
    assert await to_undo(world, "abcd") == "b"
    await world.undo_all("b")
    assert await to_undo(world, "abcd") == "a"
    await world.undo_all("a")
    assert await state(world) == "FAILED"


async def test_a_member_without_compensation_does_not_break_the_order(world: World):
    await start(world, job("a"), job("b", "a"), job("c", "b"), job("d", "c"), undo="ac")
    await world.complete("abc")
    await world.fail("d")

    assert await to_undo(world, "abc") == "c"
    await world.undo_all("c")
    assert await to_undo(world, "abc") == "a"


async def test_a_compensation_that_fails_stops_what_stands_before_it(world: World):
    """Another branch goes on; retry_compensation goes on from there."""
    await start(
        world, job("a"), job("b", "a"), job("c"), job("d", "c"), job("e", "b", "d"), undo="abcd"
    )
    await world.complete("acbd")
    await world.fail("e")

    await world.undo_all("bd", failing="b")
    assert await to_undo(world, "abcd") == "c"
    await world.undo_all("c")
    assert await state(world) == "FAILED_COMPENSATION"
    assert await to_undo(world, "abcd") == ""

    assert await world.queue("a").retry_compensation("g") == 1
    await world.undo_all("b")
    await world.undo_all("a")
    assert await state(world) == "FAILED"


async def test_what_runs_behind_a_member_ends_before_that_is_undone(world: World):
    await start(world, job("a"), job("b", "a"), job("c", "a"), undo="ab")
    await world.complete("a")
    b = await world.hand("b").take_one("b")
    await world.fail("c")
    assert await to_undo(world, "ab") == ""

    await world.hand("b").complete(b, value=1)

    assert await to_undo(world, "ab") == "b"
    await world.undo_all("ba")
    assert await state(world) == "FAILED"


async def test_reverse_and_parallel_are_still_there(world: World):
    for order, expected in (("reverse", "b"), ("parallel", "ab")):
        options = {"compensation_order": order, "group_id": order}
        await start(world, job("a"), job("b", "a"), job("c", "b"), undo="ab", **options)
        await world.complete("ab")
        await world.fail("c")
        assert await to_undo(world, "ab") == expected
        for name in "ab":
            await world.queue(f"{name}:compensation").drain()


async def test_a_compensation_is_told_why_and_what_the_members_returned(world: World):
    await start(world, job("a"), job("b", "a"), job("c", "b", key="see"), undo="a")
    await world.complete("ab", {"a": {"id": 7}, "b": [1]})
    await world.fail("c", "no")

    undo = await world.hand("a:compensation").take_one()
    told = undo.compensation
    assert told is not None
    assert told.original_return_value == {"id": 7}
    assert (told.reason, told.failed_member) == ("ValueError: no", "see")
    assert told.results == {"a": {"id": 7}, "b": [1]}


async def test_results_that_are_too_long_are_not_told(world: World):
    await start(world, job("a"), job("b", "a"), job("c", "b"), undo="a")
    await world.complete("ab", {"b": "x" * 600_000})
    await world.fail("c", "no")

    undo = await world.hand("a:compensation").take_one()
    assert undo.compensation is not None
    assert undo.compensation.results is None
    assert len((await world.queue("a").get_group_results("g"))["b"]) == 600_000


async def test_a_compensation_may_have_a_lane_a_priority_and_a_delay(world: World):
    compensation = {
        "a": Compensation("undo", lane="l", timeout=1000),
        "b": Compensation("undo", priority=4),
        "c": Compensation("undo", delay=60_000),
    }
    members = [job(name) for name in "abcd"]
    await world.flow.add_group("order", members, compensation, queue_name="a")
    await world.complete("abc")
    await world.fail("d")

    assert (await world.queue("b:compensation").get_job_counts())["prioritized"] == 1
    assert (await world.queue("c:compensation").get_job_counts())["delayed"] == 1
    lane = await world.queue("a:compensation").get_lane("l")
    assert lane is not None
    undo = await world.hand("a:compensation").take_one()
    assert (undo.opts.lane, undo.opts.timeout) == ("l", 1000)


# ---------------------------------------------------------------------------- results


async def test_results_and_the_timeline_are_told(world: World):
    await start(world, job("a"), job("b", "a"), job("c", "b", key="see"), undo="ab")
    await world.complete("a", {"a": {"x": 1}})
    queue = world.queue("a")
    assert await queue.get_group_results("g") == {"a": {"x": 1}}
    await world.complete("b")
    await world.fail("c", "no")
    await world.undo_all("ba")

    assert await queue.get_group_results("g") == {"a": {"x": 1}, "b": None}
    steps = await queue.get_group_timeline("g")
    what = [(step.what, step.member) for step in steps if step.what != "started"]
    assert what == [
        ("created", None),
        ("completed", "a"),
        ("completed", "b"),
        ("failed", "see"),
        ("compensating", "see"),
        ("undone", "b"),
        ("undone", "a"),
        ("FAILED", None),
    ]
    assert [step.member for step in steps if step.what == "started"] == ["a", "b", "see"]
    assert [step.reason for step in steps if step.reason] == ["ValueError: no", "ValueError: no"]


async def test_members_that_share_a_name_stand_under_their_ids(world: World):
    node = await start(world, job("a"), job("a"))
    first, second = await world.hand("a").take(2)
    await world.hand("a").complete(first, value=1)
    await world.hand("a").complete(second, value=2)

    results = await world.queue("a").get_group_results("g")

    assert sorted(results) == sorted(one.id for one in node.jobs)


async def test_the_blocking_client_does_all_of_it(world: World):
    import asyncio

    from toril import sync

    def work() -> None:
        with sync.FlowProducer(connection=world.url, prefix=world.prefix) as flow:
            flow.add_group("order", [GroupSignal("s")], group_id="g", queue_name="a")
            assert flow.get_group_state("g") is not None
        with sync.Queue("b", connection=world.url, prefix=world.prefix) as queue:
            queue.complete_member("g", "s", 5)
            assert queue.get_group_results("g") == {"s": 5}
            assert queue.get_group_timeline("g")[-1].what == "COMPLETED"
            assert queue.wait_for_group("g").state == "COMPLETED"

    await asyncio.to_thread(work)


# ---------------------------------------------------------------------------- signals


async def test_a_signal_completes_once(world: World):
    await start(
        world, job("a"), GroupSignal("ok", after=["a"]), job("c", "ok", inputs={"by": "ok"})
    )
    await world.complete("a")
    assert (await statuses(world))["ok"] == "awaited"
    assert await count(world, "c") == 0

    queue = world.queue("c")
    await queue.complete_member("g", "ok", {"who": "me"})

    assert (await world.hand("c").take_one()).data == {"n": "c", "by": {"who": "me"}}
    before = await world.client.hgetall(f"{world.prefix}:a:groups:g")
    with pytest.raises(InvalidGroupStateError, match="it is completed"):
        await queue.complete_member("g", "ok", 2)
    with pytest.raises(InvalidGroupStateError):
        await queue.fail_member("g", "ok", "no")
    with pytest.raises(InvalidGroupStateError):
        await queue.complete_member("g", "c")
    with pytest.raises(JobNotFoundError):
        await queue.complete_member("g", "nobody")
    with pytest.raises(GroupNotFoundError):
        await queue.complete_member("x", "ok")
    assert await world.client.hgetall(f"{world.prefix}:a:groups:g") == before


async def test_a_signal_that_comes_early_counts_when_its_turn_has_come(world: World):
    await start(world, job("a"), GroupSignal("ok", after=["a"]), job("c", "ok"))

    await world.queue("a").complete_member("g", "ok", 1)
    assert (await statuses(world))["ok"] == "planned"
    with pytest.raises(InvalidGroupStateError):
        await world.queue("a").complete_member("g", "ok", 2)
    await world.complete("a")

    assert await statuses(world) == {"a": "completed", "ok": "completed", "c": "pending"}
    assert (await world.queue("a").get_group_results("g"))["ok"] == 1


async def test_a_signal_that_fails_turns_the_group(world: World):
    await start(world, job("a"), GroupSignal("ok", after=["a"]), undo="a")
    await world.complete("a")

    await world.queue("a").fail_member("g", "ok", "declined")

    undo = await world.hand("a:compensation").take_one()
    assert undo.compensation is not None
    assert (undo.compensation.reason, undo.compensation.failed_member) == ("declined", "ok")
    with pytest.raises(InvalidGroupStateError, match="COMPENSATING"):
        await world.queue("a").complete_member("g", "ok")


async def test_a_signal_for_a_group_that_is_over_is_refused(world: World):
    """And nothing is changed; of one that is forgotten nothing is known."""
    await start(world, GroupSignal("ok"), GroupSignal("more"))
    queue, key = world.queue("a"), f"{world.prefix}:a:groups:g"
    await queue.complete_member("g", "ok")
    await queue.fail_member("g", "more", "no")
    assert await state(world) == "FAILED"
    before = [await world.client.dump(f"{key}{part}") for part in ("", ":jobs", ":results")]

    with pytest.raises(InvalidGroupStateError, match="FAILED"):
        await queue.complete_member("g", "more")
    with pytest.raises(InvalidGroupStateError):
        await queue.fail_member("g", "ok", "no")
    with pytest.raises(JobNotFoundError):
        await queue.complete_member("g", "nobody")

    after = [await world.client.dump(f"{key}{part}") for part in ("", ":jobs", ":results")]
    assert after == before
    await queue.clean_groups()
    with pytest.raises(GroupNotFoundError):
        await queue.complete_member("g", "ok")


async def test_the_same_signal_sent_again_is_known(world: World):
    await start(world, job("a"), GroupSignal("ok"), GroupSignal("more"))
    keys = world.queue("a").keys
    tell = groups.settle_member(keys, "g", "ok", "completed", b"1", request="r1")
    other = groups.settle_member(keys, "g", "more", "completed", b"1", request="r2")

    for command in (tell, other, tell, other):
        await world.connection.run(command)

    info = await world.queue("a").get_group_state("g")
    assert info is not None
    assert info.completed_count == 2


@pytest.mark.parametrize("how", ["completed", "failed"])
async def test_the_same_signal_sent_again_is_known_although_its_group_is_forgotten(
    world: World, how: str
):
    """It ended the group, which keeps nothing; and its reply was lost."""
    await start(world, job("a"), GroupSignal("ok", after=["a"]), group_retention=True)
    await world.complete("a")
    told = groups.settle_member(world.queue("a").keys, "g", "ok", how, b'"by"', request="r1")
    await world.connection.run(told)

    await world.connection.run(told)

    left = [key async for key in world.client.scan_iter(f"{world.prefix}:a:groups*")]
    assert left == []
    with pytest.raises(GroupNotFoundError):
        await world.queue("a").complete_member("g", "ok")


async def test_a_signal_that_does_not_come_fails_or_has_a_default(world: World):
    """The time begins with its turn."""
    await start(
        world,
        job("a"),
        GroupSignal("late", after=["a"], timeout=60_000, default={"d": 1}),
        GroupSignal("never", after=["late"], timeout=60_000),
        undo="a",
    )
    skew.ms += 120_000
    await world.queue("a").reconcile_groups()
    assert (await statuses(world))["late"] == "planned"
    await world.complete("a")
    due = await world.connection.run(groups.due(world.queue("a").keys))
    assert due.wait_ms is not None
    assert due.wait_ms <= 60_000

    skew.ms += 60_001
    await world.queue("a").reconcile_groups()
    assert await statuses(world) == {"a": "completed", "late": "completed", "never": "awaited"}
    assert (await world.queue("a").get_group_results("g"))["late"] == {"d": 1}
    skew.ms += 60_001
    await world.queue("a").reconcile_groups()

    assert (await statuses(world))["never"] == "failed"
    info = await world.queue("a").get_group_state("g")
    assert info is not None
    assert (info.state, info.reason) == ("COMPENSATING", "timeout")


async def test_a_producer_may_mind_the_time_limits(world: World):
    """Where nobody of Toril works: a timer calls it."""
    members = [GroupSignal("ok", timeout=60_000), job("c", "ok")]
    await world.flow.add_group("order", members, group_id="g", queue_name="a", timeout=90_000)
    assert await world.flow.keep_groups("a", "other") == 0
    skew.ms += 60_001

    assert await world.flow.keep_groups("other", "a") > 0

    assert await state(world) == "FAILED"


async def test_cancelling_ends_signals_and_plans(world: World):
    await start(world, job("a"), GroupSignal("ok", timeout=1000), job("c", "ok"), undo="a")
    await world.complete("a")

    await world.queue("a").cancel_group("g", "changed their mind")

    assert await statuses(world) == {"a": "completed", "ok": "cancelled", "c": "cancelled"}
    await world.undo_all("a")
    assert await state(world) == "FAILED"
    left = [key async for key in world.client.scan_iter(f"{world.prefix}:a:groups:g:*")]
    assert not {"stage", "signals"} & {key.rpartition(":")[2] for key in left}


# ---------------------------------------------------------------------------- the pivot


async def past_pivot(world: World) -> None:
    await start(world, job("a"), job("b", "a", pivot=True), job("c", "b"), job("d", "c"), undo="a")
    await world.complete("ab")


async def test_after_the_pivot_a_failure_blocks_the_group(world: World):
    await past_pivot(world)
    await world.fail("c", "no")

    assert await state(world) == "BLOCKED"
    assert await to_undo(world, "a") == ""
    assert (await world.event_names())[-1] == "group:blocked"
    info = await world.queue("a").get_group_state("g")
    assert info is not None
    assert not info.is_finished
    with pytest.raises(InvalidGroupStateError, match="no longer be undone"):
        await world.queue("a").cancel_group("g")
    blocked = await world.queue("a").get_groups("BLOCKED")
    assert [one.id for one in blocked] == ["g"]

    assert await world.queue("a").retry_group("g") == 1
    assert await state(world) == "ACTIVE"
    await world.complete("cd")
    assert await state(world) == "COMPLETED"
    assert await world.client.zcard(f"{world.prefix}:a:toril:groups-asking") == 0


async def test_a_retry_that_is_sent_again_leaves_alone_what_failed_since(world: World):
    """SAGA-39: two operators retried the group, and the reply to the first one was lost."""
    await past_pivot(world)
    keys = world.queue("a").keys
    await world.fail("c")
    first = groups.retry_group(keys, "g", request="r1")
    assert await world.connection.run(first) == 1
    await world.fail("c")
    assert await world.queue("a").retry_group("g") == 1
    await world.fail("c")

    assert await world.connection.run(first) == 1

    assert await state(world) == "BLOCKED"
    assert await waiting(world, "c") == ""


async def test_a_resolution_that_is_sent_again_skips_nothing_more(world: World):
    """SAGA-39: the member after the one that was skipped blocks the group as well."""
    await past_pivot(world)
    await world.fail("c")
    resolved = groups.resolve(world.queue("a").keys, "g", "by post", request="r1")
    await world.connection.run(resolved)
    await world.fail("d")
    assert await state(world) == "BLOCKED"

    await world.connection.run(resolved)

    assert await state(world) == "BLOCKED"


async def test_before_the_pivot_a_failure_undoes(world: World):
    await start(world, job("a"), job("b", "a", pivot=True), job("c", "b"), undo="a")
    await world.complete("a")
    await world.fail("b")

    assert await to_undo(world, "a") == "a"
    await world.undo_all("a")
    assert await state(world) == "FAILED"


async def test_obliterating_the_owner_leaves_nothing_of_its_groups(world: World):
    await start(world, job("a"), GroupSignal("ok", after=["a"], timeout=1000), job("c", "ok"))
    await world.complete("a")

    await world.queue("a").obliterate(force=True)

    left = [key async for key in world.client.scan_iter(f"{world.prefix}:a:*group*")]
    assert left == []
    assert await world.queue("c").get_group_state("g") is None


async def test_cancelling_after_the_pivot_is_refused(world: World):
    await past_pivot(world)

    with pytest.raises(InvalidGroupStateError, match="no longer be undone"):
        await world.queue("a").cancel_group("g")

    assert await state(world) == "ACTIVE"


async def test_a_blocked_group_is_resolved_by_hand(world: World):
    await past_pivot(world)
    await world.fail("c")

    await world.queue("b").resolve_group("g", "sent by post")

    assert await waiting(world, "d") == "d"
    await world.complete("d")
    info = await world.queue("a").get_group_state("g")
    assert info is not None
    assert (info.state, info.note) == ("COMPLETED", "sent by post")
    assert (await world.queue("a").get_group_results("g"))["c"] is None


async def test_a_blocked_group_is_resolved_only_as_it_was_looked_at(world: World):
    """What somebody says of one failure is not said of a later one, which nobody has looked at."""
    await past_pivot(world)
    await world.fail("c")
    seen: dict[str, Any] = {"expected_state": "BLOCKED", "expected_members": ["c"]}
    await world.queue("a").resolve_group("g", "c by post", **seen)
    await world.fail("d")
    before = await world.client.hgetall(f"{world.prefix}:a:groups:g")

    with pytest.raises(InvalidGroupStateError, match=r"BLOCKED now \('d'\)"):
        await world.queue("b").resolve_group("g", "c by post, too", **seen)

    assert await world.client.hgetall(f"{world.prefix}:a:groups:g") == before
    assert (await statuses(world))["d"] == "failed"
    with pytest.raises(InvalidOptionError, match="expected_state"):
        await world.queue("a").resolve_group("g", "d by post", expected_state="blocked")
    await world.queue("a").resolve_group("g", "d by post", expected_members=["d"])
    assert await state(world) == "COMPLETED"


async def test_a_failure_in_a_group_that_is_blocked_already_changes_what_blocks_it(world: World):
    members = (job("a", pivot=True), job("b", "a"), job("c", "a"), job("d", "b", "c"))
    await start(world, *members)
    await world.complete("a")
    await world.fail("b")
    await world.fail("c")

    for wrong in (["b"], ["c"], ["b", "d"], ["b", "c", "d"], []):
        with pytest.raises(InvalidGroupStateError, match="not as expected"):
            await world.queue("a").resolve_group("g", "by post", expected_members=wrong)

    assert await waiting(world, "d") == ""
    await world.queue("a").resolve_group("g", "by post", expected_members=["c", "b"])
    assert await waiting(world, "d") == "d"


async def test_a_group_that_only_its_time_limit_blocks_names_no_member(world: World):
    members = (job("a", pivot=True), job("b", "a"))
    await start(world, *members, timeout=1)
    await world.complete("a")
    await wait_until(lambda: _is_blocked(world))

    await world.queue("a").resolve_group(
        "g", "let it run", expected_state="BLOCKED", expected_members=[]
    )

    assert await state(world) == "ACTIVE"


async def _is_blocked(world: World) -> bool:
    await world.queue("a").reconcile_groups()
    return await state(world) == "BLOCKED"


async def test_one_member_of_a_blocked_group_is_completed_by_hand(world: World):
    await past_pivot(world)
    await world.fail("c")

    with pytest.raises(InvalidGroupStateError):
        await world.queue("a").fail_member("g", "c", "still no")
    await world.queue("a").complete_member("g", "c", {"by": "post"})

    assert await state(world) == "ACTIVE"
    assert await waiting(world, "d") == "d"


async def test_a_blocking_job_may_be_retried_by_hand(world: World):
    await past_pivot(world)
    await world.fail("c")
    (failed,) = await world.queue("c").get_jobs("failed")

    await world.queue("c").retry(failed.id)

    assert await state(world) == "ACTIVE"
    await world.complete("cd")
    assert await state(world) == "COMPLETED"


async def test_the_dead_letter_of_a_blocking_job_belongs_to_its_group(world: World):
    """Replayed it goes on with the group; retry_group takes it away instead."""
    is_well = False

    async def handle(job: Any) -> str:
        if job.name == "c" and not is_well:
            raise UnrecoverableError("no")
        return "done"

    options: dict[str, Any] = {"connection": world.url, "prefix": world.prefix}
    letters = Queue("letters", **options)
    for group_id in ("g", "h"):
        await start(world, job("a", pivot=True), job("c", "a"), group_id=group_id)
    async with (
        letters,
        Worker("a", handle, **options),
        Worker("c", handle, dead_letter_queue="letters", **options),
    ):
        await wait_until(lambda: _counts_letters(letters, 2))
        is_well = True
        assert await world.queue("a").retry_group("h") == 1
        assert await letters.get_dead_letter_count() == 1
        (letter,) = await letters.get_jobs("waiting")
        await letters.replay_dead_letter(letter.id)
        for group_id in ("g", "h"):
            info = await world.queue("a").wait_for_group(group_id, 60_000)
            assert info.state == "COMPLETED"
    with pytest.raises(InvalidGroupStateError):
        await world.queue("a").retry_group("g")


async def _counts_letters(letters: Queue, count: int) -> bool:
    return await letters.get_dead_letter_count() == count


async def test_a_pivot_that_completes_after_the_group_turned_blocks_it(world: World):
    """Nothing was undone while nobody knew; the way goes on from the pivot."""
    await start(world, job("a"), job("b", "a", pivot=True), job("c", "b"), undo="a")
    await world.complete("a")
    b = await world.hand("b").take_one("b")
    await world.queue("a").cancel_group("g", "too late")
    assert await to_undo(world, "a") == ""

    await world.hand("b").complete(b)

    assert await state(world) == "BLOCKED"
    assert await world.queue("a").retry_group("g") == 1
    await world.complete("c")
    assert await state(world) == "COMPLETED"


@pytest.mark.parametrize("is_overdue", [False, True])
@pytest.mark.parametrize("is_resolved", [False, True])
async def test_a_late_pivot_that_was_the_last_member_completes_its_group(
    world: World, is_resolved: bool, is_overdue: bool
):
    """Nothing is left to run, so no member would end the group once it continues."""
    members = (job("a"), job("b", "a", pivot=True))
    ends: dict[str, Any] = {"on_completed": job("done")} if not is_overdue else {}
    await start(world, *members, undo="a", undo_timeout=5_000, **ends)
    await world.complete("a")
    b = await world.hand("b").take_one("b")
    await world.queue("a").cancel_group("g", "too late")
    if is_overdue:
        skew.ms += 5_001
        await world.queue("a").reconcile_groups()
        assert await state(world) == "FAILED_COMPENSATION"
    await world.hand("b").complete(b)
    assert await state(world) == "BLOCKED"

    if is_resolved:
        await world.queue("a").resolve_group("g", "it is done")
    else:
        assert await world.queue("a").retry_group("g") == 0

    assert await state(world) == "COMPLETED"
    said = "group:resolved" if is_resolved else "group:retrying"
    assert (await world.event_names())[-2:] == [said, "group:completed"]
    assert await waiting(world, "done") == ("" if is_overdue else "e")
    for index in ("open", "staged", "asking"):
        assert await world.client.zcard(f"{world.prefix}:a:toril:groups-{index}") == 0
    assert await world.client.zcard(f"{world.prefix}:a:toril:groups-ended") == 1


async def test_a_pivot_that_runs_once_more_leaves_no_way_back(world: World):
    """It was forced; what came before it is undone no more since it completed first."""
    await past_pivot(world)
    (b,) = await world.queue("b").get_jobs("completed")
    await world.queue("b").retry(b.id, force=True)

    with pytest.raises(InvalidGroupStateError, match="no longer be undone"):
        await world.queue("a").cancel_group("g")
    await world.fail("b")
    assert await state(world) == "BLOCKED"
    with pytest.raises(InvalidGroupStateError):
        await world.queue("a").fail_member("g", "b", "it never left")
    assert await waiting(world, "c") == "c"

    assert await world.queue("a").retry_group("g") == 1
    await world.complete("bcd")
    assert await state(world) == "COMPLETED"
    assert await to_undo(world, "a") == ""


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_pivot_of_which_nobody_knows_how_it_ended_blocks_the_group(
    world: World, is_done: bool
):
    """Its process died: the parcel may be on its way, so a person has to say."""
    await start(world, job("a"), job("b", "a", pivot=True), job("c", "b"), undo="a")
    await world.complete("a")
    keys = world.queue("b").keys
    for _ in range(5):
        b = await world.hand("b").take_one("b")
        if await world.client.hexists(keys.job(b.id), "defa"):  # given up: it is failed and not run
            await world.hand("b").fail(b)
            break
        await world.hand("b").lose(b)
        await world.client.delete(f"{keys.base}:stalled-check")
        await world.client.sadd(f"{keys.base}:stalled", b.id)
        await world.connection.follow(leasing.sweep(keys, interval_ms=1, max_stalled=0))
    assert await state(world) == "BLOCKED"
    assert await to_undo(world, "a") == ""

    if is_done:
        await world.queue("a").complete_member("g", "b")
        await world.complete("c")
        assert await state(world) == "COMPLETED"
    else:
        await world.queue("a").fail_member("g", "b", "it never left")
        await world.undo_all("a")
        assert await state(world) == "FAILED"
        assert (await statuses(world))["c"] == "cancelled"


async def lose_pivot(world: World, how: str) -> None:
    """The group is cancelled while its pivot runs, and nobody learns how that run ended; or that
    happens first, and the pivot waits to run again."""
    b = await world.hand("b").take_one("b")
    if how != "it waits":
        await world.queue("a").cancel_group("g", "too late")
    if how == "a shutdown stops it":
        await world.hand("b").give_back(b, is_begun=True)
    else:
        await world.hand("b").lose(b)
        keys = world.queue("b").keys
        await world.client.sadd(f"{keys.base}:stalled", b.id)
        await world.connection.follow(leasing.sweep(keys, interval_ms=1, max_stalled=3))
    if how == "it waits":
        await world.queue("a").cancel_group("g", "too late")
    else:
        await world.hand("b").fail(await world.hand("b").take_one("b"), reason="not run")
    assert await world.hand("b").take() == []


@pytest.mark.parametrize("said", ["done", "not done", "again"])
@pytest.mark.parametrize("how", ["its process dies", "a shutdown stops it", "it waits"])
async def test_a_pivot_of_which_nobody_knows_blocks_a_group_that_was_cancelled(
    world: World, how: str, said: str
):
    """The parcel may be on its way: nothing before it is undone until a person has said."""
    members = (job("a"), job("b", "a", pivot=True), job("c", "b"))
    node = await start(world, *members, undo="a")
    await world.complete("a")

    await lose_pivot(world, how)

    assert await state(world) == "BLOCKED"
    assert await to_undo(world, "a") == ""
    info = await world.queue("a").get_group_state("g")
    assert info is not None
    assert (info.failed_job_id, info.reason) == (node.jobs[1].id, "nobody knows how it ended")
    if said == "not done":
        await world.queue("a").fail_member("g", "b", "it never left")
        await world.undo_all("a")
        assert await state(world) == "FAILED"
    else:
        if said == "done":
            await world.queue("a").complete_member("g", "b")
        assert await world.queue("a").retry_group("g") == (1 if said == "done" else 2)
        await world.complete("c" if said == "done" else "bc")
        assert await state(world) == "COMPLETED"
        assert await to_undo(world, "a") == ""


async def test_a_lost_pivot_that_is_retried_and_fails_undoes_a_group_that_was_cancelled(
    world: World,
):
    """Its last run is known: it did nothing."""
    await start(world, job("a"), job("b", "a", pivot=True), job("c", "b"), undo="a")
    await world.complete("a")
    await lose_pivot(world, "its process dies")
    (b,) = await world.queue("b").get_jobs("failed")

    await world.queue("b").retry(b.id)
    await world.fail("b")

    assert await state(world) == "COMPENSATING"
    assert await world.client.zcard(f"{world.prefix}:a:toril:groups-asking") == 0
    await world.undo_all("a")
    assert await state(world) == "FAILED"


async def test_a_timeout_after_the_pivot_blocks_and_does_not_undo(world: World):
    await start(world, job("a"), job("b", "a", pivot=True), job("c", "b"), undo="a", timeout=60_000)
    await world.complete("ab")
    skew.ms += 60_001
    await world.queue("a").reconcile_groups()

    assert await state(world) == "BLOCKED"
    assert await waiting(world, "c") == "c"
    assert await world.queue("a").retry_group("g") == 0
    await world.queue("a").reconcile_groups()
    assert await state(world) == "ACTIVE"
    await world.complete("c")
    assert await state(world) == "COMPLETED"


async def test_a_blocked_signal_is_awaited_again(world: World):
    await start(world, job("a", pivot=True), GroupSignal("ok", after=["a"]))
    await world.complete("a")
    await world.queue("a").fail_member("g", "ok", "no")
    assert await state(world) == "BLOCKED"

    await world.queue("a").retry_group("g")
    assert (await statuses(world))["ok"] == "awaited"
    await world.queue("a").complete_member("g", "ok")
    assert await state(world) == "COMPLETED"


async def test_a_signal_that_had_failed_before_its_turn_is_awaited_again(world: World):
    """What was said of it then does not block the group once more."""
    await start(world, job("a", pivot=True), GroupSignal("ok", after=["a"]))
    await world.queue("a").fail_member("g", "ok", "no")
    await world.complete("a")
    assert await state(world) == "BLOCKED"

    assert await world.queue("a").retry_group("g") == 1

    assert (await statuses(world))["ok"] == "awaited"
    await world.queue("a").complete_member("g", "ok")
    assert await state(world) == "COMPLETED"


# ---------------------------------------------------------------------------- the end


async def test_a_job_is_added_when_the_group_completes(world: World):
    await start(
        world,
        job("a"),
        job("b", "a"),
        on_completed=job("done", data={"order": 1}),
        on_failed=job("sorry"),
    )
    await world.complete("ab", {"a": 1, "b": [2]})

    done = await world.hand("done").take_one("done")
    assert done.data == {
        "order": 1,
        "group": {
            "id": "g",
            "name": "order",
            "state": "COMPLETED",
            "reason": None,
            "results": {"a": 1, "b": [2]},
        },
    }
    assert await count(world, "sorry") == 0


async def test_a_job_is_added_once_when_the_group_fails(world: World):
    await start(world, job("a"), job("b", "a"), undo="a", on_failed=job("sorry", data=None))
    await world.complete("a")
    await world.fail("b", "no")
    assert await count(world, "sorry") == 0
    await world.undo_all("a", failing="a")

    sorry = await world.hand("sorry").take_one("sorry")
    assert sorry.data["group"]["state"] == "FAILED_COMPENSATION"
    assert sorry.data["group"]["reason"] == "ValueError: no"
    await world.queue("a").resolve_group("g", "by hand")
    assert await count(world, "sorry") == 0


# ---------------------------------------------------------------------------- time limits


async def test_undoing_has_a_time_limit(world: World):
    await start(world, job("a"), job("b", "a"), job("c", "b"), undo="ab", undo_timeout=60_000)
    await world.complete("ab")
    await world.fail("c")
    skew.ms += 60_001
    await world.queue("a").reconcile_groups()

    info = await world.queue("a").get_group_state("g")
    assert info is not None
    assert info.state == "FAILED_COMPENSATION"
    assert "time limit" in str(info.asks)
    await world.undo_all("b")
    assert await state(world) == "FAILED_COMPENSATION"
    assert await world.queue("a").retry_compensation("g") == 0
    await world.undo_all("a")
    assert await state(world) == "FAILED"


async def test_undoing_that_ends_late_ends_the_group(world: World):
    await start(world, job("a"), job("b", "a"), undo="a", undo_timeout=60_000)
    await world.complete("a")
    await world.fail("b")
    skew.ms += 60_001
    await world.queue("a").reconcile_groups()
    assert await state(world) == "FAILED_COMPENSATION"

    await world.undo_all("a")

    assert await state(world) == "FAILED"
    assert json.loads((await world.events())[-1]["compensationResults"])[0]["status"] == "completed"


async def test_a_running_member_learns_that_its_group_has_turned(world: World):
    told: list[bool] = []
    running: list[str] = []

    async def patient(job: Any) -> str:
        running.append(job.id)
        await job.signal.wait()
        told.append(job.is_cancelled)
        return "stopped early"

    async with Worker("a", patient, connection=world.url, prefix=world.prefix):
        await start(world, job("a"), job("b"), undo="a")
        await wait_until(lambda: bool(running))
        await world.fail("b")
        await wait_until(lambda: bool(told))
        await wait_until(lambda: count(world, "a:compensation"))

    assert told == [False]
    undo = await world.hand("a:compensation").take_one()
    assert undo.compensation is not None
    assert undo.compensation.original_return_value == "stopped early"


@pytest.mark.parametrize("name", ["patient", "patient async", "late to look"])
async def test_a_member_in_a_process_learns_that_its_group_has_turned(
    world: World, name: str, tmp_path: Path
):
    """Its process is not killed: it counts as it ends, and the next job hears nothing of it."""
    queue = world.queue("a")
    async with Worker(
        "a", jobs.router, connection=world.url, prefix=world.prefix, executor="process"
    ):
        data = {"file": str(tmp_path / "told")}
        member = GroupJob(name, data, queue_name="a", key="a")
        undo = {name: Compensation("undo-a", attempts=1)}
        await world.flow.add_group("order", [member, job("b")], undo, group_id="g", queue_name="a")
        (running,) = [one for one in (await queue.get_group_jobs("g")) if one.key == "a"]
        await wait_until(lambda: _has_logged(queue, running.job_id), timeout=60)
        await world.fail("b")
        if name == "late to look":
            await wait_until(lambda: _mail_is_read(world), timeout=60)
        (tmp_path / "told").touch()
        await wait_until(lambda: count(world, "a:compensation"), timeout=60)
        after = await queue.add("next")
        assert await queue.wait_for(after.id, timeout=60_000) is False

    undoing = await world.hand("a:compensation").take_one()
    assert undoing.compensation is not None
    assert undoing.compensation.original_return_value == "stopped early"


async def _has_logged(queue: Queue, job_id: str) -> bool:
    return await queue.get_job_log_count(job_id) > 0


async def _mail_is_read(world: World) -> bool:
    return not [key async for key in world.client.scan_iter(f"{world.prefix}:a:toril:mail-*")]


async def test_any_worker_of_a_group_minds_the_time_limit_of_a_signal(world: World):
    """The owner has no worker; that of a member's queue looks after the group."""

    async def handle(job: Any) -> None:
        return None

    members = [job("a"), GroupSignal("ok", after=["a"], timeout=200), job("b", "ok")]
    async with Worker("a", handle, connection=world.url, prefix=world.prefix):
        await world.flow.add_group("order", members, group_id="g", queue_name="orders")
        await wait_until(lambda: _is_over(world, "orders"))

    info = await world.queue("orders").get_group_state("g")
    assert info is not None
    assert (info.state, info.reason) == ("FAILED", "timeout")


async def _is_over(world: World, owner: str) -> bool:
    info = await world.queue(owner).get_group_state("g")
    return info is not None and info.is_finished


async def test_finished_groups_are_not_kept_for_ever(world: World):
    node = await world.flow.add_group("order", [job("a")])
    other = await world.flow.add_group("order", [job("a")], group_retention=False)
    await world.complete("aa")
    skew.ms += 8 * 86_400_000
    last = await world.flow.add_group("order", [job("a")])
    await world.complete("a")

    assert await world.queue("a").get_group_state(node.group_id) is None
    assert await world.queue("a").get_group_state(last.group_id) is not None
    assert await world.queue("a").get_group_state(other.group_id) is None, "the last one's rule"
    assert Keep(count=10_000, age=7 * 86_400_000) == RETENTION


# ---------------------------------------------------------------------------- cost


async def commands_of(world: World, *members: Any) -> int:
    """How many commands the server runs for ten groups from the first call to the last."""
    for group_id in ("warm", *map(str, range(10))):
        if group_id == "0":
            await world.client.config_resetstat()
        compensation = undone(*(member.name for member in members))
        await world.flow.add_group("order", members, compensation, group_id=group_id)
        for _ in members:
            one = await world.hand("q").take_one()
            await world.hand("q").complete(one)
    stats = await world.client.info("commandstats")
    inside = ("eval", "fcall", "info", "config", "client", "hello", "function")
    return sum(
        stat["calls"]
        for name, stat in stats.items()
        if not name.removeprefix("cmdstat_").startswith(inside)
    )


@pytest.mark.no_audit("commands are counted on a server of its own")
async def test_a_staged_group_costs_little_more(client: Any, prefix: str):
    """At most 1.3 times the commands of a group of three that is not staged."""
    from tests.servers import Server

    with Server() as server:
        counting = type(client).from_url(server.url, decode_responses=True)
        async with open_world(server.url, prefix, counting) as world:
            plain = [job(name, queue_name="q") for name in "abc"]
            staged = [job("d", queue_name="q")]
            staged += [job("e", "d", queue_name="q"), job("f", "e", queue_name="q")]
            cost, more = await commands_of(world, *plain), 0
            await world.client.flushall()
            more = await commands_of(world, *staged)
        await counting.aclose()

    assert cost <= 1850
    assert more <= 1.3 * cost
