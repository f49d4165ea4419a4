"""A system under load moves from one server to a cluster: nothing is lost and nothing stops."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter

from tests.helpers import wait_until
from toril import Queue, Worker


async def test_a_running_system_moves_without_losing_a_job(url, prefix, cluster):
    """The steps of docs/guides/scaling.md."""
    ran: Counter[int] = Counter()

    async def handle(job):
        await asyncio.sleep(0.001)
        ran[job.data["n"]] += 1

    there = {
        "connection": cluster.url.replace("redis://", "redis+cluster://"),
        "prefix": f"t{secrets.token_hex(4)}",
        "partitions": 6,
    }
    here = {"connection": url, "prefix": prefix}
    added = 0
    async with Queue("mail", **here) as old, Queue("mail", **there) as new:
        queue = old
        is_over = False

        async def produce() -> None:
            nonlocal added
            while not is_over:
                added += 1
                await queue.add("send", {"n": added}, delay=50 if added % 5 == 0 else None)

        async with Worker("mail", handle, concurrency=20, **here) as old_worker:
            producers = [asyncio.create_task(produce()) for _ in range(5)]
            await wait_until(lambda: len(ran) >= 200)
            async with Worker("mail", handle, concurrency=20, **there):
                queue = new
                switched_at = added
                assert await old.wait_until_empty(timeout=60_000)
                await old_worker.close()
                await wait_until(lambda: added >= switched_at + 200)
                is_over = True
                await asyncio.gather(*producers)
                assert await new.wait_until_empty(timeout=60_000)
        assert sorted(ran) == list(range(1, added + 1))
        assert set(ran.values()) == {1}
        assert not any((await old.get_job_counts("waiting", "active", "delayed")).values())
        await new.obliterate(force=True)
