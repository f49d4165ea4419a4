"""A job that repeats every second, and one that is not added twice.

    python examples/scheduled_digest.py

Set TORIL_URL to run it on your own server.
"""

from __future__ import annotations

import asyncio
import os

from toril import Deduplication, NewJob, Queue, Worker

SERVER = os.environ.get("TORIL_URL", "embedded:")
TIMES = 3


async def main() -> list[str]:
    seen: list[str] = []
    enough = asyncio.Event()

    async def handler(job):
        seen.append(f"{job.name} {job.data}")
        if len(seen) > TIMES:
            enough.set()

    async with Queue("digests", connection=SERVER) as queue:
        await queue.upsert_job_scheduler(
            "every-second", every=1000, limit=TIMES, template=NewJob("digest", "for all")
        )
        # However often a user asks for a digest, only one is made.
        for _ in range(5):
            await queue.add(
                "digest", "for 42", deduplication=Deduplication("digest-42", ttl=60_000)
            )
        async with Worker("digests", handler, connection=SERVER):
            await asyncio.wait_for(enough.wait(), timeout=30)
        await queue.remove_job_scheduler("every-second")
    return seen


if __name__ == "__main__":
    for line in asyncio.run(main()):
        print(line)
