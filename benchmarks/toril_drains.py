"""Toril's drains with few jobs at a time, and with handlers that wait: what a small call costs.

Besides the rate, it reports what the server itself counts for one call that settles and takes.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from typing import TYPE_CHECKING, Any

import redis
from clock import Stopwatch
from toril_program import Count, Handler, completing, drain, fill, main

from toril import Queue

if TYPE_CHECKING:
    from toril import Job

WAIT_S = 0.005


async def drain_1(given: Namespace) -> dict[str, float]:
    return await _drain(given, 1)


async def drain_10(given: Namespace) -> dict[str, float]:
    return await _drain(given, 10)


async def drain_5ms(given: Namespace) -> dict[str, float]:
    """Handlers that wait, and a bare loop of the same waits: nobody can be faster than that."""
    bare = await _wait_only(given.jobs, given.concurrency)
    return {**await _drain(given, given.concurrency, _waiting), "bare_rate": bare}


async def _drain(
    given: Namespace, concurrency: int, make_handler: Any = completing
) -> dict[str, float]:
    queue = Queue("bench", connection=given.url)
    await fill(queue, given.jobs)
    server = redis.Redis.from_url(given.url)
    server.config_resetstat()

    async def is_done() -> bool:
        return (await queue.get_job_counts())["completed"] >= given.jobs

    seconds = await drain(given.url, given.jobs, make_handler, is_done, concurrency=concurrency)
    return {"rate": given.jobs / seconds, "server_us": _server_us(server)}


def _server_us(server: Any) -> float:
    """What one call of ours took, on average; few of them do anything but settle and take."""
    stats = server.info("commandstats")
    ours = [stats[name] for name in ("cmdstat_fcall", "cmdstat_evalsha") if name in stats]
    calls = sum(each["calls"] for each in ours)
    return float(sum(each["usec"] for each in ours) / calls)


def _waiting(count: Count) -> Handler:
    async def handler(job: Job) -> int:
        await asyncio.sleep(WAIT_S)
        count()
        return 1

    return handler


async def _wait_only(jobs: int, concurrency: int) -> float:
    waits = iter(range(jobs))

    async def one_after_another() -> None:
        for _ in waits:
            await asyncio.create_task(asyncio.sleep(WAIT_S))

    watch = Stopwatch()
    await asyncio.gather(*(one_after_another() for _ in range(concurrency)))
    return watch.rate(jobs)


if __name__ == "__main__":
    main(drain_1=drain_1, drain_10=drain_10, drain_5ms=drain_5ms)
