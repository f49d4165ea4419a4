"""Groups at their edges: forgotten records, letters of members and of what undoes them, retries by
hand."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import pytest

from tests.features.group_support import World, job, start, state
from tests.helpers import wait_until
from toril import (
    Compensation,
    GroupJob,
    GroupNotFoundError,
    GroupSignal,
    InvalidGroupStateError,
    JobNotFoundError,
    NewJob,
    TorilError,
    UnrecoverableError,
    WaitingChildrenError,
    Worker,
)
from toril.errors import InvalidOptionError
from toril.protocol import discovering, events, groups, leasing, starting
from toril.protocol.new_group import new_group
from toril.protocol.settling import Raised, Returned
from toril.worker import group_keeper
from toril.worker.crew import Crew


async def _raise_at_once(job: Any) -> None:
    raise UnrecoverableError("no")


async def _return_at_once(job: Any) -> None:
    pass


async def bury(world: World, name: str, count: int = 1) -> list[Any]:
    """Let a worker fail what waits in a queue; returns the letters in "dlq"."""
    letters = world.queue("dlq")
    options: Any = {"connection": world.url, "prefix": world.prefix, "dead_letter_queue": "dlq"}

    async def is_buried() -> bool:
        return await letters.get_dead_letter_count() == count

    async with Worker(name, _raise_at_once, **options):
        await wait_until(is_buried)
    return await letters.get_dead_letter_jobs()


async def broken(world: World, **options: Any) -> Any:
    """A group of a and b in which a could not be undone: its compensation is a letter."""
    node = await world.order("ab", **options)
    await world.complete("a")
    await world.fail("b")
    await bury(world, "a:compensation")
    assert await world.state(node) == "FAILED_COMPENSATION"
    return node


async def bring_back(world: World, queue: str, job_id: str, state: str = "failed") -> None:
    """What BullMQ's retry does to the keys."""
    keys = world.queue(queue).keys
    await world.client.zrem(f"{keys.base}:{state}", job_id)
    gone = "failedReason" if state == "failed" else "returnvalue"
    await world.client.hdel(keys.job(job_id), "finishedOn", "processedOn", gone)
    await world.client.lpush(keys.wait, job_id)


# ------------------------------------------------------------------------ without a record


async def test_a_letter_of_a_forgotten_group_is_not_replayed(world: World):
    """Undone and forgotten: its member would charge the customer again."""
    node = await world.order("ab")
    await world.complete("b")
    (letter,) = await bury(world, "a")
    await world.undo_all("b")
    assert await world.queue("a").clean_groups() == [node.group_id]

    with pytest.raises(InvalidGroupStateError, match="force=True"):
        await world.queue("dlq").replay_dead_letter(letter.id)
    assert await world.queue("dlq").replay_all_dead_letters() == 0

    new_id = await world.queue("dlq").replay_dead_letter(letter.id, force=True)
    assert (await world.hand("a").take_one()).id == new_id


async def test_a_member_of_a_forgotten_group_does_not_run(world: World):
    """Neither by retry() nor by a dashboard; with force it does."""
    node = await world.order("a")
    await world.fail("a")
    queue, job_id = world.queue("a"), node.jobs[0].id
    await queue.clean_groups()

    with pytest.raises(InvalidGroupStateError):
        await queue.retry(job_id)
    assert await queue.retry_all() == 0
    await bring_back(world, "a", job_id)
    assert await world.hand("a").take() == []
    assert (await queue.get_job(job_id)).failed_reason == "its group has ended"

    await queue.retry(job_id, force=True)
    assert (await world.hand("a").take_one()).id == job_id


# ------------------------------------------------------------------------ the key of what undoes


async def test_the_key_of_a_compensation_stays_however_often_it_is_made(world: World):
    """The bank's reply was lost, all attempts failed, an operator retries: one refund."""
    node = await broken(world)
    (letter,) = await world.queue("dlq").get_dead_letter_jobs()
    await world.queue("dlq").replay_dead_letter(letter.id)
    hand = world.hand("a:compensation")
    replayed = await hand.take_one("undo-a")
    await hand.fail(replayed)
    await world.queue("a").retry_compensation(node.group_id)
    again = await hand.take_one("undo-a")
    await hand.fail(again)
    await world.queue("a:compensation").retry(again.id)
    by_hand = await hand.take_one("undo-a")

    keys = {replayed.idempotency_key, again.idempotency_key, by_hand.idempotency_key}
    assert keys == {f"{world.prefix}:a:groups:{node.group_id}:c0"}


# ------------------------------------------------------------------------ letters of what undoes


@pytest.mark.parametrize("in_bulk", [False, True])
async def test_a_replayed_compensation_settles_its_group(world: World, in_bulk: bool):
    node = await broken(world)
    letters = world.queue("dlq")
    if in_bulk:
        assert await letters.replay_all_dead_letters() == 1
    else:
        (letter,) = await letters.get_dead_letter_jobs()
        new_id = await letters.replay_dead_letter(letter.id)
        assert await world.place_of("a:compensation", new_id) == "waiting"
    assert await world.state(node) == "COMPENSATING"
    with pytest.raises(InvalidGroupStateError):
        await world.queue("a").retry_compensation(node.group_id)
    members = await world.queue("a").get_group_jobs(node.group_id)
    assert [member.compensation_status for member in members] == ["pending", None]

    await world.undo_all("a")

    assert await world.state(node) == "FAILED"
    assert await world.event_names() == [
        "group:compensating",
        "group:failed",
        "group:retrying",
        "group:failed",
    ]
    results = json.loads((await world.events())[-1]["compensationResults"])
    assert [one["status"] for one in results] == ["completed"]


async def test_a_replayed_compensation_that_fails_can_be_retried(world: World):
    node = await broken(world)
    (letter,) = await world.queue("dlq").get_dead_letter_jobs()
    await world.queue("dlq").replay_dead_letter(letter.id)
    await world.undo_all("a", failing="a")
    assert await world.state(node) == "FAILED_COMPENSATION"

    assert await world.queue("a").retry_compensation(node.group_id) == 1
    await world.undo_all("a")

    assert await world.state(node) == "FAILED"


async def test_retrying_a_compensation_takes_its_letter(world: World):
    """One of them at a time: the letter could undo it a second time."""
    node = await broken(world)
    letters = world.queue("dlq")

    assert await world.queue("a").retry_compensation(node.group_id) == 1

    assert await letters.get_dead_letter_count() == 0
    await world.undo_all("a")
    assert await world.state(node) == "FAILED"


async def test_a_letter_of_a_compensation_that_is_done_is_not_replayed(world: World):
    """Resolved by phone, or forgotten since: unless forced."""
    node = await broken(world)
    letters = world.queue("dlq")
    (letter,) = await letters.get_dead_letter_jobs()
    await world.queue("a").resolve_group(node.group_id, "refunded by phone")

    for _ in range(2):
        with pytest.raises(InvalidGroupStateError):
            await letters.replay_dead_letter(letter.id)
        assert await letters.replay_all_dead_letters() == 0
        await world.queue("a").clean_groups()
    await letters.replay_dead_letter(letter.id, force=True)

    await world.undo_all("a")


async def test_a_compensation_that_a_dashboard_retries_belongs_to_its_group(world: World):
    node = await world.order("ab")
    await world.complete("a")
    await world.fail("b")
    await world.undo_all("a", failing="a")
    job_id = f"{node.group_id}-c0"
    await bring_back(world, "a:compensation", job_id)
    hand = world.hand("a:compensation")

    # It waits: nobody has told the group, and nothing is made beside it.
    assert await world.queue("a").retry_compensation(node.group_id) == 1
    job = await hand.take_one("undo-a")
    assert await hand.take() == []
    assert await world.state(node) == "COMPENSATING"
    await hand.complete(job)

    assert await world.state(node) == "FAILED"
    with pytest.raises(InvalidGroupStateError):
        await world.queue("a:compensation").retry(job_id)
    await bring_back(world, "a:compensation", job_id, "completed")
    assert await hand.take() == []


async def test_a_compensation_that_a_dashboard_retries_is_known_when_it_is_taken(world: World):
    node = await world.order("ab")
    await world.complete("a")
    await world.fail("b")
    await world.undo_all("a", failing="a")
    await bring_back(world, "a:compensation", f"{node.group_id}-c0")

    job = await world.hand("a:compensation").take_one("undo-a")

    assert await world.state(node) == "COMPENSATING"
    await world.hand("a:compensation").fail(job)
    assert await world.state(node) == "FAILED_COMPENSATION"
    assert await world.queue("a").retry_compensation(node.group_id) == 1


# ------------------------------------------------------------------------ members that completed


async def test_a_completed_member_is_not_retried(world: World):
    """It would be done twice and undone once."""
    node = await world.order("ab")
    await world.complete("a", {"a": 1})
    queue, job_id = world.queue("a"), node.jobs[0].id

    with pytest.raises(InvalidGroupStateError, match="force=True"):
        await queue.retry(job_id)
    assert await queue.retry_all(state="completed") == 0
    assert await queue.get_state(job_id) == "completed"
    await bring_back(world, "a", job_id, "completed")
    assert await world.hand("a").take() == []
    assert await world.state(node) == "ACTIVE"


async def test_a_completed_member_that_is_forced_is_undone_twice(world: World):
    node = await world.order("ab")
    await world.complete("a", {"a": "first"})
    await world.queue("a").retry(node.jobs[0].id, force=True)
    info = await world.queue("a").get_group_state(node.group_id)
    assert info is not None
    assert info.completed_count == 0
    await world.complete("a", {"a": "second"})

    await world.fail("b")

    undone = await world.hand("a:compensation").take(3)
    values = [job.compensation.original_return_value for job in undone]
    assert sorted(values) == ["first", "second"]
    assert len({job.idempotency_key for job in undone}) == 2
    await world.hand("a:compensation").complete(*undone)
    assert await world.state(node) == "FAILED"


async def test_a_forced_member_that_completes_completes_its_group(world: World):
    node = await world.order("ab")
    await world.complete("a")
    await world.queue("a").retry(node.jobs[0].id, force=True)
    await world.complete("b")
    assert await world.state(node) == "ACTIVE"

    await world.complete("a")

    assert await world.state(node) == "COMPLETED"


# ------------------------------------------------------------------------ members that block


async def blocked(world: World) -> str:
    """A group past its pivot in which b has failed, and c comes after; returns the id of b."""
    node = await start(world, job("a", pivot=True), job("b", "a"), job("c", "b"))
    await world.complete("a")
    await world.fail("b")
    assert await state(world) == "BLOCKED"
    return str(node.jobs[1].id)


async def test_a_blocking_member_that_a_dashboard_retries_belongs_to_its_group(world: World):
    job_id = await blocked(world)
    await bring_back(world, "b", job_id)

    again = await world.hand("b").take_one("b")
    assert await state(world) == "ACTIVE"
    with pytest.raises(InvalidGroupStateError):
        await world.queue("a").retry_group("g")
    await world.hand("b").complete(again)

    await world.complete("c")
    assert await state(world) == "COMPLETED"


async def say_that_b_is_done(world: World, *, is_resolved: bool) -> None:
    if is_resolved:
        await world.queue("a").resolve_group("g", "done by hand")
    else:
        await world.queue("a").complete_member("g", "b")
    assert await state(world) == "ACTIVE"


@pytest.mark.parametrize("is_resolved", [False, True])
async def test_a_failed_member_that_was_done_by_hand_is_not_retried(
    world: World, is_resolved: bool
):
    """Its job is still among the failed ones, and somebody retries all of these."""
    job_id = await blocked(world)
    await say_that_b_is_done(world, is_resolved=is_resolved)

    with pytest.raises(InvalidGroupStateError, match="force=True"):
        await world.queue("b").retry(job_id, reset_attempts=True)
    assert await world.queue("b").retry_all() == 0
    assert await world.queue("b").get_state(job_id) == "failed"
    await world.complete("c")
    assert await state(world) == "COMPLETED"


@pytest.mark.parametrize("is_resolved", [False, True])
async def test_the_letter_of_a_member_that_was_done_by_hand_is_not_replayed(
    world: World, is_resolved: bool
):
    """It would run as a job without a group, and do once more what a person has done."""
    await start(world, job("a", pivot=True), job("b", "a"), job("c", "b"))
    await world.complete("a")
    (letter,) = await bury(world, "b")
    await say_that_b_is_done(world, is_resolved=is_resolved)

    with pytest.raises(InvalidGroupStateError, match="does not wait for it"):
        await world.queue("dlq").replay_dead_letter(letter.id)
    assert await world.queue("dlq").replay_all_dead_letters() == 0
    assert await world.queue("dlq").get_dead_letter_count() == 1
    await world.complete("c")
    assert await state(world) == "COMPLETED"
    assert await world.hand("b").take() == []


async def test_a_blocking_member_that_bullmq_starts_as_new_belongs_to_its_group(world: World):
    """With its attempts forgotten; and if it fails, the group is blocked again."""
    job_id = await blocked(world)
    await bring_back(world, "b", job_id)
    await world.client.hdel(world.queue("b").keys.job(job_id), "ats", "atm")

    again = await world.hand("b").take_one("b")
    assert await state(world) == "ACTIVE"
    await world.hand("b").fail(again)

    assert await state(world) == "BLOCKED"
    assert await world.queue("a").retry_group("g") == 1
    await world.complete("bc")
    assert await state(world) == "COMPLETED"


@pytest.mark.parametrize("is_taken", [False, True])
async def test_a_blocking_member_that_is_under_way_is_not_made_anew(world: World, is_taken: bool):
    """Two handlers would run at once."""
    job_id = await blocked(world)
    keys = world.queue("b").keys
    await bring_back(world, "b", job_id)
    if is_taken:  # by a worker that knows of no groups
        await world.client.lmove(keys.wait, keys.active, "RIGHT", "LEFT")
        await world.client.set(f"{keys.job(job_id)}:lock", "node", px=60_000)

    assert await world.queue("a").retry_group("g") == 1

    assert await state(world) == "ACTIVE"
    if is_taken:
        assert await world.hand("b").take() == []
        assert await world.client.get(f"{keys.job(job_id)}:lock") == "node"
        await world.client.delete(f"{keys.job(job_id)}:lock")
        await world.client.lmove(keys.active, keys.wait, "RIGHT", "RIGHT")
    await world.complete("bc")
    assert await state(world) == "COMPLETED"


async def test_a_blocking_member_that_completed_elsewhere_does_not_run_again(world: World):
    """Its group hears of it when a person looks."""
    job_id = await blocked(world)
    keys = world.queue("b").keys
    await bring_back(world, "b", job_id)
    await world.client.rpop(keys.wait)
    await world.client.hset(keys.job(job_id), mapping={"returnvalue": '"sent"', "finishedOn": 1})
    await world.client.zadd(f"{keys.base}:completed", {job_id: 1})

    assert await world.queue("a").retry_group("g") == 0

    assert await world.hand("b").take() == []
    assert await world.queue("a").get_group_results("g") == {"a": None, "b": "sent"}
    await world.complete("c")
    assert await state(world) == "COMPLETED"


async def test_a_blocking_member_that_is_doomed_is_made_anew(world: World):
    """Brought back it would fail without being run."""
    job_id = await blocked(world)
    await bring_back(world, "b", job_id)
    await world.client.hset(world.queue("b").keys.job(job_id), "defa", "stalled too often")

    assert await world.queue("a").retry_group("g") == 1

    await world.complete("bc")
    assert await state(world) == "COMPLETED"


async def test_a_job_whose_id_is_in_the_way_of_a_blocking_member_stays(world: World):
    """It is somebody else's: retrying the group removed it, whatever it was doing."""
    await start(world, job("a", pivot=True), job("b", "a", job_id="taken"))
    await world.queue("b").add("other", job_id="taken")
    await world.complete("a")
    assert await state(world) == "BLOCKED"

    await world.queue("a").retry_group("g")

    assert await state(world) == "BLOCKED"
    other = await world.hand("b").take_one("other")
    await world.hand("b").complete(other)
    await world.queue("b").remove("taken")
    await world.queue("a").retry_group("g")
    await world.complete("b")
    assert await state(world) == "COMPLETED"


# ------------------------------------------------------------------------ cancelling


async def test_a_cancelled_member_is_never_a_letter(world: World):
    """It waited in a list too long to search, and its group is forgotten when its turn comes."""
    await world.queue("b").add_bulk([NewJob("plain")] * 2001)
    node = await world.order("ab", b={"lifo": True}, group_retention=True)
    await world.fail("a")
    assert await world.state(node) is None
    job_id = node.jobs[1].id
    assert await world.place_of("b", job_id) == "waiting"
    options: Any = {"connection": world.url, "prefix": world.prefix, "dead_letter_queue": "dlq"}

    async def is_gone() -> bool:
        return await world.queue("b").get_job(job_id) is None

    async with Worker("b", _return_at_once, **options):
        await wait_until(is_gone)

    assert await world.queue("dlq").get_dead_letter_count() == 0
    assert await world.queue("b").get_job_counts("failed") == {"failed": 0}


async def test_what_leaves_active_in_the_call_that_turns_the_group_is_cancelled(world: World):
    """A sibling's retry without a wait, and the final failure, in one call of many outcomes."""
    own = {"queue_name": "a"}
    node = await world.order("ab", a=dict(own, attempts=3), b=dict(own))
    await world.queue("a").add_bulk([NewJob("plain")] * 6)
    hand = world.hand("a")
    taken = await hand.take(8)
    by_name = {job.name: job for job in taken}
    plain = [(job, Returned(1)) for job in taken if job.name == "plain"]
    endings = [(by_name[name], Raised(ValueError(name))) for name in "ab"]

    assert await hand.settle([*plain, *endings]) == [0] * 8

    assert await world.statuses(node) == {"a": "cancelled", "b": "failed"}
    assert await hand.take() == []
    assert await world.state(node) == "FAILED"


@pytest.mark.parametrize("lane", [None, "one"])
async def test_a_member_that_waits_for_its_children_is_cancelled_with_them(
    world: World, lane: str | None
):
    """Nobody runs it, so nobody would ever end it, and its group would hang."""
    node = await world.order("ab", a={"lane": lane} if lane else {})
    job = await world.hand("a").take_one("a")
    kids = world.queue("kids")
    await kids.add("runs", parent=job)
    running = await world.hand("kids").take_one("runs")
    await kids.add("waits", parent=job)
    assert await world.hand("a").settle([(job, Raised(WaitingChildrenError()))]) == [0]

    await world.fail("b")

    assert await world.statuses(node) == {"a": "cancelled", "b": "failed"}
    assert await world.state(node) == "FAILED"
    assert await world.queue("a").get_job(job.id) is None
    assert await world.hand("kids").take() == []
    assert await world.hand("kids").complete(running) == [0]
    await world.queue("a").add("next", lane=lane)
    assert (await world.hand("a").take_one()).name == "next"


# ------------------------------------------------------------------------ creating


async def test_a_group_whose_reply_was_lost_is_not_created_again_once_forgotten(world: World):
    """It ended and was forgotten before the call came again."""
    group = new_group(
        "order",
        [GroupJob("a", {}, queue_name="a")],
        None,
        queue_name=None,
        compensation_queue="{queue}:compensation",
        order="parallel",
        late=True,
        keep=True,
        timeout=None,
    )
    command = starting.create(world.prefix, group, "g", ["j1"])
    await world.connection.run(command)
    await world.complete("a")
    await world.queue("a").remove("j1")
    assert await world.queue("a").get_group_state("g") is None

    node = await world.connection.run(starting.create(world.prefix, group, "g", ["j1"]))

    assert [job.id for job in node.jobs] == ["j1"]
    assert await world.hand("a").take() == []


@pytest.mark.parametrize(
    "key",
    [
        "a:toril:groups-open",
        "b:lanes:ready",
        "b:lanes:waiting",
        "b:lanes:held",
        "b:lanes:index",
        "b:lanes:delayed",
    ],
)
async def test_a_key_of_another_type_leaves_nothing_of_a_group(world: World, key: str):
    """Seen before the first write: no record, and no member that runs alone."""
    await world.client.set(f"{world.prefix}:{key}", "odd")

    with pytest.raises(TorilError, match="WRONGTYPE"):
        await world.order("ab", b={"lane": "one"})

    assert await world.client.keys(f"{world.prefix}:*") == [f"{world.prefix}:{key}"]
    await world.client.delete(f"{world.prefix}:{key}")


async def test_waiting_for_a_group_tells_how_it_ended_although_it_is_forgotten(world: World):
    """Retention was quicker than the reader, and the events are gone."""
    done = await world.order("a", group_retention=True)
    await world.complete("a")
    failed = await world.order("a", group_retention=True)
    await world.fail("a", reason="declined")
    await world.client.delete(world.queue("a").keys.events)

    info = await world.queue("a").wait_for_group(done.group_id)
    other = await world.queue("a").wait_for_group(failed.group_id)

    assert (info.state, info.completed_count) == ("COMPLETED", 1)
    assert (other.state, other.reason) == ("FAILED", "ValueError: declined")
    assert await world.state(done) is None
    with pytest.raises(GroupNotFoundError):
        await world.queue("a").wait_for_group("nobody")


# ------------------------------------------------------------------------ members that are gone


async def completed_elsewhere(world: World, name: str, job_id: str) -> None:
    """What a worker of BullMQ leaves of a member with removeOnComplete."""
    keys = world.queue(name).keys
    await world.client.lrem(keys.wait, 1, job_id)
    await world.client.delete(keys.job(job_id))
    event = {"event": "completed", "jobId": job_id, "returnvalue": '"done"', "prev": "active"}
    await world.client.xadd(keys.events, event)


async def flood(world: World, name: str, count: int, **options: Any) -> None:
    async with world.client.pipeline(transaction=False) as pipe:
        for _ in range(count):
            pipe.xadd(world.queue(name).keys.events, {"event": "progress", "jobId": "x"}, **options)
        await pipe.execute()


async def test_the_end_of_a_member_is_found_however_far_back_it_was_told(world: World):
    """It completed; undoing it because of many later events would be wrong."""
    node = await world.order("ab")
    await completed_elsewhere(world, "a", node.jobs[0].id)
    await flood(world, "a", 4_500)
    await world.complete("b")

    assert await world.queue("a").reconcile_groups() == 1

    assert await world.state(node) == "COMPLETED"


async def test_when_the_log_does_not_reach_back_the_group_waits_for_a_person(world: World):
    node = await world.order("ab")
    await completed_elsewhere(world, "a", node.jobs[0].id)
    await flood(world, "a", 1_200, maxlen=1_000, approximate=False)
    await world.complete("b")
    queue, group_id = world.queue("a"), node.group_id

    assert await queue.reconcile_groups() == 0

    info = await queue.get_group_state(group_id)
    assert info is not None
    assert info.state == "ACTIVE"
    assert info.asks is not None
    assert node.jobs[0].id in info.asks
    with pytest.raises(InvalidGroupStateError):
        await queue.complete_member(group_id, "b")
    with pytest.raises(JobNotFoundError):
        await queue.complete_member(group_id, "nobody")
    with pytest.raises(GroupNotFoundError):
        await queue.complete_member("nobody", "a")
    await queue.complete_member(group_id, "a", {"seen": "in the bank"})
    assert await world.state(node) == "COMPLETED"


async def test_a_person_may_say_that_it_failed_or_cancel_the_group(world: World):
    nodes = [await world.order("ab") for _ in range(2)]
    for node in nodes:
        await completed_elsewhere(world, "a", node.jobs[0].id)
    await flood(world, "a", 1_200, maxlen=1_000, approximate=False)
    await world.complete("bb")
    queue = world.queue("a")
    await queue.reconcile_groups()

    await queue.fail_member(nodes[0].group_id, nodes[0].jobs[0].id, "never charged")
    await queue.cancel_group(nodes[1].group_id)
    await queue.reconcile_groups()

    await world.undo_all("bb")
    await world.undo_all("a")  # of the second: it may have been done
    assert [await world.state(node) for node in nodes] == ["FAILED", "FAILED"]


# ------------------------------------------------------------------------ who needs a person


async def test_groups_that_were_not_undone_are_found_among_many(world: World):
    """By an index: what is read does not grow with the groups that are well."""
    node = await broken(world)
    for _ in range(3):
        await world.order("a")
    queue = world.queue("a")
    await world.client.config_resetstat()

    found = await queue.get_groups("FAILED_COMPENSATION")

    assert [group.id for group in found] == [node.group_id]
    stats = await world.client.info("commandstats")
    assert stats["cmdstat_hmget"]["calls"] == 1
    assert await queue.get_failed_compensation_count() == 1
    await queue.resolve_group(node.group_id, "by phone")
    assert await queue.get_groups("FAILED_COMPENSATION") == []
    assert await queue.get_failed_compensation_count() == 0


async def test_groups_that_an_older_worker_could_not_undo_are_found(world: World):
    """It does not write the index."""
    node = await broken(world)
    await world.client.delete(world.queue("a").keys.own("groups-asking"))

    found = await world.queue("a").get_groups("FAILED_COMPENSATION")

    assert [group.id for group in found] == [node.group_id]
    assert await world.queue("a").retry_compensation(node.group_id) == 1


async def test_an_owner_without_jobs_is_a_queue_like_others(world: World):
    await world.order("a", queue_name="orders")

    names = await world.connection.follow(discovering.queue_names(world.prefix))

    assert "orders" in names


# ------------------------------------------------------------------------ time limits


@pytest.mark.parametrize("name", ["b", "a:compensation"])
async def test_a_worker_of_any_member_keeps_the_time_limit(world: World, name: str):
    """The queue that owns the group has no worker."""
    assert group_keeper.LOOK_AT_GROUPS_S * group_keeper.JITTER < 2, "within two seconds"
    own = {"delay": 60_000}
    node = await world.order("ab", timeout=200, queue_name="orders", a=dict(own), b=dict(own))

    async def is_over() -> bool:
        return await world.state(node, "orders") == "FAILED"

    async with Worker(name, _return_at_once, connection=world.url, prefix=world.prefix):
        await wait_until(is_over)

    assert (await world.record(node, "orders"))["x.reason"] == "timeout"


async def test_the_look_for_due_groups_is_one_command(world: World):
    """It is made by every worker, again and again, whether there are groups or not."""
    keys = world.queue("b").keys
    look = await world.connection.run(groups.due(keys))
    assert (look.owners, look.wait_ms) == ([], None)
    await world.order("ab", timeout=60_000)

    look = await world.connection.run(groups.due(keys))

    assert look.owners == []
    assert look.wait_ms is not None
    assert 0 < look.wait_ms <= 60_000
    assert await world.client.pttl(keys.own("group-deadlines")) > 0


async def test_a_worker_that_takes_a_member_looks_at_once(world: World, monkeypatch: Any):
    """A limit shorter than the time between two looks, and no bell."""
    for name in ("LOOK_FOR_DUE_S", "LOOK_AT_GROUPS_S"):
        monkeypatch.setattr(group_keeper, name, 600.0)
    monkeypatch.setattr(Crew, "look_for_groups", lambda self: None)
    monkeypatch.setattr(group_keeper, "MET_S", 0.05)
    own = {"delay": 60_000}

    async def is_over() -> bool:
        return await world.state(node, "orders") == "FAILED"

    async with Worker("b", _return_at_once, connection=world.url, prefix=world.prefix):
        node = await world.order("ab", timeout=300, queue_name="orders", a=dict(own), mapped="")
        await wait_until(is_over)


@pytest.mark.parametrize("name", ["orders", "b", "a:compensation"])
@pytest.mark.parametrize("kind", ["group", "signal"])
async def test_an_idle_worker_is_told_of_a_limit_that_is_due_soon(
    world: World, monkeypatch: Any, name: str, kind: str
):
    """It does not look by itself, and there is no job that it could take."""
    for one in ("LOOK_FOR_DUE_S", "LOOK_AT_GROUPS_S"):
        monkeypatch.setattr(group_keeper, one, 600.0)
    monkeypatch.setattr(group_keeper, "MET_S", 0.05)
    later = GroupJob("a", queue_name="a", delay=60_000), GroupJob("b", queue_name="b", delay=60_000)
    signals = [GroupSignal("s", timeout=300)] if kind == "signal" else []
    limit: Any = {} if signals else {"timeout": 300}

    async def is_over() -> bool:
        return await world.state(node, "orders") == "FAILED"

    async with Worker(name, _return_at_once, connection=world.url, prefix=world.prefix):
        node = await world.flow.add_group(
            "order", [*later, *signals], {"a": Compensation("undo")}, queue_name="orders", **limit
        )
        await wait_until(is_over)


async def test_another_worker_keeps_the_limit_if_the_one_that_was_told_dies(
    world: World, monkeypatch: Any
):
    """Nobody looks by itself; the first one that waits for the bell hears it, and does nothing."""
    for one in ("LOOK_FOR_DUE_S", "LOOK_AT_GROUPS_S"):
        monkeypatch.setattr(group_keeper, one, 600.0)
    monkeypatch.setattr(group_keeper, "MET_S", 0.05)
    bell = leasing.group_bell(world.queue("b").keys)

    async def is_waited_for(count: int) -> bool:
        return (await world.client.info("clients"))["blocked_clients"] >= count

    async def is_over() -> bool:
        return await world.state(node, "orders") == "FAILED"

    dying = asyncio.create_task(world.client.blpop(bell))
    await wait_until(lambda: is_waited_for(1))
    async with Worker("b", _return_at_once, connection=world.url, prefix=world.prefix):
        await wait_until(lambda: is_waited_for(3))
        own = {"delay": 60_000}
        node = await world.order("ab", timeout=300, queue_name="orders", a=dict(own), b=dict(own))
        await dying

        await wait_until(is_over)


async def test_a_bell_that_nobody_hears_does_not_stay(world: World):
    """It rings once, however many groups are due; and not for limits that workers find anyway."""
    own: Any = {"a": {"delay": 60_000}, "b": {"delay": 60_000}, "queue_name": "orders"}
    bells = [leasing.group_bell(world.queue(name).keys) for name in ("orders", "a", "b")]
    await world.order("ab", timeout=60_000, **copy.deepcopy(own))
    assert await world.client.exists(*bells) == 0

    for _ in range(2):
        await world.order("ab", timeout=1_000, **copy.deepcopy(own))

    assert [await world.client.llen(bell) for bell in bells] == [2, 2, 2]
    assert all([0 < await world.client.pttl(bell) <= 60_000 for bell in bells])


# ------------------------------------------------------------------------ what else was wrong


async def test_in_reverse_order_late_ones_are_not_waited_for_unless_they_are_undone(world: World):
    node = await world.order("abc", compensation_order="reverse", compensate_late=False)
    await world.complete("a")
    late = await world.hand("b").take_one()
    await world.fail("c")

    await world.undo_all("a")

    assert await world.state(node) == "FAILED"
    await world.hand("b").complete(late)


async def test_a_compensation_of_its_own_replaces_that_of_no_other_job(world: World):
    """Whatever the others are called."""
    own = Compensation("undo-mine", attempts=1)
    jobs = [GroupJob("a", queue_name="a", compensation=own), GroupJob("a#0", queue_name="b")]
    await world.flow.add_group(
        "order", [*jobs, GroupJob("c", queue_name="c")], {"a#0": Compensation("undo-other")}
    )
    await world.complete("a")
    other = await world.hand("b").take_one("a#0")
    await world.hand("b").complete(other)
    await world.fail("c")

    assert (await world.hand("a:compensation").take_one()).name == "undo-mine"
    assert (await world.hand("b:compensation").take_one()).name == "undo-other"


async def test_nothing_waits_to_be_undone_once_a_group_is_undone(world: World):
    """The results stay as long as the group does, for get_group_results."""
    node = await world.order("ab")
    await world.complete("a")
    await world.fail("b")
    await world.undo_all("a")

    record = f"{world.prefix}:a:groups:{node.group_id}"
    assert await world.client.exists(f"{record}:stage", f"{record}:undo") == 0
    await world.queue("a").clean_groups()
    assert await world.client.exists(f"{record}:results", f"{record}:log") == 0


async def test_a_compensation_queue_with_another_word_in_braces_is_refused(world: World):
    for name in ("{q}-x", "{queue}-{x}"):
        with pytest.raises(InvalidOptionError, match=r"\{queue\}"):
            await world.order("ab", compensation_queue=name)
    own = {"queue_name": "{shop}-a"}
    await world.order("a", a=own, compensation_queue="{shop}-undo")


async def test_events_tell_of_compensations_as_a_list(world: World):
    await broken(world)
    newest = await world.connection.run(events.page_before(world.queue("a").keys, "+"))
    told = [event for event in newest if event.name == "group:failed"]

    (result,) = told[0].data["compensation_results"]

    assert (result["originalJobName"], result["status"]) == ("a", "failed")


async def test_kills_do_not_end_a_compensation_that_has_attempts_left(world: World):
    """max_stalled_count alone does not decide it."""
    undo = {"a": Compensation("undo-a", attempts=3)}
    node = await world.order("ab", compensation=undo)
    await world.complete("a")
    await world.fail("b")
    hand, keys = world.hand("a:compensation"), world.queue("a:compensation").keys
    for _ in range(3):
        job = await hand.take_one("undo-a")
        await hand.complete()  # a newer call: the job is known to have arrived
        await hand.lose(job)
        await world.client.delete(f"{keys.base}:stalled-check")
        await world.client.sadd(f"{keys.base}:stalled", job.id)
        await world.connection.follow(leasing.sweep(keys, interval_ms=1, max_stalled=1))

    assert await world.client.hget(keys.job(job.id), "stc") == "3"
    assert await world.client.hget(keys.job(job.id), "defa") is None
    job = await hand.take_one("undo-a")
    await hand.complete(job)
    assert await world.state(node) == "FAILED"


async def test_a_group_is_cancelled_for_a_reason(world: World):
    node = await world.order("ab")
    await world.complete("a")
    with pytest.raises(InvalidOptionError):
        await world.queue("a").cancel_group(node.group_id, "")

    await world.queue("a").cancel_group(node.group_id, "customer changed their mind")

    info = await world.queue("a").get_group_state(node.group_id)
    assert info is not None
    assert info.reason == "customer changed their mind"
    assert (await world.events())[0]["reason"] == info.reason
