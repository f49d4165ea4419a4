"""The server's clock jumps an hour ahead and back: what was kept meanwhile must not last that hour.

A key that was given its time by the clock that was ahead has a longer one than anybody would give
it; that is how each test makes it.
"""

from __future__ import annotations

import time

import pytest

from tests.helpers import wait_until
from toril import RateLimit
from toril.client.connection import Connection
from toril.protocol import leasing, settling
from toril.protocol.settling import Take

HOUR_MS = 3_600_000


@pytest.fixture
async def connection(url):
    connection = Connection(url)
    yield connection
    await connection.close()


@pytest.fixture
def done(start_worker):
    return []


@pytest.fixture
def start(start_worker, done):
    async def handle(job):
        done.append(job.id)

    return lambda **options: start_worker(handle, **options)


async def test_stalled_jobs_come_back(queue, inside, start, done):
    job = await queue.add("job")
    await inside.client.rename(f"{inside.base}:wait", f"{inside.base}:active")
    await inside.client.set(f"{inside.base}:stalled-check", "1", px=HOUR_MS)

    await start(stalled_interval=50)

    await wait_until(lambda: done == [job.id])


async def test_the_workers_of_a_queue_still_take_turns(queue, inside, connection):
    sweep = leasing.sweep(queue.keys, interval_ms=60_000, max_stalled=1)
    await inside.client.set(f"{inside.base}:stalled-check", "1", px=50_000)

    await connection.follow(sweep)

    assert await inside.client.pttl(f"{inside.base}:stalled-check") <= 50_000


async def test_the_lock_of_a_dead_worker_ends_in_its_time(queue, inside, connection):
    job = await queue.add("job")
    await inside.client.rename(f"{inside.base}:wait", f"{inside.base}:active")
    ahead = round(time.time() * 1000) + HOUR_MS
    await inside.client.hset(f"{inside.base}:{job.id}", "processedOn", ahead)
    lock = f"{inside.base}:{job.id}:lock"
    await inside.client.set(lock, "a dead worker's", px=HOUR_MS + 30_000)
    await inside.client.sadd(f"{inside.base}:stalled", job.id)

    await connection.follow(leasing.sweep(queue.keys, interval_ms=5000, max_stalled=1))

    assert 0 < await inside.client.pttl(lock) <= 31_000


async def test_a_long_lock_is_left_alone(queue, inside, connection):
    """Whoever asked for a long one shall have it."""
    job = await queue.add("job")
    await inside.client.rename(f"{inside.base}:wait", f"{inside.base}:active")
    await inside.client.hset(
        f"{inside.base}:{job.id}", "processedOn", round(time.time() * 1000) - 10
    )
    lock = f"{inside.base}:{job.id}:lock"
    await inside.client.set(lock, "token", px=HOUR_MS)
    await inside.client.sadd(f"{inside.base}:stalled", job.id)

    await connection.follow(leasing.sweep(queue.keys, interval_ms=5000, max_stalled=1))

    assert await inside.client.pttl(lock) > HOUR_MS - 60_000


@pytest.mark.parametrize("is_global", [True, False])
async def test_a_rate_limit_lets_go(is_global, queue, inside, start, done):
    if is_global:
        await queue.set_global_rate_limit(RateLimit(1, 100))
    job = await queue.add("job")
    await inside.client.set(f"{inside.base}:limiter", "1", px=HOUR_MS)

    await start(limiter=None if is_global else RateLimit(1, 100))

    await wait_until(lambda: done == [job.id])


@pytest.mark.parametrize("counter", ["1", "9007199254740991"])
async def test_windows_and_holds_of_others_are_kept(counter, queue, inside, connection):
    """A worker with a longer window, and BullMQ's ``rateLimit`` for however long."""
    await queue.add("job")
    left_ms = 30_000 if counter == "1" else HOUR_MS
    await inside.client.set(f"{inside.base}:limiter", counter, px=left_ms)
    take = Take(count=1, token="t", lock_ms=1000, limiter=RateLimit(1, 100))

    reply = await connection.run(settling.settle(queue.keys, [], take, flight="f", request=1))

    assert (reply.jobs, reply.rate_limit_ms > left_ms - 5000) == ([], True)
    await connection.run(settling.leave(queue.keys, ["f"]))


async def test_a_queue_held_by_hand_is_let_go(queue, inside, start, done):
    job = await queue.add("job")
    await queue.rate_limit(200)
    await inside.client.pexpire(f"{inside.base}:limiter", HOUR_MS)

    await start()

    await wait_until(lambda: done == [job.id])
    assert await inside.client.hget(f"{inside.base}:meta", "x.held") is None


async def test_a_queue_held_by_an_older_version_stays_held(queue, inside, connection):
    await queue.add("job")
    await queue.rate_limit(HOUR_MS)
    await inside.client.hset(f"{inside.base}:meta", "x.held", 1)
    take = Take(count=1, token="t", lock_ms=1000)

    reply = await connection.run(settling.settle(queue.keys, [], take, flight="f", request=1))

    assert reply.rate_limit_ms > HOUR_MS - 60_000
    await connection.run(settling.leave(queue.keys, ["f"]))


async def test_a_lane_behind_its_rate_limit_is_let_go(queue, inside, start, done):
    await queue.set_lane_rate_limit(None, RateLimit(1, 60_000))
    first, second = [await queue.add("job", lane="a") for _ in range(2)]
    worker = await start(stalled_interval=50)
    await wait_until(lambda: done == [first.id])
    later = f"{inside.base}:lanes:later"
    await wait_until(lambda: inside.client.exists(later))
    await queue.set_lane_rate_limit(None, RateLimit(1, 60_000))
    ahead = round(time.time() * 1000) + HOUR_MS
    await inside.client.pexpire(f"{inside.base}:lanes:rate:a", HOUR_MS)
    await inside.client.zadd(later, {"a": ahead})

    await wait_until(lambda: done == [first.id, second.id])
    assert worker.is_running
    await queue.set_lane_rate_limit(None, None)
