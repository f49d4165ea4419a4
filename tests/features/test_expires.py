"""`expires` counts from the moment at which a job could first run, whatever that depended on."""

from __future__ import annotations

import pytest

from tests.features.lanes import Hand
from tests.helpers import wait_until
from toril import (
    Deduplication,
    FlowJob,
    FlowProducer,
    NewJob,
    Parent,
    Queue,
    WaitingChildrenError,
)
from toril.protocol import settling
from toril.protocol.job import StoredJob

SOON = 60_000
"""When jobs may run, in ms from now."""
LIMIT = 20_000
"""How long they may wait then."""


async def server_ms(client) -> int:
    seconds, micros = await client.time()
    return seconds * 1000 + micros // 1000


async def take(hand: Hand, job_id: str) -> StoredJob | None:
    """The job, if it can be taken now; others are completed."""
    while (job := await hand.take_one()) is not None:
        if job.id == job_id:
            return job
        await hand.complete(job)
    return None


async def stand_aside(hand: Hand, job: StoredJob) -> None:
    """As a handler does that has added children."""
    raised = settling.Raised(WaitingChildrenError())
    outcome = settling.decide(job, raised, settling.Policy(), dice=0.5)
    assert (await hand.call([(job, outcome)], 0))[0] == [0]


# Each adds a job that may run in SOON, and returns its id.


async def with_a_delay(queue, client, hand):
    return (await queue.add("a", expires=LIMIT, delay=SOON)).id


async def at_a_time(queue, client, hand):
    return (await queue.add("a", expires=LIMIT, run_at=await server_ms(client) + SOON)).id


async def at_a_time_in_a_lane(queue, client, hand):
    at = await server_ms(client) + SOON
    return (await queue.add("a", expires=LIMIT, run_at=at, lane="one")).id


async def after_the_window_of_its_lane(queue, client, hand):
    job = await queue.add("a", expires=LIMIT, lane="one", ordering_delay=SOON)
    return job.id


async def of_a_schedule(queue, client, hand):
    job = await queue.upsert_job_scheduler(
        "often",
        every=SOON,
        start=await server_ms(client) + SOON,
        template=NewJob("tick", expires=LIMIT),
    )
    return job.id


async def with_a_changed_delay(queue, client, hand):
    job = await queue.add("a", expires=LIMIT, delay=1)
    await queue.change_delay(job.id, SOON)
    return job.id


async def put_off_by_a_duplicate(queue, client, hand):
    one = Deduplication("one", reschedule=True)
    job = await queue.add("a", expires=LIMIT, delay=1000, deduplication=one)
    await queue.add("a", delay=SOON, deduplication=one)
    return job.id


async def put_off_by_bullmq(queue, client, hand):
    """It writes down neither when the job could first run nor how long it was told to wait."""
    job = await queue.add("a", expires=LIMIT, delay=1)
    due = await server_ms(client) + SOON
    await client.hset(queue.keys.job(job.id), "delay", SOON)
    await client.zadd(queue.keys.delayed, {job.id: due * 4096})
    return job.id


WAYS = (
    with_a_delay,
    at_a_time,
    at_a_time_in_a_lane,
    after_the_window_of_its_lane,
    of_a_schedule,
    with_a_changed_delay,
    put_off_by_a_duplicate,
    put_off_by_bullmq,
)


@pytest.mark.parametrize("way", WAYS)
async def test_a_job_that_is_taken_when_it_is_due_has_not_expired(queue, client, hand, clock, way):
    worker = hand()
    job_id = await way(queue, client, worker)
    assert await worker.take_one() is None
    clock.ms += SOON + 1

    job = await take(worker, job_id)

    assert job is not None
    assert job.delay == 0
    assert not job.is_expired


@pytest.mark.parametrize("way", WAYS)
async def test_a_job_that_waits_too_long_after_it_is_due_has_expired(
    queue, client, hand, clock, way
):
    worker = hand()
    job_id = await way(queue, client, worker)
    clock.ms += SOON + LIMIT + 10_000

    job = await take(worker, job_id)

    assert job is not None
    assert job.is_expired


async def test_a_worker_runs_a_job_whose_delay_is_longer_than_its_time(queue, work, clock):
    ran = []

    async def handle(job):
        ran.append(job.name)

    job = await queue.add("later", delay=2 * SOON, expires=SOON)
    clock.ms += 2 * SOON
    async with work(handle):
        await wait_until(lambda: ran)

    await queue.wait_for(job.id)


@pytest.mark.parametrize("is_removed", [False, True])
async def test_children_do_not_use_up_the_time_of_their_parent(
    url, prefix, queue, hand, clock, is_removed
):
    worker = hand()
    async with FlowProducer(connection=url, prefix=prefix) as flows:
        flow = await flows.add(
            FlowJob(
                "parent", queue_name="q", expires=LIMIT, children=[FlowJob("c", queue_name="q")]
            )
        )
    clock.ms += LIMIT + SOON
    child = flow.children[0].job
    if is_removed:
        await queue.remove(child.id)
    else:
        taken = await worker.take_one()
        await worker.complete(taken)

    parent = await take(worker, flow.job.id)

    assert parent is not None
    assert not parent.is_expired


async def test_a_parent_that_nobody_takes_after_its_children_expires(
    url, prefix, queue, hand, clock
):
    worker = hand()
    async with FlowProducer(connection=url, prefix=prefix) as flows:
        flow = await flows.add(
            FlowJob(
                "parent", queue_name="q", expires=LIMIT, children=[FlowJob("c", queue_name="q")]
            )
        )
    await worker.complete(await worker.take_one())
    clock.ms += LIMIT + 10_000

    parent = await take(worker, flow.job.id)

    assert parent is not None
    assert parent.is_expired


async def test_a_parent_with_a_time_runs_at_that_time(url, prefix, queue, client, hand, clock):
    """Not as much later as its children took."""
    worker = hand()
    at = await server_ms(client) + 2 * SOON
    async with FlowProducer(connection=url, prefix=prefix) as flows:
        flow = await flows.add(
            FlowJob(
                "parent",
                queue_name="q",
                run_at=at,
                expires=LIMIT,
                children=[FlowJob("c", queue_name="q")],
            )
        )
    clock.ms += SOON
    await worker.complete(await worker.take_one())
    assert await queue.get_state(flow.job.id) == "delayed"
    clock.ms += SOON + 1

    parent = await take(worker, flow.job.id)

    assert parent is not None
    assert not parent.is_expired


async def test_a_job_that_is_retried_as_new_has_its_time_again(queue, hand, clock):
    worker = hand()
    job = await queue.add("a", expires=LIMIT)
    await worker.fail(await worker.take_one())
    clock.ms += LIMIT + SOON
    await queue.retry(job.id, reset_attempts=True)

    again = await take(worker, job.id)

    assert again is not None
    assert again.attempts_started == 1
    assert not again.is_expired


@pytest.mark.parametrize("lane", [None, "one"])
async def test_the_time_of_a_job_that_ended_before_it_ran_begins_with_its_retry(
    queue, hand, clock, lane
):
    job = await queue.add("a", expires=LIMIT, lane=lane)
    await queue.cancel(job.id)
    clock.ms += LIMIT + SOON
    await queue.retry(job.id)

    again = await take(hand(), job.id)

    assert again is not None
    assert not again.is_expired


async def test_a_job_that_ran_could_first_run_then_however_often_it_is_tried_again(
    queue, hand, clock
):
    worker = hand()
    job = await queue.add("a", expires=LIMIT, delay=SOON, attempts=2, backoff=SOON)
    clock.ms += SOON + 1
    first = await worker.take_one()
    await worker.fail(first)
    clock.ms += SOON + 1
    second = await worker.take_one()
    await worker.fail(second)
    clock.ms += LIMIT + SOON
    await queue.retry(job.id)
    third = await worker.take_one()

    times = [taken.first_due_at for taken in (first, second, third)]
    assert times == [job.timestamp + SOON] * 3
    assert [taken.delay for taken in (first, second, third)] == [0, 0, 0]


async def test_the_time_of_a_replayed_job_begins_with_its_replay(
    url, prefix, queue, work, hand, clock
):
    """Its options still tell of the delay that it had in its first life."""

    async def fail(job):
        raise ValueError("no")

    async with Queue("dlq", connection=url, prefix=prefix) as letters:
        await queue.add("a", {}, expires=LIMIT, delay=10)
        async with work(fail, dead_letter_queue="dlq"):
            await wait_until(letters.get_dead_letter_count)
        (letter,) = await letters.get_dead_letter_jobs()
        new_id = await letters.replay_dead_letter(letter.id)
        clock.ms += LIMIT - 10_000
        job = await take(hand(), new_id)

        assert job is not None
        assert job.first_due_at == job.timestamp
        assert not job.is_expired


@pytest.mark.parametrize("promote", ["one", "all"])
@pytest.mark.parametrize("lane", [None, "a"])
async def test_the_time_of_a_promoted_job_begins_when_it_is_promoted(
    queue, hand, clock, lane, promote
):
    job = await queue.add("a", delay=10 * SOON, expires=LIMIT, lane=lane)
    if promote == "one":
        await queue.promote(job.id)
    else:
        await queue.promote_all()
    clock.ms += LIMIT + 10_000

    taken = await hand().take_one()

    assert taken is not None
    assert taken.is_expired


@pytest.mark.parametrize("lane", [None, "a"])
@pytest.mark.parametrize("way", [with_a_delay, at_a_time, with_a_changed_delay])
async def test_a_promoted_job_that_waits_for_children_is_not_put_off_again(
    url, prefix, queue, client, hand, way, lane
):
    """Its time had been written down, and it was delayed until then when its children had ended."""
    worker = hand()
    if lane is None:
        job_id = await way(queue, client, worker)
    elif way is at_a_time:
        job_id = await at_a_time_in_a_lane(queue, client, worker)
    else:
        job_id = (await queue.add("a", delay=SOON, lane=lane)).id
        if way is with_a_changed_delay:
            await queue.change_delay(job_id, SOON)
    await queue.promote(job_id)
    parent = await worker.take_one()
    assert parent is not None
    await queue.add("c", parent=Parent(parent.id, "q"))
    await stand_aside(worker, parent)
    assert await queue.get_state(parent.id) == "waiting_children"

    await worker.complete(await worker.take_one())

    assert await queue.get_state(parent.id) == "waiting"
