"""Adds that return when replicas have the job: with a real primary and its replica."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.counting import counting
from tests.helpers import wait_until_sync
from tests.proxy import Proxy
from tests.servers import Cluster, Server
from toril import FlowJob, FlowProducer, GroupJob, NewJob, Queue, sync
from toril.errors import InvalidOptionError, NotReplicatedError
from toril.protocol import scripts
from toril.tasks import App

SOON_MS = 150
"""For those who are to wait in vain."""
PATIENT_MS = 60_000


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Server, Server]]:
    """A primary and its replica."""
    options = {"repl-diskless-sync-delay": "0"}
    with Server(options, tcp=True) as primary, Server(options, tcp=True) as replica:
        with replica.client() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", primary.port)
            wait_until_sync(lambda: client.info("replication")["master_link_status"] == "up", 30)
        yield primary, replica


@pytest.fixture
def primary(pair) -> Server:
    return pair[0]


@pytest.fixture
def replica(pair) -> Server:
    return pair[1]


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


def has(server: Server, *keys: str) -> bool:
    with server.client() as client:
        if client.info("cluster")["cluster_enabled"]:
            client.readonly()
        return client.exists(*keys) == len(keys)


def keys_of(queue, jobs) -> list[str]:
    return [queue.keys.job(job.id) for job in jobs]


async def test_an_add_returns_when_a_replica_has_the_job(primary, replica):
    options = {"connection": primary.url, "replicas": 1, "replicas_timeout": PATIENT_MS}
    async with Queue("all", **options) as queue:
        for _ in range(20):
            job = await queue.add("x")
            assert has(replica, queue.keys.job(job.id))

        together = await asyncio.gather(*(queue.add("x", {"n": n}) for n in range(50)))
        assert has(replica, *keys_of(queue, together))
        bulk = await queue.add_bulk([NewJob("x") for _ in range(900)])
        assert has(replica, *keys_of(queue, bulk))


async def test_a_silent_replica_is_told_with_the_ids_of_the_jobs(primary, replica):
    options = {"connection": primary.url, "replicas": 1, "replicas_timeout": SOON_MS}
    async with Queue("silent", **options) as queue:
        with frozen(replica):
            with pytest.raises(NotReplicatedError, match="0 of 1 replicas confirmed") as one:
                await queue.add("x", job_id="mine")
            adds = [queue.add("x", job_id=f"task-{n}") for n in range(20)]
            together = await asyncio.gather(*adds, return_exceptions=True)
            with pytest.raises(NotReplicatedError) as bulk:
                await queue.add_bulk([NewJob("x", job_id=f"bulk-{n}") for n in range(300)])

            # An id that exists is no proof that a replica has it.
            with pytest.raises(NotReplicatedError):
                await queue.add("x", job_id="mine")

        assert one.value.job_ids == ("mine",)
        assert (one.value.reached, one.value.wanted) == (0, 1)
        assert {type(error) for error in together} == {NotReplicatedError}
        assert [error.job_ids for error in together] == [(f"task-{n}",) for n in range(20)]
        assert bulk.value.job_ids == tuple(f"bulk-{n}" for n in range(300))
        assert await queue.get_waiting_count() == 321

    options["replicas_timeout"] = PATIENT_MS
    async with Queue("silent", **options) as queue:
        # It asks again, and adds nothing.
        again = await queue.add("x", job_id="mine")
        assert again.duplicated
        assert has(replica, queue.keys.job("mine"))


async def test_groups_and_flows_wait_for_replicas(primary, replica):
    options = {"connection": primary.url, "replicas": 1, "replicas_timeout": SOON_MS}
    async with FlowProducer(**options) as producer:
        flow = FlowJob(
            "top",
            queue_name="flows",
            job_id="top",
            children=[
                FlowJob("below", queue_name="flows", job_id="below"),
            ],
        )
        with frozen(replica):
            with pytest.raises(NotReplicatedError) as tree:
                await producer.add(flow)
            with pytest.raises(NotReplicatedError) as group:
                await producer.add_group("order", [GroupJob("charge", queue_name="flows")])

        assert set(tree.value.job_ids) == {"top", "below"}
        assert len(group.value.job_ids) == 1
    options["replicas_timeout"] = PATIENT_MS
    async with FlowProducer(**options) as producer:
        node = await producer.add_group("order", [GroupJob("charge", queue_name="flows")])
        assert has(replica, f"bull:flows:groups:{node.group_id}", f"bull:flows:{node.jobs[0].id}")


def test_blocking_queues_wait_as_well(primary, replica):
    options = {"connection": primary.url, "replicas": 1}
    with sync.Queue("blocking", **options, replicas_timeout=PATIENT_MS) as queue:
        jobs = queue.add_bulk([NewJob("x") for _ in range(500)])
        jobs.append(queue.add("x"))
        assert has(replica, *keys_of(queue, jobs))
    with sync.Queue("blocking", **options, replicas_timeout=SOON_MS) as queue, frozen(replica):
        with pytest.raises(NotReplicatedError) as one:
            queue.add("x", job_id="mine")
        with pytest.raises(NotReplicatedError) as bulk:
            queue.add_bulk([NewJob("x", job_id=f"bulk-{n}") for n in range(300)])

    assert one.value.job_ids == ("mine",)
    assert len(bulk.value.job_ids) == 300


async def test_an_app_waits_as_well(primary, replica):
    def make(replicas_timeout):
        app = App(connection=primary.url, replicas=1, replicas_timeout=replicas_timeout)

        @app.task
        async def send(n: int) -> None: ...

        return app, send

    app, send = make(PATIENT_MS)
    async with app:
        handle = await app.enqueue(send.call(1))
        assert has(replica, app.queue("default").keys.job(handle.id))
    app, send = make(SOON_MS)
    async with app:
        with frozen(replica), pytest.raises(NotReplicatedError):
            await app.enqueue(send.call(2))
        with frozen(replica), pytest.raises(NotReplicatedError):
            await asyncio.to_thread(app.enqueue_blocking, send.call(3))


async def test_a_server_that_has_to_be_shown_the_library_waits_behind_it(primary, replica):
    options = {"connection": primary.url, "replicas": 1}
    async with Queue("unknown", **options, replicas_timeout=PATIENT_MS) as queue:
        with primary.client() as client:
            client.function_flush()
        job = await queue.add("x")
        with primary.client() as client:
            client.function_flush()
        bulk = await queue.add_bulk([NewJob("x") for _ in range(500)])

        assert has(replica, *keys_of(queue, [job, *bulk]))
    async with Queue("unknown", **options, replicas_timeout=SOON_MS) as queue:
        with primary.client() as client:
            client.function_flush()
        with frozen(replica), pytest.raises(NotReplicatedError):
            await queue.add("x")


async def test_what_is_sent_again_is_waited_for_again(primary, replica):
    """The second line wrote nothing of the job, and must not vouch for it."""
    lost = []

    def lose_first(words):
        if words[:2] == [b"FCALL", scripts.load("add").function.encode()] and not lost:
            lost.append(words)
            return "lose"
        return None

    async with Proxy(primary.port) as proxy:
        proxy.rule = lose_first
        options = {"connection": proxy.url, "replicas": 1, "replicas_timeout": SOON_MS}
        async with Queue("again", **options) as queue:
            with frozen(replica), pytest.raises(NotReplicatedError):
                await queue.add("x", job_id="mine")
        assert lost
        assert has(primary, "bull:again:mine")


async def test_nobody_else_pays_for_it(primary):
    async with Queue("plain", connection=primary.url) as queue:
        await queue.add("x")
        with counting(primary) as counted:
            await queue.add("x")
            await queue.add_bulk([NewJob("x") for _ in range(400)])
        assert counted.commands == {"FCALL": 3}
    options = {"connection": primary.url, "replicas": 1, "replicas_timeout": PATIENT_MS}
    async with Queue("plain", **options) as queue:
        await queue.add("x")
        with counting(primary) as counted:
            await queue.add("x")
            await queue.add_bulk([NewJob("x") for _ in range(400)])
        assert counted.commands == {"FCALL": 3, "WAIT": 3}


def test_an_impossible_number_is_refused():
    for replicas in (-1, True, "1", 101):
        with pytest.raises(InvalidOptionError, match="replicas"):
            Queue("q", replicas=replicas)
    with pytest.raises(InvalidOptionError, match="replicas_timeout"):
        Queue("q", replicas=1, replicas_timeout=0)


def test_the_error_can_be_sent_to_another_process():
    error = NotReplicatedError(["a", "b"], 0, 1, 100, " (because)")

    copy = pickle.loads(pickle.dumps(error))

    assert (copy.job_ids, str(copy)) == (("a", "b"), str(error))


async def test_on_a_cluster_the_replica_of_the_right_node_is_waited_for():
    with Cluster(replicas=True) as cluster:
        url = cluster.url.replace("redis://", "redis+cluster://")
        options = {"connection": url, "replicas": 1}
        for number, (node, replica) in enumerate(zip(cluster.nodes, cluster.replicas, strict=True)):
            name = next(
                name
                for n in range(1000)
                if cluster.owner(cluster.slot_of(name := f"{{q{n}}}")) is node
            )
            async with Queue(name, **options, replicas_timeout=SOON_MS) as queue:
                with frozen(replica), pytest.raises(NotReplicatedError):
                    await queue.add("x")
            async with Queue(name, **options, replicas_timeout=PATIENT_MS) as queue:
                jobs = await queue.add_bulk([NewJob("x") for _ in range(300)])
                assert has(replica, *keys_of(queue, jobs))
                if number == 0:
                    slot = cluster.slot_of(name)
                    cluster.migrate_slot(slot)
                    job = await queue.add("x")
                    assert has(cluster.replicas[1], queue.keys.job(job.id))
