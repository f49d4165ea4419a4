"""Moments that few jobs meet: each has one line of a script, and these tests need that line."""

from __future__ import annotations

import time

import msgspec
import pytest

from tests.client.support import add_child, events_of, make_parent
from tests.features.group_support import open_world
from tests.features.lanes import drain, lose_lock
from tests.features.test_group_mends import bury
from toril import (
    Backoff,
    Deduplication,
    FlowJob,
    FlowProducer,
    GroupJob,
    NewJob,
    Parent,
    Queue,
    RateLimit,
)
from toril.protocol import (
    adding,
    confirming,
    dead_letters,
    flows,
    lanes,
    leasing,
    pausing,
    removing,
    scheduling,
    settling,
)
from toril.protocol.burying import BurialPolicy
from toril.protocol.confirming import Fate
from toril.protocol.settling import Outcome, Policy, Raised, Returned, Settled, Take

HOUR_MS = 3_600_000


def lane_key(queue, name: str) -> str:
    return f"{queue.keys.base}:lanes:{name}"


async def marks(client, queue) -> list[str]:
    """What tells waiting workers to look."""
    return await client.zrange(queue.keys.marker, 0, -1)


# ------------------------------------------------------------------ children that exist already


async def test_a_job_that_waits_is_tied_to_the_parent_of_a_second_add(queue, hand, client):
    await queue.add("child", job_id="c")
    await queue.add("parent", job_id="p")
    await make_parent(client, queue, "p")

    again = await queue.add("child", job_id="c", parent=Parent("p", "q"))

    assert again.duplicated
    assert (await queue.get_dependencies("p")).unprocessed == [queue.keys.job("c")]
    worker = hand()
    (child,) = await worker.take(1)
    (parent,) = await worker.complete(child, then_take=1)
    assert parent.id == "p"
    await worker.complete(parent)


async def test_a_job_that_has_completed_counts_for_the_parent_of_a_second_add(queue, hand, client):
    await queue.add("child", job_id="c")
    worker = hand()
    await worker.complete(await worker.take_one())
    await queue.add("parent", job_id="p")
    await make_parent(client, queue, "p")

    await queue.add("child", job_id="c", parent=Parent("p", "q"))

    assert await queue.get_state("p") == "waiting"
    assert await queue.get_children_values("p") == {queue.keys.job("c"): None}


# ------------------------------------------------------------- what is added once, and remembered


def once(key: str, job_id: str = "a"):
    job = NewJob("x", job_id=job_id, idempotency_key=key)
    return adding.prepare(job, "unused", once_ms=60_000)


@pytest.fixture
def is_added(queue, connection):
    async def add(key: str) -> bool:
        (answer,) = await connection.run(adding.add(queue.keys, [once(key)]))
        return not answer.is_duplicate

    return add


async def test_what_was_added_once_is_not_added_again_when_it_is_gone(queue, is_added):
    assert await is_added("k")
    await queue.remove("a")

    assert not await is_added("k")
    assert await queue.get_job("a") is None


async def test_what_existed_is_remembered_like_what_was_added(queue, is_added):
    await queue.add("x", job_id="a")
    assert not await is_added("k")
    await queue.remove("a")

    assert not await is_added("k")
    assert await queue.get_job("a") is None


async def test_an_earlier_use_of_an_id_is_remembered_too(queue, is_added):
    for key in ("first", "second"):
        assert await is_added(key)
        await queue.remove("a")

    assert not await is_added("first")
    assert not await is_added("second")


async def test_the_memory_of_a_job_that_is_asked_about_is_kept_alive(queue, connection):
    await queue.add("x", job_id="a")
    ask = confirming.confirm(queue.keys, [("a", "k")], remember_ms=60_000)
    assert await connection.run(ask) == [Fate.TO_RUN]
    await queue.remove("a")

    assert await connection.run(ask) == [Fate.GONE]


async def test_a_tree_that_was_added_once_is_not_added_again(queue, connection):
    def add():
        root = FlowJob("root", queue_name="q", job_id="a", idempotency_key="k")
        return flows.add(flows.prepare([root], queue.keys.prefix, lambda: "b", once_ms=60_000))

    await connection.run(add())
    await queue.remove("a")

    (answer,) = await connection.run(add())

    assert answer.is_duplicate
    assert await queue.get_job("a") is None


async def test_a_child_of_a_flow_that_exists_is_told(queue, url, prefix, client):
    await queue.add("child", job_id="c")

    async with FlowProducer(connection=url, prefix=prefix) as producer:
        child = FlowJob("child", queue_name="q", job_id="c")
        await producer.add(FlowJob("parent", queue_name="q", children=[child]))

    assert [row["jobId"] for row in await events_of(client, queue, "duplicated")] == ["c"]


# ---------------------------------------------------------------------------- the log of events


async def log_length(client, queue) -> int:
    return await client.xlen(queue.keys.events)


@pytest.fixture
async def short_log(queue, client):
    """Ten events are kept, and as many as the server stores together."""
    await client.hset(queue.keys.meta, "opts.maxLenEvents", 10)
    return 10 + 100


async def test_cancelling_keeps_the_log_short(queue, client, short_log):
    jobs = await queue.add_bulk([NewJob("x") for _ in range(250)])

    for job in jobs:
        await queue.cancel(job.id)

    assert await log_length(client, queue) <= short_log


async def test_settling_keeps_the_log_short(queue, hand, client, short_log):
    await queue.add_bulk([NewJob("x") for _ in range(250)])
    worker = hand()
    for job in await worker.take(250):
        await worker.complete(job)

    assert await log_length(client, queue) <= short_log


async def test_a_sweep_keeps_the_log_short(queue, connection, client, short_log):
    for _ in range(250):
        await client.xadd(queue.keys.events, {"event": "progress"})

    await connection.follow(leasing.sweep(queue.keys, interval_ms=1000, max_stalled=1))

    assert await log_length(client, queue) <= short_log


async def test_a_queue_says_how_many_events_it_keeps(queue, client):
    """BullMQ reads it there."""
    await queue.add("x")

    assert await client.hget(queue.keys.meta, "opts.maxLenEvents") == "10000"


# ------------------------------------------------------------------------------- deduplication


async def test_a_job_that_is_replaced_is_told(queue, client):
    how = {"delay": HOUR_MS, "deduplication": Deduplication("d", replace=True)}
    first = await queue.add("x", **how)

    second = await queue.add("x", **how)

    (told,) = await events_of(client, queue, "deduplicated")
    assert (told["jobId"], told["deduplicatedJobId"]) == (second.id, first.id)


async def test_a_kept_job_whose_id_was_used_meanwhile_gives_way(queue, hand, client):
    last = Deduplication("d", keep_last_if_active=True)
    await queue.add("owner", deduplication=last)
    worker = hand()
    owner = await worker.take_one()
    await queue.add("kept", job_id="b", deduplication=last)
    await queue.add("other", job_id="b")

    await worker.complete(owner)

    assert await client.exists(f"{queue.keys.base}:dn:d") == 0
    assert (await queue.get_job("b")).name == "other"
    assert [row["jobId"] for row in await events_of(client, queue, "duplicated")] == ["b"]


async def test_a_kept_job_of_another_program_owns_its_id_for_its_time(queue, hand, client):
    await queue.add("owner", deduplication=Deduplication("d", keep_last_if_active=True))
    worker = hand()
    owner = await worker.take_one()
    pending = f"{queue.keys.base}:dn:d"
    kept = {"name": "next", "data": "{}", "opts": '{"de":{"id":"d","ttl":60000}}', "jid": "b"}
    await client.hset(pending, mapping=kept)

    await worker.complete(owner)

    assert await client.get(f"{queue.keys.base}:de:d") == "b"
    assert 0 < await client.pttl(f"{queue.keys.base}:de:d") <= 60_000
    assert await client.exists(pending) == 0


# ------------------------------------------------------------------------------ pause and limits


async def test_what_is_in_both_lists_of_a_paused_queue_becomes_one(queue, client):
    held = [(await queue.add("held")).id for _ in range(2)]
    await client.rename(queue.keys.wait, queue.keys.paused)
    newer = [(await queue.add("newer")).id for _ in range(2)]
    await client.hset(queue.keys.meta, "paused", 1)

    last = await queue.add("last")

    assert await client.lrange(queue.keys.paused, 0, -1) == [*held, *newer, last.id][::-1]
    assert await client.exists(queue.keys.wait) == 0


async def test_what_waits_moves_when_somebody_else_paused_the_queue(queue, client):
    """BullMQ 5 renames `paused` over `wait` when it resumes."""
    first = await queue.add("first")
    await client.hset(queue.keys.meta, "paused", 1)

    last = await queue.add("last")

    assert await client.lrange(queue.keys.paused, 0, -1) == [last.id, first.id]
    assert await client.exists(queue.keys.wait) == 0


async def test_a_queue_that_bullmq_5_opened_once_is_paused_as_it_expects(queue, client):
    await client.hset(queue.keys.meta, "version", "bullmq:5.81.5")
    job = await queue.add("x")
    await client.hset(queue.keys.meta, "version", "bullmq:6.0.0")

    await queue.pause()

    assert await client.lrange(queue.keys.paused, 0, -1) == [job.id]


async def test_resuming_moves_the_shorter_list(queue, connection, client):
    held = [(await queue.add("held")).id for _ in range(3)]
    await client.rename(queue.keys.wait, queue.keys.paused)
    newer = [(await queue.add("newer")).id for _ in range(2)]
    await client.hset(queue.keys.meta, "paused", 1)

    assert await connection.run(next(pausing.resume(queue.keys))) is False

    assert await client.lrange(queue.keys.wait, 0, -1) == [*held, *newer][::-1]
    assert await client.exists(queue.keys.paused) == 0


async def test_a_hold_that_lasts_too_long_ends_below_a_limit_too(queue, hand, client):
    """The server's clock was ahead when the queue was held."""
    await queue.set_global_rate_limit(RateLimit(5, 1000))
    await queue.add("x")
    await queue.rate_limit(200)
    await client.pexpire(queue.keys.limiter, HOUR_MS)

    worker = hand()
    await worker.complete(await worker.take_one())


async def test_a_window_that_lasts_too_long_is_followed_by_a_whole_one(queue, hand, client):
    await queue.set_global_rate_limit(RateLimit(1, 60_000))
    await queue.add_bulk([NewJob("x") for _ in range(2)])
    await client.set(queue.keys.limiter, "1", px=HOUR_MS)
    worker = hand()

    await worker.complete(await worker.take_one())

    assert await client.pttl(queue.keys.limiter) <= 60_000
    assert await worker.take(1) == []


async def test_a_new_window_ends_a_hold(queue, client):
    await queue.rate_limit(HOUR_MS)

    await queue.remove_rate_limit()

    assert await client.exists(queue.keys.limiter) == 0
    assert await client.hget(queue.keys.meta, "x.held") is None


async def test_jobs_are_taken_by_their_priority(queue, hand):
    for priority in (3, 1, 2):
        await queue.add("x", priority, priority=priority)

    assert [job.data for job in await hand().take(3)] == [1, 2, 3]


async def test_jobs_that_are_added_together_are_taken_in_order(queue, hand):
    await queue.add_bulk([NewJob("x", n) for n in range(5)])

    assert [job.data for job in await hand().take(5)] == list(range(5))


async def test_a_job_that_is_promoted_waits_behind_the_others(queue, hand):
    late = await queue.add("x", "late", delay=HOUR_MS)
    await queue.add("x", "old")

    await queue.promote(late.id)

    assert [job.data for job in await hand().take(2)] == ["old", "late"]


async def test_a_job_that_is_promoted_before_its_next_attempt_has_no_delay(queue, hand):
    worker = hand()
    job = await queue.add("x", attempts=2, backoff=Backoff.fixed(HOUR_MS))
    await worker.fail(await worker.take_one())
    assert (await queue.get_job(job.id)).delay == HOUR_MS

    await queue.promote(job.id)

    assert (await queue.get_job(job.id)).delay == 0


async def test_jobs_that_are_added_together_in_front_are_all_in_front(queue, hand):
    await queue.add("x", "old")

    await queue.add_bulk([NewJob("x", word, lifo=True) for word in ("first", "second")])

    assert [job.data for job in await hand().take(3)] == ["second", "first", "old"]


# ------------------------------------------------------------------------------- jobs of lanes


async def test_a_lane_that_is_paused_is_not_due(queue, connection, client):
    """Else an idle worker would look at once, again and again."""
    await queue.add("x", lane="a")
    await queue.pause_lane("a")
    await client.zadd(lane_key(queue, "later"), {"a": 1})
    take = Take(count=1, token="t", lock_ms=1000)

    reply = await connection.run(settling.settle(queue.keys, [], take, flight="f", request=1))

    assert (reply.jobs, reply.next_due_ms) == ([], 0)
    await connection.run(settling.leave(queue.keys, ["f"]))


@pytest.mark.no_audit("its job was taken away")
async def test_a_lane_whose_jobs_somebody_took_away_is_forgotten(queue, hand, client):
    await queue.add("x", lane="a")
    await client.delete(lane_key(queue, "waiting"))

    assert await hand().take(1) == []

    assert await queue.get_lanes() == []


async def test_jobs_beside_strays_of_lanes_keep_their_order(queue, hand, client):
    """Another program put jobs of lanes into the plain list."""
    strays = [await queue.add("x", f"lane {n}", lane="a") for n in range(2)]
    plain = [await queue.add("x", f"plain {n}") for n in range(3)]
    names = ("waiting", "ready", "index")
    await client.delete(*[lane_key(queue, name) for name in names], queue.keys.wait)
    await client.srem(f"{queue.keys.base}:de", *[job.id for job in strays])
    mixed = [strays[0], plain[0], strays[1], plain[1], plain[2]]
    await client.lpush(queue.keys.wait, *[job.id for job in mixed])

    seen = await drain(hand())

    assert [word for word in seen if word.startswith("plain")] == ["plain 0", "plain 1", "plain 2"]
    assert [word for word in seen if word.startswith("lane")] == ["lane 0", "lane 1"]


async def test_a_job_of_a_lane_that_is_replaced_in_the_same_call_is_not_kept(queue, client):
    how = {"lane": "a", "delay": HOUR_MS, "deduplication": Deduplication("d", replace=True)}

    _, second = await queue.add_bulk([NewJob("x", **how) for _ in range(2)])

    kept = await client.smembers(f"{queue.keys.base}:de")
    assert kept - {"groups", "compensation"} == {second.id}


async def test_a_window_of_a_lane_that_lasts_too_long_is_followed_by_a_whole_one(
    queue, hand, client
):
    await queue.set_lane_rate_limit(None, RateLimit(1, 60_000))
    await client.set(lane_key(queue, "rate:a"), "1", px=HOUR_MS)
    await queue.add_bulk([NewJob("x", lane="a") for _ in range(2)])
    worker = hand()

    await worker.complete(await worker.take_one())

    assert await client.pttl(lane_key(queue, "rate:a")) <= 60_000
    assert await worker.take(1) == []


async def test_a_damaged_place_in_a_lane_is_written_again(queue, hand, client):
    """So that whoever removes the job finds it in its lane."""
    job = await queue.add("x")
    blocker = await queue.add("x", lane="b")
    worker = hand()
    await worker.take(2)
    await worker.give_back(worker.held[job.id][0])
    await client.hset(queue.keys.job(job.id), "x.lane", "b")
    assert await worker.take(1) == []

    await queue.remove(job.id)

    assert await client.exists(lane_key(queue, "waiting")) == 0
    await worker.complete(worker.held[blocker.id][0])


async def test_a_job_that_lost_its_place_lets_its_lane_go(queue, hand, client):
    first, second = await queue.add_bulk([NewJob("x", lane="a") for _ in range(2)])
    await client.hdel(queue.keys.job(first.id), "x.lane")
    worker = hand()

    (taken,) = await worker.take(1)
    (follower,) = await worker.complete(taken, then_take=1)

    assert (taken.id, follower.id) == (first.id, second.id)
    await worker.complete(follower)


@pytest.mark.parametrize(
    "damaged",
    ['{"queue":"q-dlq"}', "no JSON", "[]", '{"job":"1","queue":7,"until_seq":1}', b"\xff"],
)
async def test_a_damaged_diversion_is_forgotten(queue, connection, client, hand, damaged):
    """And the other lanes do not wait for it."""
    head, behind = await queue.add_bulk([NewJob("x", lane="b", attempts=1) for _ in range(2)])
    worker = hand()
    await worker.fail(await worker.take_one())
    await queue.add("x", lane="a")
    cause = f'{{"job":"{head.id}","queue":"q-dlq","until_seq":1000}}'
    await client.hset(lane_key(queue, "diverting"), mapping={"a": damaged, "b": cause})

    assert await connection.follow(lanes.divert(queue.keys)) == 1

    assert await client.exists(lane_key(queue, "diverting")) == 0
    assert await queue.get_state(behind.id) is None


async def test_a_diversion_to_no_queue_keeps_no_other_waiting(queue, connection, client):
    entries = {
        lane: f'{{"job":"1","queue":"{to}","until_seq":9}}'
        for lane, to in (("a", "no:queue"), ("b", "q-dlq"))
    }
    await client.hset(lane_key(queue, "diverting"), mapping=entries)

    assert await connection.follow(lanes.divert(queue.keys)) == 0

    assert await client.hkeys(lane_key(queue, "diverting")) == ["a"]


@pytest.mark.no_audit("a job is damaged on purpose")
async def test_a_damaged_job_of_a_diverted_lane_is_told(queue, connection, hand, client):
    head, damaged, last = await queue.add_bulk(
        [NewJob("x", lane="a", attempts=1) for _ in range(3)]
    )
    worker = hand()
    await worker.fail(await worker.take_one())
    await client.delete(queue.keys.job(damaged.id))
    await client.set(queue.keys.job(damaged.id), "no hash")
    cause = f'{{"job":"{head.id}","queue":"q-dlq","until_seq":1000}}'
    await client.hset(lane_key(queue, "diverting"), "a", cause)

    await connection.follow(lanes.divert(queue.keys))

    told = [row["jobId"] for row in await events_of(client, queue, "failed")]
    assert told == [head.id, damaged.id, last.id]


async def test_removing_a_lost_holder_lets_its_lane_go(queue, hand, client):
    first, second = await queue.add_bulk([NewJob("x", lane="a") for _ in range(2)])
    worker = hand()
    await worker.take(1)
    await lose_lock(client, queue.keys, first.id)
    await client.delete(queue.keys.marker)

    await queue.remove(first.id)

    assert await marks(client, queue) == ["0"]
    (taken,) = await worker.take(1)
    assert taken.id == second.id
    await worker.complete(taken)


async def test_the_next_job_of_a_lane_is_announced(queue, hand, client):
    await queue.add_bulk([NewJob("x", lane="a") for _ in range(2)])
    worker = hand()
    job = await worker.take_one()
    await client.delete(queue.keys.marker)

    await worker.complete(job)

    assert await marks(client, queue) == ["0"]


async def test_who_runs_a_job_of_a_lane_is_written_down(queue, connection, client):
    job = await queue.add("x", lane="a")
    take = Take(count=1, token="t", lock_ms=30_000, worker_name="w")

    await connection.run(settling.settle(queue.keys, [], take, flight="f", request=1))

    stored = await client.hgetall(queue.keys.job(job.id))
    assert (stored["pb"], stored["ats"], stored["x.fence"]) == ("w", "1", "1")
    assert abs(int(stored["processedOn"]) - time.time() * 1000) < 600_000


async def test_a_parent_that_holds_its_lane_goes_on_before_the_others(queue, hand, client):
    parent, other = await queue.add_bulk([NewJob("x", lane="a") for _ in range(2)])
    worker = hand()
    taken = await worker.take_one()
    child = await queue.add("child", parent=Parent(parent.id, "q"))
    results, (at_work,) = await worker.call([(taken, Outcome(kind="waiting-children"))], 1)
    assert (results, at_work.id) == ([0], child.id)

    (again,) = await worker.complete(at_work, then_take=1)
    (last,) = await worker.complete(again, then_take=1)

    assert (again.id, last.id) == (parent.id, other.id)
    await worker.complete(last)


async def test_a_delayed_parent_fails_at_once_with_its_child(queue, hand, client):
    parent = await queue.add("parent", delay=HOUR_MS)
    await queue.add("child", parent=Parent(parent.id, "q"), fail_parent_on_failure=True)
    worker = hand()

    await worker.fail(await worker.take_one())

    assert await queue.get_state(parent.id) == "waiting"
    stored = await client.hgetall(queue.keys.job(parent.id))
    assert "failed" in stored["defa"]
    assert stored["delay"] == "0"


# ------------------------------------------------------------------------------------- sweeps


async def test_a_sweep_brings_back_what_an_interrupted_resume_left(queue, connection, client):
    held = [(await queue.add("x")).id for _ in range(3)]
    await client.rename(queue.keys.wait, queue.keys.paused)
    await client.delete(queue.keys.marker)

    await connection.follow(leasing.sweep(queue.keys, interval_ms=1000, max_stalled=1))

    assert await client.lrange(queue.keys.wait, 0, -1) == held[::-1]
    assert await client.exists(queue.keys.paused) == 0
    assert await marks(client, queue) == ["0"]


async def test_a_sweep_puts_what_was_left_before_what_came_later(queue, connection, client):
    held = [(await queue.add("x")).id for _ in range(3)]
    await client.rename(queue.keys.wait, queue.keys.paused)
    newer = [(await queue.add("x")).id for _ in range(2)]

    plan = leasing.sweep(queue.keys, interval_ms=1000, max_stalled=1)
    await connection.follow(plan)

    assert await client.lrange(queue.keys.wait, 0, -1) == [*held, *newer][::-1]
    assert await client.exists(queue.keys.paused) == 0


async def test_after_a_jump_of_the_clock_sweeps_keep_their_distance(queue, connection, client):
    await client.set(queue.keys.stalled_check, "1", px=HOUR_MS)

    await connection.follow(leasing.sweep(queue.keys, interval_ms=60_000, max_stalled=1))

    assert 0 < await client.pttl(queue.keys.stalled_check) <= 60_000


async def test_a_walk_through_the_replies_begins_again_at_the_beginning(
    queue, connection, hand, client
):
    await hand().take(1)
    place = f"{queue.keys.base}:toril:replies-walk"
    await client.set(place, "0")

    await connection.follow(leasing.sweep(queue.keys, interval_ms=1000, max_stalled=1))

    assert await client.exists(place) == 0


async def test_replies_of_the_dead_are_found_behind_those_of_the_living(queue, connection, client):
    """Each sweep walks on from where the last one stopped."""
    now_ms = int(time.time() * 1000)
    record = {"results": [], "taken": [], "at": now_ms}
    replies = queue.keys.own("replies")
    alive = msgspec.msgpack.encode(record)
    await client.hset(replies, mapping={f"alive{n}": alive for n in range(3000)})
    dead = msgspec.msgpack.encode({**record, "at": now_ms - 2 * leasing.FORGET_REPLIES_MS})
    await client.hset(replies, mapping={f"dead{n}": dead for n in range(20)})

    for _ in range(20):
        await client.delete(queue.keys.stalled_check)
        await connection.follow(leasing.sweep(queue.keys, interval_ms=1000, max_stalled=1))

    assert await client.hlen(replies) == 3000
    assert not any(name.startswith("dead") for name in await client.hkeys(replies))


@pytest.mark.parametrize("is_paused", [False, True])
async def test_a_lane_that_waits_for_too_long_is_looked_at(is_paused, queue, connection, client):
    await queue.add("x", lane="a")
    if is_paused:
        await queue.pause_lane("a")
    await client.delete(lane_key(queue, "ready"), queue.keys.marker)
    await client.zadd(lane_key(queue, "later"), {"a": time.time() * 1000 + HOUR_MS})

    await connection.follow(leasing.sweep(queue.keys, interval_ms=1000, max_stalled=1))

    assert await client.exists(lane_key(queue, "later")) == 0
    assert await marks(client, queue) == ([] if is_paused else ["0"])


# -------------------------------------------------------------------------------- schedules


async def test_an_iteration_that_exists_is_told(queue, connection, hand, client):
    await queue.upsert_job_scheduler("s", every=60_000)
    worker = hand()
    job = await worker.take_one()
    before = await client.zscore(queue.keys.repeat, "s")
    now_ms = int(time.time() * 1000)
    next_id = await connection.follow(scheduling.advance(queue.keys, job, now_ms))
    after = await client.zscore(queue.keys.repeat, "s")
    await client.zadd(queue.keys.repeat, {"s": before})

    following = await connection.follow(scheduling.advance(queue.keys, job, now_ms))

    assert following == scheduling.iteration_id("s", int(after) + 60_000)
    assert [row["jobId"] for row in await events_of(client, queue, "duplicated")] == [next_id]
    await worker.complete(job)


# ------------------------------------------------------------------------- what is removed


async def test_the_lock_of_a_job_goes_with_it(queue, hand, connection, client):
    """Nobody extends it while the rest of a large queue is removed."""
    await queue.add("x")
    job = await hand().take_one()
    plan = removing.obliterate(queue.keys, force=True)
    command = next(plan)
    while command.script is None or command.script.name != "eraseKeys":
        command = plan.send(await connection.run(command))

    assert await client.exists(f"{queue.keys.job(job.id)}:lock") == 0

    await queue.obliterate(force=True)


async def test_a_key_that_is_no_job_is_removed_like_one(queue, client):
    job = await queue.add("x")
    await client.delete(queue.keys.job(job.id))
    await client.set(queue.keys.job(job.id), "no hash")

    await queue.drain()

    assert await client.exists(queue.keys.job(job.id)) == 0


# ------------------------------------------------------------------------- what is damaged


@pytest.fixture
async def dlq(url, prefix):
    async with Queue("q-dlq", connection=url, prefix=prefix) as queue:
        yield queue


class Desk:
    """Ends jobs of a worker moved by hand, with or without dead letters."""

    def __init__(self, connection, queue) -> None:
        self._connection, self._queue, self._request = connection, queue, 1000

    async def settle(self, worker, job, attempt, **how):
        (result,) = await self.settle_all(worker, [(job, attempt)], **how)
        return result

    async def settle_all(self, worker, ended, *, letters=None, points=None):
        """Several in one call; returns what became of each."""
        policy = Policy(dead_letters=letters and BurialPolicy())
        settled = [
            Settled(
                job.id,
                worker.held[job.id][1],
                settling.decide(job, attempt, policy, dice=0.5),
                job,
            )
            for job, attempt in ended
        ]
        self._request += 1
        command = settling.settle(
            self._queue.keys,
            settled,
            Take(count=0, token="t", lock_ms=1000, metrics_points=points),
            flight="desk",
            request=self._request,
            dead_letters=letters,
        )
        return (await self._connection.run(command)).results


@pytest.fixture
async def desk(connection, queue):
    yield Desk(connection, queue)
    await connection.run(settling.leave(queue.keys, ["desk"]))


FAILURE = Raised(ValueError("no"))


async def bad_parent(client, queue, job_id: str, flags: str = ',"fpof":true') -> None:
    """Tie a job to a parent whose children nobody can count."""
    await add_child(client, queue.keys.job("p"), queue.keys.job(job_id), flags=flags)
    await client.delete(f"{queue.keys.job('p')}:dependencies")
    await client.set(f"{queue.keys.job('p')}:dependencies", "no set")


async def bad_group(client, queue, job_id: str, kind: str = "m") -> None:
    """Make a job a member of a group, or what undoes one, and its end cannot be told."""
    group = f"{queue.keys.base}:odd"
    await client.hset(queue.keys.job(job_id), "x.group", f"{group}:{kind}1")
    await client.hset(group, "state", "ACTIVE")
    await client.set(f"{group}:jobs", "no hash")
    await client.set(f"{group}:compensations", "no hash")


@pytest.mark.no_audit("the queue is damaged on purpose")
async def test_a_damaged_queue_is_told_to_whoever_retries_all(queue, hand, client):
    await queue.add("x", priority=1)
    worker = hand()
    await worker.fail(await worker.take_one())
    await client.set(queue.keys.prioritized, "no sorted set")

    with pytest.raises(Exception, match="WRONGTYPE"):
        await queue.retry_all()


@pytest.mark.no_audit("the job is damaged on purpose")
async def test_a_job_that_cannot_be_taken_is_among_the_failed(queue, hand, client):
    job = await queue.add("x")
    await bad_group(client, queue, job.id)
    await client.hset(queue.keys.job(job.id), "ats", "1")

    assert await hand().take(1) == []

    assert await queue.get_state(job.id) == "failed"


@pytest.mark.no_audit("the job is damaged on purpose")
async def test_a_job_that_is_given_up_while_it_is_taken_has_no_lock(queue, hand, client):
    job = await queue.add("x")
    past = {"ats": "9" * 3000, "processedOn": "1", "x.attempts": "x"}
    await client.hset(queue.keys.job(job.id), mapping=past)

    assert await hand().take(1) == []

    assert await queue.get_state(job.id) == "failed"
    assert await client.exists(f"{queue.keys.job(job.id)}:lock") == 0


@pytest.mark.no_audit("the job is damaged on purpose")
async def test_a_job_that_cannot_complete_stays_the_oldest_and_keeps_its_lane(
    queue, hand, desk, client
):
    bad, _ = await queue.add_bulk([NewJob("x", lane="a") for _ in range(2)])
    good = await queue.add("x", lane="b")
    other = await queue.add("x", lane="c")
    worker = hand()
    assert [job.id for job in await worker.take(3)] == [bad.id, good.id, other.id]
    await bad_parent(client, queue, bad.id)

    ended = [(worker.held[job.id][0], Returned(None)) for job in (bad, good)]
    result, other_result = await desk.settle_all(worker, ended)

    assert (isinstance(result, list), other_result) == (True, 0)
    assert await client.lrange(queue.keys.active, 0, -1) == [other.id, bad.id]
    assert await client.exists(f"{queue.keys.job(bad.id)}:lock") == 1
    assert await worker.take(1) == []


@pytest.mark.no_audit("the job is damaged on purpose")
async def test_a_job_whose_group_cannot_be_told_has_not_completed(queue, hand, desk, client):
    bad, good = await queue.add_bulk([NewJob("x") for _ in range(2)])
    worker = hand()
    await worker.take(2)
    await bad_group(client, queue, bad.id)

    ended = [(worker.held[job.id][0], Returned(None)) for job in (bad, good)]
    result, other_result = await desk.settle_all(worker, ended)

    assert (isinstance(result, list), other_result) == (True, 0)
    assert await client.zrange(queue.keys.completed, 0, -1) == [good.id]
    assert await client.lrange(queue.keys.active, 0, -1) == [bad.id]


@pytest.mark.no_audit("the job is damaged on purpose")
async def test_a_job_that_is_no_job_any_more_ends_and_is_told(queue, hand, desk, client):
    job = await queue.add("x")
    worker = hand()
    await worker.take(1)
    await client.delete(queue.keys.job(job.id))
    await client.set(queue.keys.job(job.id), "no hash")

    await desk.settle(worker, worker.held[job.id][0], FAILURE)

    assert await client.exists(queue.keys.active) == 0
    assert [row["jobId"] for row in await events_of(client, queue, "failed")] == [job.id]


@pytest.fixture
async def broken_lane(queue, client):
    """Whoever leaves lane "a" cannot say when its next job may start."""

    async def damage() -> None:
        await client.delete(lane_key(queue, "rate:a"))
        await client.lpush(lane_key(queue, "rate:a"), "no number")

    await queue.set_lane_rate_limit(None, RateLimit(5, 60_000))
    return damage


@pytest.mark.no_audit("the lane is damaged on purpose")
async def test_a_job_that_cannot_leave_its_lane_frees_its_deduplication_id(
    queue, hand, desk, client, broken_lane
):
    await queue.add("x", lane="a", attempts=1, deduplication=Deduplication("d"))
    await queue.add("x", lane="a")
    worker = hand()
    job = await worker.take_one()
    await broken_lane()

    await desk.settle(worker, job, FAILURE)

    assert await queue.get_state(job.id) == "failed"
    assert await client.exists(f"{queue.keys.base}:de:d") == 0


@pytest.mark.no_audit("the lane is damaged on purpose")
async def test_a_job_that_cannot_leave_its_lane_tells_its_parent(
    queue, hand, desk, client, broken_lane
):
    parent = await queue.add("parent", delay=HOUR_MS)
    policy = {"parent": Parent(parent.id, "q"), "fail_parent_on_failure": True}
    child = NewJob("x", lane="a", attempts=1, **policy)
    await queue.add_bulk([child, NewJob("x", lane="a")])
    worker = hand()
    job = await worker.take_one()
    await broken_lane()

    await desk.settle(worker, job, FAILURE)

    assert await queue.get_state(job.id) == "failed"
    assert await queue.get_state(parent.id) == "waiting"


@pytest.mark.parametrize("tie", ["m", "c", "parent"])
@pytest.mark.no_audit("the job is damaged on purpose")
async def test_a_letter_whose_ties_cannot_be_told_is_there_once_and_whole(
    tie, queue, dlq, hand, desk, client
):
    """Regression: of what undoes a member nothing was left, neither a job nor a letter."""
    await queue.add("x", {"n": 1}, attempts=1)
    worker = hand()
    job = await worker.take_one()
    await queue.add_log(job.id, "a row")
    if tie == "parent":
        await bad_parent(client, queue, job.id, flags="")
    else:
        await bad_group(client, queue, job.id, tie)

    await desk.settle(worker, job, FAILURE, letters=dlq.keys)

    (letter,) = await dlq.get_dead_letter_jobs()
    assert letter.data["n"] == 1
    assert await client.lrange(f"{dlq.keys.job(letter.id)}:logs", 0, -1) == ["a row"]
    left = [key async for key in client.scan_iter(f"{dlq.keys.base}:[0-9]*")]
    assert sorted(left) == [dlq.keys.job(letter.id), f"{dlq.keys.job(letter.id)}:logs"]
    assert await client.exists(queue.keys.job(job.id), queue.keys.active) == 0


@pytest.mark.no_audit("the lane is damaged on purpose")
async def test_a_job_that_cannot_leave_its_lane_tells_its_group(
    queue, hand, desk, broken_lane, url, prefix
):
    async with FlowProducer(connection=url, prefix=prefix) as producer:
        member = GroupJob("x", queue_name="q", lane="a", attempts=1)
        node = await producer.add_group("order", [member])
    await queue.add("x", lane="a")
    worker = hand()
    job = await worker.take_one()
    await broken_lane()

    await desk.settle(worker, job, FAILURE)

    assert await queue.get_state(job.id) == "failed"
    assert str((await queue.get_group_state(node.group_id)).state) != "ACTIVE"


# -------------------------------------------------------------------------------- dead letters


async def test_a_group_does_not_name_a_letter_that_has_come_back(url, prefix, client):
    async with open_world(url, prefix, client) as world:
        node = await world.order("ab")
        await world.complete("a")
        await world.fail("b")
        await bury(world, "a:compensation")
        assert any(name.startswith("x.letter") for name in await world.record(node))

        await world.queue("dlq").replay_all_dead_letters()

        assert not any(name.startswith("x.letter") for name in await world.record(node))


async def test_letters_that_are_replayed_together_are_counted(
    queue, dlq, hand, desk, connection, client
):
    await queue.add_bulk([NewJob("x", {"n": n}, attempts=1) for n in range(3)])
    worker = hand()
    for job in await worker.take(3):
        await desk.settle(worker, job, FAILURE, letters=dlq.keys)

    assert await dlq.replay_all_dead_letters() == 3

    assert await connection.run(dead_letters.total(dlq.keys, "replayed")) == 3


async def test_a_run_that_is_over_cannot_be_resumed(queue, connection, monkeypatch):
    monkeypatch.setattr(dead_letters, "PURGES_PER_SLICE", 2)
    await queue.add_bulk([NewJob("x") for _ in range(5)])

    assert await queue.purge_dead_letters(force=True) == 5

    latest = dead_letters.latest_run(queue.keys, "purge", dead_letters.Filter.of())
    assert await connection.run(latest) is None


# ------------------------------------------------------------------------------------ metrics


async def test_no_more_minutes_are_kept_than_asked_for(queue, hand, desk, client):
    key = f"{queue.keys.base}:metrics:completed"
    await client.rpush(f"{key}:data", 1, 2, 3, 4, 5)
    minute_ago = int(time.time() * 1000) - 60_000
    await client.hset(key, mapping={"count": 20, "prevTS": minute_ago, "prevCount": 15})
    await queue.add("x")
    worker = hand()
    await worker.take(1)

    (job,) = [job for job, _ in worker.held.values()]
    await desk.settle(worker, job, Returned(None), points=3)

    # One minute has passed, or two if the next one began meanwhile.
    finished_on = (await queue.get_job(job.id)).finished_on
    passed = finished_on // 60_000 - minute_ago // 60_000
    data = ["0"] * (passed - 1) + ["5", "1", "2"]
    assert await client.lrange(f"{key}:data", 0, -1) == data[:3]
