"""A worker in a process of its own that writes down when each of its runs began and ended.

Arguments: the URL, the prefix, the directory of the ledgers, the lock's duration in ms. What is
written is in the file when the call returns; the death of the process cannot take it back.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
import time

import redis

from toril import Worker, run

PULSE_S = 0.1


def main(url: str, prefix: str, directory: str, lock_ms: str) -> None:
    path = os.path.join(directory, str(os.getpid()))
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(*words: object) -> None:
        os.write(file, (" ".join(map(str, words)) + "\n").encode())

    def pulse() -> None:
        """Shows when this process got time and the server answered it."""
        with redis.Redis.from_url(url) as client:
            while True:
                client.ping()
                note("pulse", time.time())
                time.sleep(PULSE_S)

    async def handle(job):
        note("start", job.id, job.attempts_started, job.fence, time.time())
        try:
            await asyncio.sleep(random.uniform(0, 0.02))
        finally:
            note("end", job.fence, time.time())
        if job.data["fails"] and job.attempts_made == 0:
            raise ValueError("on purpose")

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
    worker.on("lost", lambda job, error: note("lost", job.fence, time.time()))
    threading.Thread(target=pulse, daemon=True).start()
    run(worker, timeout=2000)


if __name__ == "__main__":
    main(*sys.argv[1:])
