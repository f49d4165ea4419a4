"""What groups tell, clear away and leave alone: small things that nobody misses until they do."""

from __future__ import annotations

from typing import Any

from tests.features.group_support import World, job, start, state
from tests.helpers import wait_until
from toril import (
    Backoff,
    Deduplication,
    FlowJob,
    GroupSignal,
    NewJob,
    UnrecoverableError,
    WaitingChildrenError,
    Worker,
)
from toril.protocol import groups, leasing
from toril.protocol.command import skew
from toril.protocol.settling import Raised

DAY_MS = 86_400_000


def key(world: World, part: str = "") -> str:
    return f"{world.prefix}:a:groups:g{part}"


async def told(world: World) -> list[tuple[str, str | None]]:
    return [(step.what, step.reason) for step in await world.queue("a").get_group_timeline("g")]


async def past_pivot(world: World, **options: Any) -> None:
    """The group goes forward only, and c is next."""
    members = (job("a"), job("b", "a", pivot=True), job("c", "b"))
    await start(world, *members, undo="a", **options)
    await world.complete("ab")


# ---------------------------------------------------------------------------- resolving


async def test_that_a_group_was_resolved_is_in_its_timeline(world: World):
    """Whether it was blocked, or could not be undone."""
    await past_pivot(world)
    await world.fail("c")
    assert ("blocked", "ValueError: no") in await told(world)
    await world.queue("a").resolve_group("g", "sent by post")
    assert ("resolved", "sent by post") in await told(world)

    await world.queue("a").clean_groups()
    node = await world.order("ab")
    await world.complete("a")
    await world.fail("b")
    await world.undo_all("a", failing="a")
    await world.queue("a").resolve_group(node.group_id, "by phone")

    steps = await world.queue("a").get_group_timeline(node.group_id)
    assert ("resolved", "by phone") in [(step.what, step.reason) for step in steps]


async def test_a_resolved_group_asks_for_nothing_and_waits_for_nothing(world: World):
    await start(world, job("a"), job("b", "a"), job("c", "b"), undo="ab", undo_timeout=60_000)
    await world.complete("ab")
    await world.fail("c")
    skew.ms += 60_001
    await world.queue("a").reconcile_groups()
    asking = f"{world.prefix}:a:toril:groups-asking"
    assert await world.client.zcard(asking) == 1
    assert await world.client.exists(key(world, ":undo")) == 1

    await world.queue("a").resolve_group("g", "by hand")

    info = await world.queue("a").get_group_state("g")
    assert info is not None
    assert (info.state, info.asks, info.needs_a_person) == ("FAILED", None, False)
    assert await world.client.zcard(asking) == 0
    parts = [key(world, part) for part in (":undo", ":stage", ":signals", ":retreat")]
    assert await world.client.exists(*parts) == 0
    await world.undo_all("b")
    assert await state(world) == "FAILED"


async def test_a_group_that_was_blocked_by_its_time_limit_is_resolved(world: World):
    """Nothing failed, so nothing is skipped; it goes on."""
    await past_pivot(world, timeout=60_000)
    skew.ms += 60_001
    await world.queue("a").reconcile_groups()
    assert await state(world) == "BLOCKED"

    await world.queue("a").resolve_group("g", "let it run")

    assert await state(world) == "ACTIVE"
    await world.complete("c")
    assert await state(world) == "COMPLETED"


# ---------------------------------------------------------------------------- undoing again


async def test_a_compensation_that_is_made_anew_has_no_lock_of_the_old_one(world: World):
    """Another program took it up again and vanished: its lock would protect the new one."""
    node = await world.order("ab")
    await world.complete("a")
    await world.fail("b")
    await world.undo_all("a", failing="a")
    lock = f"{world.prefix}:a:compensation:{node.group_id}-c0:lock"
    await world.client.set(lock, "somebody else", px=60_000)

    assert await world.queue("a").retry_compensation(node.group_id) == 1

    assert await world.client.exists(lock) == 0
    await world.undo_all("a")
    assert await world.state(node) == "FAILED"


async def test_what_cannot_be_undone_again_yet_has_not_failed(world: World):
    """Its queue is damaged: it waits, as if it had never been tried."""
    node = await world.order("ab")
    await world.complete("a")
    await world.fail("b")
    await world.undo_all("a", failing="a")
    damaged = f"{world.prefix}:a:compensation:wait"
    await world.client.set(damaged, "odd")

    assert await world.queue("a").retry_compensation(node.group_id) == 1

    members = await world.queue("a").get_group_jobs(node.group_id)
    assert [member.compensation_status for member in members] == [None, None]
    asking = f"{world.prefix}:a:toril:groups-asking"
    assert await world.client.zcard(asking) == 1
    await world.client.delete(damaged)
    await world.queue("a").reconcile_groups()
    assert await world.client.zcard(asking) == 0, "nothing keeps it from being undone"
    await world.undo_all("a")
    assert await world.state(node) == "FAILED"


async def test_a_compensation_that_was_under_way_can_be_retried_once_more(world: World):
    """A dashboard brought it back, an operator retried the group, and it failed again."""
    node = await world.order("ab")
    await world.complete("a")
    await world.fail("b")
    await world.undo_all("a", failing="a")
    keys, job_id = world.queue("a:compensation").keys, f"{node.group_id}-c0"
    await world.client.zrem(f"{keys.base}:failed", job_id)
    await world.client.hdel(keys.job(job_id), "finishedOn", "processedOn", "failedReason")
    await world.client.lpush(keys.wait, job_id)
    assert await world.queue("a").retry_compensation(node.group_id) == 1
    await world.undo_all("a", failing="a")
    assert await world.state(node) == "FAILED_COMPENSATION"

    assert await world.queue("a").retry_compensation(node.group_id) == 1

    await world.undo_all("a")
    assert await world.state(node) == "FAILED"


async def test_a_letter_that_is_taken_away_is_named_no_more(world: World):
    """Neither one of a compensation that is retried, nor one of a member that is replayed."""
    node = await world.order("ab")
    await world.complete("a")
    await world.fail("b")
    await bury(world, "a:compensation", 1)
    assert "x.letter.0" in await world.record(node)

    await world.queue("a").retry_compensation(node.group_id)

    assert "x.letter.0" not in await world.record(node)
    await world.undo_all("a")


async def test_a_member_that_is_replayed_has_not_failed(world: World):
    """It runs again: neither the timeline nor the record tell of its failure."""
    await past_pivot(world)
    (letter,) = await bury(world, "c", 1)
    assert "failed" in [what for what, _ in await told(world)]
    assert await world.client.hexists(key(world), "x.letter.m2")

    await world.queue("dlq").replay_dead_letter(letter.id)

    assert await state(world) == "ACTIVE"
    assert "failed" not in [what for what, _ in await told(world)]
    assert not await world.client.hexists(key(world), "x.letter.m2")
    ends = await world.client.hkeys(key(world, ":results"))
    assert [field for field in ends if field.startswith("2")] == []
    await world.complete("c")
    assert await state(world) == "COMPLETED"


async def bury(world: World, name: str, count: int) -> list[Any]:
    """Let a worker fail what waits in a queue; returns the letters in "dlq"."""
    letters = world.queue("dlq")

    async def refuse(job: Any) -> None:
        raise UnrecoverableError("no")

    async def is_buried() -> bool:
        return await letters.get_dead_letter_count() == count

    options: Any = {"connection": world.url, "prefix": world.prefix, "dead_letter_queue": "dlq"}
    async with Worker(name, refuse, **options):
        await wait_until(is_buried)
    return await letters.get_dead_letter_jobs()


# ---------------------------------------------------------------------------- children


async def waiting_member(world: World, *children: NewJob, **options: Any) -> Any:
    """A group of a and b, in which a waits for these children in the queue "kids"."""
    node = await world.order("ab", mapped="")
    member = await world.hand("a").take_one("a")
    for child in children:
        await world.queue("kids").add(child.name, parent=member, **options)
    assert await world.hand("a").settle([(member, Raised(WaitingChildrenError()))]) == [0]
    return node


async def test_children_of_a_cancelled_member_go_with_theirs(world: World):
    node = await waiting_member(world, NewJob("child"))
    child = await world.hand("kids").take_one("child")
    await world.queue("grandkids").add("grandchild", parent=child)
    assert await world.hand("kids").settle([(child, Raised(WaitingChildrenError()))]) == [0]

    await world.fail("b")

    assert await world.state(node) == "FAILED"
    assert await world.hand("grandkids").take() == []
    rows = await world.client.xrange(f"{world.prefix}:kids:events")
    gone = [row["jobId"] for _, row in rows if row["event"] == "removed"]
    assert gone == [child.id]


async def test_a_child_of_a_cancelled_member_gives_its_deduplication_id_back(world: World):
    """Toril refuses such a child; BullMQ does not."""
    await waiting_member(world, NewJob("child"))
    (child,) = await world.queue("kids").get_jobs("waiting")
    keys = world.queue("kids").keys
    await world.client.hset(keys.job(child.id), "deid", "once")
    await world.client.set(f"{keys.base}:de:once", child.id)
    await world.fail("b")
    assert await world.client.exists(f"{keys.base}:de:once") == 0

    again = await world.queue("kids").add("again", deduplication=Deduplication("once"))

    assert not again.duplicated
    assert (await world.hand("kids").take_one()).name == "again"


async def test_a_child_of_a_cancelled_member_frees_its_lane_and_a_worker_hears_of_it(world: World):
    """It stood before another job of its lane, of which nobody else would tell."""
    again = {"attempts": 2, "backoff": Backoff.fixed(60_000)}
    await waiting_member(world, NewJob("child"), lane="l", **again)
    await world.queue("kids").add("behind", lane="l")
    await world.hand("kids").fail(await world.hand("kids").take_one())
    assert await world.hand("kids").take() == []
    await world.client.delete(f"{world.prefix}:kids:marker")

    await world.fail("b")

    assert await world.client.zscore(f"{world.prefix}:kids:marker", "0") == 0
    assert (await world.hand("kids").take_one()).name == "behind"


async def test_a_parent_does_not_wait_for_a_member_that_is_cancelled(world: World):
    """A flow made the member a child: it was there already."""
    node = await world.order("ab", mapped="")
    member = node.jobs[0]
    child = FlowJob("child", queue_name=member.queue_name, job_id=member.id)
    flow = await world.flow.add(FlowJob("parent", queue_name="parents", children=[child]))
    parents = world.queue("parents")
    assert await parents.get_state(flow.job.id) == "waiting_children"

    await world.fail("b")

    assert await world.queue("a").get_job(member.id) is None
    assert await parents.get_state(flow.job.id) == "waiting"
    await parents.drain()


async def test_no_more_than_a_thousand_children_are_removed_in_one_call(world: World):
    node = await world.order("ab", mapped="")
    member = await world.hand("a").take_one("a")
    await world.queue("kids").add_bulk([NewJob("child", parent=member)] * 1100)
    assert await world.hand("a").settle([(member, Raised(WaitingChildrenError()))]) == [0]

    await world.fail("b")

    assert await world.state(node) == "FAILED"
    assert 100 <= await world.client.llen(f"{world.prefix}:kids:wait") < 1100
    await world.queue("kids").drain()


# ---------------------------------------------------------------------------- stages


async def test_a_timeline_has_a_bound(world: World):
    await start(world, GroupSignal("ok"), GroupSignal("more", after=["ok"]))
    await world.client.rpush(key(world, ":log"), *["1\nseen\n\n"] * 1500)

    await world.queue("a").cancel_group("g", "enough")

    assert await world.client.llen(key(world, ":log")) == 1000
    assert await world.client.lindex(key(world, ":log"), -1) != "1\nseen\n\n"


async def test_lines_of_one_moment_are_told_in_their_order(world: World):
    """They have the same time, so the list decides."""
    await past_pivot(world)
    await world.fail("c")
    await world.queue("a").retry_group("g")
    await world.fail("c")
    await world.queue("a").resolve_group("g", "by hand")

    lines = await world.client.lrange(key(world, ":log"), 0, -1)

    assert [line.split("\n")[1] for line in lines] == ["blocked", "retrying", "blocked", "resolved"]


async def test_a_signal_with_a_long_limit_is_minded_by_workers_of_other_queues_for_as_long(
    world: World,
):
    members = [job("b"), GroupSignal("ok", after=["b"], timeout=30 * DAY_MS), job("c", "ok")]
    await start(world, *members)
    shared = f"{world.prefix}:b:toril:group-deadlines"
    before = await world.client.pttl(shared)

    await world.complete("b")

    assert await world.client.pttl(shared) > before + 20 * DAY_MS


async def test_what_was_too_much_for_one_call_is_due_at_once(world: World):
    await start(world, job("a"), *[job(f"b{n}", "a", queue_name="b") for n in range(300)])
    keys = world.queue("a").keys
    assert (await world.connection.run(groups.due(keys))).owners == []

    await world.complete("a")

    due = await world.connection.run(groups.due(keys))
    assert [owner.name for owner in due.owners] == ["a"]


async def test_what_a_member_was_planned_to_be_is_kept_no_longer_than_needed(world: World):
    await start(world, job("a"), job("b", "a"), job("c", "b"))

    await world.complete("a")

    assert sorted(await world.client.hkeys(key(world, ":stage"))) == ["2", "2.data", "2.opts"]


async def test_a_limit_of_a_signal_that_is_lost_is_looked_at_once(world: World):
    """Another tool has damaged the stages; the group is not looked at for ever."""
    await start(world, GroupSignal("ok", timeout=60_000), job("b", "ok"))
    await world.client.hdel(key(world, ":stage"), "0")
    skew.ms += 60_001

    assert await world.queue("a").reconcile_groups() == 1

    assert await world.client.exists(key(world, ":signals")) == 0
    assert await world.queue("a").reconcile_groups() == 0
    await world.queue("a").cancel_group("g", "damaged")


async def test_limits_of_signals_end_when_the_group_turns(world: World):
    await start(world, job("a"), GroupSignal("ok", timeout=60_000), undo="a")
    await world.complete("a")

    await world.queue("a").cancel_group("g")

    assert await state(world) == "COMPENSATING"
    assert await world.client.exists(key(world, ":signals")) == 0
    await world.undo_all("a")


async def test_nothing_waits_to_be_undone_behind_the_pivot(world: World):
    await start(world, job("a"), job("b", "a", pivot=True), job("c", "b"), undo="a")
    await world.complete("a")
    b = await world.hand("b").take_one("b")
    await world.queue("a").cancel_group("g", "too late")

    await world.hand("b").complete(b)

    assert await state(world) == "BLOCKED"
    assert await world.client.exists(key(world, ":undo")) == 0
    await world.queue("a").retry_group("g")
    await world.complete("c")


async def test_a_group_that_may_be_undone_after_all_asks_nobody(world: World):
    """Nobody knew how its pivot ended; somebody says that it did nothing."""
    await start(world, job("a"), job("b", "a", pivot=True), job("c", "b"), undo="a")
    await world.complete("a")
    keys, hand = world.queue("b").keys, world.hand("b")
    b = await hand.take_one("b")
    await hand.complete()  # a newer call: the job is known to have arrived
    await hand.lose(b)
    await world.client.sadd(f"{keys.base}:stalled", b.id)
    await world.connection.follow(leasing.sweep(keys, interval_ms=1, max_stalled=0))
    await hand.fail(await hand.take_one("b"))
    assert await state(world) == "BLOCKED"

    await world.queue("a").fail_member("g", "b", "it never left")

    assert await state(world) == "COMPENSATING"
    assert await world.client.zcard(f"{world.prefix}:a:toril:groups-asking") == 0
    await world.undo_all("a")
    assert await state(world) == "FAILED"


async def test_mail_for_a_worker_that_is_gone_does_not_stay(world: World):
    await start(world, job("a"), job("b"))
    a = await world.hand("a").take_one("a")

    await world.fail("b")

    (mail,) = [mail async for mail in world.client.scan_iter(f"{world.prefix}:a:toril:mail-*")]
    assert 0 < await world.client.pttl(mail) <= 60_000
    await world.hand("a").complete(a)


async def test_a_group_that_fails_twice_tells_it_once(world: World):
    """It could not be undone, and then it could."""
    await start(world, job("a"), job("b", "a"), undo="a", on_failed=job("sorry"))
    await world.complete("a")
    await world.fail("b")
    await world.undo_all("a", failing="a")
    sorry = await world.hand("sorry").take_one("sorry")
    await world.hand("sorry").complete(sorry)

    await world.queue("a").retry_compensation("g")
    await world.undo_all("a")

    assert await state(world) == "FAILED"
    assert await world.hand("sorry").take() == []


async def test_a_limit_that_passed_while_the_group_was_blocked_does_not_block_it_again(
    world: World,
):
    await past_pivot(world, timeout=60_000)
    await world.fail("c")
    skew.ms += 60_001

    await world.queue("a").retry_group("g")
    await world.queue("a").reconcile_groups()

    assert await state(world) == "ACTIVE"
    await world.complete("c")
    assert await state(world) == "COMPLETED"


async def test_a_limit_that_has_passed_is_enforced_once(world: World):
    """A blocked group stays blocked, and is no reason to look again and again."""
    await past_pivot(world, timeout=60_000)
    await world.fail("c")
    skew.ms += 60_001

    assert await world.queue("a").reconcile_groups() == 1

    assert await world.queue("a").reconcile_groups() == 0
    assert await state(world) == "BLOCKED"
    await world.queue("a").resolve_group("g", "by hand")


async def test_results_of_a_large_group_are_not_told_to_those_who_undo_it(world: World):
    """Each of a hundred compensations would carry a hundred results."""
    members = [job(f"m{n}", queue_name="q") for n in range(101)]
    await start(world, *members, job("z"), undo=["m0"])  # type: ignore[arg-type]
    taken = await world.hand("q").take(101)
    await world.hand("q").complete(*taken, value=1)
    await world.fail("z")

    undoing = await world.hand("q:compensation").take_one("undo-m0")

    assert undoing.compensation is not None
    assert undoing.compensation.results is None
    await world.hand("q:compensation").complete(undoing)


async def test_that_nobody_could_be_told_of_the_end_is_in_the_timeline(world: World):
    await start(world, job("a"), on_completed=job("done"))
    damaged = f"{world.prefix}:done:wait"
    await world.client.set(damaged, "odd")

    await world.complete("a")

    assert await state(world) == "COMPLETED"
    assert "cannot add on_completed" in [what for what, _ in await told(world)]
    await world.client.delete(damaged)
