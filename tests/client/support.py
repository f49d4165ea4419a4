"""What the tests of changes share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.helpers import wait_until
from toril import Queue, Worker


async def events_of(client: Any, queue: Queue, *names: str) -> list[dict[str, str]]:
    """The fields of the queue's events, of some names or of all, oldest first."""
    rows = [fields for _, fields in await client.xrange(queue.keys.events)]
    return [row for row in rows if not names or row["event"] in names]


@asynccontextmanager
async def working(queue: Queue, url: str, handler: Any, **options: Any) -> AsyncIterator[Worker]:
    """A worker of this queue, closed at the end."""
    worker = Worker(queue.name, handler, connection=url, prefix=queue.keys.prefix, **options)
    async with worker:
        yield worker


async def finish(queue: Queue, url: str, client: Any, *, failing: bool = False) -> None:
    """Let a worker finish everything that waits."""

    async def handle(job: Any) -> int:
        if failing:
            raise ValueError("no")
        return 1

    async def is_empty() -> bool:
        places = (queue.keys.wait, queue.keys.active, queue.keys.prioritized)
        return await client.exists(*places) == 0

    async with working(queue, url, handle, concurrency=50):
        await wait_until(is_empty, 60)


async def add_child(client: Any, parent: str, child: str, *, flags: str = "") -> None:
    """Tie two jobs (full keys) that were added by themselves, as a flow would."""
    base, _, parent_id = parent.rpartition(":")
    value = f'{{"id":"{parent_id}","queueKey":"{base}"{flags}}}'
    await client.hset(child, mapping={"parentKey": parent, "parent": value})
    await client.sadd(f"{parent}:dependencies", child)


async def make_parent(client: Any, queue: Queue, job_id: str) -> str:
    """Let a waiting job wait for children instead; returns its key."""
    await client.lrem(queue.keys.wait, 1, job_id)
    await client.zadd(queue.keys.waiting_children, {job_id: 1})
    return queue.keys.job(job_id)


async def hold_forever(job: Any) -> None:
    await asyncio.Event().wait()
