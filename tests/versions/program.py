"""One process of a fleet in which versions are mixed; runs with either of them.

``python program.py work URL PREFIX`` runs workers until it is killed; ``… add URL PREFIX FIRST
COUNT`` adds jobs of every kind. It imports nothing but Toril, and of that what both versions have.
Every run of a handler is written to the list ``ledger``.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import redis.asyncio

import toril
from toril import Compensation, FlowJob, FlowProducer, GroupJob, Queue, Worker

QUEUES = ("q", "other", "q:compensation", "other:compensation")
LANES = 3


async def work(url: str, prefix: str) -> None:
    ledger = redis.asyncio.Redis.from_url(url)

    async def handler(job: Any) -> str:
        data = job.data or {}
        n = data.get("compensationData", data).get("n", "")
        words = (job.name, job.id, str(n), os.environ["WHO"])
        await ledger.rpush("ledger", "\t".join(words))
        await asyncio.sleep(0.002)
        if job.name == "doomed" or (job.name == "flaky" and job.attempts_made == 0):
            raise ValueError("no")
        return job.name

    workers = [
        Worker(
            name,
            handler,
            connection=url,
            prefix=prefix,
            concurrency=5,
            lock_duration=3_000,
            stalled_interval=1_000,
            max_stalled_count=50,
            dead_letter_queue="dead",
        )
        for name in QUEUES
    ]
    await asyncio.gather(*(worker.run() for worker in workers))


async def add(url: str, prefix: str, first: int, count: int) -> None:
    options = {"connection": url, "prefix": prefix}
    async with Queue("q", **options) as queue, FlowProducer(**options) as flows:
        for n in range(first, first + count):
            await queue.add("plain", {"n": n}, job_id=f"plain-{n}")
            await queue.add("later", {"n": n}, job_id=f"later-{n}", delay=50)
            await queue.add("urgent", {"n": n}, job_id=f"urgent-{n}", priority=1 + n % 3)
            await queue.add("flaky", {"n": n}, job_id=f"flaky-{n}", attempts=3)
            await queue.add("ordered", {"n": n}, job_id=f"ordered-{n}", lane=f"lane-{n % LANES}")
            await queue.add("same", {"n": n}, job_id=f"same-{n}", deduplication={"id": f"d{n}"})
            if n % 4 == 0:
                await queue.add("doomed", {"n": n}, job_id=f"doomed-{n}", attempts=1)
                child = FlowJob("child", queue_name="other", data={"n": n}, job_id=f"child-{n}")
                await flows.add(
                    FlowJob("parent", queue_name="q", job_id=f"parent-{n}", children=[child])
                )
                await flows.add_group(
                    "order",
                    [
                        GroupJob("kept", queue_name="q", data={"n": n}),
                        GroupJob("doomed", queue_name="other", data={"n": n}, attempts=1),
                    ],
                    {"kept": Compensation("undone", {"n": n})},
                )


if __name__ == "__main__":
    verb, url, prefix, *numbers = sys.argv[1:]
    print(toril.__file__, flush=True)
    if verb == "work":
        asyncio.run(work(url, prefix))
    else:
        asyncio.run(add(url, prefix, *map(int, numbers)))
