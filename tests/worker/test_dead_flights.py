"""What dead workers leave behind ends by itself, and costs the living little."""

from __future__ import annotations

import itertools
import time

import msgspec
import pytest
import redis

from toril import Queue
from toril.client.connection import Connection
from toril.protocol import leasing, settling
from toril.protocol.settling import Take

DEAD = 5000


def record(at_ms: int) -> bytes:
    fields = {"request": 1, "token": "t", "at": at_ms, "results": [], "taken": ["gone"]}
    return msgspec.msgpack.encode({**fields, "rate_limit_ms": 0, "next_due_ms": 0})


@pytest.fixture
async def queue(start_server):
    """On a server of its own: its commands are counted."""
    server = start_server(tcp=True)
    connection = Connection(server.url)
    yield Queue("q", connection=connection)
    await connection.close()


@pytest.fixture
def raw(queue):
    with redis.Redis.from_url(queue._connection._target) as client:
        yield client


async def sweep(queue: Queue, raw) -> list[str]:
    raw.delete(queue.keys.stalled_check)
    plan = leasing.sweep(queue.keys, interval_ms=1000, max_stalled=1)
    return await queue._connection.follow(plan)


async def test_the_replies_of_dead_workers_are_forgotten_a_part_at_a_time(queue, raw):
    """Regression: three fields of each killed worker stayed for good, and 30,000 took 92 ms."""
    replies, long_ago = queue.keys.own("replies"), 1_700_000_000_000
    now_ms = int(time.time() * 1000)
    raw.hset(replies, mapping={f"dead{n}": record(long_ago) for n in range(DEAD)})
    raw.hset(replies, mapping={f"alive{n}": record(now_ms) for n in range(30)})

    left = [DEAD]
    while left[-1] and len(left) < 100:
        await sweep(queue, raw)
        left.append(sum(key.startswith(b"dead") for key in raw.hkeys(replies)))

    assert left[-1] == 0
    most = max(before - after for before, after in itertools.pairwise(left))
    assert most < 1000
    assert raw.hlen(replies) == 30


async def test_a_look_at_the_replies_is_bounded(queue, raw):
    """A job of a dead worker is stalled while many others have died too."""
    raw.hset(queue.keys.own("replies"), mapping={f"w{n}": record(1) for n in range(DEAD)})
    job = await queue.add("x")
    take = Take(count=1, token="w:1", lock_ms=30_000)
    await queue._connection.run(settling.settle(queue.keys, [], take, flight="w-0", request=1))
    raw.delete(f"{queue.keys.job(job.id)}:lock")
    await sweep(queue, raw)
    raw.config_resetstat()

    assert await sweep(queue, raw) == [job.id]

    stats = raw.info("commandstats")
    # The queue's settings, once a call; the replies are never read whole.
    assert stats["cmdstat_hgetall"]["calls"] == stats["cmdstat_fcall"]["calls"]
    assert stats["cmdstat_hscan"]["calls"] <= 6


async def test_all_of_it_expires_when_nobody_sweeps_any_more(queue, raw):
    take = Take(count=1, token="w:1", lock_ms=30_000)
    await queue._connection.run(settling.settle(queue.keys, [], take, flight="w-0", request=1))

    await sweep(queue, raw)

    assert 0 < raw.pttl(queue.keys.own("replies")) <= 86_400_000
