"""Reading, listening and waiting on a cluster, async and blocking."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from tests.helpers import wait_until
from toril import NewJob, Queue, QueueEvents, Worker, sync


@pytest.fixture
def cluster_url(cluster) -> str:
    return cluster.url.replace("redis://", "redis+cluster://")


@pytest.fixture
def tagged() -> str:
    return f"{{t{secrets.token_hex(4)}}}"


async def test_a_queue_on_a_cluster_is_read_and_heard(cluster_url, tagged):
    async def handle(job):
        return job.data

    options = {"connection": cluster_url, "prefix": tagged}
    async with Queue("q", **options) as queue, QueueEvents("q", **options) as events:
        jobs = await queue.add_bulk([NewJob("x", {"n": n}) for n in range(500)])
        assert [job.id for job in await queue.get_waiting(0, 99)] == [j.id for j in jobs[:100]]
        waiting = asyncio.create_task(queue.wait_for(jobs[-1].id, timeout=20_000))
        async with Worker("q", handle, concurrency=50, worker_name="w", **options):
            assert await waiting == {"n": 499}
            assert await queue.wait_until_empty(timeout=20_000)

            async def is_listed() -> bool:
                return "w" in [worker.name for worker in await queue.get_workers()]

            await wait_until(is_listed)
        assert (await anext(events)).name == "added"
        assert (await queue.get_job_counts())["completed"] == 500


async def test_a_blocking_queue_on_a_cluster(cluster_url, tagged):
    def use() -> None:
        with sync.Queue("q", connection=cluster_url, prefix=tagged) as queue:
            with sync.QueueEvents("q", connection=cluster_url, prefix=tagged) as events:
                jobs = queue.add_bulk([NewJob("x") for _ in range(300)])
                assert next(events).job_id == jobs[0].id
            assert [job.id for job in queue.get_waiting()] == [job.id for job in jobs]
            assert queue.wait_until_empty(timeout=50) is False
            assert queue.get_workers() == []

    await asyncio.to_thread(use)
