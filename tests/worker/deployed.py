"""A worker program that is deployed again and again: it writes down every job that it finished."""

from __future__ import annotations

import asyncio
import random
import sys

import redis.asyncio

import toril
from toril.worker.active_job import ActiveJob


def main() -> None:
    url, prefix = sys.argv[1:]
    ledger = redis.asyncio.Redis.from_url(url)

    async def handler(job: ActiveJob) -> None:
        await asyncio.sleep(random.uniform(0.01, 0.1))
        await ledger.rpush(f"{prefix}:q:toril:ledger", job.id)

    toril.run(toril.Worker("q", handler, connection=url, prefix=prefix, concurrency=5))


if __name__ == "__main__":
    main()
