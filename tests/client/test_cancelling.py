"""Cancelling a job wherever it is, from any process."""

from __future__ import annotations

import asyncio
import sys
import time

import msgspec
import pytest

from tests.client.support import add_child, events_of, finish, hold_forever, make_parent, working
from tests.helpers import wait_until
from toril import Cancelled, Worker
from toril.errors import JobNotFoundError, JobNotInStateError, SchedulerOwnsJobError
from toril.protocol import cancelling


async def is_failed(client, queue, job_id) -> bool:
    return await client.zscore(queue.keys.failed, job_id) is not None


@pytest.mark.parametrize(
    ("options", "place"),
    [({}, "waiting"), ({"priority": 3}, "prioritized"), ({"delay": 60_000}, "delayed")],
)
async def test_a_job_that_has_not_started_ends_as_failed(options, place, queue, client):
    job = await queue.add("a", attempts=3, **options)

    assert await queue.cancel(job.id, "no longer wanted") is Cancelled.ENDED

    ended = await queue.get_job(job.id)
    assert ended.failed_reason == "cancelled: no longer wanted"
    assert ended.attempts_made == 0
    assert ended.finished_on is not None
    assert await client.zrange(queue.keys.failed, 0, -1) == [job.id]
    assert (await events_of(client, queue))[-1] == {
        "event": "failed",
        "jobId": job.id,
        "failedReason": "cancelled: no longer wanted",
        "prev": place,
    }


async def test_a_cancelled_parent_does_not_run_when_its_children_are_done(
    queue, make_queue, url, client
):
    children = make_queue("children")
    parent = await queue.add("parent")
    key = await make_parent(client, queue, parent.id)
    child = await children.add("child")
    await add_child(client, key, children.keys.job(child.id))

    assert await queue.cancel(parent.id) == "ended"
    await finish(children, url, client)

    assert await client.exists(queue.keys.wait, queue.keys.waiting_children) == 0
    assert (await queue.get_job(parent.id)).failed_reason == "cancelled"


async def test_a_cancelled_child_counts_as_failed_for_its_parent(queue, make_queue, client):
    children = make_queue("children")
    parent = await queue.add("parent")
    key = await make_parent(client, queue, parent.id)
    child = await children.add("child")
    await add_child(client, key, children.keys.job(child.id), flags=',"fpof":true')

    await children.cancel(child.id)

    assert await client.lrange(queue.keys.wait, 0, -1) == [parent.id]
    assert "failed" in (await queue.get_job(parent.id)).deferred_failure


async def test_the_retention_of_a_cancelled_job_is_kept_to(queue):
    job = await queue.add("a", remove_on_fail=True)

    assert await queue.cancel(job.id) is Cancelled.ENDED

    assert await queue.get_job(job.id) is None


async def test_in_a_long_list_a_job_is_marked_and_fails_at_its_turn(
    queue, url, client, monkeypatch
):
    monkeypatch.setattr(cancelling, "LONG_LIST", 2)
    jobs = [await queue.add("a") for _ in range(3)]
    seen = []

    assert await queue.cancel(jobs[1].id, "late") is Cancelled.MARKED
    assert await client.llen(queue.keys.wait) == 3

    async with working(queue, url, lambda job: seen.append(job.id)):
        await wait_until(lambda: is_failed(client, queue, jobs[1].id))
        await wait_until(lambda: len(seen) == 2)
    assert jobs[1].id not in seen
    assert (await queue.get_job(jobs[1].id)).failed_reason == "cancelled: late"


async def test_what_is_finished_or_missing_cannot_be_cancelled(queue, url, client):
    done = await queue.add("a")
    await finish(queue, url, client)
    cancelled = await queue.add("b")
    await queue.cancel(cancelled.id)

    for job_id in (done.id, cancelled.id):
        with pytest.raises(JobNotInStateError, match="finished"):
            await queue.cancel(job_id)
    with pytest.raises(JobNotFoundError):
        await queue.cancel("never-was")


async def test_the_next_iteration_of_a_scheduler_is_not_cancelled(queue, client):
    job_id = "repeat:digest:1794723425000"
    await client.hset(queue.keys.job(job_id), mapping={"name": "digest", "rjk": "digest"})
    await client.zadd(queue.keys.delayed, {job_id: 1})
    await client.zadd(queue.keys.repeat, {"digest": 1794723425000})
    await client.hset(f"{queue.keys.repeat}:digest", "name", "digest")

    with pytest.raises(SchedulerOwnsJobError):
        await queue.cancel(job_id)


async def test_a_cancel_that_was_sent_again_answers_the_same(queue, client):
    job = await queue.add("a")
    plan = cancelling.cancel(queue.keys, job.id, call="c", reason="twice")
    command = plan.send(await queue._connection.run(next(plan)))
    assert await queue._connection.run(command) is Cancelled.ENDED

    reply = await client.execute_command(*command.request(resent=True))

    assert command.parse(reply) is Cancelled.ENDED


@pytest.fixture
def no_renewals():
    """Locks so long that a renewal does not come into it: only the message stops the handler."""
    return {"lock_duration": 600_000}


async def test_a_running_coroutine_is_stopped_at_once(queue, url, client, no_renewals):
    job = await queue.add("a", attempts=5)
    cleaned_up = asyncio.Event()

    async def handle(job):
        try:
            await asyncio.sleep(600)
        finally:
            cleaned_up.set()

    async with working(queue, url, handle, **no_renewals) as worker:
        await wait_until(lambda: worker.is_processing)
        assert await queue.cancel(job.id, "stop it") is Cancelled.STOPPING
        await wait_until(lambda: is_failed(client, queue, job.id))

    assert cleaned_up.is_set()
    ended = await queue.get_job(job.id)
    assert ended.failed_reason == "cancelled: stop it"
    assert ended.attempts_made == 1
    assert await client.hexists(queue.keys.job(job.id), "x.cancel") is False


@pytest.mark.parametrize("ending", ["returns", "raises"])
async def test_a_running_thread_sees_that_it_is_cancelled(ending, queue, url, client, no_renewals):
    job = await queue.add("a", attempts=5)

    def handle(job):
        deadline = time.monotonic() + 60
        while not job.is_cancelled and time.monotonic() < deadline:
            time.sleep(0.005)
        if ending == "raises":
            raise ValueError("stopped in the middle")

    async with working(queue, url, handle, **no_renewals) as worker:
        await wait_until(lambda: worker.is_processing)
        assert await queue.cancel(job.id) is Cancelled.STOPPING
        await wait_until(lambda: is_failed(client, queue, job.id))

    assert (await queue.get_job(job.id)).failed_reason == "cancelled"


async def test_a_handler_that_finishes_all_the_same_completes(queue, url, client):
    job = await queue.add("a")

    async def handle(job):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "saved what there was"

    async with working(queue, url, handle) as worker:
        await wait_until(lambda: worker.is_processing)
        await queue.cancel(job.id)
        await wait_until(lambda: client.zcard(queue.keys.completed))

    # A retry begins without the old wish.
    await queue.retry(job.id)
    await finish(queue, url, client)
    assert (await queue.get_job(job.id)).return_value == 1


async def test_without_a_message_the_next_renewal_stops_the_handler(queue, url, client):
    job = await queue.add("a")

    worker = Worker("q", hold_forever, connection=url, prefix=queue.keys.prefix)
    worker._parts.lease._interval_s = 1.0  # soon, and the lock lasts long: no delay loses it
    async with worker:
        await wait_until(lambda: worker.is_processing)
        await client.hset(queue.keys.job(job.id), "x.cancel", "cancelled: by mark")
        await wait_until(lambda: is_failed(client, queue, job.id))

    assert (await queue.get_job(job.id)).failed_reason == "cancelled: by mark"


async def test_a_message_that_overtakes_its_job_stops_it_before_it_runs(queue, url, client):
    job = await queue.add("a")
    ran = []

    async def handle(job):
        ran.append(job.id)

    worker = Worker("q", handle, connection=url, prefix=queue.keys.prefix)
    start_job = worker._parts.crew.start_job

    def start(job, received):
        worker._parts.crew.cancel(job.id, job.token, "cancelled: early")
        start_job(job, received)

    worker._parts.crew.start_job = start
    async with worker:
        await wait_until(lambda: is_failed(client, queue, job.id))

    assert ran == []
    assert (await queue.get_job(job.id)).failed_reason == "cancelled: early"


async def test_a_job_whose_worker_died_after_the_cancel_does_not_run_again(queue, url, client):
    job = await queue.add("a")
    await client.rpoplpush(queue.keys.wait, queue.keys.active)
    await client.set(f"{queue.keys.job(job.id)}:lock", "dead:1", px=60_000)
    assert await queue.cancel(job.id, "too late") is Cancelled.STOPPING
    assert 0 < await client.pttl(f"{queue.keys.base}:toril:mail-dead") <= 60_000
    await client.delete(f"{queue.keys.job(job.id)}:lock")
    await client.sadd(queue.keys.stalled, job.id)
    ran = []

    async with working(queue, url, lambda job: ran.append(job.id), stalled_interval=100):
        await wait_until(lambda: is_failed(client, queue, job.id))

    assert ran == []
    assert (await queue.get_job(job.id)).failed_reason == "cancelled: too late"


WORKER = """
import asyncio, sys
from toril import Worker

async def handle(job):
    print("running", flush=True)
    await asyncio.sleep(60)

async def main():
    worker = Worker("q", handle, connection=sys.argv[1], prefix=sys.argv[2])
    worker.on("failed", lambda job, error: print("failed", error, flush=True))
    async with worker:
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_job_of_another_process_is_stopped(queue, url, prefix, client):
    job = await queue.add("a")
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, url, prefix, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(60):
            assert (await child.stdout.readline()).strip() == b"running"
            assert await queue.cancel(job.id, "from afar") is Cancelled.STOPPING
            line = (await child.stdout.readline()).strip()
        assert line == b"failed cancelled: from afar"
        await wait_until(lambda: is_failed(client, queue, job.id))
    finally:
        child.kill()
        await child.wait()


def mail(job_id, token, reason) -> bytes:
    """As ``cancel`` writes it to the worker that runs the job."""
    return msgspec.msgpack.encode([job_id, token, reason])


def mailbox_of(queue, token) -> str:
    return f"{queue.keys.base}:toril:mail-{token.rpartition(':')[0]}"


async def test_cancelling_an_older_run_does_not_stop_the_newer_one(queue, url, client):
    """Its lock was lost, and the same worker runs the job again when the message comes."""
    job = await queue.add("a", attempts=3)
    tokens = []

    async def handler(taken):
        tokens.append(taken.token)
        await asyncio.sleep(60)

    async with working(queue, url, handler):
        await wait_until(lambda: tokens)
        await client.rpush(
            mailbox_of(queue, tokens[0]),
            mail(job.id, f"{tokens[0]}-before", "cancelled: the older run"),
            mail(job.id, tokens[0], "cancelled: this run"),
        )
        await wait_until(lambda: is_failed(client, queue, job.id))

    assert (await queue.get_job(job.id)).failed_reason == "cancelled: this run"


async def test_a_message_about_an_older_run_does_not_stop_the_next(queue, url, client):
    """Of a job that is not here the message waits for the reply that brings it: for that run."""
    first = await queue.add("a")
    tokens = []

    async def handler(taken):
        tokens.append(taken.token)
        await asyncio.sleep(0)

    async with working(queue, url, handler):
        await wait_until(lambda: tokens)
        mailbox = mailbox_of(queue, tokens[0])
        await client.rpush(mailbox, mail("again", tokens[0], "cancelled: the older run"))
        await wait_until(lambda: is_missing(client, mailbox))
        # A message that is read is not yet told; the next one is, in the same order.
        await client.rpush(mailbox, mail(first.id, tokens[0], "cancelled: too late"))
        await wait_until(lambda: is_missing(client, mailbox))

        await queue.add("b", job_id="again")

        assert await queue.wait_for("again", timeout=60_000) is None


async def is_missing(client, key) -> bool:
    return not await client.exists(key)
