"""Changing queues on a cluster, and from blocking code."""

from __future__ import annotations

import asyncio
import secrets

import pytest
import redis.asyncio.cluster

from tests.client.support import hold_forever
from tests.helpers import wait_until
from toril import Cancelled, NewJob, Queue, Worker, sync
from toril.errors import NotPausedError


async def test_changes_on_a_cluster_find_their_node(cluster):
    url = cluster.url.replace("redis://", "redis+cluster://")
    prefix = f"{{t{secrets.token_hex(4)}}}"
    options = {"connection": url, "prefix": prefix}
    async with Queue("q", **options) as queue, Queue("other", **options) as other:
        kept = await other.add("kept")
        await queue.add_bulk([NewJob("a", delay=60_000) for _ in range(600)])
        assert await queue.promote_all() == 600
        assert len(await queue.clean("waiting", limit=100)) == 100
        assert await queue.drain() == 500
        running = await queue.add("running")
        async with Worker("q", hold_forever, **options) as worker:
            await wait_until(lambda: worker.is_processing)
            assert await queue.cancel(running.id) is Cancelled.STOPPING
            await wait_until(lambda: not worker.is_processing)

        async def is_failed() -> bool:
            return await queue.get_state(running.id) == "failed"

        await wait_until(is_failed)
        assert await queue.retry_all() == 1
        assert await queue.remove(running.id) is True
        await queue.add_bulk([NewJob("a") for _ in range(300)])
        await queue.pause()
        assert await queue.obliterate() == 300

        async with redis.asyncio.cluster.RedisCluster.from_url(cluster.url) as client:
            keys = [key async for key in client.scan_iter(match=f"{prefix}:q:*", count=1000)]
        assert keys == []
        assert (await other.get_job(kept.id)) is not None
        await other.obliterate(force=True)


async def test_blocking_code_changes_queues(url, prefix):
    def use() -> None:
        with sync.Queue("q", connection=url, prefix=prefix) as queue:
            waiting, delayed = queue.add("a"), queue.add("b", delay=60_000)
            queue.promote(delayed.id)
            assert queue.cancel(waiting.id, "not needed") is Cancelled.ENDED
            told: list[int] = []
            assert queue.retry_all(on_progress=told.append) == 1
            assert told == [1]
            with pytest.raises(NotPausedError):
                queue.obliterate()
            queue.pause()
            assert queue.is_paused()
            assert queue.drain() == 2
            assert queue.obliterate() == 0

    await asyncio.to_thread(use)
