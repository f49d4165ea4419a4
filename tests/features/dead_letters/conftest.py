"""A queue, its dead letters, and ways to fill them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.helpers import wait_until
from toril import Queue, Worker

DLQ = "orders-dlq"


class Side:
    """Both queues, and a worker that fails what is in the first one."""

    def __init__(self, url: str, prefix: str, client: Any) -> None:
        self.url = url
        self.prefix = prefix
        self.client = client
        self.orders = Queue("orders", connection=url, prefix=prefix)
        self.dlq = Queue(DLQ, connection=url, prefix=prefix)

    def worker(self, handler: Any, queue: str = "orders", **options: Any) -> Worker:
        options.setdefault("dead_letter_queue", DLQ)
        return Worker(queue, handler, connection=self.url, prefix=self.prefix, **options)

    @asynccontextmanager
    async def failing(self, handler: Any = None, **options: Any) -> AsyncIterator[Worker]:
        async with self.worker(handler or refuse, **options) as worker:
            yield worker

    async def bury(self, *names: str, handler: Any = None, **options: Any) -> list[str]:
        """Add jobs of these names, let them fail, and return their ids among the dead letters."""
        before = await self.dlq.get_dead_letter_count()
        for number, name in enumerate(names):
            await self.orders.add(name, {"n": number}, **options)
        async with self.failing(handler):
            await self.letters(before + len(names))
        ids = await self.client.lrange(f"{self.prefix}:{DLQ}:wait", 0, len(names) - 1)
        return ids[::-1]

    async def letters(self, count: int, timeout: float = 60.0) -> None:
        """Wait until there are ``count`` dead letters."""

        async def arrived() -> bool:
            return await self.dlq.get_dead_letter_count() == count

        await wait_until(arrived, timeout, message=f"{count} dead letters")

    async def events(self, queue: str = "orders") -> list[dict[str, str]]:
        return [fields for _, fields in await self.client.xrange(f"{self.prefix}:{queue}:events")]

    async def hash(self, job_id: str, queue: str = "orders") -> dict[str, str]:
        found: dict[str, str] = await self.client.hgetall(f"{self.prefix}:{queue}:{job_id}")
        return found


async def refuse(job: Any) -> None:
    """The handler that fails; a job may say with which words."""
    reason = job.data.get("reason", "Connection refused") if isinstance(job.data, dict) else "no"
    raise ConnectionError(reason)


@pytest.fixture
async def side(url: str, prefix: str, client: Any) -> AsyncIterator[Side]:
    side = Side(url, prefix, client)
    yield side
    await side.orders.close()
    await side.dlq.close()


@pytest.fixture
def bury(side: Side) -> Callable[..., Awaitable[list[str]]]:
    return side.bury
