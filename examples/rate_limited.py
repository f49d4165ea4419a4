"""A service that takes five requests in half a second.

    python examples/rate_limited.py

Set TORIL_URL to run it on your own server.
"""

from __future__ import annotations

import asyncio
import os
import time

from toril import NewJob, Queue, RateLimit, RateLimitError, Worker

SERVER = os.environ.get("TORIL_URL", "embedded:")
CALLS = 12


async def main() -> float:
    done: list[int] = []
    refused = False
    all_done = asyncio.Event()

    async def call(job):
        nonlocal refused
        if job.data == 7 and not refused:
            refused = True
            raise RateLimitError(200)  # as after a 429: back to the front, and a pause for all
        done.append(job.data)
        if len(done) == CALLS:
            all_done.set()

    async with Queue("calls", connection=SERVER) as queue:
        await queue.add_bulk([NewJob("call", n) for n in range(CALLS)])
        began = time.monotonic()
        limiter = RateLimit(max=5, duration=500)
        async with Worker("calls", call, connection=SERVER, concurrency=10, limiter=limiter):
            await all_done.wait()
    return time.monotonic() - began


if __name__ == "__main__":
    print(f"{CALLS} calls took {asyncio.run(main()):.1f} s")
