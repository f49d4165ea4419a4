"""Workers on a real cluster of three masters, and a slot that moves under load."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter

import pytest
import redis.asyncio.cluster

from tests.helpers import let_pass, until_renewed, wait_until
from toril import NewJob, Queue, Worker
from toril.errors import CrossSlotError
from toril.protocol.keys import slot


@pytest.fixture
def cluster_url(cluster) -> str:
    return cluster.url.replace("redis://", "redis+cluster://")


@pytest.fixture
def tag() -> str:
    return f"t{secrets.token_hex(4)}"


def test_slots_are_computed_as_the_server_does(cluster):
    for key in ("foo", "{foo}bar", "{}foo", "a{foo", "{a}{b}", "x{ü}y", "bull:{q}:wait"):
        assert slot(key) == cluster.slot_of(key)


@pytest.mark.parametrize("kind", ["url", "client"])
def test_a_queue_over_several_slots_is_refused_at_once(kind, cluster):
    target = cluster.url.replace("redis://", "redis+cluster://")
    if kind == "client":
        target = redis.asyncio.cluster.RedisCluster.from_url(cluster.url)
    with pytest.raises(CrossSlotError) as queue_refused:
        Queue("mail", connection=target)
    with pytest.raises(CrossSlotError) as worker_refused:
        Worker("mail", print, connection=target)
    for refused in (queue_refused, worker_refused):
        assert "prefix='{bull}'" in str(refused.value)
        assert "'{mail}'" in str(refused.value)


@pytest.mark.parametrize("where", ["prefix", "name", "client"])
async def test_jobs_run_on_a_cluster(where, cluster, cluster_url, tag):
    prefix, name = ("bull", f"{{{tag}}}") if where == "name" else (f"{{{tag}}}", "q")
    target = cluster_url
    if where == "client":
        target = redis.asyncio.cluster.RedisCluster.from_url(cluster.url)
    ran = Counter()

    async def handler(job):
        ran[job.id] += 1
        await job.report(50)
        await job.log("a row")
        if job.name == "long":
            await until_renewed(raw, f"{prefix}:{name}:{job.id}:lock")
        return job.data

    raw = redis.asyncio.cluster.RedisCluster.from_url(cluster.url)
    async with raw, Queue(name, connection=target, prefix=prefix) as queue:
        jobs = [await queue.add("long"), *await queue.add_bulk([NewJob(f"{n}") for n in range(50)])]
        options = {"lock_duration": 6000, "stalled_interval": 100}
        worker = Worker(name, handler, connection=target, prefix=prefix, concurrency=10, **options)
        async with worker:
            await queue.wait_until_empty(timeout=60_000)
            await wait_until(lambda: len(ran) == 51)
            # The lease's thread renews on the cluster too.
            assert await queue.wait_for(jobs[0].id, timeout=60_000) == {}
        assert ran == Counter(job.id for job in jobs)
        assert (await queue.get_job_counts())["completed"] == 51
    if where == "client":
        await target.aclose()


async def test_an_idle_worker_on_a_cluster_is_woken_at_once(cluster_url, tag):
    """The take waits behind the marker on the node that serves the queue."""
    began = asyncio.Event()

    async def handler(job):
        began.set()

    options = {"connection": cluster_url, "prefix": f"{{{tag}}}"}
    async with (
        Queue("q", **options) as queue,
        Worker("q", handler, drain_delay=600_000, **options),
    ):
        await let_pass(0.3, "the worker waits at its node")
        await queue.add("job")
        await asyncio.wait_for(began.wait(), 60)


async def test_a_slot_that_moves_under_load_loses_nothing(cluster, cluster_url, tag):
    """reliability 2.13: ASK, TRYAGAIN and MOVED while jobs are added, run and renewed."""
    prefix = f"{{{tag}}}"
    number = cluster.slot_of(f"{prefix}:q:wait")
    ran = Counter()
    added: list[str] = []
    stops = False

    async def handler(job):
        ran[job.id] += 1
        await job.log("first")
        await asyncio.sleep(0.005)
        await job.report(50)
        await job.log("second")

    async with Queue("q", connection=cluster_url, prefix=prefix) as queue:

        async def produce():
            while not stops:
                added.append((await queue.add("job", {"n": len(added)})).id)
                await asyncio.sleep(0.001)

        async with Worker("q", handler, connection=cluster_url, prefix=prefix, concurrency=10):
            producer = asyncio.create_task(produce())
            await wait_until(lambda: len(ran) > 50)
            owners = [cluster.owner(number)]
            for _ in range(2):
                owners.append(await asyncio.to_thread(cluster.migrate_slot, number, step=20))
                goal = len(ran) + 50
                await wait_until(lambda goal=goal: len(ran) > goal, 30)
            stops = True
            await producer
            await wait_until(lambda: set(ran) == set(added), 30)

        assert len({node.port for node in owners}) == 3
        assert ran == Counter(added)
        counts = await queue.get_job_counts()
        assert (counts["completed"], counts["failed"], counts["active"]) == (len(added), 0, 0)
