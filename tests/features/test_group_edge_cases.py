"""Whatever ends or removes a member settles its group."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.features.group_support import World
from tests.helpers import wait_until
from tests.keyspace import keys_under
from toril import (
    Compensation,
    GroupJob,
    InvalidGroupStateError,
    JobNotFoundError,
    UnrecoverableError,
    Worker,
)
from toril.protocol import leasing
from toril.protocol.settling import Raised, Returned

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


async def sweep(world: World, name: str, *, max_stalled: int = 1) -> None:
    """Two sweeps: the first marks what is active, the second brings back what has no lock."""
    for _ in range(2):
        await world.client.delete(f"{world.prefix}:{name}:stalled-check")
        plan = leasing.sweep(world.queue(name).keys, interval_ms=1, max_stalled=max_stalled)
        await world.connection.follow(plan)


async def test_a_removed_member_is_cancelled_and_its_group_undone(world: World):
    """SAGA-40, C-31: removing by hand is an end like any other."""
    node = await world.order()
    await world.complete("a")

    await world.queue("b").remove(node.jobs[1].id)

    assert await world.statuses(node) == {"a": "completed", "b": "cancelled", "c": "cancelled"}
    assert await world.state(node) == "COMPENSATING"
    event = (await world.events())[0]
    assert (event["failedJobId"], event["reason"]) == (node.jobs[1].id, "removed")
    await world.undo_all("a")
    assert await world.state(node) == "FAILED"


async def test_removing_a_finished_member_changes_nothing(world: World):
    """SAGA-39: it has been counted, and its return value is kept where it is needed."""
    node = await world.order()
    await world.complete("a", {"a": 7})

    await world.queue("a").remove(node.jobs[0].id)
    await world.queue("a").clean("completed")

    assert await world.state(node) == "ACTIVE"
    await world.fail("b")
    (undo,) = await world.queue("a:compensation").get_waiting()
    assert undo.compensation is not None
    assert undo.compensation.original_return_value == 7


async def test_draining_a_queue_settles_the_groups_of_its_jobs(world: World):
    """SAGA-40, C-31: many groups at once, in three states of completion."""
    untouched = await world.order()
    jobs = [GroupJob(f"j{n}", queue_name="a") for n in range(5)]
    whole = await world.flow.add_group("order", jobs, {"j0": Compensation("undo")})
    begun = await world.order()
    taken = await world.hand("b").take(2)
    await world.hand("b").complete(*taken)

    await world.queue("a").drain()

    assert await world.state(whole) == "FAILED"
    assert (await world.record(whole))["cancelledCount"] == "5"
    for node in (untouched, begun):
        assert await world.statuses(node) == {"a": "cancelled", "b": "completed", "c": "cancelled"}
        assert await world.state(node) == "COMPENSATING"
    assert len(await world.queue("b:compensation").get_waiting()) == 2


async def test_draining_with_the_delayed_ones(world: World):
    """SAGA-40: a delayed and a prioritized member go with the drain."""
    node = await world.order("ab", a={"delay": 60_000}, b={"priority": 2, "queue_name": "a"})

    await world.queue("a").drain(delayed=True)

    assert await world.state(node) == "FAILED"
    assert await world.statuses(node) == {"a": "cancelled", "b": "cancelled"}


async def test_cleaning_waiting_jobs_settles_their_groups(world: World):
    """SAGA-40: clean removes jobs that have not run as well."""
    node = await world.order()

    await world.queue("b").clean("waiting")

    assert await world.state(node) == "FAILED"


async def test_a_removed_compensation_has_failed(world: World):
    """SAGA-31: what will never be undone must not look undone."""
    node = await world.order("ab")
    await world.complete("a")
    await world.fail("b")

    await world.queue("a:compensation").drain()

    assert await world.state(node) == "FAILED_COMPENSATION"


async def test_obliterating_the_owner_leaves_no_key_of_its_groups(world: World):
    """SAGA-40, C-06: active, being undone, and completed groups, and nothing is undone by it."""
    completed = await world.order("ab", b={"queue_name": "a"})
    await world.hand("a").complete(*await world.hand("a").take(2))
    active = await world.order("ab", b={"queue_name": "a"})
    await world.hand("a").complete(*await world.hand("a").take(1))
    assert await world.state(active) == "ACTIVE"
    assert await world.state(completed) == "COMPLETED"

    await world.queue("a").obliterate(force=True)

    assert await keys_under(world.client, f"{world.prefix}:a") == []


async def test_obliterating_a_queue_of_members_settles_their_groups(world: World):
    """SAGA-40: the owner is elsewhere and undoes the rest."""
    node = await world.order()
    await world.complete("a")

    await world.queue("b").obliterate(force=True)

    assert await world.statuses(node) == {"a": "completed", "b": "cancelled", "c": "cancelled"}
    await world.undo_all("a")
    assert await world.state(node) == "FAILED"


async def test_members_whose_group_is_gone_do_not_run(world: World):
    """SAGA-40: after the owner was obliterated the others fail unless forced."""
    node = await world.order("abcd")
    started = await world.hand("c").take_one("c")
    await world.queue("a").obliterate(force=True)

    assert await world.hand("b").take() == []
    await world.hand("c").complete(started)
    await world.queue("d").remove(node.jobs[3].id)

    assert await world.place_of("b", node.jobs[1].id) == "failed"
    assert await world.place_of("c", node.jobs[2].id) == "completed"
    assert await world.state(node) is None
    await world.queue("b").retry(node.jobs[1].id, force=True)
    await world.complete("b")


async def test_a_stalled_member_runs_again(world: World):
    """SAGA-42: its worker died; the group goes on as if nothing had happened."""
    node = await world.order("ab")
    lost = await world.hand("a").take_one()
    await world.hand("a").lose(lost)

    await sweep(world, "a")

    await world.complete("ab")
    assert await world.state(node) == "COMPLETED"


async def test_a_member_that_stalls_too_often_fails_its_group(world: World):
    """SAGA-42: the sweep marks it, whoever takes it next fails it, the rest is undone."""
    node = await world.order("ab")
    await world.complete("b")
    lost = await world.hand("a").take_one()
    await world.client.hset(f"{world.prefix}:a:{lost.id}", "x.unheard", 99)
    await world.hand("a").lose(lost)

    await sweep(world, "a", max_stalled=0)
    doomed = await world.hand("a").take_one()
    assert doomed.deferred_failure is not None
    await world.hand("a").settle([(doomed, _raised(doomed.deferred_failure))])

    assert await world.state(node) == "COMPENSATING"
    assert (await world.statuses(node))["a"] == "failed"
    await world.undo_all("ba")
    assert await world.state(node) == "FAILED"


async def test_a_stalled_member_of_a_group_that_is_undone_is_not_run_again(world: World):
    """SAGA-42, SAGA-44: it comes back marked, and the group waits until that is settled."""
    node = await world.order("ab")
    lost = await world.hand("a").take_one()
    await world.hand("a").lose(lost)
    await world.fail("b")
    assert await world.state(node) == "COMPENSATING"

    await sweep(world, "a")

    doomed = await world.hand("a").take_one()
    assert doomed.deferred_failure == "its group is being undone"
    await world.hand("a").fail(doomed)
    assert await world.state(node) == "COMPENSATING"
    await world.undo_all("a")
    assert await world.state(node) == "FAILED"


# ------------------------------------------------------------- ends that nobody knows


async def lose_and_sweep(world: World, name: str = "a") -> None:
    """The worker of this member dies in the middle of it, and the job comes back to `wait`."""
    lost = await world.hand(name).take_one()
    await world.hand(name).lose(lost)
    await sweep(world, name, max_stalled=5)


async def the_undoing(world: World, name: str = "a") -> Any:
    (undo,) = await world.queue(f"{name}:compensation").get_waiting()
    return undo


async def test_a_member_whose_process_died_is_undone(world: World):
    """SAGA-24, SAGA-44: the payment may have been made, and nobody can say so any more."""
    node = await world.order("ab")
    await lose_and_sweep(world)

    await world.fail("b")

    assert await world.statuses(node) == {"a": "cancelled", "b": "failed"}
    undo = await the_undoing(world)
    assert undo.compensation.original_return_value is None
    assert undo.compensation.original_job_id == node.jobs[0].id
    assert await world.state(node) == "COMPENSATING"
    await world.undo_all("a")
    assert await world.state(node) == "FAILED"


@pytest.mark.parametrize("ends", ["completed", "failed"])
async def test_what_the_next_run_tells_is_what_counts(world: World, ends: str):
    """SAGA-24: it died, ran again and told how it ended: undone when it completed, once."""
    await world.order("ab", a={"attempts": 2})
    await lose_and_sweep(world)
    again = await world.hand("a").take_one()
    if ends == "completed":
        await world.hand("a").complete(again, value="paid")
    else:
        await world.hand("a").fail(again)

    await world.fail("b")

    waiting = await world.queue("a:compensation").get_waiting()
    values = [undo.data["originalReturnValue"] for undo in waiting]
    assert values == (["paid"] if ends == "completed" else [])


async def test_a_second_run_that_nobody_saw_end_is_not_undone_with_the_first_result(world: World):
    """SAGA-24: it ran, was run again by hand, and its process died: both runs are undone."""
    node = await world.order("ab")
    first = await world.hand("a").take_one()
    await world.hand("a").complete(first, value="paid")
    await world.queue("a").retry(node.jobs[0].id, force=True)
    assert (await world.queue("a").get_group_results(node.group_id)).keys() == set()
    await lose_and_sweep(world)

    await world.fail("b")

    waiting = await world.queue("a:compensation").get_waiting()
    values = [undo.data["originalReturnValue"] for undo in waiting]
    assert sorted(values, key=str) == [None, "paid"]


async def test_a_member_that_was_stopped_half_way_is_undone(world: World):
    """SAGA-24: a worker shuts down and gives it back; the handler was in the middle of it."""
    for is_begun in (False, True):
        node = await world.order("ab")
        job = await world.hand("a").take_one()
        await world.hand("a").give_back(job, is_begun=is_begun)

        await world.fail("b")

        assert await world.state(node) == ("COMPENSATING" if is_begun else "FAILED")
    assert (await the_undoing(world)).data["originalReturnValue"] is None


async def test_a_worker_tells_whether_it_stopped_a_handler_half_way(world: World):
    """SAGA-24: the same through a real worker that is closed while its handler runs."""
    node = await world.order("ab")
    is_running = asyncio.Event()

    async def charge(job: Any) -> None:
        is_running.set()
        await asyncio.Event().wait()

    worker = Worker("a", charge, connection=world.url, prefix=world.prefix)
    async with worker:
        await is_running.wait()
        await worker.close(timeout=0)
    assert await world.place_of("a", node.jobs[0].id) == "waiting"

    await world.queue("a").cancel_group(node.group_id)

    assert (await the_undoing(world)).name == "undo-a"


async def test_a_late_member_that_was_stopped_half_way_is_undone(world: World):
    """SAGA-44: as if it had completed late."""
    node = await world.order("ab")
    late = await world.hand("a").take_one()
    await world.fail("b")
    await world.hand("a").give_back(late, is_begun=True)

    doomed = await world.hand("a").take_one()
    await world.hand("a").settle([(doomed, _raised("its group is being undone"))])

    await world.undo_all("a")
    assert await world.state(node) == "FAILED"


async def test_a_member_that_is_removed_under_its_worker_is_undone(world: World):
    """SAGA-24, SAGA-40: its report is refused, so nobody will know how it ended."""
    node = await world.order("ab")
    running = await world.hand("b").take_one()

    await world.queue("b").obliterate(force=True)

    assert await world.statuses(node) == {"a": "cancelled", "b": "cancelled"}
    assert (await world.hand("b").complete(running))[0] < 0
    await world.undo_all("b")
    assert await world.state(node) == "FAILED"


@pytest.mark.parametrize("how", ["remove", "clean", "drain"])
async def test_a_removed_member_whose_process_died_is_undone(world: World, how: str):
    """SAGA-24, SAGA-40: before the sweep has found it, and after."""
    node = await world.order("ab")
    lost = await world.hand("a").take_one()
    await world.hand("a").lose(lost)
    queue = world.queue("a")
    if how == "remove":
        await queue.remove(lost.id)
    elif how == "clean":
        await queue.clean("active")
    else:
        await sweep(world, "a")
        await queue.drain()

    assert await world.statuses(node) == {"a": "cancelled", "b": "cancelled"}
    await world.undo_all("a")
    assert await world.state(node) == "FAILED"


async def test_what_cannot_be_undone_is_not(world: World):
    """SAGA-24: no mapping, no compensation, however it ended."""
    node = await world.order("ab", mapped="b")
    await lose_and_sweep(world)

    await world.fail("b")

    assert await world.state(node) == "FAILED"


async def test_the_literal_behaviour_ignores_late_members_that_died(world: World):
    """SAGA-23, C-07: compensate_late=False; it was still running when the group turned."""
    node = await world.order("ab", compensate_late=False)
    lost = await world.hand("a").take_one()
    await world.fail("b")
    assert await world.state(node) == "FAILED"
    await world.hand("a").lose(lost)
    await sweep(world, "a")

    await world.hand("a").fail(await world.hand("a").take_one())

    assert await world.state(node) == "FAILED"
    assert (await world.statuses(node))["a"] == "failed"
    assert await world.queue("a:compensation").get_waiting() == []


def _raised(reason: str) -> Any:
    return Raised(UnrecoverableError(reason))


async def test_a_cancelled_job_fails_its_group(world: World):
    """SAGA-21: queue.cancel on a waiting member."""
    node = await world.order()

    await world.queue("b").cancel(node.jobs[1].id)

    assert await world.state(node) == "FAILED"
    assert await world.statuses(node) == {"a": "cancelled", "b": "failed", "c": "cancelled"}


async def test_retrying_a_member_of_a_failed_group_is_refused(world: World):
    """SAGA-45: unless forced, and then it runs without changing the group."""
    node = await world.order("ab")
    await world.fail("a")
    queue, job_id = world.queue("a"), node.jobs[0].id

    with pytest.raises(InvalidGroupStateError, match="force=True"):
        await queue.retry(job_id)
    assert await queue.retry_all() == 0
    assert await queue.get_state(job_id) == "failed"
    await queue.retry(job_id, force=True)

    await world.complete("a")
    assert await world.state(node) == "FAILED"
    assert (await world.statuses(node))["a"] == "failed"
    with pytest.raises(JobNotFoundError):
        await queue.retry("nobody")


async def test_retrying_all_passes_over_members_and_takes_the_rest(world: World):
    """SAGA-45: more members than one slice, plain failures between them."""
    queue = world.queue("a")
    for _ in range(4):
        await world.order("a")
        await world.fail("a")
        await queue.add("plain")
        await world.hand("a").fail(await world.hand("a").take_one())

    assert await queue.retry_all() == 4

    assert await queue.get_job_counts("failed", "waiting") == {"failed": 4, "waiting": 4}
    assert await queue.retry_all(force=True) == 4


async def test_a_dead_lettered_member_fails_its_group_and_is_not_replayed(world: World):
    """SAGA-21, SAGA-45: it goes to the dead letters in the same step; replay needs force."""
    node = await world.order("ab")
    await world.complete("b")
    worker = Worker(
        "a",
        _raise_at_once,
        connection=world.url,
        prefix=world.prefix,
        dead_letter_queue="a-dlq",
    )
    letters = world.queue("a-dlq")
    async with worker:

        async def is_buried() -> bool:
            return await letters.get_dead_letter_count() == 1

        await wait_until(is_buried)
    assert await world.state(node) == "COMPENSATING"
    (letter,) = await letters.get_dead_letter_jobs()

    with pytest.raises(InvalidGroupStateError, match="force=True"):
        await letters.replay_dead_letter(letter.id)
    assert await letters.replay_all_dead_letters() == 0
    new_id = await letters.replay_dead_letter(letter.id, force=True)

    assert await world.place_of("a", new_id) == "waiting"
    await world.complete("a")
    assert await world.statuses(node) == {"a": "failed", "b": "completed"}


async def test_forced_replays_in_bulk(world: World):
    """SAGA-45: the same for all of them."""
    await world.order("a")
    worker = Worker(
        "a", _raise_at_once, connection=world.url, prefix=world.prefix, dead_letter_queue="a-dlq"
    )
    letters = world.queue("a-dlq")
    async with worker:

        async def is_buried() -> bool:
            return await letters.get_dead_letter_count() == 1

        await wait_until(is_buried)

    assert await letters.replay_all_dead_letters(dry_run=True) == 0
    assert await letters.replay_all_dead_letters() == 0
    assert await letters.replay_all_dead_letters(force=True, dry_run=True) == 1
    assert await letters.replay_all_dead_letters(force=True) == 1


async def _raise_at_once(job: Any) -> None:
    raise UnrecoverableError("no")


async def test_a_compensation_that_is_retried_by_hand_makes_up_for_its_failure(world: World):
    """SAGA-31: somebody repaired the cause and retried the failed job."""
    node = await world.order("ab")
    await world.complete("a")
    await world.fail("b")
    await world.undo_all("a", failing="a")
    assert await world.state(node) == "FAILED_COMPENSATION"

    await world.queue("a:compensation").retry(f"{node.group_id}-c0")
    assert await world.state(node) == "COMPENSATING"
    await world.undo_all("a")

    assert await world.state(node) == "FAILED"
    assert await world.event_names() == [
        "group:compensating",
        "group:failed",
        "group:retrying",
        "group:failed",
    ]


async def test_in_a_long_list_members_are_marked_and_vanish_when_taken(world: World):
    """SAGA-22: searching a long list would hold the server up; the marked ones never run."""
    await world.queue("b").add_bulk([_plain()] * 2500)
    node = await world.order("abc", c={"queue_name": "b"})
    await world.fail("a")
    assert await world.statuses(node) == {"a": "failed", "b": "cancelled", "c": "cancelled"}
    assert await world.state(node) == "FAILED"
    assert await world.place_of("b", node.jobs[1].id) == "waiting"
    ran: list[str] = []

    async def handle(job: Any) -> None:
        ran.append(job.name)

    async with Worker("b", handle, connection=world.url, prefix=world.prefix, concurrency=100):
        assert await world.queue("b").wait_until_empty(60_000)

    assert ran == ["plain"] * 2500
    counts = await world.queue("b").get_job_counts("completed", "failed")
    assert counts == {"completed": 2500, "failed": 0}
    assert await world.state(node) == "FAILED"
    assert (await world.record(node))["failedCount"] == "1"


def _plain() -> Any:
    from toril import NewJob

    return NewJob("plain")


async def test_many_members_in_a_short_list_leave_it_in_one_scan(world: World):
    """SAGA-22: those of others keep their order."""
    for n in range(3):
        await world.queue("b").add("plain", job_id=f"before-{n}")
    jobs = [GroupJob("a", queue_name="a"), *(GroupJob("x", queue_name="b") for _ in range(20))]
    node = await world.flow.add_group("order", jobs)
    for n in range(3):
        await world.queue("b").add("plain", job_id=f"after-{n}")

    await world.fail("a")

    assert await world.state(node) == "FAILED"
    ids = [job.id for job in await world.queue("b").get_waiting()]
    assert ids == [f"before-{n}" for n in range(3)] + [f"after-{n}" for n in range(3)]


async def test_members_of_a_queue_that_version_5_paused_are_found(world: World):
    """SAGA-22: they are in the list `paused` then."""
    base = f"{world.prefix}:b"
    await world.client.hset(f"{base}:meta", mapping={"paused": 1, "version": "bullmq:5.81.3"})
    node = await world.order("ab")
    assert await world.client.llen(f"{base}:paused") == 1

    await world.queue("a").cancel_group(node.group_id)

    assert await world.state(node) == "FAILED"
    assert not await world.client.exists(f"{base}:paused")


async def test_members_in_lanes_keep_to_them_and_leave_them(world: World):
    """SAGA-14, SAGA-22: a member may have a lane; cancelling it lets the next of its lane go."""
    node = await world.order("ab", a={"lane": "user:1"})
    await world.complete("ab")
    assert await world.state(node) == "COMPLETED"

    node = await world.order("ab", a={"lane": "user:1"})
    await world.queue("a").add("next", lane="user:1")
    await world.fail("b")

    assert await world.state(node) == "FAILED"
    assert (await world.hand("a").take_one()).name == "next"


FILL = """local ids = {}
for n = ARGV[1], ARGV[2] do ids[#ids + 1] = "f" .. n end
return redis.call("LPUSH", KEYS[1], unpack(ids))"""
"""The server writes the ids itself: a client in Python takes long to pack a million of them."""


@pytest.mark.no_audit("a million ids without a job stand for a long queue")
async def test_a_group_in_a_queue_of_a_million_is_cancelled_at_once(world: World):
    """SAGA-22: a thousand members, counted in commands: none reads or walks the list."""
    for start in range(0, 1_000_000, 5_000):
        await world.client.eval(FILL, 1, f"{world.prefix}:b:wait", start, start + 4_999)
    jobs = [GroupJob("a", queue_name="a"), *(GroupJob("x", queue_name="b") for _ in range(999))]
    node = await world.flow.add_group("order", jobs)
    await world.client.config_resetstat()

    await world.queue("a").cancel_group(node.group_id)

    stats = await world.client.info("commandstats")
    assert sum(row["calls"] for row in stats.values()) < 2100
    walks = {"cmdstat_lrem", "cmdstat_lrange", "cmdstat_lpos", "cmdstat_lset"} & set(stats)
    assert walks <= {"cmdstat_lrem"}
    assert stats.get("cmdstat_lrem", {"calls": 0})["calls"] <= 1
    info = await world.queue("a").get_group_state(node.group_id)
    assert info is not None
    assert (info.state, info.cancelled_count) == ("FAILED", 1000)


async def test_the_largest_group_is_turned_over_with_bounded_work(world: World):
    """SAGA-24: of a thousand completed members some are undone at a time, all in the end."""
    jobs = [GroupJob("x", queue_name="a") for _ in range(1000)]
    node = await world.flow.add_group("order", jobs, {"x": Compensation("undo")})
    hand, undo = world.hand("a"), world.hand("a:compensation")
    for _ in range(4):
        await hand.complete(*await hand.take(200))
    *most, last = await hand.take(200)
    await hand.complete(*most)
    await world.client.config_resetstat()

    await hand.fail(last)

    stats = await world.client.info("commandstats")
    assert sum(row["calls"] for name, row in stats.items() if name != "cmdstat_info") < 2000
    assert (await world.queue("a:compensation").get_job_counts("waiting"))["waiting"] == 250
    undone = 0
    while taken := await undo.take(200):
        await undo.complete(*taken)
        undone += len(taken)
    assert undone == 999
    assert await world.state(node) == "FAILED"


async def test_a_plain_job_pays_nothing_for_groups(world: World, monkeypatch: Any):
    """SAGA-19: adding, completing, retrying and failing plain jobs takes the same commands with the
    scripts as they are and with scripts from which groups were cut out."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from groups import scripts_without_groups

    counted = []
    for is_cut in (False, True):
        with scripts_without_groups() if is_cut else nullcontext():
            queue, hand = world.queue(f"cut-{is_cut}"), world.hand(f"cut-{is_cut}")
            for _ in range(2):  # the first time the server learns the scripts
                await world.client.config_resetstat()
                for attempts in (1, 1, 2):
                    await queue.add("plain", attempts=attempts)
                done, failing, retried = await hand.take(3)
                await hand.settle(
                    [
                        (done, Returned(1)),
                        (failing, Raised(ValueError("no"))),
                        (retried, Raised(ValueError("again"))),
                    ]
                )
                await hand.complete(await hand.take_one())
        stats = await world.client.info("commandstats")
        counted.append({name: row["calls"] for name, row in stats.items()})
    with_groups, without = counted

    assert with_groups == without
    assert with_groups["cmdstat_xadd"] > 10  # something was counted


async def test_a_stranded_member_does_not_stop_its_lane(world, client):
    """L1: a dashboard brings it back into the plain list; it fails, and the next one runs."""
    node = await world.order("ab", a={"lane": "one", "attempts": 1})
    await world.fail("a")
    assert await world.state(node) == "FAILED"
    await bring_back(client, world.queue("a").keys, node.jobs[0].id)
    follower = await world.queue("a").add("next", lane="one")

    taken = [job.id for _ in range(3) for job in await world.hand("a").take(2)]

    assert taken == [follower.id]
    stored = await world.queue("a").get_job(node.jobs[0].id)
    assert (stored.failed_reason, stored.attempts_made) == ("its group has ended", 1)


async def test_a_member_that_another_sweep_brought_back_is_undone(world, client):
    """SAGA-42: BullMQ's stall check does not say that its run has no end; it may be done."""
    node = await world.order("ab")
    lost = await world.hand("a").take_one("a")
    await world.fail("b")
    await world.hand("a").lose(lost)
    keys = world.queue("a").keys
    await client.lrem(keys.active, 1, lost.id)
    await client.rpush(keys.wait, lost.id)

    assert await world.hand("a").take() == []

    assert await world.place_of("a", lost.id) == "failed"
    await world.undo_all("a")
    assert await world.state(node) == "FAILED"


async def bring_back(client, keys, job_id):
    """What BullMQ's retry does to the keys."""
    await client.zrem(keys.failed, job_id)
    await client.hdel(keys.job(job_id), "finishedOn", "processedOn", "failedReason")
    await client.lpush(keys.wait, job_id)


async def test_a_job_that_names_no_group_stops_nobody(world, client):
    """I10: somebody wrote a key of another type into it; it and what stands behind it run."""
    queue = world.queue("a")
    odd, good = await queue.add("x"), await queue.add("y")
    await client.hset(queue.keys.job(odd.id), "x.group", f"{queue.keys.events}:m0")

    taken = await world.hand("a").take(2)

    assert [job.id for job in taken] == [odd.id, good.id]


async def test_a_force_that_was_not_needed_is_not_kept(world, client):
    """A retry forced while the group runs lets nobody run it when the group has ended."""
    node = await world.order("ab")
    await world.complete("a")
    keys, first = world.queue("a").keys, node.jobs[0].id
    await world.queue("a").retry(first, force=True)
    await world.complete("a")
    await world.fail("b")
    await client.zrem(keys.completed, first)
    await client.lpush(keys.wait, first)

    assert await world.hand("a").take() == []
    assert await world.place_of("a", first) == "failed"
