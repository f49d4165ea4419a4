"""A worker that finds its server through Sentinel, and finds the new one after a failover."""

from __future__ import annotations

import subprocess
from collections import Counter

import pytest
import redis
import redis.asyncio

from tests.helpers import until_renewed, wait_until, wait_until_sync
from tests.servers import Server, free_port
from toril import Queue, Worker
from toril.client.embedded import server_binary

# It fails over when it is told to. With little patience it would do so as well whenever a busy
# machine lets a server wait for half a second, and give up a failover that takes two.
CONFIG = """
port {port}
bind 127.0.0.1
dir {directory}
sentinel monitor main 127.0.0.1 {master} 1
sentinel down-after-milliseconds main 60000
sentinel failover-timeout main 60000
requirepass secret
"""
PATIENCE_S = 30
LOCK_MS = 6000
"""Renewed every two seconds: on a busy machine a shorter one is lost now and then."""


@pytest.fixture
def pair(start_server):
    """A master and its replica."""
    master, replica = (start_server({"repl-diskless-sync-delay": "0"}, tcp=True) for _ in range(2))
    with replica.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", master.port)
        wait_until_sync(
            lambda: client.info("replication")["master_link_status"] == "up", PATIENCE_S
        )
    return master, replica


@pytest.fixture
def sentinel(pair, tmp_path):
    """The port of a sentinel that watches the pair and has found the replica."""
    port = free_port()
    config = tmp_path / "sentinel.conf"
    config.write_text(CONFIG.format(port=port, directory=tmp_path, master=pair[0].port))
    with (tmp_path / "sentinel.log").open("wb") as log:
        command = [str(server_binary()), str(config), "--sentinel"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with redis.Redis(port=port, password="secret", decode_responses=True) as client:
            wait_until_sync(
                lambda: _replicas(client) == 1, PATIENCE_S, message="the sentinel is ready"
            )
        yield port
    finally:
        process.kill()
        process.wait(10)


def _replicas(client: redis.Redis) -> int:
    try:
        return len(client.execute_command("SENTINEL REPLICAS", "main"))
    except redis.RedisError:
        return 0


async def test_a_worker_follows_its_master(pair: tuple[Server, Server], sentinel: int):
    ran = Counter()

    async def handler(job):
        ran[job.id] += 1

    options = {
        "connection": f"redis+sentinel://127.0.0.1:{sentinel}/main/0?sentinel_password=secret"
    }
    async with Queue("q", **options) as queue, Worker("q", handler, **options):
        first = await queue.add("first")
        await wait_until(lambda: ran[first.id] == 1, PATIENCE_S)
        with redis.Redis(port=sentinel, password="secret", decode_responses=True) as client:
            await wait_until(lambda: _fails_over(client), PATIENCE_S)
            await wait_until(lambda: _master(client) == pair[1].port, PATIENCE_S)
        # Until the old master knows of it, what it is told is lost: Sentinel promises no more.
        with pair[0].client() as client:
            await wait_until(lambda: _is_replica(client), PATIENCE_S)
        second = await queue.add("second")
        await wait_until(lambda: ran[second.id] == 1, PATIENCE_S)

    assert ran == Counter([first.id, second.id])
    with pair[1].client() as client:
        assert client.info("replication")["role"] == "master"
        assert client.zscore("bull:q:completed", second.id)


async def test_a_client_made_by_sentinel_does_as_well(pair: tuple[Server, Server], sentinel: int):
    """The queue, the worker and its lease, which renews the lock of a running job."""
    sentinels = redis.asyncio.Sentinel(
        [("127.0.0.1", sentinel)], sentinel_kwargs={"password": "secret"}
    )
    client = sentinels.master_for("main")

    async def handler(job):
        await until_renewed(client, f"bull:q:{job.id}:lock")
        return job.fence

    options = {"connection": client}
    async with (
        Queue("q", **options) as queue,
        Worker("q", handler, lock_duration=LOCK_MS, **options),
    ):
        job = await queue.add("long")
        assert await queue.wait_for(job.id, timeout=PATIENCE_S * 1000) == 1
    await client.aclose()


def _fails_over(client: redis.Redis) -> bool:
    try:
        return bool(client.execute_command("SENTINEL FAILOVER", "main"))
    except redis.ResponseError:  # it has to hear of the replica's health first
        return False


def _master(client: redis.Redis) -> int:
    return int(client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", "main")[1])


def _is_replica(client: redis.Redis) -> bool:
    try:
        return bool(client.info("replication")["role"] == "slave")
    except redis.ConnectionError:  # a sentinel that demotes a master cuts off its clients
        return False
