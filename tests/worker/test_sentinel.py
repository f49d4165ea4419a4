"""A worker that finds its server through Sentinel, and finds the new one after a failover."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections import Counter

import pytest
import redis
import redis.asyncio

import toril.sync
from tests.helpers import until_renewed, wait_until, wait_until_sync
from tests.servers import Server, free_port
from toril import Job, Queue, Worker
from toril.client.embedded import server_binary
from toril.errors import ServerUnusableError

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
PATIENCE_S = 90
HEARD_AFTER_S = 1
"""What is acknowledged so long after the switch was acknowledged by the new primary."""
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
        process.wait(60)


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
        with pair[1].client() as client:
            # Until its word has come, the old one may take a job, which is lost.
            second = await wait_until(lambda: _add_to(queue, client), PATIENCE_S)
        await wait_until(lambda: ran[second.id] == 1, PATIENCE_S)

    assert (ran[first.id], ran[second.id]) == (1, 1)
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


async def test_a_planned_failover_loses_nothing_that_is_added_after_it(pair, sentinel):
    """The old primary goes on taking jobs for seconds, and all of them would be lost.

    Those that it took just before are saved as well if the sentinel's word comes in time, which a
    busy machine cannot promise; see docs/guides/production.md for figures.
    """
    url = f"redis+sentinel://127.0.0.1:{sentinel}/main/0?sentinel_password=secret"
    acknowledged: dict[str, float] = {}
    is_over = threading.Event()

    def add_from_a_thread() -> None:
        with toril.sync.Queue("q", connection=url) as blocking:
            while not is_over.is_set():
                acknowledged[blocking.add("blocking").id] = time.monotonic()
                time.sleep(0.01)

    async def add(queue: Queue) -> None:
        while not is_over.is_set():
            acknowledged[(await queue.add("async")).id] = time.monotonic()
            await asyncio.sleep(0.01)

    async with Queue("q", connection=url) as queue:
        adding = [asyncio.create_task(add(queue))]
        adding.append(asyncio.create_task(asyncio.to_thread(add_from_a_thread)))
        with redis.Redis(port=sentinel, password="secret", decode_responses=True) as client:
            await wait_until(lambda: len(acknowledged) > 20, PATIENCE_S)
            await wait_until(lambda: _fails_over(client), PATIENCE_S)
            await wait_until(lambda: _master(client) == pair[1].port, PATIENCE_S)
        heard_by = time.monotonic() + HEARD_AFTER_S
        await wait_until(
            lambda: sum(at > heard_by for at in list(acknowledged.values())) > 20, PATIENCE_S
        )
        is_over.set()
        await asyncio.gather(*adding)
    with pair[1].client() as client:
        there = set(client.lrange("bull:q:wait", 0, -1))

    assert [job for job, at in acknowledged.items() if at > heard_by and job not in there] == []


async def test_a_sentinel_that_refuses_the_password_ends_the_worker(sentinel: int):
    url = f"redis+sentinel://127.0.0.1:{sentinel}/main/0?sentinel_password=wrong"

    with pytest.raises(ServerUnusableError, match="a sentinel does not accept the password"):
        await asyncio.wait_for(Worker("q", print, connection=url).run(), PATIENCE_S)


def _fails_over(client: redis.Redis) -> bool:
    try:
        return bool(client.execute_command("SENTINEL FAILOVER", "main"))
    except redis.ResponseError:  # it has to hear of the replica's health first
        return False


def _master(client: redis.Redis) -> int:
    return int(client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", "main")[1])


async def _add_to(queue: Queue, client: redis.Redis) -> Job | None:
    job = await queue.add("second")
    return job if client.exists(f"bull:q:{job.id}") else None
