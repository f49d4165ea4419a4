"""Servers that forget scripts, restart, load, lose their role or run out of memory."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter

import pytest
import redis
import redis.asyncio

from tests.helpers import let_pass, until_renewed, wait_until
from tests.servers import SAFE_ON_DISK
from toril import NewJob, Queue, Worker
from toril.errors import ServerError, ServerOutOfMemoryError


class Load:
    """Jobs that are added and run while something happens to the server."""

    def __init__(self, url: str, **options) -> None:
        self.queue = Queue("q", connection=url)
        self.ran = Counter()
        self.added: list[str] = []
        self.errors: list[Exception] = []
        self._stops = False
        self.worker = Worker("q", self._handle, connection=url, concurrency=10, **options)
        self.worker.on("error", self.errors.append)

    async def _handle(self, job):
        self.ran[job.id] += 1
        await asyncio.sleep(0.002)
        return job.data

    async def _produce(self):
        while not self._stops:
            job_id = f"job-{len(self.added)}"
            # Whoever is told that the server is away tries again, under the same id.
            with contextlib.suppress(ServerError):
                await self.queue.add("job", {"n": len(self.added)}, job_id=job_id)
                self.added.append(job_id)
            await asyncio.sleep(0.002)

    async def __aenter__(self):
        await self.worker.start()
        self._producer = asyncio.create_task(self._produce())
        await wait_until(lambda: sum(self.ran.values()) > 20)
        return self

    def met(self, words: str) -> bool:
        """Has the worker told of such an error? Else the test would prove nothing."""
        return any(words in str(error) for error in self.errors)

    async def until_some_more(self, count: int = 50) -> None:
        goal = sum(self.ran.values()) + count
        await wait_until(lambda: sum(self.ran.values()) >= goal)

    async def end(self) -> None:
        """Stop adding and wait until everything ran."""
        self._stops = True
        await self._producer
        await wait_until(lambda: set(self.ran) == set(self.added))

    async def __aexit__(self, *exc_info):
        self._stops = True
        self._producer.cancel()
        await asyncio.gather(self._producer, return_exceptions=True)
        await self.worker.close(timeout=1000)
        await self.queue.close()


def assert_all_completed_once(load: Load, server) -> None:
    assert load.ran == Counter(load.added)
    with server.client() as client:
        assert client.zcard("bull:q:completed") == len(load.added)
        for name in ("wait", "active"):
            assert client.llen(f"bull:q:{name}") == 0
        assert client.zcard("bull:q:failed") == 0


async def test_a_library_flushed_under_load(start_server):
    """reliability 2.11: a script that the server forgot is sent again."""
    server = start_server()
    async with Load(server.unix_url) as load:
        with server.client() as client:
            for _ in range(8):
                client.function_flush()
                await load.until_some_more(10)
        await load.end()
        await load.worker.close()

        assert_all_completed_once(load, server)
        assert load.errors == []


async def test_connections_that_are_killed_under_load(start_server):
    server = start_server()
    async with Load(server.unix_url) as load:
        with server.client() as client:
            for _ in range(10):
                client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                await load.until_some_more(20)
        await load.end()
        await load.worker.close()

        assert_all_completed_once(load, server)


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_server_that_restarts_under_load(how, start_server):
    """With an AOF nothing that was acknowledged is lost, and nothing runs twice."""
    server = start_server(SAFE_ON_DISK)
    async with Load(server.unix_url) as load:
        for _ in range(2):
            await asyncio.to_thread(getattr(server, how))
            await let_pass(0.1, "the server is away for a while")
            await asyncio.to_thread(server.start)
            await load.until_some_more()
        await load.end()
        await load.worker.close()

        assert_all_completed_once(load, server)


async def test_a_server_that_is_loading(start_server):
    server = start_server()
    # Jobs whose end was written after the snapshot come back when their locks have expired.
    async with Load(server.unix_url, stalled_interval=1000) as load:
        await load.until_some_more(200)
        with server.client() as client:
            client.save()
        server.kill()
        server.options["key-load-delay"] = "20000"
        server.options["loading-process-events-interval-bytes"] = "1024"
        starting = asyncio.create_task(asyncio.to_thread(server.start))
        await wait_until(lambda: load.met("loading"), 60)
        with server.client() as client:
            await wait_until(lambda: _speed_up(client))
        await starting
        # What was done since the snapshot is done again: nothing more than that is promised.
        await load.until_some_more()
        load._stops = True
        await load._producer
        with server.client() as client:
            await wait_until(lambda: client.llen("bull:q:wait") + client.llen("bull:q:active") == 0)
            assert client.zcard("bull:q:failed") == 0


def _speed_up(client) -> bool:
    try:
        return bool(client.config_set("key-load-delay", 0))
    except redis.RedisError:
        return False


async def test_a_server_that_is_a_replica_for_a_while(start_server):
    """READONLY, and UNBLOCKED for whoever waits: the worker goes on when the server is back."""
    server = start_server({"repl-diskless-sync-delay": "0"})
    async with Load(server.unix_url) as load:
        with server.client() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
            await wait_until(lambda: load.met("read only"), 30)
            client.execute_command("REPLICAOF", "NO", "ONE")
        await load.until_some_more()
        await load.end()
        await load.worker.close()

        assert_all_completed_once(load, server)


async def test_a_server_that_is_busy_with_a_script(start_server):
    """BUSY: somebody's endless script is in the way, until it is killed."""
    server = start_server({"busy-reply-threshold": "300"})  # ours stay below it
    async with Load(server.unix_url) as load:
        endless = asyncio.create_task(asyncio.to_thread(_run_forever, server))
        await wait_until(lambda: load.met("BUSY") or load.met("busy"), 30)
        with server.client() as client:
            client.script_kill()
        await endless
        await load.until_some_more()
        await load.end()
        await load.worker.close()

        assert_all_completed_once(load, server)


def _run_forever(server) -> None:
    with server.client() as client, pytest.raises(redis.RedisError):
        client.eval("while true do end", 0)


async def test_a_server_that_cannot_save(start_server):
    """MISCONF: the disk is full, so the server refuses writes until it can save again."""
    server = start_server({"save": "3600 1000000", "dbfilename": "blocked.rdb"})
    blocked = server.directory / "blocked.rdb"
    async with Load(server.unix_url) as load:
        with server.client() as client:
            blocked.mkdir()
            client.bgsave()
            await wait_until(lambda: load.met("MISCONF"), 30)
            blocked.rmdir()
            client.bgsave()
        await load.until_some_more()
        await load.end()
        await load.worker.close()

        assert_all_completed_once(load, server)


async def test_an_idle_worker_whose_wait_is_ended_by_an_operator_waits_again(start_server):
    """CLIENT UNBLOCK, with an error and without."""
    server = start_server()
    ran = []

    async def handler(job):
        ran.append(job.id)

    async with (
        Queue("q", connection=server.unix_url) as queue,
        Worker("q", handler, connection=server.unix_url),
    ):
        with server.client() as client:
            for how in ("ERROR", "TIMEOUT"):
                await wait_until(lambda: client.info("clients")["blocked_clients"] >= 2)
                for row in client.client_list():
                    if "b" in row["flags"]:
                        client.execute_command("CLIENT", "UNBLOCK", row["id"], how)
            await wait_until(lambda: client.info("clients")["blocked_clients"] >= 2)
        job = await queue.add("job")
        await wait_until(lambda: ran == [job.id])


async def test_an_idle_worker_is_woken_after_its_server_was_a_replica(start_server):
    server = start_server()
    ran = []

    async def handler(job):
        ran.append(job.id)

    async with (
        Queue("q", connection=server.unix_url) as queue,
        Worker("q", handler, connection=server.unix_url),
    ):
        with server.client() as client:
            await wait_until(lambda: client.info("clients")["blocked_clients"] >= 2)
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
            await wait_until(lambda: client.info("clients")["blocked_clients"] == 0)
            client.execute_command("REPLICAOF", "NO", "ONE")
        job = await queue.add("job")
        await wait_until(lambda: ran == [job.id])


async def test_a_full_server_drains_itself(start_server):
    """reliability 2.9: adds are refused with a typed error; takes, renewals and ends are not."""
    server = start_server()
    ran = []
    holding = asyncio.Event()
    may_end = asyncio.Event()

    async def handler(job):
        if job.name == "long":
            holding.set()
            await may_end.wait()
        else:
            await job.report(50)
            await job.log("still writing")
        ran.append(job.id)

    async with Queue("q", connection=server.unix_url) as queue:
        long = await queue.add("long")
        await queue.add_bulk([NewJob(f"{n}", {"pad": "x" * 100}) for n in range(200)])
        worker = Worker(
            "q",
            handler,
            connection=server.unix_url,
            concurrency=2,
            lock_duration=9000,
            stalled_interval=100,
            remove_on_complete=True,
        )
        with server.client() as client:
            client.config_set("maxmemory", 100_000)
            with pytest.raises(ServerOutOfMemoryError, match="maxmemory"):
                await queue.add("more")
            await worker.start()
            await asyncio.wait_for(holding.wait(), 60)
            await wait_until(lambda: len(ran) == 200, 30)
            # Renewals are not refused under memory pressure.
            async with redis.asyncio.Redis.from_url(server.unix_url) as raw:
                await until_renewed(raw, f"bull:q:{long.id}:lock")
            may_end.set()
            await wait_until(lambda: len(ran) == 201)
            await worker.close()

            assert client.llen("bull:q:wait") == client.llen("bull:q:active") == 0
            assert client.xlen("bull:q:events") > 0
            stalled = [e for _, e in client.xrange("bull:q:events") if e["event"] == "stalled"]
            assert stalled == []
            client.config_set("maxmemory", 0)
            await queue.add("more")


async def test_a_delayed_job_never_runs_early_whatever_the_clients_clock(
    queue, start_worker, inside, monkeypatch
):
    """reliability 2.14: the server's clock decides, be the client's ten minutes ahead or behind."""
    real, real_ns = time.time, time.time_ns
    for offset_s in (600, -600):
        monkeypatch.setattr(time, "time", lambda offset_s=offset_s: real() + offset_s)
        monkeypatch.setattr(
            time, "time_ns", lambda offset_s=offset_s: real_ns() + offset_s * 1_000_000_000
        )
        seconds, micros = await inside.client.time()
        before_ms = seconds * 1000 + micros // 1000
        job = await queue.add("later", delay=150)
        worker = await start_worker(lambda job: None)
        await inside.until_finished(1 if offset_s > 0 else 2)
        await worker.close()

        stored = await inside.job(job.id)
        assert 150 <= int(stored["processedOn"]) - before_ms < 60_000


@pytest.mark.parametrize(
    ("policy", "harm"),
    [("allkeys-lru", "deletes jobs"), ("volatile-lru", "run twice"), ("noeviction", None)],
)
async def test_a_worker_warns_of_a_server_that_evicts(policy, harm, start_server, caplog):
    server = start_server({"maxmemory-policy": policy})
    async with Worker("q", print, connection=server.unix_url):
        with server.client() as client:
            await wait_until(lambda: client.info("clients")["blocked_clients"] == 2)

    told = [one.getMessage() for one in caplog.records if "maxmemory-policy" in one.getMessage()]
    assert len(told) == (harm is not None)
    assert all(policy in one and harm in one for one in told)


async def test_who_may_not_ask_for_the_memory_works_all_the_same(start_server):
    server = start_server(tcp=True)
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "worker", "on", ">x", "~*", "&*", "+@all", "-info")
    done: list[str] = []

    async def handle(job):
        done.append(job.id)

    url = f"redis://worker:x@127.0.0.1:{server.port}"
    async with Queue("q", connection=url) as queue, Worker("q", handle, connection=url):
        job = await queue.add("job")
        await wait_until(lambda: done == [job.id])
