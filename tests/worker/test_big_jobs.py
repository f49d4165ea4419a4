"""No call moves more than about half a megabyte and one job, however many jobs it could carry."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.counting import counting
from tests.helpers import wait_until
from toril import NewJob, Queue, RateLimit, Worker
from toril.client.connection import Connection
from toril.protocol import settling
from toril.protocol.job import StoredJob
from toril.protocol.settling import Outcome, Settled, Take
from toril.worker.pump import MOST_PER_CALL, _first_of

BIG = "x" * 300_000
"""Two of them are enough for one call."""


@pytest.fixture
async def take(url, queue):
    """Takes up to ``count`` jobs in one call; returns their ids and whether more could be had."""
    connection = Connection(url)
    request = 0

    async def take(count):
        nonlocal request
        request += 1
        wanted = Take(count=count, token=f"t:{request}", lock_ms=60_000)
        command = settling.settle(queue.keys, [], wanted, flight="f", request=request)
        reply = await connection.run(command)
        return [words[-1].decode() for words in reply.jobs], reply.next_due_ms > 0

    yield take
    await connection.run(settling.leave(queue.keys, ["f"]))
    await connection.close()


async def take_all(take, count):
    calls = []
    while True:
        ids, _ = await take(count)
        if not ids:
            return calls
        calls.append(ids)


async def test_small_jobs_come_all_at_once(queue, take):
    jobs = await queue.add_bulk([NewJob("small", n) for n in range(100)])

    ids, has_more = await take(100)

    assert (ids, has_more) == ([job.id for job in jobs], False)


async def test_big_jobs_come_a_few_at_a_time_and_in_their_order(queue, take, inside):
    jobs = await queue.add_bulk([NewJob("big", BIG) for _ in range(5)])
    small = await queue.add_bulk([NewJob("small") for _ in range(3)])
    ids = [job.id for job in [*jobs, *small]]
    before = await inside.client.lrange(f"{inside.base}:wait", 0, -1)

    first, has_more = await take(100)

    assert (first, has_more) == (ids[:2], True)
    assert await inside.ids("active") == first[::-1]
    assert await inside.ids("wait") == before[:-2]
    assert await take_all(take, 100) == [ids[2:4], ids[4:]]


async def test_priorities_keep_their_places(queue, take, inside):
    jobs = [await queue.add("big", BIG, priority=priority) for priority in (3, 1, 2, 1)]
    scores = await inside.client.zrange(f"{inside.base}:prioritized", 0, -1, withscores=True)

    first, has_more = await take(10)

    assert (first, has_more) == ([jobs[1].id, jobs[3].id], True)
    after = await inside.client.zrange(f"{inside.base}:prioritized", 0, -1, withscores=True)
    assert after == scores[2:]
    assert await take_all(take, 10) == [[jobs[2].id, jobs[0].id]]


async def test_lanes_keep_their_turns(queue, take, inside):
    jobs = [await queue.add("big", BIG, lane=f"{n}") for n in range(5)]
    ids = [job.id for job in jobs]
    turns = await inside.client.zrange(f"{inside.base}:lanes:ready", 0, -1, withscores=True)

    first, has_more = await take(10)

    assert (first, has_more) == (ids[:2], True)
    ready = await inside.client.zrange(f"{inside.base}:lanes:ready", 0, -1, withscores=True)
    assert ready == turns[2:]
    assert await take_all(take, 10) == [ids[2:4], ids[4:]]


async def test_neither_lanes_nor_plain_jobs_starve(queue, take):
    plain = [(await queue.add("big", BIG)).id for _ in range(4)]
    lanes = [(await queue.add("big", BIG, lane=f"{n}")).id for n in range(4)]

    calls = [await take(10), await take(10)]

    assert [has_more for _, has_more in calls] == [True, True]
    assert [ids for ids, _ in calls] == [plain[:2] + lanes[:2], plain[2:] + lanes[2:]]


async def test_a_rate_limit_counts_only_what_is_taken(queue, take, inside):
    await queue.set_global_rate_limit(RateLimit(10, 60_000))
    await queue.add_bulk([NewJob("big", BIG) for _ in range(5)])

    await take(5)

    assert await inside.client.get(f"{inside.base}:limiter") == "2"
    await queue.remove_global_rate_limit()
    await inside.client.delete(f"{inside.base}:limiter")


@pytest.mark.parametrize("concurrency", [1, 20])
async def test_a_worker_runs_them_all_once_and_returns_as_much(
    concurrency, queue, start_worker, inside
):
    runs = Counter()

    async def handle(job):
        runs[job.id] += 1
        return job.data

    jobs = await queue.add_bulk([NewJob("big", BIG) for _ in range(20)])
    await start_worker(handle, concurrency=concurrency)
    await inside.until_finished(20)

    assert runs == Counter([job.id for job in jobs])


async def test_a_worker_fills_its_slots_with_big_jobs(queue, start_worker, inside):
    """It asks again at once, and does not wait for one to end."""
    jobs = await queue.add_bulk([NewJob("big", BIG) for _ in range(9)])
    await start_worker(_wait, concurrency=9, drain_delay=600_000)

    await inside.until_active(len(jobs))


async def _wait(job):

    await asyncio.sleep(60)


@pytest.mark.parametrize(("size", "together"), [(10, MOST_PER_CALL), (300_000, 2), (900_000, 1)])
def test_outcomes_leave_a_few_at_a_time(size, together):
    job = StoredJob("bull", "q", "1", {})
    outcome = Outcome(kind="completed", payloads=(b"x" * size,))
    finished = [Settled("1", "t", outcome, job)] * 300

    assert len(_first_of(finished)) == together


async def test_bulk_adds_go_a_few_at_a_time(start_server):
    server = start_server()
    async with Queue("q", connection=server.unix_url) as queue:
        await queue.add("first")
        with counting(server) as counted:
            await queue.add_bulk([NewJob("big", BIG) for _ in range(10)])

        assert counted.commands == {"FCALL": 5}
        assert await queue.get_waiting_count() == 11


async def test_a_drain_moves_a_few_at_a_time(start_server):
    """By the server's own count of scripts: two jobs of this size per call, and no more."""
    server = start_server()
    done: list[str] = []

    async def handle(job):
        done.append(job.id)

    async with Queue("q", connection=server.unix_url) as queue:
        await queue.add_bulk([NewJob("big", BIG) for _ in range(40)])
        with counting(server) as counted:
            async with Worker("q", handle, connection=server.unix_url, concurrency=40):
                await wait_until(lambda: len(done) == 40)

    assert counted.commands["FCALL"] >= 20
