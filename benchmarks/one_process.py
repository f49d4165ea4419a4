"""Toril in the form that a harness outside this repository expects.

That harness measures peers, each adding and draining in one process, by small programs that get
``REDIS_PORT``, ``N`` and ``CONC`` in the environment and print one line of JSON.  This is such a
program; ``GROUPS=100`` adds the jobs to that many lanes, as GroupMQ's program does to its groups,
and ``LATENCY=1`` measures the time from add to handler on an idle worker.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

from toril import NewJob, Queue, Worker

URL = f"redis://127.0.0.1:{os.environ.get('REDIS_PORT', '6379')}"
JOBS = int(os.environ.get("N", "20000"))
CONCURRENCY = int(os.environ.get("CONC", "100"))
LANES = int(os.environ.get("GROUPS", "0"))
ONE_BY_ONE = 3_000 if LANES else 5_000  # as many as the programs beside it
PER_CALL = 1_000


def options(n: int) -> dict[str, Any]:
    return {"lane": f"g{n % LANES}"} if LANES else {}


async def rates() -> dict[str, float | None]:
    """Jobs per second: added one by one, added in bulk, drained."""
    queue = Queue("q", connection=URL)
    await queue.get_job_counts()  # connected, as the others are when their clocks start
    single = min(JOBS, ONE_BY_ONE)
    begun = time.perf_counter()
    for n in range(single):
        await queue.add("x", {"i": n}, **options(n))
    add = single / (time.perf_counter() - begun)
    begun = time.perf_counter()
    for first in range(single, JOBS, PER_CALL):
        numbers = range(first, min(JOBS, first + PER_CALL))
        await queue.add_bulk([NewJob("x", {"i": n}, **options(n)) for n in numbers])
    bulk = (JOBS - single) / (time.perf_counter() - begun) if single < JOBS else None
    return {"add": add, "add_bulk": bulk, "drain": JOBS / await _drain()}


async def _drain() -> float:
    handled, over = 0, asyncio.Event()

    async def handler(job: Any) -> Any:
        nonlocal handled
        handled += 1
        if handled == JOBS:
            over.set()
        return handled

    begun = time.perf_counter()
    async with Worker("q", handler, connection=URL, concurrency=CONCURRENCY):
        await over.wait()
        return time.perf_counter() - begun


async def latency() -> dict[str, float]:
    """Milliseconds from just before ``add`` to the handler's first line."""
    waits: list[float] = []
    seen = asyncio.Event()

    async def handler(job: Any) -> None:
        waits.append(time.time() - job.data["t"])
        seen.set()

    async with (
        Queue("q", connection=URL) as queue,
        Worker("q", handler, connection=URL, concurrency=10),
    ):
        await asyncio.sleep(1)
        for _ in range(JOBS):
            seen.clear()
            await queue.add("x", {"t": time.time()})
            await seen.wait()
            await asyncio.sleep(0.01)
    waits.sort()
    return {"p50": waits[JOBS // 2] * 1e3, "p99": waits[int(JOBS * 0.99)] * 1e3}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(latency() if os.environ.get("LATENCY") else rates())))
