"""Lanes: of the jobs with one lane one runs at a time, in order; lanes run beside each other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from tests.features.lanes import Hand, fence_of, lose_lock, sweep
from tests.helpers import wait_until
from tests.keyspace import audit, lasting_keys
from toril import Backoff, NewJob, Queue, RateLimit, UnrecoverableError, Worker
from toril.client.connection import Connection
from toril.errors import InvalidOptionError, LaneFullError
from toril.protocol.settling import Outcome
from toril.sync import Queue as BlockingQueue


@pytest.fixture
async def queue(url: str, prefix: str) -> AsyncIterator[Queue]:
    async with Queue("q", connection=url, prefix=prefix) as queue:
        yield queue


@pytest.fixture
async def connection(url: str) -> AsyncIterator[Connection]:
    connection = Connection(url)
    yield connection
    await connection.close()


@pytest.fixture
def hand(connection: Connection, queue: Queue):
    """Makes workers that are moved call by call."""
    return lambda name="one": Hand(connection, queue.keys, name)


@pytest.fixture
def work(url, prefix):
    """Makes workers of the queue; idle ones ask again only after a minute."""

    def make(handler, **options):
        return Worker(
            "q", handler, connection=url, prefix=prefix, **{"drain_delay": 60_000, **options}
        )

    return make


async def drain(hand: Hand) -> list:
    """Take and complete until nothing is left; what was taken, in order."""
    seen = []
    jobs = await hand.take(1)
    while jobs:
        seen.append(jobs[0].data)
        jobs = await hand.complete(jobs[0], then_take=1)
    return seen


# --------------------------------------------------------------------- one at a time, in order


async def test_a_lane_never_runs_two_jobs_at_once(queue, hand):
    """FIFO-01, FIFO-02: whoever asks, a held lane gives nothing."""
    first = await queue.add("x", 1, lane="user:42", order_ms=5, attempts=2)
    await queue.add("x", 2, lane="user:42", order_ms=6)
    one, two = hand("one"), hand("two")

    (taken,) = await one.take(10)

    assert (taken.id, taken.lane, taken.data) == (first.id, "user:42", 1)
    assert await two.take(10) == []
    assert [job.data for job in await one.complete(taken, then_take=10)] == [2]
    assert await two.take(10) == []


async def test_a_batch_takes_one_job_of_each_lane(queue, hand):
    """FIFO-26: a call that asks for ten gets one of each of three lanes."""
    for n in range(9):
        await queue.add("x", n, lane=f"lane-{n % 3}")

    jobs = await hand().take(10)

    assert sorted(job.data for job in jobs) == [0, 1, 2]


async def test_a_lane_runs_by_order_and_then_by_arrival(queue, hand):
    """FIFO-04: order_ms decides, and equal ones come as they were added."""
    for n, order_ms in enumerate([30, 10, 20, 10, 0, 10]):
        await queue.add("x", n, lane="a", order_ms=order_ms)

    assert await drain(hand()) == [4, 1, 3, 5, 2, 0]


async def test_without_order_ms_arrival_decides(queue, hand):
    """FIFO-01: the order defaults to the server's time of arrival."""
    await asyncio.gather(*(queue.add("x", 0, lane="other") for _ in range(20)))
    for n in range(20):
        await queue.add("x", n, lane="a")
    await queue.drain_lane("other")

    assert await drain(hand()) == list(range(20))


async def test_a_worker_runs_as_many_lanes_as_it_has_places(queue, work):
    """FIFO-03: eight lanes, eight jobs at once, and never two of one lane."""
    running: list[str] = []
    most = 0
    overlaps = []

    async def handler(job):
        nonlocal most
        if job.lane in running:
            overlaps.append(job.lane)
        running.append(job.lane)
        most = max(most, len(running))
        await wait_until(lambda: most == 8)
        await asyncio.sleep(0.002)
        running.remove(job.lane)

    await queue.add_bulk([NewJob("x", n, lane=f"lane-{n % 8}") for n in range(40)])
    async with work(handler, concurrency=20):
        assert await queue.wait_until_empty(60_000)

    assert (most, overlaps) == (8, [])


async def test_the_next_job_of_a_lane_is_taken_by_the_call_that_ends_the_one_before(queue, hand):
    """FIFO-27: completing and taking the next one is one atomic call."""
    await queue.add_bulk([NewJob("x", n, lane="a") for n in range(2)])
    one, two = hand("one"), hand("two")
    (first,) = await one.take(1)

    jobs = await one.complete(first, then_take=1)

    assert [job.data for job in jobs] == [1]
    assert await two.take(1) == []


# --------------------------------------------------------------------- time


@pytest.mark.parametrize("how", ["delay", "run_at"])
async def test_a_delayed_job_never_runs_early_on_any_path(how, queue, hand, connection):
    """FIFO-27, FIFO-28, C-23: neither a plain take nor a complete-and-take returns it early."""
    now_ms = round(time.time() * 1000)
    await queue.add("x", "first", lane="a", order_ms=1)
    options = {"delay": 800} if how == "delay" else {"run_at": now_ms + 800}
    late = await queue.add("x", "late", lane="a", order_ms=0, **options)
    one = hand()

    (first,) = await one.take(5)
    assert first.data == "first"
    assert await one.complete(first, then_take=5) == []
    assert await queue.get_state(late.id) == "delayed"
    assert (await queue.get_job_counts("delayed", "waiting")) == {"delayed": 1, "waiting": 0}

    job = await wait_until(one.take_one)
    assert job.data == "late"
    assert job.processed_on >= now_ms + 800


async def test_an_idle_worker_is_woken_when_a_delayed_job_of_a_lane_is_due(queue, work):
    """FIFO-14, FIFO-28: a worker that asks once a minute still runs it in time."""
    ran = []

    async def handler(job):
        ran.append(job)

    async with work(handler):
        await asyncio.sleep(0.05)
        await queue.add("x", lane="a", delay=timedelta(milliseconds=200))
        await wait_until(lambda: ran)

    assert ran[0].processed_on - ran[0].timestamp >= 200


async def test_a_late_job_with_an_earlier_order_runs_first_within_the_window(queue, hand):
    """FIFO-05: what arrives within ordering_delay is sorted in."""
    now_ms = round(time.time() * 1000)
    options = {"lane": "a", "ordering_delay": 1000}
    await queue.add("x", "second", order_ms=now_ms, **options)
    one = hand()
    assert await one.take(1) == []

    await queue.add("x", "first", order_ms=now_ms - 100, **options)

    seen = [(await wait_until(one.take_one))]
    assert time.time() * 1000 >= now_ms + 899
    await one.complete(seen[0])
    seen.append(await wait_until(one.take_one))
    assert [job.data for job in seen] == ["first", "second"]
    assert time.time() * 1000 >= now_ms + 999


async def test_an_order_in_the_past_is_not_held_back(queue, hand):
    """FIFO-05: an event older than the window runs at once."""
    await queue.add("x", 1, lane="a", order_ms=5, ordering_delay=60_000)

    assert [job.data for job in await hand().take(1)] == [1]


# --------------------------------------------------------------------- failing


async def test_a_retry_blocks_its_lane_until_it_is_due_and_is_the_next_one(queue, hand):
    """FIFO-06, FIFO-07, C-20: nobody overtakes it, not even an earlier one that comes meanwhile."""
    failing = await queue.add("x", "A", lane="a", order_ms=10, attempts=3, backoff=800)
    await queue.add("x", "B", lane="a", order_ms=20)
    other = await queue.add("x", "C", lane="other")
    one = hand()
    jobs = {job.data: job for job in await one.take(5)}
    assert set(jobs) == {"A", "C"}
    start = time.monotonic()

    assert await one.fail(jobs["A"], then_take=5) == []
    await queue.add("x", "earlier", lane="a", order_ms=1)
    assert await one.take(5) == []
    assert await queue.get_state(failing.id) == "delayed"
    assert (await queue.get_lane("a")).holder == failing.id
    assert other.id in one.held

    again = await wait_until(one.take_one)
    assert time.monotonic() - start >= 0.799
    assert (again.id, again.attempts_made) == (failing.id, 1)
    await one.complete(jobs["C"])
    assert [job.data for job in await one.complete(again, then_take=5)] == ["earlier"]


async def test_an_immediate_retry_keeps_its_place(queue, hand):
    """FIFO-07: without backoff the same job is the next one of its lane."""
    await queue.add("x", "A", lane="a", attempts=2, backoff=0)
    await queue.add("x", "B", lane="a")
    one = hand()
    (job,) = await one.take(1)

    (again,) = await one.fail(job, then_take=5)

    assert (again.data, again.attempts_made) == ("A", 1)


async def test_with_on_retry_skip_others_go_on_meanwhile(queue, hand):
    """C-20: by choice the lane does not wait for the retry, which keeps its order."""
    await queue.add("x", "A", lane="a", order_ms=1, attempts=2, backoff=150, on_retry="skip")
    for n in range(3):
        await queue.add("x", n, lane="a", order_ms=10)
    one = hand()
    (job,) = await one.take(1)

    (meanwhile,) = await one.fail(job, then_take=1)
    await asyncio.sleep(0.16)

    assert meanwhile.data == 0
    assert [job.data for job in await one.complete(meanwhile, then_take=1)] == ["A"]


async def test_jobs_of_a_lane_are_tried_three_times_with_growing_waits(queue, hand):
    """FIFO-06, FIFO-10, C-19: three runs by default, the job's own number before that."""
    by_default = await queue.add("x", lane="a")
    own = await queue.add("x", lane="b", attempts=1, backoff=Backoff.fixed(5))
    plain = await queue.add("x")

    assert (by_default.opts.attempts, own.opts.attempts, plain.opts.attempts) == (3, 1, 0)
    backoff = by_default.opts.backoff
    assert (backoff.type, backoff.delay, own.opts.backoff.delay) == ("exponential", 500, 5)


async def test_after_the_last_attempt_the_next_job_runs(queue, hand):
    """FIFO-08: a head that fails for good lets the lane go on (on_exhausted="skip")."""
    failing = await queue.add("x", "A", lane="a", attempts=2, backoff=0)
    await queue.add("x", "B", lane="a")
    one = hand()
    (job,) = await one.take(1)
    (job,) = await one.fail(job, then_take=1)

    (after,) = await one.fail(job, then_take=1)

    assert after.data == "B"
    assert await queue.get_state(failing.id) == "failed"


async def test_on_exhausted_halt_stops_the_lane_until_it_is_resumed(queue, hand):
    """FIFO-08 by policy: nothing behind a failed head runs before somebody has looked."""
    failing = await queue.add("x", "A", lane="a", attempts=1, on_exhausted="halt")
    await queue.add("x", "B", lane="a")
    await queue.add("x", "C", lane="b")
    one = hand()
    jobs = {job.data: job for job in await one.take(2)}

    assert await one.fail(jobs["A"], then_take=5) == []
    await queue.add("x", "D", lane="a")
    assert await one.take(5) == []
    lane = await queue.get_lane("a")
    assert (lane.halted_by, lane.is_paused, lane.depth, lane.is_ready) == (
        failing.id, False, 2, False,
    )  # fmt: skip

    assert await queue.resume_lane("a") is True
    assert [job.data for job in await one.take(5)] == ["B"]
    assert (await queue.get_lane("a")).halted_by is None


async def test_retrying_a_failed_job_by_hand_puts_it_back_into_its_lane(queue, hand):
    """FIFO-08: it comes back at its place and still runs one at a time."""
    failing = await queue.add("x", "A", lane="a", order_ms=1, attempts=1)
    await queue.add_bulk([NewJob("x", n, lane="a", order_ms=2) for n in "BC"])
    one = hand()
    (job,) = await one.take(1)
    (running,) = await one.fail(job, then_take=1)

    await queue.retry(failing.id, reset_attempts=True)

    assert await one.take(5) == []
    (again,) = await one.complete(running, then_take=5)
    assert again.data == "A"


async def test_a_job_that_was_given_back_is_the_next_one_of_its_lane(queue, hand):
    """FIFO-18: a worker that closes hands its job back, in front."""
    await queue.add("x", "A", lane="a", order_ms=10)
    await queue.add("x", "B", lane="a", order_ms=20)
    one, two = hand("one"), hand("two")
    (job,) = await one.take(1)
    await queue.add("x", "earlier", lane="a", order_ms=1)

    await one.give_back(job)

    (again,) = await two.take(5)
    assert (again.data, again.attempts_made) == ("A", 0)
    assert fence_of(again) > fence_of(job)


# --------------------------------------------------------------------- recovery


async def test_a_killed_holder_is_recovered_with_its_order(queue, hand, connection, client):
    """FIFO-12, C-22: the swept job is the next of its lane, and the lane is held by it alone."""
    await queue.add_bulk([NewJob("x", n, lane="a") for n in range(3)])
    dead, alive = hand("dead"), hand("alive")
    (job,) = await dead.take(1)
    await lose_lock(client, queue.keys, job.id)
    assert await alive.take(5) == []

    assert await sweep(connection, client, queue.keys) == [job.id]

    (again,) = await alive.take(5)
    assert (again.id, again.stalled_count) == (job.id, 0)  # nobody is known to have received it
    assert fence_of(again) > fence_of(job)
    assert [item.data for item in await alive.complete(again, then_take=5)] == [1]


async def test_a_worker_that_lost_its_lane_can_neither_complete_nor_release_it(
    queue, hand, connection, client
):
    """FIFO-13: every write of the zombie is refused, whoever holds the lane now."""
    await queue.add_bulk([NewJob("x", n, lane="a") for n in range(3)])
    zombie, other = hand("zombie"), hand("other")
    (job,) = await zombie.take(1)
    await lose_lock(client, queue.keys, job.id)
    completed = Outcome(kind="completed", payloads=(b"null",))
    retried = Outcome(kind="retry", payloads=("no", b"[]"))
    put_off = Outcome(kind="delayed", details={"delay": 5}, payloads=("no", b"[]"))

    for outcome in (completed, retried, put_off, Outcome(kind="returned")):
        token = zombie.held[job.id]
        assert (await zombie.call([(job, outcome)], 0))[0] == [-2]
        zombie.held[job.id] = token
    await sweep(connection, client, queue.keys)
    (again,) = await other.take(5)
    for outcome in (completed, retried, put_off, Outcome(kind="returned")):
        token = zombie.held[job.id]
        assert (await zombie.call([(job, outcome)], 5)) == ([-6], [])
        zombie.held[job.id] = token

    assert (await queue.get_lane("a")).holders == (again.id,)
    assert [item.data for item in await other.complete(again, then_take=5)] == [1]


async def test_a_handler_longer_than_the_lock_keeps_its_lane(queue, work):
    """FIFO-11, FIFO-12: the lock is renewed every third of its time, and nobody else runs."""
    runs = []

    async def handler(job):
        runs.append(job.data)
        await asyncio.sleep(3.2 if job.data == 0 else 0)

    await queue.add_bulk([NewJob("x", n, lane="a") for n in range(2)])
    options = {"lock_duration": 3000, "stalled_interval": 50}
    async with work(handler, **options), work(handler, **options):
        assert await queue.wait_until_empty(60_000)

    assert runs == [0, 1]


@pytest.mark.no_audit("the lane is broken on purpose, and mended")
@pytest.mark.parametrize("damage", ["finished elsewhere", "hash deleted", "lost from ready"])
async def test_recover_lanes_lets_lanes_go_that_nobody_holds(damage, queue, hand, client):
    """FIFO-20, C-22: returns how many lanes were unblocked, and they run again."""
    keys = queue.keys
    first, _ = await queue.add_bulk([NewJob("x", n, lane="a") for n in range(2)])
    await queue.add("x", lane="healthy")
    one = hand()
    if damage == "lost from ready":
        await client.zrem(keys.lanes_ready, "a")
    else:
        await one.take(1)
        await lose_lock(client, keys, first.id)
        await client.lrem(keys.active, 1, first.id)
    if damage == "finished elsewhere":
        await client.zadd(keys.completed, {first.id: 1})
    if damage == "hash deleted":
        await client.delete(keys.job(first.id))

    assert await queue.recover_lanes() == 1
    assert await queue.recover_lanes() == 0

    jobs = await one.take(5)
    assert sorted(str(job.data) for job in jobs) in (["1", "{}"], ["0", "{}"])


async def test_a_job_that_bullmq_swept_into_the_plain_list_keeps_its_lane(
    queue, hand, client, connection
):
    """FIFO-02, FIFO-12: it holds its lane while it stands in `wait`, and runs from there."""
    keys = queue.keys
    first, _ = await queue.add_bulk([NewJob("x", n, lane="a") for n in range(2)])
    dead, alive = hand("dead"), hand("alive")
    await dead.take(1)
    await lose_lock(client, keys, first.id)
    await client.lrem(keys.active, 1, first.id)
    await client.rpush(keys.wait, first.id)  # what BullMQ's stall check does

    (again,) = await alive.take(5)
    assert again.id == first.id
    assert [job.data for job in await alive.complete(again, then_take=5)] == [1]


async def test_recovery_takes_a_swept_job_back_from_the_plain_list(queue, hand, client):
    """FIFO-20: no worker of BullMQ gets it once a sweep of ours has seen it."""
    keys = queue.keys
    first, _ = await queue.add_bulk([NewJob("x", n, lane="a") for n in range(2)])
    dead, alive = hand("dead"), hand("alive")
    await dead.take(1)
    await lose_lock(client, keys, first.id)
    await client.lrem(keys.active, 1, first.id)
    await client.rpush(keys.wait, first.id)

    assert await queue.recover_lanes() == 1

    assert await client.llen(keys.wait) == 0
    assert [job.id for job in await alive.take(5)] == [first.id]


async def test_a_stray_job_of_a_held_lane_goes_where_it_belongs(queue, hand, client):
    """FIFO-02: what somebody put into `wait` does not run beside the holder of its lane."""
    keys = queue.keys
    failing = await queue.add("x", "A", lane="a", order_ms=1, attempts=1)
    await queue.add("x", "B", lane="a", order_ms=2)
    one = hand()
    (job,) = await one.take(1)
    (running,) = await one.fail(job, then_take=1)
    await client.zrem(keys.failed, failing.id)
    await client.lpush(keys.wait, failing.id)  # what a retry by BullMQ does

    assert await one.take(5) == []
    assert [job.data for job in await one.complete(running, then_take=5)] == ["A"]


async def test_ids_without_a_job_do_not_hold_a_lane(queue, hand, client):
    """FIFO-02: a hash that somebody deleted is passed over."""
    first, _ = await queue.add_bulk([NewJob("x", n, lane="a") for n in range(2)])
    await client.delete(queue.keys.job(first.id))
    one = hand()

    assert await one.take(5) == []
    assert [job.data for job in await one.take(5)] == [1]


# --------------------------------------------------------------------- fairness


async def test_lanes_take_turns(queue, hand):
    """A tenant with many jobs does not keep one with three waiting."""
    await queue.add_bulk([NewJob("x", "big", lane="big") for _ in range(500)])
    await queue.add_bulk([NewJob("x", "small", lane="small") for _ in range(3)])
    one, seen = hand(), []
    jobs = await one.take(1)
    while len(seen) < 8:
        seen.append(jobs[0].data)
        jobs = await one.complete(jobs[0], then_take=1)

    assert seen.count("small") == 3
    await one.give_back(jobs[0])


async def test_lanes_that_come_and_go_do_not_starve_one_that_stays(queue, hand):
    """A stream of new lanes, one job each, leaves the old lane its turns."""
    await queue.add_bulk([NewJob("x", "old", lane="zzz") for _ in range(3)])
    one, seen = hand(), []
    for n in range(10):
        await queue.add("x", "new", lane=f"new-{n}")
        (job,) = await one.take(1)
        seen.append(job.data)
        await one.complete(job)

    assert seen.count("old") == 3


async def test_a_lane_with_weight_three_gets_three_turns(queue, hand):
    """Weights: three turns to another lane's one, when not all can run at once."""
    for lane in "abc":
        await queue.add_bulk([NewJob("x", lane, lane=lane) for _ in range(40)])
    await queue.set_lane_weight("b", 3)
    one, seen = hand(), []
    jobs = await one.take(1)
    while len(seen) < 50:
        seen.append(jobs[0].data)
        jobs = await one.complete(jobs[0], then_take=1)
    await one.give_back(jobs[0])

    assert 29 <= seen.count("b") <= 31
    assert abs(seen.count("a") - seen.count("c")) <= 1


@pytest.mark.parametrize("places", [1, 2, 5])
async def test_plain_jobs_and_lanes_share_a_queue_fairly(places, queue, hand):
    """Neither side starves the other, with one place or many."""
    await queue.add_bulk([NewJob("x", "plain") for _ in range(30)])
    await queue.add_bulk([NewJob("x", "lane", lane=str(n)) for n in range(30)])
    one, seen = hand(), []
    for _ in range(20 // places):
        jobs = await one.take(places)
        seen += [job.data for job in jobs]
        for job in jobs:
            await one.complete(job)

    assert len(seen) == 20 // places * places
    assert 9 <= seen.count("plain") <= 11


async def test_what_one_side_does_not_need_the_other_gets(queue, hand):
    """A call is filled, whatever there is more of."""
    await queue.add_bulk([NewJob("x", "plain") for _ in range(9)])
    await queue.add("x", "lane", lane="a")
    assert sorted(job.data for job in await hand("one").take(10)) == ["lane"] + ["plain"] * 9

    await queue.add_bulk([NewJob("x", "lane", lane=str(n)) for n in range(9)])
    await queue.add("x", "plain")
    assert sorted(job.data for job in await hand("two").take(10)) == ["lane"] * 9 + ["plain"]


# --------------------------------------------------------------------- limits of a lane


async def test_a_lane_may_run_several_jobs_at_once(queue, hand):
    """lane_concurrency: for one lane, for all, and taken back."""
    for lane in "ab":
        await queue.add_bulk([NewJob("x", f"{lane}{n}", lane=lane) for n in range(4)])
    one = hand()

    await queue.set_lane_concurrency("a", 3)
    jobs = {job.data: job for job in await one.take(10)}
    assert sorted(jobs) == ["a0", "a1", "a2", "b0"]

    await queue.set_lane_concurrency(None, 2)
    more = {job.data: job for job in await one.take(10)}
    assert sorted(more) == ["b1"]

    await queue.set_lane_concurrency("a", None)
    assert await one.complete(jobs["a0"], then_take=10) == []
    assert [job.data for job in await one.complete(jobs["a1"], then_take=10)] == ["a3"]


async def test_lowering_the_concurrency_does_not_let_a_held_lane_go(queue, hand):
    """FIFO-02: the lane gives nothing until the last of those that held it together has ended."""
    await queue.add_bulk([NewJob("x", n, lane="a") for n in range(5)])
    await queue.set_lane_concurrency(None, 3)
    one = hand()
    first, second, third = await one.take(10)
    await queue.set_lane_concurrency(None, None)

    assert await one.complete(first, then_take=10) == []
    assert (await queue.get_lane("a")).holders == (second.id, third.id)
    assert await one.complete(second, then_take=10) == []
    assert [job.data for job in await one.complete(third, then_take=10)] == [3]


async def test_a_rate_limit_holds_a_lane_back_and_no_other(queue, work):
    """Two in a second of lane a; lane b runs freely."""
    starts = {"a": [], "b": []}

    async def handler(job):
        starts[job.lane].append(job.processed_on)

    await queue.set_lane_rate_limit("a", RateLimit(2, 1000))
    for lane in "ab":
        await queue.add_bulk([NewJob("x", n, lane=lane) for n in range(4)])
    async with work(handler, concurrency=4):
        assert await queue.wait_until_empty(60_000)

    first, second, third, fourth = starts["a"]
    assert third - first >= 1000
    assert first <= second < third <= fourth
    assert starts["b"][-1] < third
    await queue.set_lane_rate_limit("a", None)
    assert await queue.get_lane("a") is None


async def test_a_rate_limit_of_all_lanes_counts_each_for_itself(queue, hand):
    """A lane's own limit goes before that of the queue, and both can be taken back."""
    for lane in "ab":
        await queue.add_bulk([NewJob("x", f"{lane}{n}", lane=lane) for n in range(4)])
    await queue.set_lane_rate_limit(None, RateLimit(1, 60_000))
    await queue.set_lane_rate_limit("b", RateLimit(2, 60_000))
    one = hand()

    async def run_all() -> list[str]:
        seen = []
        while jobs := await one.take(5):
            seen += [job.data for job in jobs]
            for job in jobs:
                await one.complete(job)
        return sorted(seen)

    assert await run_all() == ["a0", "b0", "b1"]
    assert (await queue.get_lane("a")).limited_until > time.time() * 1000 + 30_000
    await queue.set_lane_rate_limit(None, None)
    assert await run_all() == ["a1", "a2", "a3"]
    await queue.set_lane_rate_limit("b", None)
    assert await run_all() == ["b2", "b3"]


async def test_a_limited_lane_whose_last_waiting_job_goes_is_limited_no_more(queue, hand, client):
    """FIFO-30: also while somebody holds it."""
    _, second = await queue.add_bulk([NewJob("x", n, lane="a") for n in range(2)])
    await queue.set_lane_concurrency("a", 2)
    await queue.set_lane_rate_limit("a", RateLimit(1, 60_000))
    (job,) = await hand().take(2)
    assert await client.zrange(queue.keys.lanes_later, 0, -1) == ["a"]

    await queue.remove(second.id)

    assert await client.exists(queue.keys.lanes_later) == 0
    assert (await queue.get_lane("a")).holder == job.id


async def test_a_paused_lane_gives_nothing_until_it_is_resumed(queue, hand):
    """pause_lane: its jobs wait, others run; what runs may end."""
    await queue.add_bulk([NewJob("x", n, lane="a") for n in range(3)])
    await queue.add("x", "b", lane="b")
    one = hand()
    (running,) = [job for job in await one.take(1) if job.lane == "a"]
    await queue.pause_lane("a")

    jobs = await one.complete(running, then_take=5)
    await queue.add("x", 3, lane="a")

    assert [job.data for job in jobs] == ["b"]
    assert await one.take(5) == []
    assert (await queue.get_lane("a")).is_paused
    assert await queue.resume_lane("a") is True
    assert await queue.resume_lane("a") is False
    assert [job.data for job in await one.take(5)] == [1]


async def test_resuming_wakes_an_idle_worker(queue, work):
    """FIFO-14: no polling, also after a pause."""
    ran = []

    async def handler(job):
        ran.append(job.data)

    await queue.pause_lane("a")
    await queue.add("x", 1, lane="a")
    async with work(handler):
        await asyncio.sleep(0.1)
        assert not ran
        await queue.resume_lane("a")
        await wait_until(lambda: ran)


async def test_a_full_lane_refuses_with_its_own_error(queue):
    """max_lane_size: a typed refusal, and nothing is written."""
    await queue.add_bulk([NewJob("x", n, lane="a", max_lane_size=2) for n in range(2)])

    with pytest.raises(LaneFullError, match="'a' would have more than 2 waiting"):
        await queue.add("x", lane="a", max_lane_size=2)

    assert (await queue.get_lane("a")).depth == 2
    await queue.add("x", lane="b", max_lane_size=2)
    assert await queue.get_waiting_count() == 3


# --------------------------------------------------------------------- looking


async def test_counts_ids_and_states_include_the_jobs_of_lanes(queue, hand):
    """FIFO-21, FIFO-22, FIFO-23: counts, ids by state and lanes in one picture."""
    jobs = await queue.add_bulk([NewJob("x", n, lane=f"l{n % 2}") for n in range(4)])
    delayed = await queue.add("x", lane="l0", delay=60_000)
    plain = await queue.add("x")
    one = hand()
    (active,) = await one.take(1)

    counts = await queue.get_job_counts()
    ids = await queue.get_job_ids("active", "waiting", "delayed")

    waiting = {job.id for job in [*jobs, plain]} - {active.id}
    assert {name: counts[name] for name in ("active", "waiting", "delayed")} == {
        "active": 1, "waiting": 4, "delayed": 1,
    }  # fmt: skip
    assert (set(ids["waiting"]), ids["active"], ids["delayed"]) == (
        waiting, [active.id], [delayed.id],
    )  # fmt: skip
    assert {await queue.get_state(job_id) for job_id in waiting} == {"waiting"}
    assert {job.id for job in await queue.get_waiting()} == waiting
    assert sorted(await queue.get_lanes(0, 99)) == ["l0", "l1"]
    assert await queue.get_lane_count() == 2


async def test_a_lane_tells_its_depth_head_and_holder(queue, hand):
    """FIFO-22: get_lane, and None for a lane nobody knows."""
    jobs = await queue.add_bulk([NewJob("x", n, lane="user:42") for n in range(3)])
    before_ms = round(time.time() * 1000) - 1
    await hand().take(1)

    lane = await queue.get_lane("user:42")

    assert (lane.name, lane.depth, lane.head) == ("user:42", 2, jobs[1].id)
    assert (lane.holder, lane.holders) == (jobs[0].id, (jobs[0].id,))
    assert before_ms <= lane.held_since <= time.time() * 1000 + 1
    assert (lane.weight, lane.concurrency, lane.limited_until) == (1, 1, None)
    assert await queue.get_lane("nobody") is None


async def test_waiting_until_empty_minds_lanes(queue, hand):
    """FIFO-19: False while a lane has jobs, True when they are done."""
    await queue.add("x", lane="a")
    assert await queue.wait_until_empty(50) is False
    one = hand()
    (job,) = await one.take(1)
    assert await queue.wait_until_empty(50) is False

    await one.complete(job)

    assert await queue.wait_until_empty(60_000) is True


async def test_a_worker_tells_what_it_is_doing(queue, work):
    """FIFO-24: is_processing and current_job."""
    go = asyncio.Event()
    worker = work(lambda job: go.wait())
    async with worker:
        assert (worker.is_processing, worker.current_job()) == (False, None)
        added = await queue.add("x", lane="a")
        job, running_ms = await wait_until(worker.current_job)
        assert (job.id, job.lane, worker.is_processing) == (added.id, "a", True)
        assert 0 <= running_ms < 5000
        go.set()
        await queue.wait_until_empty(60_000)


async def test_an_idle_worker_does_not_poll(queue, work, client):
    """FIFO-14: with lanes that wait for a time or are paused, a second costs a few commands."""
    await queue.add("x", lane="later", delay=60_000)
    await queue.pause_lane("stopped")
    await queue.add("x", lane="stopped")
    async with work(lambda job: None):
        await asyncio.sleep(0.3)
        before = (await client.info("stats"))["total_commands_processed"]
        await asyncio.sleep(1.0)
        after = (await client.info("stats"))["total_commands_processed"]

    assert after - before <= 5


# --------------------------------------------------------------------- removing


async def test_removing_jobs_keeps_the_lane_in_order(queue, hand):
    """FIFO-30: a waiting head, a delayed retry that blocks, and the last job of a lane."""
    a, b, c = await queue.add_bulk([NewJob("x", n, lane="l", backoff=60_000) for n in "abc"])
    one = hand()
    (job,) = await one.take(1)
    assert await one.fail(job, then_take=1) == []

    assert await queue.remove(b.id) is True
    assert await queue.remove(a.id) is True  # it blocks its lane
    (job,) = await one.take(1)
    assert job.id == c.id
    await one.complete(job)

    assert await queue.get_lanes() == []


async def test_cancelling_jobs_of_a_lane(queue, hand):
    """A waiting one fails at once, and the lane goes on."""
    a, b = await queue.add_bulk([NewJob("x", n, lane="l", on_exhausted="halt") for n in "ab"])

    await queue.cancel(a.id)

    assert await queue.get_state(a.id) == "failed"
    assert [job.id for job in await hand().take(5)] == [b.id]


async def test_draining_a_lane_leaves_the_others(queue, hand):
    """drain_lane: what waits goes, with delayed=True also what waits for a time."""
    await queue.add_bulk([NewJob("x", n, lane="a") for n in range(450)])
    kept = await queue.add("x", "kept", lane="b")
    later = await queue.add("x", "later", lane="b", delay=60_000)
    await queue.add("x", lane="a", delay=60_000)
    (running,) = await hand().take(1)

    assert await queue.drain_lane("a") == 449
    assert await queue.drain_lane("a", delayed=True) == 1

    assert await queue.get_lanes() == ["a", "b"]
    assert {job.id for job in await queue.get_jobs()} == {running.id, kept.id, later.id}


@pytest.mark.parametrize("how", ["drain", "clean", "obliterate"])
async def test_bulk_removal_knows_lanes(how, queue, client, prefix):
    """FIFO-30: nothing of a lane is left behind."""
    await queue.add_bulk([NewJob("x", n, lane=f"l{n % 7}") for n in range(40)])
    await queue.add_bulk([NewJob("x", n, lane=f"l{n % 3}", delay=60_000) for n in range(5)])

    if how == "drain":
        assert await queue.drain(delayed=True) == 45
    elif how == "clean":
        assert len(await queue.clean("waiting")) == 40
        assert len(await queue.clean("delayed")) == 5
    else:
        assert await queue.obliterate(force=True) == 45
        assert await lasting_keys(client, prefix) == []
    assert not [key for key in await lasting_keys(client, prefix) if ":lanes:" in key]


async def test_an_empty_lane_leaves_no_keys(queue, hand, client, prefix):
    """FIFO-30: after the last job only what every queue has is there."""
    await queue.add_bulk(
        [NewJob("x", n, lane=f"l{n % 5}", remove_on_complete=True) for n in range(25)]
    )

    assert len(await drain(hand())) == 25

    names = {key.removeprefix(f"{prefix}:q:") for key in await lasting_keys(client, prefix)}
    assert names <= {"meta", "id", "events", "marker", "toril:replies"}


async def test_retention_trims_finished_jobs_of_lanes(queue, hand):
    """FIFO-31: remove_on_complete and remove_on_fail as everywhere."""
    await queue.add_bulk([NewJob("x", n, lane="a", remove_on_complete=3) for n in range(8)])

    await drain(hand())

    assert [job.data for job in await queue.get_completed()] == [5, 6, 7]


async def test_changing_the_delay_and_promoting_work_in_lanes(queue, hand):
    """FIFO-28: also when an operator changes the time."""
    a = await queue.add("x", "a", lane="l", delay=60_000)
    b = await queue.add("x", "b", lane="l", delay=60_000)
    one = hand()

    await queue.change_delay(a.id, 1)
    (first,) = [await wait_until(one.take_one)]
    await queue.promote(b.id)

    assert first.data == "a"
    assert await one.take(5) == []
    assert [job.data for job in await one.complete(first, then_take=1)] == ["b"]


async def test_promoting_all_lets_lanes_in_as_well(queue, hand):
    """FIFO-28: a retry that blocks its lane included."""
    await queue.add("x", "a", lane="l", backoff=60_000)
    await queue.add("x", "b", lane="l", delay=60_000)
    one = hand()
    (job,) = await one.take(1)
    await one.fail(job)

    assert await queue.promote_all() == 2

    assert await drain(one) == ["a", "b"]


# --------------------------------------------------------------------- names and payloads


LANES = [
    "user:42", "lock", "a:lock", "x b", "x", "tab\there", "100%", "%20", " ", "ünï-çødé ✓", "{tag}",
    "a\x00b", "*", "[a-z]?", "meta", "waiting", "\n", "!", "x!", "x ", "0", "-", "|||", "a" * 1024,
]  # fmt: skip


async def test_any_text_is_a_lane(queue, hand):
    """FIFO-01: any text, none mixed up with another."""
    for lane in LANES:
        await queue.add_bulk([NewJob("x", [lane, n], lane=lane) for n in range(2)])
    assert sorted(await queue.get_lanes()) == sorted(LANES)
    one = hand()

    first = await one.take(100)
    assert sorted(job.data for job in first) == sorted([lane, 0] for lane in LANES)
    for job in first:
        assert (await queue.get_lane(job.lane)).holder == job.id
        await one.complete(job)
    assert sorted(job.data for job in await one.take(100)) == sorted([lane, 1] for lane in LANES)


async def test_payloads_survive_whatever_is_in_them(queue, hand):
    """FIFO-29: no delimiter means anything."""
    data = {"a|||b": ["|||", "\x00", "\n", "{}", "%s", 9007199254740993, [], {}]}
    await queue.add("x", data, lane="a|||b")

    (job,) = await hand().take(1)

    assert job.data == data


@pytest.mark.parametrize(
    "options",
    [
        {"lane": ""},
        {"lane": 5},
        {"lane": "x" * 1025},
        {"lane": "\ud800"},
        {"lane": "a", "priority": 1},
        {"lane": "a", "lifo": True},
        {"lane": "a", "order_ms": -1},
        {"lane": "a", "order_ms": 2**53},
        {"lane": "a", "order_ms": 1.5},
        {"lane": "a", "ordering_delay": -1},
        {"lane": "a", "on_retry": "maybe"},
        {"lane": "a", "on_exhausted": "explode"},
        {"lane": "a", "max_lane_size": 0},
        {"order_ms": 5},
        {"on_retry": "maybe"},
        {"max_lane_size": 0},
    ],
)
async def test_bad_options_are_refused_before_anything_is_written(options, queue, client, prefix):
    """FIFO-01: an order without a lane is a mistake as well."""
    with pytest.raises(InvalidOptionError):
        await queue.add("x", **options)

    assert await lasting_keys(client, prefix) == []


async def test_queues_with_other_prefixes_have_other_lanes(url, prefix):
    """FIFO-09: every key of a lane is under the prefix and the name of its queue."""
    async with (
        Queue("q", connection=url, prefix=f"{prefix}:one") as one,
        Queue("q", connection=url, prefix=f"{prefix}:two") as two,
    ):
        await one.add("x", lane="a")

        assert await one.get_lanes() == ["a"]
        assert await two.get_lanes() == []
        await one.obliterate(force=True)


async def test_a_queue_may_give_its_jobs_lane_options_by_default(url, prefix):
    """FIFO-10: ordering delay 0 and everything else can be set for a queue."""
    options = {"on_exhausted": "halt", "max_lane_size": 1}
    async with Queue("q", connection=url, prefix=prefix, default_job_options=options) as queue:
        job = await queue.add("x", lane="a")
        await queue.add("plain")

        assert (job.lane, job.opts.on_exhausted) == ("a", "halt")
        with pytest.raises(LaneFullError):
            await queue.add("x", lane="a")


def test_lanes_from_blocking_code(url, prefix):
    """FIFO-22: the same methods, without await."""
    with BlockingQueue("q", connection=url, prefix=prefix) as queue:
        queue.add("x", lane="a")
        queue.pause_lane("a")

        assert (queue.get_lanes(), queue.get_lane_count()) == (["a"], 1)
        assert queue.get_lane("a").is_paused
        assert queue.resume_lane("a")


# --------------------------------------------------------------------- with other features


async def test_deduplication_in_a_lane(queue, hand):
    """The owner waits in its lane; a debounced one is replaced while it is delayed."""
    from toril import Deduplication

    once = Deduplication("d")
    first = await queue.add("x", 1, lane="a", deduplication=once)
    second = await queue.add("x", 2, lane="a", deduplication=once)
    assert (second.id, second.duplicated) == (first.id, True)
    debounce = Deduplication("e", replace=True)
    await queue.add("x", 3, lane="b", delay=60_000, deduplication=debounce)
    newest = await queue.add("x", 4, lane="b", delay=60_000, deduplication=debounce)

    assert [job.id for job in await queue.get_delayed()] == [newest.id]
    assert await drain(hand()) == [1]


async def test_the_last_one_kept_by_deduplication_enters_its_lane(queue, hand):
    """keep_last_if_active: the pending job is added to its lane when the owner ends."""
    from toril import Deduplication

    keep_last = Deduplication("d", keep_last_if_active=True)
    await queue.add("x", 1, lane="a", deduplication=keep_last)
    one = hand()
    (job,) = await one.take(1)
    await queue.add("x", 2, lane="a", deduplication=keep_last)

    jobs = await one.complete(job, then_take=5)

    assert [(job.data, job.lane) for job in jobs] == [(2, "a")]


async def test_a_parent_in_a_lane_enters_it_when_its_children_are_done(url, prefix, queue, hand):
    """A flow's parent takes its place in its lane only then."""
    from toril import FlowJob, FlowProducer

    async with FlowProducer(connection=url, prefix=prefix) as flow:
        child = FlowJob("child", "child", queue_name="q")
        await flow.add(
            FlowJob("parent", "parent", queue_name="q", lane="a", order_ms=5, children=[child])
        )
    await queue.add("x", "other", lane="a", order_ms=9)
    one = hand()
    jobs = {job.data: job for job in await one.take(5)}
    assert set(jobs) == {"child", "other"}

    assert await one.complete(jobs["child"], then_take=5) == []
    assert [job.data for job in await one.complete(jobs["other"], then_take=5)] == ["parent"]


async def test_unrecoverable_errors_let_the_lane_go_on(queue, work):
    """FIFO-08: whatever attempts are left."""
    ran = []

    async def handler(job):
        ran.append(job.data)
        if job.data == 0:
            raise UnrecoverableError("no")

    await queue.add_bulk([NewJob("x", n, lane="a") for n in range(2)])
    async with work(handler):
        assert await queue.wait_until_empty(60_000)

    assert ran == [0, 1]


async def test_closing_a_worker_waits_for_its_job(queue, work):
    """FIFO-18: the job of a lane ends within the limit, or goes back to its lane's front."""
    started = []

    async def handler(job):
        started.append(job.data)
        await asyncio.sleep(0.1 if job.data == 0 else 60)

    await queue.add_bulk([NewJob("x", n, lane="a") for n in range(2)])
    worker = work(handler)
    await worker.start()
    await wait_until(lambda: started == [0, 1])
    await worker.close(timeout=50)

    assert await queue.get_job_counts("completed", "active", "waiting") == {
        "completed": 1, "active": 0, "waiting": 1,
    }  # fmt: skip
    lane = await queue.get_lane("a")
    assert (lane.holder, lane.depth) == (None, 1)


async def test_the_audit_sees_a_lane_that_is_held_by_nobody(queue, client, prefix):
    """The audit after every test is no formality."""
    await queue.add("x", lane="a")
    await client.hset(queue.keys.lanes_held, "a", "1\nnobody")

    problems = await audit(client, prefix)

    assert any("held by 'nobody'" in problem for problem in problems)
    await client.delete(queue.keys.lanes_held)


async def test_members_of_a_group_that_wait_in_lanes_are_cancelled(url, prefix, queue, hand):
    """A failing member takes its siblings out of their lanes, and those go on."""
    from toril import FlowProducer, GroupJob

    async with FlowProducer(connection=url, prefix=prefix) as flow:
        names = ("fails", "waits", "later")
        jobs = [GroupJob(name, queue_name="q", data=name, lane="a", attempts=1) for name in names]
        group = await flow.add_group(name="g", jobs=jobs)
    await queue.add("x", "other", lane="a")
    one = hand()
    (job,) = await one.take(1)

    (after,) = await one.fail(job, then_take=5)

    assert (job.data, after.data) == ("fails", "other")
    assert (await queue.get_group_state(group.group_id)).state == "FAILED"
