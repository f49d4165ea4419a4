"""What is kept of a group besides its state: indexes, questions to a person, the timeline."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.features.group_support import World, start, state
from tests.features.group_support import job as member
from toril import Compensation, GroupJob, GroupSignal
from toril.errors import GroupExistsError, InvalidOptionError
from toril.protocol import groups
from toril.protocol.command import skew
from toril.protocol.keys import Keys

DAY_S = 86_400
STAGES: dict[str, Any] = {"b": {"after": ["a"]}, "c": {"after": ["b"]}}


def _copy(own: dict[str, Any]) -> dict[str, Any]:
    return {name: dict(options) for name, options in own.items()}


async def indexed(world: World, name: str) -> list[str]:
    """The groups that queue a names in an index."""
    return await world.client.zrange(f"{world.prefix}:a:toril:groups-{name}", 0, -1)


async def look_at_due(world: World) -> Any:
    return await world.connection.run(groups.reconcile(Keys(world.prefix, "a")))


async def asks(world: World, node: Any) -> str | None:
    info = await world.queue("a").get_group_state(node.group_id)
    assert info is not None
    return info.asks


async def timeline(world: World, node: Any) -> list[str]:
    return [step.what for step in await world.queue("a").get_group_timeline(node.group_id)]


async def waiting_undos(world: World, names: str = "abc") -> str:
    found = [await world.queue(f"{name}:compensation").get_waiting() for name in names]
    return "".join(name for name, jobs in zip(names, found, strict=True) if jobs)


async def bring_back_as_new(world: World, queue: str, job_id: str) -> None:
    """What BullMQ's retry does to a failed job if it is told to forget the attempts."""
    keys = world.queue(queue).keys
    await world.client.zrem(keys.failed, job_id)
    gone = ("finishedOn", "processedOn", "failedReason", "atm", "ats")
    await world.client.hdel(keys.job(job_id), *gone)
    await world.client.lpush(keys.wait, job_id)


async def vanish(world: World, name: str, job_id: str) -> None:
    """A member is gone, and so is every event that could tell how it ended."""
    keys = world.queue(name).keys
    await world.client.lrem(keys.wait, 1, job_id)
    await world.client.delete(keys.job(job_id))
    event = {"event": "progress", "jobId": "x"}
    await world.client.xadd(keys.events, event, maxlen=1, approximate=False)


# ---------------------------------------------------------------------------- indexes


async def test_bullmq_takes_no_key_of_a_group_for_a_job(world: World):
    """Its search for orphans spares what ``de`` names."""
    await world.order("ab")

    assert await world.client.smembers(f"{world.prefix}:a:de") == {"groups", "compensation"}
    assert await world.client.smembers(f"{world.prefix}:b:de") == {"compensation"}


async def test_groups_that_have_ended_are_listed_again(world: World):
    """BullMQ deleted the index while nothing protected it."""
    node = await world.order("a")
    await world.complete("a")
    await world.client.delete(f"{world.prefix}:a:groups", f"{world.prefix}:a:de")

    await world.queue("a").reconcile_groups()

    assert [info.id for info in await world.queue("a").get_groups()] == [node.group_id]
    assert "groups" in await world.client.smembers(f"{world.prefix}:a:de")


async def test_nobody_looks_after_a_group_without_a_record(world: World):
    node = await world.order("ab", b={"after": ["a"]})
    await world.client.delete(f"{world.prefix}:a:groups:{node.group_id}")

    await world.queue("a").reconcile_groups()

    assert await indexed(world, "open") == []
    assert await indexed(world, "staged") == []
    await world.queue("a").obliterate(force=True)


async def test_a_group_that_was_looked_at_is_not_due_again_at_once(world: World):
    node = await world.order("ab", b={"after": ["a"]})
    for name in ("open", "staged"):
        await world.client.zadd(f"{world.prefix}:a:toril:groups-{name}", {node.group_id: 1})

    look = await look_at_due(world)

    assert look.wait_ms > 20_000


@pytest.mark.parametrize("outcome", ["COMPLETED", "FAILED", "FAILED_COMPENSATION"])
async def test_a_group_that_an_older_worker_has_ended_is_looked_at_once(world: World, outcome: str):
    """Such a worker leaves it in the index of groups with stages."""
    node = await world.order("ab", b={"after": ["a"]})
    await world.complete("a")
    if outcome == "COMPLETED":
        await world.complete("b")
    else:
        await world.fail("b")
        await world.undo_all("a", failing="a" if outcome == "FAILED_COMPENSATION" else "")
    assert await world.state(node) == outcome
    await world.client.zadd(f"{world.prefix}:a:toril:groups-staged", {node.group_id: 1})

    look = await look_at_due(world)

    assert await indexed(world, "staged") == []
    assert look.wait_ms is None
    assert await world.state(node) == outcome


@pytest.mark.no_audit("a key is damaged on purpose")
async def test_a_damaged_group_is_not_due_again_at_once(world: World):
    """Every worker would look at it all the time."""
    node = await world.order("ab", b={"after": ["a"]})
    await world.client.set(f"{world.prefix}:a:groups:{node.group_id}:signals", "odd")
    for name in ("open", "staged"):
        await world.client.zadd(f"{world.prefix}:a:toril:groups-{name}", {node.group_id: 1})

    look = await look_at_due(world)

    assert look.wait_ms > 20_000
    assert await indexed(world, "asking") == [node.group_id]


@pytest.mark.no_audit("a key is damaged on purpose")
async def test_a_group_that_was_repaired_asks_nobody(world: World):
    node = await world.order("ab")
    damaged = f"{world.prefix}:a:groups:{node.group_id}:compensations"
    await world.client.set(damaged, "odd")
    await world.queue("a").reconcile_groups()
    await world.client.delete(damaged)

    await world.queue("a").reconcile_groups()

    assert await indexed(world, "asking") == []
    assert await asks(world, node) is None


@pytest.mark.no_audit("a key is damaged on purpose")
@pytest.mark.parametrize("own", [{}, {"b": {"after": ["a"]}}])
@pytest.mark.parametrize("outcome", ["completed", "failed"])
async def test_a_group_that_was_damaged_and_has_ended_asks_nobody(
    world: World, outcome: str, own: Any
):
    """It was repaired, and ended before anybody looked at it again."""
    node = await world.order("ab", **_copy(own))
    damaged = f"{world.prefix}:a:groups:{node.group_id}:compensations"
    await world.client.set(damaged, "odd")
    await world.queue("a").reconcile_groups()
    assert await indexed(world, "asking") == [node.group_id]
    await world.client.delete(damaged)

    await world.complete("a")
    await (world.complete("b") if outcome == "completed" else world.fail("b"))
    if outcome == "failed":
        await world.undo_all("a")

    assert await indexed(world, "asking") == []
    assert await asks(world, node) is None


async def test_a_group_is_forgotten_by_every_index(world: World):
    """Also if an older worker left it in one."""
    node = await world.order("a", group_retention=False)
    await world.complete("a")
    for name in ("asking", "staged"):
        await world.client.zadd(f"{world.prefix}:a:toril:groups-{name}", {node.group_id: 1})

    await world.queue("a").clean_groups()

    for name in ("open", "ended", "asking", "staged"):
        assert await indexed(world, name) == []
    assert await world.queue("a").get_groups() == []


async def test_what_stays_known_of_a_forgotten_group_is_small(world: World):
    node = await world.order("a", group_retention=True)
    await world.complete("a")

    gone = f"{world.prefix}:a:toril:groups-gone:{node.group_id}"
    fields = await world.client.hkeys(gone)
    assert "state" in fields
    assert not {"compensation", "x.keep"} & set(fields)
    assert 0 < await world.client.ttl(gone) <= 86_400


async def test_a_group_says_for_how_long_its_id_stays_known(world: World):
    """By its retention or by hand; in what it cannot read nobody believes."""
    own: Any = {"remember": timedelta(days=3), "group_retention": False}
    ended = await world.order("a", remember=3 * DAY_S * 1000, group_retention=True)
    await world.complete("a")
    kept, odd = await world.order("a", **own), await world.order("a", **own)
    await world.complete("aa")
    await world.client.hset(f"{world.prefix}:a:groups:{odd.group_id}", "x.remember", "9e99")
    await world.queue("a").clean_groups()

    heads = [f"{world.prefix}:a:toril:groups-gone:{node.group_id}" for node in (ended, kept, odd)]
    left_s = [await world.client.ttl(key) for key in heads]

    assert 2 * DAY_S < min(left_s[:2]) <= max(left_s[:2]) <= 3 * DAY_S
    assert 0 < left_s[2] <= DAY_S


async def test_an_id_stays_known_for_a_minute_at_least(world: World):
    """A call whose reply was lost is sent again."""
    with pytest.raises(InvalidOptionError, match="remember"):
        await world.order("a", remember=59_999)

    assert await world.queue("a").get_groups() == []


async def test_a_group_that_is_remembered_for_longer_is_another_one(world: World):
    jobs = [GroupJob("a", queue_name="a")]
    await world.flow.add_group("order", jobs, group_id="g", remember=DAY_S * 1000)

    again = await world.flow.add_group("order", jobs, group_id="g", remember=timedelta(days=1))
    with pytest.raises(GroupExistsError) as refused:
        await world.flow.add_group("order", jobs, group_id="g", remember=2 * DAY_S * 1000)

    assert not again.is_new
    assert refused.value.differences == ["remember"]


# ---------------------------------------------------------------------------- a person is asked


async def test_a_person_is_asked_until_somebody_has_said_how_a_member_ended(world: World):
    node = await world.order("ab")
    await vanish(world, "a", node.jobs[0].id)
    await world.queue("a").reconcile_groups()
    assert await indexed(world, "asking") == [node.group_id]
    assert await asks(world, node) is not None

    await world.queue("a").complete_member(node.group_id, "a")

    assert await indexed(world, "asking") == []
    assert await asks(world, node) is None
    await world.complete("b")
    assert await world.state(node) == "COMPLETED"


async def test_nobody_is_asked_about_a_member_of_a_group_that_is_being_undone(world: World):
    """Whatever it did is undone."""
    node = await world.order("ab")
    await vanish(world, "a", node.jobs[0].id)
    await world.queue("a").reconcile_groups()
    running = await world.hand("b").take_one("b")
    await world.queue("a").cancel_group(node.group_id)

    await world.queue("a").reconcile_groups()

    assert await world.state(node) == "COMPENSATING"
    assert await indexed(world, "asking") == []
    assert await asks(world, node) is None
    await world.hand("b").complete(running)
    await world.undo_all("ab")
    assert await world.state(node) == "FAILED"


# ---------------------------------------------------------------------------- time limits


@pytest.mark.parametrize("own", [{}, STAGES])
async def test_the_time_limit_of_undoing_is_looked_at_when_it_is_due(world: World, own: Any):
    """And it begins anew if undoing does."""
    node = await world.order("abc", mapped="a", undo_timeout=5_000, **_copy(own))
    await world.complete("ab")
    await world.fail("c")

    for _ in range(2):
        assert (await look_at_due(world)).wait_ms <= 5_000
        skew.ms += 5_001
        await look_at_due(world)
        assert await world.state(node) == "FAILED_COMPENSATION"
        assert await indexed(world, "asking") == [node.group_id]
        assert "time limit" in str(await asks(world, node))
        await world.queue("a").retry_compensation(node.group_id)
        assert await world.state(node) == "COMPENSATING"
        assert await indexed(world, "asking") == []
        assert await asks(world, node) is None

    steps = await timeline(world, node)
    assert steps.count("undoing takes too long") == 2
    assert steps.count("retrying") == 2
    await world.undo_all("a")
    assert await world.state(node) == "FAILED"
    assert await indexed(world, "open") == []
    assert await indexed(world, "staged") == []


async def test_undoing_that_ends_late_asks_nobody_any_more(world: World):
    node = await world.order("ab", undo_timeout=5_000)
    await world.complete("a")
    await world.fail("b")
    skew.ms += 5_001
    await look_at_due(world)
    assert await indexed(world, "asking") == [node.group_id]

    await world.undo_all("a")

    assert await world.state(node) == "FAILED"
    assert await indexed(world, "asking") == []
    assert await asks(world, node) is None


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_member_that_completes_after_the_time_limit_of_undoing_can_be_undone(
    world: World, is_first: bool
):
    """Before or after what was being undone then: the group is not over while it runs."""
    node = await world.order("abc", undo_timeout=5_000)
    await world.complete("a")
    running = await world.hand("b").take_one()
    await world.fail("c")
    skew.ms += 5_001
    await look_at_due(world)

    if is_first:
        await world.hand("b").complete(running)
    await world.undo_all("a")
    assert await world.state(node) == "FAILED_COMPENSATION"
    if not is_first:
        await world.hand("b").complete(running)
    assert await world.state(node) == "FAILED_COMPENSATION"

    await world.queue("a").retry_compensation(node.group_id)
    await world.undo_all("b")
    assert await world.state(node) == "FAILED"
    assert await indexed(world, "asking") == []


async def test_a_member_that_fails_after_the_time_limit_of_undoing_ends_its_group(world: World):
    node = await world.order("abc", undo_timeout=5_000)
    await world.complete("a")
    running = await world.hand("b").take_one()
    await world.fail("c")
    skew.ms += 5_001
    await look_at_due(world)
    await world.undo_all("a")

    await world.hand("b").fail(running)

    assert await world.state(node) == "FAILED"
    assert await indexed(world, "asking") == []


async def test_what_failed_and_is_repaired_late_does_not_end_a_group_whose_member_runs(
    world: World,
):
    """BullMQ starts the compensation as new, and it completes after the time limit."""
    node = await world.order("abc", undo_timeout=5_000)
    await world.complete("a")
    running = await world.hand("b").take_one()
    await world.fail("c")
    await world.undo_all("a", failing="a")
    skew.ms += 5_001
    await look_at_due(world)

    await bring_back_as_new(world, "a:compensation", f"{node.group_id}-c0")
    await world.undo_all("a")
    assert await world.state(node) == "FAILED_COMPENSATION"
    await world.hand("b").complete(running)

    await world.queue("a").retry_compensation(node.group_id)
    await world.undo_all("b")
    assert await world.state(node) == "FAILED"


@pytest.mark.parametrize("undo", ["a", ""])
async def test_a_pivot_that_completes_after_the_time_limit_of_undoing_blocks_its_group(
    world: World, undo: str
):
    """There is no way back any more, whatever a person says."""
    members = (member("a"), member("b", "a", pivot=True), member("c", "b"))
    await start(world, *members, undo=undo, undo_timeout=5_000)
    await world.complete("a")
    running = await world.hand("b").take_one()
    await world.queue("a").cancel_group("g")
    skew.ms += 5_001
    await look_at_due(world)
    assert await state(world) == "FAILED_COMPENSATION"

    await world.hand("b").complete(running)

    assert await state(world) == "BLOCKED"
    assert (await world.event_names())[-1] == "group:blocked"
    assert await world.hand("a:compensation").take() == []
    assert await indexed(world, "open") == await indexed(world, "asking") == ["g"]
    assert await world.queue("a").retry_group("g") == 1
    await world.complete("c")
    assert await state(world) == "COMPLETED"


async def test_a_staged_group_that_is_undone_again_is_looked_after_again(world: World):
    node = await world.order("ab", b={"after": ["a"]})
    await world.complete("a")
    await world.fail("b")
    await world.undo_all("a", failing="a")
    assert await indexed(world, "staged") == []

    await world.queue("a").retry_compensation(node.group_id)

    assert await indexed(world, "staged") == [node.group_id]
    await world.undo_all("a")
    assert await indexed(world, "staged") == []


# ---------------------------------------------------------------------------- order of undoing


@pytest.mark.no_audit("a key is damaged on purpose")
async def test_in_reverse_order_nobody_overtakes_what_waits_for_a_repair(world: World):
    node = await world.order("abc", compensation_order="reverse")
    await world.complete("ab")
    damaged = f"{world.prefix}:b:compensation:wait"
    await world.client.set(damaged, "odd")
    await world.fail("c")
    await world.queue("a").reconcile_groups()
    await world.client.delete(damaged)

    await world.queue("a").reconcile_groups()

    assert await waiting_undos(world) == "b"
    await world.undo_all("ba")
    assert await world.state(node) == "FAILED"


async def test_in_reverse_order_what_is_half_done_is_undone_first(world: World):
    """It was cancelled after a start, later than anything that completed."""
    compensation = {
        name: Compensation(f"undo-{name}", attempts=1, compensate_failed=True) for name in "ab"
    }
    node = await world.order(
        "abc",
        compensation=compensation,
        compensation_order="reverse",
        b={"attempts": 3, "backoff": 60_000},
    )
    await world.complete("a")
    await world.fail("b")

    await world.fail("c")

    assert await waiting_undos(world) == "b"
    await world.undo_all("ba")
    assert await world.state(node) == "FAILED"


async def test_side_by_side_the_last_is_undone_first_again(world: World):
    """Both failed, and both are tried again in the order of the first time."""
    own = {name: {"after": ["a"], "queue_name": "b"} for name in "bc"}
    node = await world.order("abcd", mapped="abc", d={"after": ["a"]}, **own)
    await world.complete("a")
    for job in await world.hand("b").take(2):
        await world.hand("b").complete(job)
    await world.fail("d")
    hand = world.hand("b:compensation")

    for _ in range(2):
        undoing = await hand.take(2)
        assert [job.name for job in undoing] == ["undo-c", "undo-b"]
        await hand.fail(*undoing)
        assert await world.state(node) == "FAILED_COMPENSATION"
        assert await world.queue("a").retry_compensation(node.group_id) == 2


async def test_a_member_that_ends_late_causes_no_look_at_the_whole_group(world: World):
    """The way back is known from the step before."""
    own = {name: {"after": ["a"]} for name in "bcd"}
    node = await world.order("abcd", **own)
    await world.complete("ab")
    late = await world.hand("d").take_one("d")
    await world.fail("c")
    assert await waiting_undos(world, "abcd") == "b"
    way = f"{world.prefix}:a:groups:{node.group_id}:retreat"
    await world.client.hset(way, "mark", "it would be gone if the way were found anew")

    await world.hand("d").complete(late)

    assert await world.client.hexists(way, "mark")
    assert await waiting_undos(world, "abcd") == "bd"
    await world.undo_all("bda")
    assert await world.state(node) == "FAILED"


@pytest.mark.parametrize("names", ["ab", "abc"])
async def test_a_compensation_that_bullmq_starts_as_new_makes_up_for_its_failure(
    world: World, names: str
):
    """Nobody was told that it ran again; what stands before it is undone after it."""
    node = await world.order(names, compensation_order="reverse")
    *done, last = names
    await world.complete("".join(done))
    await world.fail(last)
    await world.undo_all(done[-1], failing=done[-1])
    assert await world.state(node) == "FAILED_COMPENSATION"
    number = names.index(done[-1])
    await bring_back_as_new(world, f"{done[-1]}:compensation", f"{node.group_id}-c{number}")

    await world.undo_all("".join(reversed(done)))

    assert await world.state(node) == "FAILED"
    assert await indexed(world, "asking") == []


# ---------------------------------------------------------------------------- blocked groups


async def blocked(world: World) -> Any:
    node = await world.order("abc", mapped="", a={"pivot": True}, **_copy(STAGES))
    await world.complete("a")
    await world.fail("b", "out of stock")
    assert await world.state(node) == "BLOCKED"
    return node


async def test_a_group_that_is_retried_says_so_and_forgets_the_failure(world: World):
    node = await blocked(world)

    assert await world.queue("a").retry_group(node.group_id) == 1

    assert (await world.event_names())[-1] == "group:retrying"
    assert (await timeline(world, node)).count("retrying") == 1
    (b,) = [one for one in await world.queue("a").get_group_jobs(node.group_id) if one.name == "b"]
    assert (b.status, b.finished_at, b.reason) == ("pending", None, None)


async def test_a_signal_that_failed_is_told_anew_in_a_group_that_is_retried(world: World):
    jobs = [GroupJob("a", queue_name="a", pivot=True), GroupSignal("ok", after=["a"])]
    node = await world.flow.add_group("order", jobs, group_id="g")
    await world.complete("a")
    keys = Keys(world.prefix, "a")

    async def tell(state: str) -> None:
        told = groups.settle_member(keys, "g", "ok", state, b"1", request="the same")
        await world.connection.run(told)

    await tell("failed")
    assert await world.state(node) == "BLOCKED"
    await world.queue("a").retry_group("g")
    await tell("completed")

    assert await world.state(node) == "COMPLETED"


async def test_a_member_that_is_made_anew_has_no_lock_of_the_old_one(world: World):
    """Another program took it up again and vanished: its lock would protect the new one."""
    node = await blocked(world)
    (b,) = [job.id for job in node.jobs if job.name == "b"]
    lock = f"{world.queue('b').keys.job(b)}:lock"
    await world.client.set(lock, "somebody else", px=60_000)

    await world.queue("a").retry_group(node.group_id)

    assert await world.client.exists(lock) == 0
    members = await world.queue("a").get_group_jobs(node.group_id)
    assert [one.status for one in members] == ["completed", "pending", "planned"]
    await world.complete("bc")
    assert await world.state(node) == "COMPLETED"


# ---------------------------------------------------------------------------- many at once


@pytest.mark.parametrize(("order", "most"), [("parallel", 250), (None, 20)])
async def test_only_so_many_are_undone_at_once(world: World, order: Any, most: int):
    """The others follow as these end: the script that turns the group has a bound."""
    names = [f"m{number}" for number in range(most + 5)]
    jobs = [GroupJob(name, queue_name="a") for name in names]
    last = GroupJob("b", queue_name="b", after=[] if order else names)
    undo = {name: Compensation("undo", attempts=1) for name in names}
    node = await world.flow.add_group("many", [*jobs, last], undo, compensation_order=order)
    await end_all(world, "a", len(names))

    await world.fail("b")

    waiting = world.queue("a:compensation")
    assert await waiting.get_waiting_count() == most
    await end_all(world, "a:compensation", len(names))
    assert await world.state(node) == "FAILED"


async def end_all(world: World, queue: str, count: int) -> None:
    """Complete that many jobs, as they come."""
    while count > 0:
        taken = await world.hand(queue).take(min(count, 100))
        await world.hand(queue).complete(*taken)
        assert taken
        count -= len(taken)
