"""When a member fails for good, what was done is undone."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

from tests.features.group_support import Meeting, World
from tests.helpers import wait_until
from toril import Compensation, GroupJob, QueueEvents, UnrecoverableError, Worker
from toril.protocol.settling import Raised, Returned


async def undo_jobs(world: World, name: str) -> list[Any]:
    return await world.queue(f"{name}:compensation").get_jobs()


async def test_completed_siblings_are_undone_when_one_fails(world: World):
    """SAGA-21, SAGA-24, SAGA-25, SAGA-26: each in the queue of its own queue."""
    node = await world.order(c={"attempts": 2})
    await world.complete("ab", {"a": {"transactionId": "tx-456"}, "b": [1]})

    await world.fail("c")
    assert await world.state(node) == "ACTIVE"
    await world.fail("c", reason="out of stock")

    assert await world.state(node) == "COMPENSATING"
    (undo_a,), (undo_b,) = await undo_jobs(world, "a"), await undo_jobs(world, "b")
    assert await undo_jobs(world, "c") == []
    assert undo_a.name == "undo-a"
    assert undo_a.data == {
        "reason": "ValueError: out of stock",
        "failedMember": "c",
        "results": {"a": {"transactionId": "tx-456"}, "b": [1]},
        "groupId": node.group_id,
        "originalJobName": "a",
        "originalJobId": node.jobs[0].id,
        "originalReturnValue": {"transactionId": "tx-456"},
        "compensationData": {"of": "a"},
    }
    assert undo_b.compensation.original_return_value == [1]
    assert undo_b.compensation.group_id == node.group_id
    assert undo_b.compensation.original_job_name == "b"
    assert undo_b.compensation.original_job_id == node.jobs[1].id
    assert undo_b.compensation.compensation_data == {"of": "b"}
    assert await world.events() == [
        {
            "event": "group:compensating",
            "groupId": node.group_id,
            "groupName": "order",
            "failedJobId": node.jobs[2].id,
            "reason": "ValueError: out of stock",
        }
    ]
    record = await world.record(node)
    assert (record["completedCount"], record["failedCount"]) == ("2", "1")


async def test_unrecoverable_errors_turn_the_group_at_once(world: World):
    """SAGA-21: whatever attempts are left."""
    node = await world.order(b={"attempts": 5})
    await world.complete("a")
    job = await world.hand("b").take_one()

    await world.hand("b").settle([(job, Raised(UnrecoverableError("never")))])

    assert await world.state(node) == "COMPENSATING"
    assert (await world.events())[0]["reason"] == "never"


async def test_with_nothing_done_there_is_nothing_to_undo(world: World):
    """SAGA-15, SAGA-28, C-05: straight to FAILED; one event, no compensating before it."""
    node = await world.order(b={"delay": 60_000}, c={"priority": 3})

    await world.fail("a")

    info = await world.queue("a").get_group_state(node.group_id)
    assert info is not None
    assert (info.state, info.failed_count, info.cancelled_count) == ("FAILED", 1, 2)
    assert (info.failed_job_id, info.reason) == (node.jobs[0].id, "ValueError: no")
    assert await world.events() == [
        {
            "event": "group:failed",
            "groupId": node.group_id,
            "groupName": "order",
            "state": "FAILED",
            "compensationResults": "[]",
        }
    ]
    for name in "abc":
        assert await undo_jobs(world, name) == []


async def test_waiting_delayed_and_prioritized_siblings_leave_their_queues(world: World):
    """SAGA-22: cancelled, counted, gone."""
    node = await world.order("abcd", b={"delay": 60_000}, c={"priority": 5}, d={"lifo": True})

    await world.fail("a")

    assert await world.statuses(node) == {
        "a": "failed",
        "b": "cancelled",
        "c": "cancelled",
        "d": "cancelled",
    }
    assert (await world.record(node))["cancelledCount"] == "3"
    for job in node.jobs[1:]:
        assert await world.queue(job.queue_name).get_job(job.id) is None
        rows = await world.client.xrange(f"{world.prefix}:{job.queue_name}:events")
        assert rows[-1][1]["event"] == "removed"
    for place in ("b:delayed", "c:prioritized", "d:wait"):
        assert not await world.client.exists(f"{world.prefix}:{place}")


async def test_a_sibling_that_waits_for_its_retry_is_cancelled_too(world: World):
    """SAGA-22: it is in delayed, or in wait with an attempt behind it."""
    node = await world.order(
        a={"attempts": 2}, b={"attempts": 2, "backoff": 60_000}, c={"attempts": 1}
    )
    for name in "ab":
        await world.fail(name)
    assert await world.place_of("b", node.jobs[1].id) == "delayed"

    await world.fail("c")

    assert await world.statuses(node) == {"a": "cancelled", "b": "cancelled", "c": "failed"}
    assert await world.state(node) == "FAILED"


async def test_a_retry_and_a_failure_in_one_call(world: World):
    """SAGA-22: the sibling was put back to wait by the same call, its lock not yet given back."""
    jobs = [GroupJob("a", queue_name="a", attempts=2), GroupJob("b", queue_name="a")]
    node = await world.flow.add_group("order", jobs)
    first, second = await world.hand("a").take(2)

    await world.hand("a").settle(
        [(first, Raised(ValueError("again"))), (second, Raised(ValueError("no")))]
    )

    assert await world.statuses(node) == {"a": "cancelled", "b": "failed"}
    assert await world.state(node) == "FAILED"


async def test_a_running_sibling_goes_on_and_is_undone_when_it_completes(world: World):
    """SAGA-23, SAGA-44: the state stays, the late result is undone, then it ends."""
    node = await world.order()
    await world.complete("a")
    late = await world.hand("b").take_one()
    await world.fail("c")
    assert await world.state(node) == "COMPENSATING"
    await world.undo_all("a")
    assert await world.state(node) == "COMPENSATING"
    assert await world.place_of("b", late.id) == "active"

    assert await world.hand("b").complete(late, value={"sent": True}) == [0]

    assert await world.state(node) == "COMPENSATING"
    assert await world.statuses(node) == {"a": "completed", "b": "completed", "c": "failed"}
    (undo,) = await undo_jobs(world, "b")
    assert undo.compensation.original_return_value == {"sent": True}
    assert await world.event_names() == ["group:compensating"]
    await world.undo_all("b")
    assert await world.state(node) == "FAILED"
    assert await world.event_names() == ["group:compensating", "group:failed"]


async def test_a_running_sibling_that_fails_late_ends_the_group(world: World):
    """SAGA-23, SAGA-44: the group is not FAILED while something of it runs."""
    node = await world.order()
    late = await world.hand("b").take_one()
    await world.fail("a")
    assert await world.state(node) == "COMPENSATING"
    assert await world.statuses(node) == {"a": "failed", "b": "pending", "c": "cancelled"}

    await world.hand("b").fail(late)

    assert await world.state(node) == "FAILED"
    record = await world.record(node)
    assert (record["failedCount"], record["cancelledCount"]) == ("2", "1")
    assert await world.event_names() == ["group:compensating", "group:failed"]


async def test_a_late_retry_is_not_tried_again(world: World):
    """SAGA-23: attempts left are no reason to run once more, with and without a wait."""
    node = await world.order(b={"attempts": 5}, c={"attempts": 5, "backoff": 60_000}, mapped="")
    late_b, late_c = await world.hand("b").take_one(), await world.hand("c").take_one()
    await world.fail("a")

    await world.hand("b").fail(late_b)
    await world.hand("c").fail(late_c)

    assert await world.statuses(node) == dict.fromkeys("abc", "failed")
    assert await world.state(node) == "FAILED"
    assert await world.place_of("b", late_b.id) == "failed"
    assert await world.place_of("c", late_c.id) == "failed"


async def test_a_late_member_that_is_given_back_is_failed_by_the_next_worker(world: World):
    """SAGA-23: a worker that shuts down hands it back, and nobody runs it again."""
    node = await world.order()
    late = await world.hand("b").take_one()
    await world.fail("a")

    await world.hand("b").give_back(late)

    again = await world.hand("b").take_one()
    assert again.deferred_failure == "its group is being undone"
    await world.hand("b").fail(again)
    assert await world.state(node) == "FAILED"


async def test_the_literal_behaviour_ignores_late_results(world: World):
    """SAGA-23, C-07: compensate_late=False neither undoes them nor waits for them."""
    node = await world.order(compensate_late=False)
    late = await world.hand("b").take_one()
    await world.fail("a")
    assert await world.state(node) == "FAILED"

    await world.hand("b").complete(late)

    assert await world.state(node) == "FAILED"
    assert await world.statuses(node) == {"a": "failed", "b": "completed", "c": "cancelled"}
    assert await undo_jobs(world, "b") == []
    assert await world.event_names() == ["group:failed"]


async def test_only_completed_members_with_a_mapping_are_undone(world: World):
    """SAGA-24: the others are passed over without an error."""
    node = await world.order(mapped="a")
    await world.complete("ab")

    await world.fail("c")

    assert len(await undo_jobs(world, "a")) == 1
    assert not await world.client.exists(f"{world.prefix}:b:compensation:meta")
    await world.undo_all("a")
    assert await world.state(node) == "FAILED"


async def test_return_values_survive_the_removal_of_their_job(world: World):
    """SAGA-25: remove_on_complete=True, and bytes that a JSON decoder would have changed."""
    node = await world.order(a={"remove_on_complete": True})
    value = {"big": 9007199254740993, "none": [], "text": 'a/b ☃ " \\'}
    await world.complete("a", {"a": value})
    assert await world.queue("a").get_job(node.jobs[0].id) is None

    await world.fail("c")

    (undo,) = await undo_jobs(world, "a")
    assert undo.compensation.original_return_value == value
    assert '"none":[]' in undo.data_text.decode()
    assert "9007199254740993" in undo.data_text.decode()


async def test_names_that_need_escaping_are_escaped(world: World):
    """SAGA-25: quotes, backslashes and control characters in the name of a job."""
    name = 'say "hi"\\ \n☃'
    jobs = [GroupJob(name, queue_name="a"), GroupJob("b", queue_name="b")]
    data = {"x": "]}"}
    await world.flow.add_group("order", jobs, {name: Compensation("undo", data)})
    await world.hand("a").complete(await world.hand("a").take_one())

    await world.fail("b")

    (undo,) = await undo_jobs(world, "a")
    assert json.loads(undo.data_text)["originalJobName"] == name
    assert undo.compensation.compensation_data == data


async def test_members_of_one_name_share_a_mapping_and_one_may_have_its_own(world: World):
    """SAGA-24, C-30: the map applies to all of that name; a job's own goes before it."""
    own = Compensation("special")
    jobs = [
        GroupJob("charge", 1, queue_name="a"),
        GroupJob("charge", 2, queue_name="a"),
        GroupJob("charge", 3, queue_name="b", compensation=own),
        GroupJob("fail", queue_name="c"),
    ]
    node = await world.flow.add_group("order", jobs, {"charge": Compensation("refund")})
    await world.hand("a").complete(*await world.hand("a").take(2))
    await world.hand("b").complete(*await world.hand("b").take(1))
    await world.hand("c").fail(*await world.hand("c").take(1))

    in_a, in_b = await undo_jobs(world, "a"), await undo_jobs(world, "b")
    assert [job.name for job in in_a] == ["refund", "refund"]
    assert {job.compensation.original_job_id for job in in_a} == {
        node.jobs[0].id,
        node.jobs[1].id,
    }
    assert [job.name for job in in_b] == ["special"]


async def test_the_options_of_a_compensation_are_those_of_the_map(world: World):
    """SAGA-27: attempts and backoff, defaults and overrides, on the job itself."""
    custom = {"name": "undo-b", "opts": {"attempts": 5, "backoff": {"type": "fixed", "delay": 7}}}
    await world.order(compensation={"a": Compensation("undo-a"), "b": custom})
    await world.complete("ab")
    await world.fail("c")

    (undo_a,), (undo_b,) = await undo_jobs(world, "a"), await undo_jobs(world, "b")

    assert (undo_a.opts.attempts, undo_a.opts.backoff.delay) == (3, 1000)
    assert undo_a.opts.backoff.type == "exponential"
    assert (undo_b.opts.attempts, undo_b.opts.backoff.type) == (5, "fixed")


async def test_when_all_is_undone_the_group_has_failed(world: World):
    """SAGA-30, C-04: one compensation needs a second try."""
    compensation = {name: Compensation(f"undo-{name}", attempts=2, backoff=None) for name in "ab"}
    node = await world.order(compensation=compensation)
    await world.complete("ab")
    await world.fail("c")

    hand = world.hand("a:compensation")
    await hand.fail(await hand.take_one("undo-a"))
    assert await world.state(node) == "COMPENSATING"
    await world.undo_all("b")
    assert await world.state(node) == "COMPENSATING"
    await world.undo_all("a")

    assert await world.state(node) == "FAILED"
    failed = (await world.events())[-1]
    assert (failed["event"], failed["state"]) == ("group:failed", "FAILED")
    results = json.loads(failed["compensationResults"])
    assert {(row["originalJobName"], row["status"]) for row in results} == {
        ("a", "completed"),
        ("b", "completed"),
    }


async def test_a_compensation_that_fails_for_good_is_told(world: World):
    """SAGA-31: only when the others are done too."""
    node = await world.order()
    await world.complete("ab")
    await world.fail("c")

    await world.undo_all("a", failing="a")
    assert await world.state(node) == "COMPENSATING"
    await world.undo_all("b")

    assert await world.state(node) == "FAILED_COMPENSATION"
    failed = (await world.events())[-1]
    assert failed["state"] == "FAILED_COMPENSATION"
    results = json.loads(failed["compensationResults"])
    assert sorted((row["originalJobName"], row["status"]) for row in results) == [
        ("a", "failed"),
        ("b", "completed"),
    ]
    assert await world.event_names() == ["group:compensating", "group:failed"]


async def test_the_compensation_queue_is_an_ordinary_queue(world: World):
    """SAGA-32: jobs wait without a worker, and QueueEvents and Worker do their work on it."""
    heard: list[str] = []
    node = await world.order("ab")
    name = "a:compensation"
    await world.complete("a")
    async with QueueEvents(name, connection=world.url, prefix=world.prefix) as events:
        events.on("completed", lambda event: heard.append(event.job_id))
        await world.fail("b")
        assert (await world.queue(name).get_job_counts("waiting"))["waiting"] == 1

        worker = Worker(name, _return_data, connection=world.url, prefix=world.prefix)
        async with worker:
            await wait_until(lambda: heard)

    assert await world.state(node) == "FAILED"


async def _return_data(job: Any) -> Any:
    return job.data["compensationData"]


async def test_two_members_failing_at_once_turn_the_group_once(world: World):
    """SAGA-29: 1,100 groups whose b and c are held until both run, and fail at once after a has
    completed."""
    count = 1100
    nodes = [await world.order() for _ in range(count)]
    meeting = Meeting(nodes, "bc")

    async def raise_together(job: Any) -> None:
        await meeting.wait(job)
        raise UnrecoverableError("no")

    by_name = {"a": _return_at_once, "b": raise_together, "c": raise_together}
    workers = {
        name: Worker(name, handler, connection=world.url, prefix=world.prefix, concurrency=50)
        for name, handler in by_name.items()
    }
    first = workers.pop("a")
    await first.start()

    async def a_is_done() -> bool:
        return await world.client.zcard(f"{world.prefix}:a:completed") == count

    await wait_until(a_is_done, 60, every=0.02)
    for worker in workers.values():
        await worker.start()
    undo = Worker(
        "a:compensation", _return_at_once, connection=world.url, prefix=world.prefix, concurrency=50
    )
    await undo.start()

    async def all_ended() -> bool:
        return await world.client.zcard(f"{world.prefix}:a:toril:groups-ended") == count

    await wait_until(all_ended, 60, every=0.05)
    for worker in (first, undo, *workers.values()):
        await worker.close()

    told = Counter(row["event"] for row in await world.events())
    assert told == {"group:compensating": count, "group:failed": count}
    undone = await world.queue("a:compensation").get_job_ids("completed")
    assert len(undone["completed"]) == count == len(nodes)
    infos = await world.queue("a").get_groups()
    assert {info.state for info in infos} == {"FAILED"}
    assert {(info.completed_count, info.failed_count) for info in infos} == {(1, 2)}


async def test_late_completers_are_undone_once_each(world: World):
    """SAGA-44: in 1,100 groups a is running while b fails. Every other a ends only when
    its group is being undone, the rest race with the failure."""
    count = 1100
    nodes = await asyncio.gather(*(world.order("ab") for _ in range(count)))
    group_of = {job.id: node.group_id for node in nodes for job in node.jobs}
    is_turned = {node.group_id: asyncio.Event() for node in nodes}
    is_failing = {node.group_id: asyncio.Event() for node in nodes}
    late = {node.group_id for node in nodes[::2]}
    running: set[str] = set()

    async def complete_late(job: Any) -> str:
        group_id = group_of[job.id]
        running.add(group_id)
        await (is_turned if group_id in late else is_failing)[group_id].wait()
        return job.id

    async def fail(job: Any) -> None:
        is_failing[group_of[job.id]].set()
        raise UnrecoverableError("no")

    def work(name: str, handler: Any, concurrency: int = 50) -> Worker:
        return Worker(
            name, handler, connection=world.url, prefix=world.prefix, concurrency=concurrency
        )

    async def all_ended() -> bool:
        return await world.client.zcard(f"{world.prefix}:a:toril:groups-ended") == count

    async with QueueEvents("a", connection=world.url, prefix=world.prefix) as events:
        events.on("group:compensating", lambda event: is_turned[event.data["group_id"]].set())
        async with work("a", complete_late, count):
            await wait_until(lambda: len(running) == count, 60, every=0.02)
            async with work("b", fail), work("a:compensation", _return_at_once):
                await wait_until(all_ended, 60, every=0.05)

    told = Counter(row["event"] for row in await world.events())
    assert told == {"group:compensating": count, "group:failed": count}
    undone = await world.queue("a:compensation").get_jobs(["completed"])
    originals = Counter(job.data["originalReturnValue"] for job in undone)
    assert originals == {node.jobs[0].id: 1 for node in nodes}
    infos = await world.queue("a").get_groups()
    assert {info.state for info in infos} == {"FAILED"}
    assert all(info.completed_count == 1 and info.failed_count == 1 for info in infos)


async def _return_at_once(job: Any) -> str:
    return job.id


async def test_failing_and_completing_in_one_call(world: World):
    """SAGA-29, SAGA-44: one settle call ends all members of a group, in any order."""
    jobs = [GroupJob(f"j{n}", queue_name="a") for n in range(4)]
    compensation = {f"j{n}": Compensation("undo") for n in range(4)}
    node = await world.flow.add_group("order", jobs, compensation)
    taken = await world.hand("a").take(4)
    endings = [Returned(1), Raised(ValueError("x")), Returned(2), Raised(ValueError("y"))]

    await world.hand("a").settle(list(zip(taken, endings, strict=True)))

    assert await world.state(node) == "COMPENSATING"
    assert len(await undo_jobs(world, "a")) == 2
    hand = world.hand("a:compensation")
    await hand.complete(*await hand.take(2))
    assert await world.state(node) == "FAILED"
    assert await world.event_names() == ["group:compensating", "group:failed"]


async def test_another_name_for_the_compensation_queue(world: World):
    """SAGA-26, C-01: a template without the colon that other clients refuse."""
    node = await world.order("ab", compensation_queue="{queue}-compensation")
    await world.complete("a")
    await world.fail("b")

    hand = world.hand("a-compensation")
    await hand.complete(await hand.take_one("undo-a"))

    assert await world.state(node) == "FAILED"
