"""Changing 100,000 jobs holds nobody up (performance: bulk operations, no script over 10 ms)."""

from __future__ import annotations

from typing import Any

import pytest
import redis.asyncio

from toril import Queue

COUNT = 100_000
LIMIT_US = 10_000
# The server's clock runs on while somebody else has the processor, so of the 400 calls of each
# operation a few may seem slow. A slice that is too large would make all of them slow.
NOISE = 20
MEAN_US = 5_000

# Fills one place of a queue with jobs, as a long history would have.
FILL = """
local base, place, first, count, kind = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
for n = first, first + count - 1 do
  local id = "job-" .. n
  redis.call("HSET", base .. ":" .. id, "name", "n", "data", '{"order":123,"text":"some words"}',
    "opts", '{"attempts":3}', "timestamp", 1700000000000 + n, "delay", 0, "priority", 0,
    "failedReason", "no", "finishedOn", 1700000000000 + n)
  if kind == "list" then
    redis.call("LPUSH", base .. ":" .. place, id)
  else
    redis.call("ZADD", base .. ":" .. place, 1700000000000 + n, id)
  end
end
"""


@pytest.fixture
def slow_server(start_server):
    return start_server({"slowlog-log-slower-than": str(LIMIT_US), "slowlog-max-len": "1000"})


async def fill(client: Any, queue: Queue, place: str) -> None:
    kind = "list" if place == "wait" else "zset"
    for first in range(0, COUNT, 5000):
        await client.eval(FILL, 1, queue.keys.base, place, first, 5000, kind)


@pytest.mark.slow
async def test_no_script_takes_longer_than_ten_milliseconds(slow_server):
    async with (
        redis.asyncio.Redis.from_url(slow_server.url, decode_responses=True) as client,
        Queue("q", connection=slow_server.url) as queue,
    ):
        keys = queue.keys

        async def too_slow() -> list[str]:
            stats = (await client.info("commandstats"))["cmdstat_evalsha"]
            assert stats["usec_per_call"] < MEAN_US
            rows = await client.slowlog_get(1000)
            await client.slowlog_reset()
            return [f"{row['duration']} µs: {row['command'][:60]}" for row in rows]

        await fill(client, queue, "delayed")
        await client.slowlog_reset()
        assert await queue.promote_all() == COUNT
        slow = await too_slow()
        assert len(slow) <= NOISE, slow

        assert len(await queue.clean("waiting", limit=COUNT // 2)) == COUNT // 2
        assert await queue.drain() == COUNT // 2
        slow = await too_slow()
        assert len(slow) <= NOISE, slow

        await fill(client, queue, "failed")
        await client.slowlog_reset()
        assert await queue.retry_all() == COUNT
        assert await client.llen(keys.wait) == COUNT
        assert await queue.drain() == COUNT
        slow = await too_slow()
        assert len(slow) <= NOISE, slow

        await fill(client, queue, "completed")
        await client.slowlog_reset()
        assert len(await queue.clean("completed")) == COUNT
        slow = await too_slow()
        assert len(slow) <= NOISE, slow

        await fill(client, queue, "wait")
        await client.slowlog_reset()
        await queue.pause()
        assert await queue.obliterate() == COUNT
        slow = await too_slow()
        assert len(slow) <= NOISE, slow
        assert await client.dbsize() == 0
