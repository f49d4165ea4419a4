"""Each attempt of a job with its times and its worker, at no command of its own."""

from __future__ import annotations

import asyncio

import pytest

from tests.features.lanes import Hand, lose_lock, sweep
from tests.helpers import wait_until
from toril import Backoff, JobAttempt, Queue
from toril.client.connection import Connection
from toril.protocol.attempts import history_of


async def no(job):
    raise ValueError("no")


async def is_failed(queue, job_id):
    return await queue.get_state(job_id) == "failed"


async def history(queue, job_id):
    return (await queue.get_job(job_id)).attempt_history


async def test_each_attempt_has_its_times_and_its_worker(queue, work):
    job = await queue.add("a", {}, attempts=3, backoff=Backoff.fixed(20))

    async with work(no, worker_name="mailer-1"):
        await wait_until(lambda: is_failed(queue, job.id))

    stored = await queue.get_job(job.id)
    first, second, third = stored.attempt_history
    assert (first.number, second.number, third.number) == (1, 2, 3)
    assert {one.worker for one in (first, second, third)} == {"mailer-1"}
    times = [time for one in (first, second, third) for time in (one.started_on, one.ended_on)]
    assert times == sorted(times)
    assert first.ended_on + 20 <= second.started_on
    assert (third.started_on, third.ended_on) == (stored.processed_on, stored.finished_on)


@pytest.mark.parametrize("lane", [None, "a lane"])
async def test_attempts_that_follow_at_once_are_told_apart(queue, hand, lane):
    """An attempt may begin in the millisecond in which another began and ended."""
    job = await queue.add("a", {}, attempts=50, lane=lane, backoff=Backoff.fixed(0))
    worker = hand()

    (taken,) = await worker.take()
    for _ in range(20):
        (taken,) = await worker.fail(taken, then_take=1)

    found = await history(queue, job.id)
    assert [one.number for one in found] == list(range(1, 22))
    assert [one.ended_on for one in found[:-1]] == [one.started_on for one in found[1:]]
    assert found[-1].ended_on is None


async def test_it_costs_no_command(start_server):
    """A second attempt, which records the first, makes the server do what a first one does."""
    server = start_server()
    connection, queue = Connection(server.unix_url), Queue("q", connection=server.unix_url)
    worker, costs = Hand(connection, queue.keys, "one"), []
    await queue.add("warm", {})
    await worker.complete(await worker.take_one())
    await queue.add("a", {}, attempts=5)
    with server.client() as raw:
        for _ in range(3):
            raw.config_resetstat()
            await worker.fail(await worker.take_one())
            stats = raw.info("commandstats")
            costs.append({name: one["calls"] for name, one in stats.items() if "reset" not in name})
    await queue.close()
    await connection.close()

    assert costs[0] == costs[1] == costs[2]
    assert costs[0]["cmdstat_hset"] >= 3


async def test_a_running_attempt_has_no_end(queue, work):
    inside = asyncio.Event()
    job = await queue.add("a", {})

    async def handler(job):
        inside.set()
        await asyncio.Event().wait()

    worker = work(handler, worker_name="w")
    await worker.start()
    await inside.wait()
    stored = await queue.get_job(job.id)
    await worker.close(timeout=0)

    assert stored.attempt_history == [
        JobAttempt(number=1, started_on=stored.processed_on, ended_on=None, worker="w")
    ]


async def test_an_attempt_that_stalled_has_no_end(queue, hand, connection, client):
    job = await queue.add("a", {})
    worker = hand()
    await worker.take()
    await lose_lock(client, queue.keys, job.id)
    await sweep(connection, client, queue.keys)

    await worker.complete(await worker.take_one())

    first, second = await history(queue, job.id)
    assert (first.number, first.ended_on) == (1, None)
    assert second.ended_on is not None


async def test_a_retry_by_hand_keeps_what_was_before(queue, hand):
    job = await queue.add("a", {})
    worker = hand()
    await worker.fail(await worker.take_one())
    before = await history(queue, job.id)

    await queue.retry(job.id)
    assert await history(queue, job.id) == before

    await worker.complete(await worker.take_one())
    after = await history(queue, job.id)
    assert after[:1] == before
    assert [one.number for one in after] == [1, 2]


async def test_a_retry_that_counts_anew_keeps_it_too(queue, hand):
    job = await queue.add("a", {})
    worker = hand()
    await worker.fail(await worker.take_one())

    await queue.retry(job.id, reset_attempts=True)
    await worker.complete(await worker.take_one())

    assert [one.number for one in await history(queue, job.id)] == [1, 1]


async def test_what_is_kept_is_bounded(queue, hand, client):
    """In count and in bytes; the newest stay."""
    job = await queue.add("a", {}, attempts=400)
    worker = hand()
    (taken,) = await worker.take()
    for _ in range(300):
        await client.hset(queue.keys.job(job.id), "pb", "n\n" * 5000)
        (taken,) = await worker.fail(taken, then_take=1)

    text = await client.hget(queue.keys.job(job.id), "x.attempts")
    found = await history(queue, job.id)
    assert len(text) <= 2000
    assert [one.number for one in found] == list(range(302 - len(found), 302))
    assert found[0].worker == "n\n" * 30


async def test_workers_of_the_version_before_leave_gaps(queue, hand, client):
    """They count and stamp a start as ever, and know nothing of these fields."""
    job = await queue.add("a", {}, attempts=5)
    worker = hand()
    await worker.fail(await worker.take_one())
    await client.hset(queue.keys.job(job.id), mapping={"ats": "2", "processedOn": "77"})

    found = await history(queue, job.id)
    assert [(one.number, one.ended_on) for one in found] == [(2, None)]
    await worker.fail(await worker.take_one())

    found = await history(queue, job.id)
    assert [one.number for one in found] == [2, 3]
    assert (found[0].started_on, found[0].ended_on) == (77, None)


async def test_a_worker_without_a_name_is_not_taken_for_the_one_before(queue, hand, client):
    job = await queue.add("a", {}, attempts=3)
    worker = hand()
    await client.hset(queue.keys.job(job.id), "pb", "the one before")
    await worker.fail(await worker.take_one(), then_take=1)

    stored = await queue.get_job(job.id)
    assert [one.worker for one in stored.attempt_history] == ["the one before", None]
    assert stored.processed_by is None


@pytest.mark.parametrize(
    "text",
    [b"", b"[", b"[1,2]", b"{}", b'["a",1,2,3]', b"[1,2,3,[]]\xff", b"[" * 50_000, b"null\nnull"],
)
def test_foreign_text_is_passed_over(text):
    fields = {b"x.attempts": text + b'\n[2,5,6,"w"]'}

    assert history_of(fields)[-1:] == [JobAttempt(number=2, started_on=5, ended_on=6, worker="w")]
