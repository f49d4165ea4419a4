"""A worker in a process of its own that writes when each of its jobs began and ended.

Arguments: the URL, the prefix, the path of the ledger, the lock's duration in ms.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import sys
import time

from toril import Worker, run


def main(url: str, prefix: str, ledger: str, lock_ms: str) -> None:
    db = sqlite3.connect(ledger, timeout=30, isolation_level=None)

    async def handle(job):
        db.execute(
            "INSERT INTO runs VALUES (?, ?, ?, ?, NULL)",
            (job.lane, job.data, job.fence, time.time()),
        )
        await asyncio.sleep(random.uniform(0, 0.02))
        db.execute("UPDATE runs SET end = ? WHERE fence = ?", (time.time(), job.fence))
        if random.random() < 0.05 and job.attempts_made == 0:
            raise ValueError("now and then")

    worker = Worker(
        "q",
        handle,
        connection=url,
        prefix=prefix,
        concurrency=10,
        lock_duration=int(lock_ms),
        stalled_interval=300,
        max_stalled_count=1000,
    )
    worker.on("lost", lambda job, error: db.execute("INSERT INTO lost VALUES (?)", (job.fence,)))
    run(worker, timeout=2000)


if __name__ == "__main__":
    main(*sys.argv[1:])
