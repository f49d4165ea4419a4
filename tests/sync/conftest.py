"""Fixtures for the tests of the blocking client: a worker in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from toril import Worker
from toril.sync import Queue

MakeQueue = Callable[..., Queue]


@pytest.fixture
def make_queue(url: str, prefix: str) -> Iterator[MakeQueue]:
    """Opens blocking queues under the test's prefix, closed after it."""
    queues: list[Queue] = []

    def make(name: str = "q", **options: Any) -> Queue:
        queues.append(Queue(name, connection=url, prefix=prefix, **options))
        return queues[-1]

    yield make
    for queue in queues:
        queue.close()


@pytest.fixture
def queue(make_queue: MakeQueue) -> Queue:
    """One blocking queue, named "q"."""
    return make_queue()


@pytest.fixture
def working(url: str, prefix: str) -> Iterator[None]:
    """A worker of queue "q" that returns what the job's data says, on a loop in a thread."""
    loop = asyncio.new_event_loop()
    started = threading.Event()
    stop = asyncio.Event()

    async def handle(job) -> Any:
        if "wait" in job.data:
            await asyncio.sleep(job.data["wait"])
        if job.name == "bad":
            raise ValueError("it broke")
        return job.data

    async def work() -> None:
        async with Worker("q", handle, connection=url, prefix=prefix, concurrency=20):
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(work()))
    thread.start()
    assert started.wait(60)
    yield
    loop.call_soon_threadsafe(stop.set)
    thread.join(60)
    assert not thread.is_alive()
    loop.close()
