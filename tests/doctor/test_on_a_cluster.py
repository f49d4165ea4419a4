"""The doctor on a real cluster of three masters: it sees all of them."""

from __future__ import annotations

import asyncio
import secrets

import pytest
import redis

from tests.helpers import wait_until
from tests.servers import Cluster
from toril import Backoff, NewJob, Queue, Worker
from toril.client.connection import Connection
from toril.doctor import Severity, examine
from toril.doctor.reader import ConnectionReader
from toril.doctor.server import ServerFacts, _replicas
from toril.protocol.discovering import ClusterNode

GOOD = {"attempts": 5, "backoff": Backoff.exponential(1000, jitter=0.5)}


@pytest.fixture
def cluster_url(cluster) -> str:
    return cluster.url.replace("redis://", "redis+cluster://")


@pytest.fixture
def prefix() -> str:
    """Without a hash tag: the queues of this prefix are spread by their names."""
    return f"t{secrets.token_hex(4)}"


@pytest.fixture
async def queues(cluster, cluster_url, prefix):
    """One queue on each node."""
    names = [f"{{q{n}}}" for n in range(30)]
    by_node = {cluster.owner(cluster.slot_of(f"{prefix}:{name}:meta")).port: name for name in names}
    assert len(by_node) == 3
    queues = [Queue(name, connection=cluster_url, prefix=prefix) for name in by_node.values()]
    yield queues
    for queue in queues:
        await queue.obliterate(force=True)
        await queue.close()


def codes(report, subject, least=Severity.WARNING):
    order = list(Severity)
    return [
        one.code
        for one in report.findings
        if subject in one.subject and order.index(one.severity) <= order.index(least)
    ]


async def test_queues_and_their_workers_are_seen_on_every_node(queues, cluster_url, prefix):
    """RULES-17: the one without a worker is told of, wherever it is; the others are not."""

    async def handler(job):
        await asyncio.sleep(60)

    for queue in queues:
        await queue.add("charge", {}, **GOOD)
        await queue.add("charge", {}, **GOOD)
    idle, *busy = queues
    workers = [
        Worker(queue.name, handler, connection=cluster_url, prefix=prefix, worker_name="w")
        for queue in busy
    ]
    for worker in workers:
        await worker.start()
    for queue in busy:
        await wait_until(queue.get_active_count)
        await wait_until(queue.get_workers)

    report = await examine(cluster_url, prefix=prefix)

    assert codes(report, f"queue {idle.name}") == ["D201"]
    for queue in busy:
        assert codes(report, f"queue {queue.name}") == []
        (told,) = [
            one for one in report.findings if one.code == "D208" and queue.name in one.subject
        ]
        assert "1 worker: " in told.problem
        assert "toril" in told.problem
    assert codes(report, "keyspace") == []
    for worker in workers:
        await worker.close(timeout=0)


async def test_every_node_is_examined(cluster, cluster_url, prefix):
    """A setting that is wrong on one node is told of that node alone."""
    wrong = cluster.nodes[1]
    with wrong.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")

    report = await examine(cluster_url, prefix=prefix)

    with wrong.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
    found = [one.subject for one in report.findings if one.code == "D102"]
    assert found == [f"server 127.0.0.1:{wrong.port}"]
    nodes = {f"server 127.0.0.1:{node.port}" for node in cluster.nodes}
    assert {one.subject for one in report.findings if one.code == "D103"} == nodes


async def test_damage_is_found_on_every_node(queues, cluster, cluster_url, prefix):
    """The keyspace audit reads all nodes; it asks each for its own keys."""
    for queue in queues:
        await queue.add("charge", {}, job_id="whole", **GOOD)
        await queue.add("charge", {}, job_id="lost", **GOOD)
    sound = await examine(cluster_url, prefix=prefix)
    with redis.RedisCluster.from_url(cluster.url) as client:
        for queue in queues:
            client.lrem(queue.keys.wait, 0, "lost")

    report = await examine(cluster_url, prefix=prefix)

    assert codes(sound, "keyspace") == []
    damage = [one.problem for one in report.findings if one.code == "D501"]
    assert len(damage) == 3
    for queue in queues:
        assert f"K2: job 'lost' of {queue.keys.base} is in no container" in damage


async def test_too_many_keys_are_counted_over_all_nodes(queues, cluster, cluster_url, prefix):
    for queue in queues:
        await queue.add("charge", {}, **GOOD)
    count = 0
    for node in cluster.nodes:
        with node.client() as client:
            count += len(client.keys(f"{prefix}:*"))

    report = await examine(cluster_url, prefix=prefix, most_keys=count - 1)
    audited = await examine(cluster_url, prefix=prefix, most_keys=count)

    (left_out,) = [one for one in report.findings if one.code == "D502"]
    assert f"{count} keys" in left_out.problem
    assert codes(audited, "keyspace", Severity.INFO) == []


async def test_a_node_that_is_gone_is_told_and_the_others_are_examined_all_the_same(prefix):
    """D112 and, once its slots are nobody's, D113."""
    with Cluster({"cluster-require-full-coverage": "no"}) as cluster:
        url = cluster.url.replace("redis://", "redis+cluster://")
        names = [f"{{q{n}}}" for n in range(30)]
        gone = cluster.nodes[2]
        owners = {name: cluster.owner(cluster.slot_of(f"{prefix}:{name}:meta")) for name in names}
        there = next(name for name in names if owners[name] is not gone)
        lost = next(name for name in names if owners[name] is gone)
        for name in (there, lost):
            async with Queue(name, connection=url, prefix=prefix) as queue:
                await queue.add("charge", {}, **GOOD)
        gone.kill()

        connection = Connection(url, patience_s=0.2)
        report = await examine(connection, prefix=prefix)
        named = await examine(connection, prefix=prefix, queues=[there, lost])

        for one in (report, named):
            assert codes(one, f"server 127.0.0.1:{gone.port}") == ["D112"]
            assert codes(one, f"queue {there}") == ["D201"]
            assert codes(one, f"queue {lost}", Severity.INFO) == []

        for node in cluster.nodes[:2]:
            with node.client() as client:
                known = client.execute_command("CLUSTER NODES").items()
                ids = {int(where.split(":")[1]): it["node_id"] for where, it in known}
                if gone.port in ids:  # the first may have told the second already
                    client.execute_command("CLUSTER FORGET", ids[gone.port])
        report = await examine(connection, prefix=prefix)
        await connection.close()

    assert codes(report, "cluster") == ["D113"]
    assert codes(report, f"queue {there}") == ["D201"]


async def test_a_node_without_a_replica_is_told_of(cluster, cluster_url, prefix):
    report = await examine(cluster_url, prefix=prefix)

    for node in cluster.nodes:
        assert "D114" in codes(report, f"server 127.0.0.1:{node.port}")


def test_replicas_that_do_not_keep_up_are_told_of():
    reader = ConnectionReader(None, [ClusterNode("a:1", "x", ()), ClusterNode("b:1", "y", ())])
    good = "ip=127.0.0.1,port=7,state=online,offset=10,lag=0"
    late = "ip=127.0.0.1,port=7,state=online,offset=10,lag=60"

    def judged(**info: str) -> list[str]:
        return [one.code for one in _replicas(ServerFacts(info=info), reader)]

    assert judged(connected_slaves="0") == ["D114"]
    assert judged(connected_slaves="1", slave0=late) == ["D115"]
    assert judged(connected_slaves="1", slave0=good.replace("online", "wait_bgsave")) == ["D115"]
    assert judged(connected_slaves="2", slave0=late, slave1=good) == []
    alone = ConnectionReader(None)
    assert list(_replicas(ServerFacts(info={"connected_slaves": "0"}), alone)) == []


async def test_the_hottest_queue_of_each_node_is_named(cluster, queues, cluster_url, prefix):
    hot, _, cold = queues
    for queue in queues:
        await queue.add("x", **GOOD)

    async def heat() -> None:
        while True:
            await hot.add("x", **GOOD)

    heating = asyncio.create_task(heat())
    report = await examine(cluster_url, prefix=prefix, audit=False)
    heating.cancel()

    told = [one.problem for one in report.findings if one.code == "D116"]
    assert [hot.name in problem and "100 %" in problem for problem in told] == [True]
    assert not any(cold.name in problem for problem in told)


async def test_the_partitions_of_a_named_queue_are_examined(cluster_url, prefix):
    """Its name has no hash tag, so what a plain queue of that name has would be in many slots."""
    async with Queue("mail", connection=cluster_url, prefix=prefix, partitions=3) as queue:
        await queue.add_bulk([NewJob("x", job_id=f"j-{n}") for n in range(12)])

        report = await examine(cluster_url, prefix=prefix, queues=["mail"])

        assert "D226" not in [one.code for one in report.findings]
        for part in queue.partitions:
            assert "D201" in codes(report, f"queue {part.name}")
        assert await queue.obliterate(force=True) == 12
