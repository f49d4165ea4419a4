"""Reading, listening and waiting on a cluster, async and blocking."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import nullcontext

import pytest

from tests.helpers import wait_until
from toril import NewJob, Queue, QueueEvents, Worker, logs, sync
from toril.cli.main import run
from toril.client.connection import Connection
from toril.errors import CrossSlotError, ServerUnusableError
from toril.protocol.keys import Keys


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
        waiting = asyncio.create_task(queue.wait_for(jobs[-1].id, timeout=60_000))
        async with Worker("q", handle, concurrency=50, worker_name="w", **options):
            assert await waiting == {"n": 499}
            assert await queue.wait_until_empty(timeout=60_000)

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


def tag_served_by(cluster, node) -> str:
    """A prefix whose keys this node serves."""
    while True:
        tag = f"{{t{secrets.token_hex(4)}}}"
        if cluster.owner(cluster.slot_of(tag)) is node:
            return tag


async def test_a_node_named_by_itself_is_used_as_a_cluster(cluster, caplog):
    logs._said.clear()
    handled = []

    async def handle(job):
        handled.append(job.id)

    for node in cluster.nodes:
        options = {"connection": cluster.url, "prefix": tag_served_by(cluster, node)}
        async with (
            Queue("q", **options) as queue,
            QueueEvents("q", **options) as events,
            Worker("q", handle, concurrency=50, **options),
        ):
            (first, *_) = await queue.add_bulk([NewJob("x") for _ in range(300)])
            await queue.wait_for(first.id, timeout=60_000)
            assert await queue.wait_until_empty(timeout=60_000)
            assert (await anext(events)).name == "added"

    assert len(handled) == 900
    assert caplog.text.count(f"{cluster.url} is a node of a cluster, and is used as one") == 1
    assert "does not serve" not in caplog.text


async def test_a_blocking_queue_too(cluster):
    def use() -> None:
        for node in cluster.nodes:
            prefix = tag_served_by(cluster, node)
            with sync.Queue("q", connection=cluster.url, prefix=prefix) as queue:
                assert queue.add("x").id == queue.get_waiting()[0].id

    await asyncio.to_thread(use)


async def test_a_queue_without_a_hash_tag_is_told_to_have_one(cluster):
    async with Queue("mail", connection=cluster.url) as queue:
        with pytest.raises(ServerUnusableError, match="put a hash tag into the prefix"):
            await queue.add("x")


def test_the_queues_of_all_nodes_are_found_from_one(cluster, capsys):
    prefix = f"t{secrets.token_hex(4)}"
    names = [f"{{q{number}}}" for number in range(9)]
    for name in names:
        with sync.Queue(name, connection=cluster.url, prefix=prefix) as queue:
            queue.add("x")

    assert run(["queues", "--url", cluster.url, "--prefix", prefix]) == 0

    shown = capsys.readouterr().out
    assert [name for name in names if name not in shown] == []


async def test_a_connection_finds_out_before_it_asks_for_a_key(cluster, url):
    for where, is_cluster in ((cluster.url, True), (url, False)):
        connection = Connection(where)

        await connection.meet()

        assert connection.is_cluster is is_cluster
        await connection.close()


async def test_the_keys_of_a_queue_must_share_a_slot_on_a_cluster_only(cluster, url):
    for where, is_cluster in ((f"redis+cluster{cluster.url[5:]}", True), (url, False)):
        connection = Connection(where)

        connection.check_slots(Keys("{a}", "orders"), Keys("{b}", "letters"))
        with pytest.raises(CrossSlotError) if is_cluster else nullcontext():
            connection.check_slots(Keys("{a}", "orders"), Keys("a", "letters"))

        await connection.close()
