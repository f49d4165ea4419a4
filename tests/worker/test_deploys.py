"""Rolling deploys: workers are replaced one after the other while jobs come in (RULES-16)."""

from __future__ import annotations

import asyncio
import signal
from collections import deque

import pytest

from tests.forked import Forked
from tests.helpers import wait_until
from tests.proving import amount
from toril import NewJob, Queue

DEPLOYS = amount(6, 20)


@pytest.mark.first
async def test_deploys_under_load_lose_no_job_and_run_none_twice(url, prefix, client):
    """SIGTERM: jobs that run are finished or handed back; nothing stalls, nothing is lost."""

    def start():
        return Forked("-m", "tests.worker.deployed", url, prefix)

    async with Queue("q", connection=url, prefix=prefix) as queue:
        ids = []
        is_over = asyncio.Event()

        async def produce():
            while not is_over.is_set():
                ids.extend(job.id for job in await queue.add_bulk([NewJob("n") for _ in range(5)]))
                await asyncio.sleep(0.05)

        running = deque([start(), start()])
        await wait_until(lambda: _are_at_work(queue, 2), 60)
        producing = asyncio.create_task(produce())
        for _ in range(DEPLOYS):
            running.append(start())
            await wait_until(lambda: _are_at_work(queue, 3), 60)
            old = running.popleft()
            old.send_signal(signal.SIGTERM)
            assert await old.ended() == 0
        is_over.set()
        await producing
        await wait_until(lambda: _has_completed(queue, len(ids)), 30)
        for worker in running:
            worker.send_signal(signal.SIGTERM)
            assert await worker.ended() == 0

        ran = await client.lrange(f"{prefix}:q:toril:ledger", 0, -1)
        stalled = [job for job in await queue.get_completed() if job.stalled_count]
    assert len(ids) > 10 * DEPLOYS
    assert sorted(ran) == sorted(ids), "each job ran once, and only once"
    assert stalled == []


async def _are_at_work(queue, count):
    return len(await queue.get_workers()) == count


async def _has_completed(queue, count):
    return await queue.get_completed_count() == count
