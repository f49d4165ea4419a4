"""A node joins a cluster under load and is given the queue: nobody but us notices."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from tests.helpers import wait_until
from tests.servers import Cluster
from toril import Queue, Worker
from toril.protocol import scripts


@pytest.fixture
def own_cluster():
    with Cluster() as cluster:
        yield cluster


async def test_a_node_that_joins_is_given_the_library_and_nothing_is_done_twice(
    own_cluster, caplog
):
    caplog.set_level(logging.WARNING, logger="toril")
    ran: Counter[str] = Counter()
    added: list[str] = []
    errors: list[Exception] = []
    stops = False
    url = own_cluster.url.replace("redis://", "redis+cluster://")
    slot = own_cluster.slot_of("{joined}:q:wait")

    async def handler(job):
        ran[job.id] += 1

    async with Queue("q", connection=url, prefix="{joined}") as queue:

        async def produce():
            while not stops:
                added.append((await queue.add("x", {"n": len(added)})).id)
                await asyncio.sleep(0.001)

        async with Worker("q", handler, connection=url, prefix="{joined}", concurrency=5) as worker:
            worker.on("error", errors.append)
            producer = asyncio.create_task(produce())
            await wait_until(lambda: len(ran) > 50)
            joined = await asyncio.to_thread(own_cluster.join)
            with joined.client() as raw:
                assert raw.function_list() == []

            await asyncio.to_thread(own_cluster.migrate_slot, slot, joined, step=20)

            goal = len(added) + 50
            await wait_until(lambda: len(ran) > goal)
            stops = True
            await producer
            await wait_until(lambda: len(ran) == len(added))
        assert (await queue.get_job_counts("completed"))["completed"] == len(added)

    assert ran == Counter(added)
    assert errors == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    with joined.client() as raw:
        assert raw.exists(queue.keys.job(added[-1]))
        (library,) = raw.function_list()
    assert scripts.library().name in library
