"""What Toril costs the server: memory per waiting job, and what an idle worker asks of it."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from argparse import Namespace
from typing import Self
from urllib.parse import urlsplit

import redis
from toril_program import fill, main, no_op

from toril import Queue, Worker

PAYLOAD = {"customer": "c-0123456789", "order": 1234567890123}
IDLE_SECONDS = 15.0


async def memory(given: Namespace) -> dict[str, float]:
    """Bytes per waiting job with a payload of 50 bytes, including everything that belongs to it."""
    data = dict(PAYLOAD)
    data["p"] = "x" * (50 - len(json.dumps({**data, "p": ""}, separators=(",", ":"))))
    queue = Queue("bench", connection=given.url)
    server = redis.Redis.from_url(given.url)
    await fill(queue, 1, data)
    before = server.info("memory")["used_memory"]
    await fill(queue, given.jobs, data)
    after = server.info("memory")["used_memory"]
    return {"bytes": (after - before) / given.jobs}


async def idle(given: Namespace) -> dict[str, float]:
    """Calls per 5 s and connection, and CPU time, of a worker that has nothing to do."""
    worker = Worker("bench", no_op, connection=given.url, concurrency=given.concurrency)
    server = redis.Redis.from_url(given.url)
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(2)
    connections = len(server.client_list()) - 1
    server.close()
    with Watcher(given.url) as watcher:
        spent = time.process_time()
        await asyncio.sleep(IDLE_SECONDS)
        spent = time.process_time() - spent
        calls = watcher.calls()
    if running.done():
        raise RuntimeError("the worker stopped by itself") from running.exception()
    return {
        "connections": connections,
        "calls": calls / connections / (IDLE_SECONDS / 5),
        "cpu_percent": 100 * spent / IDLE_SECONDS,
    }


class Watcher:
    """Sees every command of the others; calls inside a script are not counted."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._socket = socket.create_connection((where.hostname or "127.0.0.1", where.port or 6379))
        self._socket.sendall(b"MONITOR\r\n")
        self._socket.recv(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()

    def calls(self) -> int:
        self._socket.settimeout(0.2)
        seen = b""
        try:
            while data := self._socket.recv(1 << 16):
                seen += data
        except TimeoutError:
            pass
        return sum(b" lua]" not in line for line in seen.splitlines())


if __name__ == "__main__":
    main(memory=memory, idle=idle)
