"""A worker that finds its server through Sentinel, and finds the new one after a failover."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter

import pytest
import redis
import redis.asyncio

from tests.helpers import wait_until, wait_until_sync
from tests.servers import Server, free_port
from toril import Queue, Worker
from toril.client.embedded import server_binary

CONFIG = """
port {port}
bind 127.0.0.1
dir {directory}
sentinel monitor main 127.0.0.1 {master} 1
sentinel down-after-milliseconds main 500
sentinel failover-timeout main 2000
requirepass secret
"""


@pytest.fixture
def pair(start_server):
    """A master and its replica."""
    master, replica = (start_server({"repl-diskless-sync-delay": "0"}, tcp=True) for _ in range(2))
    with replica.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", master.port)
        wait_until_sync(lambda: client.info("replication")["master_link_status"] == "up", 20)
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
            wait_until_sync(lambda: _replicas(client) == 1, 20, message="the sentinel is ready")
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
        await wait_until(lambda: ran[first.id] == 1)
        with redis.Redis(port=sentinel, password="secret", decode_responses=True) as client:
            await wait_until(lambda: _fails_over(client), 20)
            await wait_until(lambda: _master(client) == pair[1].port, 20)
        # Until the old master knows of it, what it is told is lost: Sentinel promises no more.
        with pair[0].client() as client:
            await wait_until(lambda: client.info("replication")["role"] == "slave", 20)
        second = await queue.add("second")
        await wait_until(lambda: ran[second.id] == 1, 20)

    assert ran == Counter([first.id, second.id])
    with pair[1].client() as client:
        assert client.info("replication")["role"] == "master"
        assert client.zscore("bull:q:completed", second.id)


async def test_a_client_made_by_sentinel_does_as_well(pair: tuple[Server, Server], sentinel: int):
    """The queue, the worker and its lease, which keeps a job for three lock durations."""
    sentinels = redis.asyncio.Sentinel(
        [("127.0.0.1", sentinel)], sentinel_kwargs={"password": "secret"}
    )
    client = sentinels.master_for("main")

    async def handler(job):
        await asyncio.sleep(1)
        return job.fence

    options = {"connection": client}
    async with Queue("q", **options) as queue, Worker("q", handler, lock_duration=300, **options):
        job = await queue.add("long")
        assert await queue.wait_for(job.id, timeout=10_000) == 1
    await client.aclose()


def _fails_over(client: redis.Redis) -> bool:
    try:
        return bool(client.execute_command("SENTINEL FAILOVER", "main"))
    except redis.ResponseError:  # it has to hear of the replica's health first
        return False


def _master(client: redis.Redis) -> int:
    return int(client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", "main")[1])
