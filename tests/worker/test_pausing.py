"""A worker that is paused and resumed takes jobs again, however soon it is resumed."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers import until_blocked, wait_until
from toril import Queue, Worker


async def do_nothing(job):
    pass


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_an_idle_worker_that_is_resumed_at_once_takes_jobs(
    turns, concurrency, partitions, url, prefix, client
):
    where = {"connection": url, "prefix": prefix, "partitions": partitions}
    seen = []
    async with (
        Queue("q", **where) as queue,
        Worker("q", do_nothing, concurrency=concurrency, drain_delay=600_000, **where) as worker,
    ):
        worker.on("completed", lambda job, result: seen.append(job.id))
        await until_blocked(client, 1 + partitions)

        for _ in range(2):
            worker.pause()
            for _ in range(turns):
                await asyncio.sleep(0)
            worker.resume()

        for _ in range(8):
            job = await queue.add("x")
            await wait_until(lambda job=job: job.id in seen)


async def test_a_worker_that_is_paused_twice_hands_back_the_job_that_was_on_its_way(
    url, prefix, client
):
    """The second pause leaves the first one alone, which asks what the wait has taken."""
    where = {"connection": url, "prefix": prefix}
    async with Queue("q", **where) as queue:
        for _ in range(30):
            async with Worker("q", do_nothing, drain_delay=600_000, **where) as worker:
                await until_blocked(client, 2)
                adding = asyncio.create_task(queue.add("x"))
                worker.pause()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                worker.pause()
                job = await adding

                async def is_free(job=job) -> bool:
                    return await queue.get_state(job.id) in ("waiting", "completed")

                await wait_until(is_free)
