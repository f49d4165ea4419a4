"""The rules of production that the engine keeps by itself (RULES-06 … RULES-12).

The others have tests of their own: idempotency and outbox in tests/sql, deploys in tests/worker,
the review checklist in tests/doctor.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.helpers import wait_until
from tests.servers import free_port
from toril import Backoff, NewJob, Queue, RateLimit, UnrecoverableError, Worker
from toril.client.connection import Connection
from toril.doctor import examine
from toril.errors import InvalidOptionError, ServerUnavailableError
from toril.protocol.command import plain


@pytest.fixture
def queue_name() -> str:
    return "payments"


def test_jitter_spreads_the_waits_of_an_exponential_backoff():
    """RULES-05: jobs that failed together do not come back together."""
    backoff = Backoff.exponential(1000, jitter=0.5)

    waits = [backoff.wait_ms(3, dice / 10) for dice in range(10)]

    assert min(waits) == 2000
    assert max(waits) < 4000
    assert len(set(waits)) == 10


async def test_an_unrecoverable_error_skips_the_remaining_attempts(queue, url, prefix):
    """RULES-06."""

    async def handler(job):
        raise UnrecoverableError("the row is gone")

    job = await queue.add("charge", {}, attempts=10, backoff=60_000)
    async with Worker("payments", handler, connection=url, prefix=prefix):
        await wait_until(queue.get_failed_count)

    assert (await queue.get_job(job.id)).attempts_made == 1


async def test_an_exhausted_job_is_a_dead_letter_and_somebody_is_told(queue, url, prefix):
    """RULES-07: nothing lies only in the failed set."""
    told = []

    async def handler(job):
        raise ValueError("no")

    worker = Worker(
        *("payments", handler), connection=url, prefix=prefix, dead_letter_queue="payments-dlq"
    )
    worker.on("deadLettered", lambda *event: told.append(event))
    async with Queue("payments-dlq", connection=url, prefix=prefix) as dead:
        await queue.add("charge", {}, attempts=2, backoff=1)
        async with worker:
            await wait_until(lambda: told)

        assert await dead.get_dead_letter_count() == 1
    assert await queue.get_failed_count() == 0


async def test_a_blocking_call_outlasts_the_limit_for_replies(url, prefix):
    """RULES-09: waiting for jobs is no timeout."""
    connection = Connection(url, reply_timeout_s=0.2)
    wait = plain("BLPOP", f"{prefix}:nothing", 0.8, parse=lambda reply: reply, block_ms=800)

    begin = time.monotonic()
    answer = await connection.run(wait)

    assert answer is None
    assert time.monotonic() - begin >= 0.7
    await connection.close()


async def test_a_producer_without_a_server_fails_within_its_patience(prefix):
    """RULES-09: a request that cannot be served is an error, and not a caller that hangs."""
    connection = Connection(f"redis://127.0.0.1:{free_port()}", patience_s=0.2)
    queue = Queue("payments", connection=connection, prefix=prefix)

    begin = time.monotonic()
    with pytest.raises(ServerUnavailableError):
        await queue.add("charge", {})

    assert time.monotonic() - begin < 20
    await connection.close()


async def test_recurring_jobs_are_made_by_schedulers_only(queue):
    """RULES-10: whatever asks for repetition makes a scheduler; jobs carry no deprecated repeat."""
    await queue.add("digest", {}, repeat={"every": 3_600_000})
    with pytest.raises(TypeError):
        NewJob("digest", repeat={"every": 3_600_000})

    (scheduler,) = await queue.get_job_schedulers()
    assert scheduler.every == 3_600_000
    report = await examine(queue._connection, prefix=queue.keys.prefix)
    assert "D213" not in [finding.code for finding in report.findings]
    await queue.remove_job_scheduler(scheduler.id)


async def test_concurrency_and_rate_are_what_was_asked_for(queue, url, prefix):
    """RULES-11."""
    running, most, starts = 0, 0, []

    async def handler(job):
        nonlocal running, most
        starts.append(job.processed_on)
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1

    for _ in range(6):
        await queue.add("charge", {})
    limiter = RateLimit(max=3, duration=400)
    async with Worker(
        *("payments", handler), connection=url, prefix=prefix, concurrency=2, limiter=limiter
    ):
        await wait_until(lambda: len(starts) == 6)

    assert most == 2
    assert starts[3] - starts[0] >= 400
    with pytest.raises(InvalidOptionError):
        Worker("payments", handler, connection=url, concurrency=0)


async def test_a_second_add_with_the_same_id_is_dropped_and_reported(queue):
    """RULES-12: while the job's record lives."""
    first = await queue.add("charge", {"n": 1}, job_id="order-1")
    second = await queue.add("charge", {"n": 2}, job_id="order-1")
    await queue.remove("order-1")
    third = await queue.add("charge", {"n": 3}, job_id="order-1")

    assert [job.duplicated for job in (first, second, third)] == [False, True, False]
    assert (second.data, third.data) == ({"n": 1}, {"n": 3})
    assert await queue.get_waiting_count() == 1
