"""Changing 100,000 jobs holds nobody up: each script does a bounded part of the work.

How long a script takes is measured in the benchmarks; how much it does is exact on any machine.
"""

from __future__ import annotations

from typing import Any

import redis.asyncio

from tests.proving import amount
from toril import NewJob, Queue
from toril.protocol import lanes

COUNT = amount(20_000, 100_000)
MOST_JOBS_PER_SCRIPT = 1_000
MOST_COMMANDS_PER_JOB = 15

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


async def fill(client: Any, queue: Queue, place: str) -> None:
    kind = "list" if place == "wait" else "zset"
    for first in range(0, COUNT, 5000):
        await client.eval(FILL, 1, queue.keys.base, place, first, 5000, kind)


async def test_a_bulk_change_is_made_of_many_small_scripts(start_server):
    server = start_server()
    async with (
        redis.asyncio.Redis.from_url(server.url, decode_responses=True) as client,
        Queue("q", connection=server.url) as queue,
    ):
        keys = queue.keys

        async def check_slices(jobs: int) -> None:
            stats = await client.info("commandstats")
            scripts = stats.pop("cmdstat_fcall")["calls"]
            commands = sum(row["calls"] for row in stats.values())
            assert scripts >= jobs / MOST_JOBS_PER_SCRIPT
            assert commands / scripts <= MOST_JOBS_PER_SCRIPT * MOST_COMMANDS_PER_JOB
            await client.config_resetstat()

        await fill(client, queue, "delayed")
        await client.config_resetstat()
        assert await queue.promote_all() == COUNT
        await check_slices(COUNT)

        assert len(await queue.clean("waiting", limit=COUNT // 2)) == COUNT // 2
        await check_slices(COUNT // 2)
        assert await queue.drain() == COUNT // 2
        await check_slices(COUNT // 2)

        await fill(client, queue, "failed")
        await client.config_resetstat()
        assert await queue.retry_all() == COUNT
        await check_slices(COUNT)
        assert await client.llen(keys.wait) == COUNT
        assert await queue.drain() == COUNT

        await fill(client, queue, "completed")
        await client.config_resetstat()
        assert len(await queue.clean("completed")) == COUNT
        await check_slices(COUNT)

        await fill(client, queue, "wait")
        await queue.pause()
        await client.config_resetstat()
        assert await queue.obliterate() == COUNT
        await check_slices(COUNT)
        assert await client.dbsize() == 0


async def test_a_long_lane_is_drained_by_many_small_scripts(start_server):
    server, count = start_server(), 2_000
    async with (
        redis.asyncio.Redis.from_url(server.url, decode_responses=True) as client,
        Queue("q", connection=server.url) as queue,
    ):
        await queue.add_bulk([NewJob("x", n, lane="a") for n in range(count)])
        await client.config_resetstat()

        assert await queue.drain_lane("a") == count

        stats = await client.info("commandstats")
        scripts = stats.pop("cmdstat_fcall")["calls"]
        commands = sum(row["calls"] for row in stats.values())
        assert scripts >= count / lanes.DRAIN_SLICE
        assert commands / scripts <= lanes.DRAIN_SLICE * MOST_COMMANDS_PER_JOB
