"""What a failure does to the lane of its job."""

from __future__ import annotations

import time

import pytest

from tests.features.lanes import fence_of
from tests.helpers import let_pass, wait_until
from toril import Backoff, Cancelled, NewJob, Queue


async def test_a_retry_blocks_its_lane_until_it_is_due_and_is_the_next_one(queue, hand, clock):
    """FIFO-06, FIFO-07, C-20: nobody overtakes it, not even an earlier one that comes meanwhile."""
    failing = await queue.add("x", "A", lane="a", order_ms=10, attempts=3, backoff=60_000)
    await queue.add("x", "B", lane="a", order_ms=20)
    other = await queue.add("x", "C", lane="other")
    one = hand()
    jobs = {job.data: job for job in await one.take(5)}
    assert set(jobs) == {"A", "C"}
    start_ms = round(time.time() * 1000)

    assert await one.fail(jobs["A"], then_take=5) == []
    await queue.add("x", "earlier", lane="a", order_ms=1)
    assert await one.take(5) == []
    assert await queue.get_state(failing.id) == "delayed"
    assert (await queue.get_lane("a")).holder == failing.id
    assert other.id in one.held

    clock.ms = 60_000 - 300  # the rest passes by itself
    again = await wait_until(one.take_one)
    assert again.processed_on >= start_ms + 59_999
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
    await let_pass(0.16, "the backoff is over")

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


@pytest.mark.parametrize("policy", ["halt", "divert"])
async def test_a_cancelled_job_stops_no_lane_whoever_fails_it(queue, hand, work, policy):
    """FIFO-08: the worker that was told to stop it died, or was closed, before it could."""
    job = await queue.add("x", "A", lane="a", on_exhausted=policy)
    await queue.add("x", "B", lane="a")
    one = hand()
    (held,) = await one.take(1)
    assert await queue.cancel(job.id, "it hangs") is Cancelled.STOPPING
    await one.give_back(held)
    ran = []

    async def handler(job):
        ran.append(job.data)

    async with work(handler, dead_letter_queue="q-dlq"):
        await wait_until(lambda: ran == ["B"])

    assert await queue.get_lanes(state="halted") == []
    async with Queue("q-dlq", connection=queue._connection, prefix=queue.keys.prefix) as letters:
        (letter,) = await letters.get_dead_letter_jobs()
        assert letter.dead_letter.original_job_id == job.id
        assert letter.dead_letter.cause == "cancelled"
        assert letter.dead_letter.failed_reason == "cancelled: it hangs"


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
