"""``@idempotent(RedisStore(…))`` while the store's server is away: the work is done once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.helpers import let_pass, wait_until
from tests.servers import SAFE_ON_DISK, Server
from tests.worker.conftest import Inside
from toril import Queue, UnrecoverableError, Worker
from toril.client.connection import Connection
from toril.idempotency import RedisStore, idempotent
from toril.sync.connection import Connection as BlockingConnection

PATIENCE_S = 0.1
Work = Callable[[Any], Any]


def open_store(server: Server, **options: Any) -> RedisStore:
    """A store whose calls give up soon, so that the server need not be away for long."""
    store = RedisStore(server.url, **options)
    store._connection = Connection(server.url, patience_s=PATIENCE_S)
    store._blocking = BlockingConnection(server.url, patience_s=PATIENCE_S)
    return store


class Outage:
    """Work during which the store's server goes away, the first time that it is done."""

    def __init__(self, server: Server, error: Exception | None = None) -> None:
        self.server = server
        self.error = error
        self.runs: list[str] = []
        self.ended: list[str] = []
        self.is_away = threading.Event()

    def work(self, name: str) -> str:
        self.runs.append(name)
        if len(self.runs) == 1:
            self.server.stop()
            self.is_away.set()
        if self.error is not None:
            raise self.error
        return "done"

    async def pass_by(self) -> None:
        """Start the server when the store's calls have given up."""
        await wait_until(self.is_away.is_set)
        await let_pass(10 * PATIENCE_S, "the server is away for longer than a call tries")
        await asyncio.to_thread(self.server.start)

    def as_async(self, store: RedisStore) -> Work:
        @idempotent(store)
        async def handler(job: Any) -> str:
            return await asyncio.to_thread(self.work, job.id)

        async def with_end(job: Any) -> Any:
            try:
                return await handler(job)
            finally:
                self.ended.append(job.id)

        return with_end

    def as_blocking(self, store: RedisStore) -> Work:
        @idempotent(store)
        def handler(job: Any) -> str:
            return self.work(job.id)

        def with_end(job: Any) -> Any:
            try:
                return handler(job)
            finally:
                self.ended.append(job.id)

        return with_end


both = pytest.mark.parametrize("wrap", [Outage.as_async, Outage.as_blocking])


@both
async def test_finished_work_is_recorded_when_the_server_is_back(wrap, start_server):
    server = start_server(SAFE_ON_DISK, tcp=True)
    store, outage = open_store(server), Outage(server)

    async with (
        Queue("q", connection=server.url) as queue,
        Worker("q", wrap(outage, store), connection=server.url),
    ):
        job = await queue.add("a", idempotency_key="k", attempts=2)
        await outage.pass_by()
        assert await queue.wait_for(job.id, timeout=60_000) == "done"
        again = await queue.add("a", idempotency_key="k")
        assert await queue.wait_for(again.id, timeout=60_000) == "done"

    assert outage.runs == [job.id]
    await store.close()


@both
async def test_the_error_of_a_handler_is_not_replaced_by_that_of_its_record(wrap, start_server):
    server = start_server(SAFE_ON_DISK, tcp=True)
    store, outage = open_store(server), Outage(server, UnrecoverableError("declined"))

    async with (
        Queue("q", connection=server.url) as queue,
        Worker("q", wrap(outage, store), connection=server.url),
    ):
        job = await queue.add("a", idempotency_key="k", attempts=2)
        await outage.pass_by()
        await wait_until(queue.get_failed_count)
        assert (await queue.get_job(job.id)).failed_reason == "declined"

    assert outage.runs == [job.id]
    await store.close()


async def test_the_answer_of_a_view_is_recorded_when_the_server_is_back(start_server):
    server = start_server(SAFE_ON_DISK, tcp=True)
    store, outage = open_store(server), Outage(server)

    @idempotent(store, key=lambda event: event)
    async def receive(event: str) -> str:
        return await asyncio.to_thread(outage.work, event)

    answering = asyncio.create_task(receive("evt-1"))
    await outage.pass_by()

    assert await asyncio.wait_for(answering, 60) == "done"
    assert await receive("evt-1") == "done"
    assert outage.runs == ["evt-1"]
    await store.close()


# ---------------------------------------------------------------------- how the wait ends


class Scene(NamedTuple):
    queue: Queue
    inside: Inside
    worker: Worker
    store: RedisStore
    job_id: str


async def cancel(scene: Scene) -> None:
    await scene.queue.cancel(scene.job_id, "not wanted")


async def take_its_lock(scene: Scene) -> None:
    await scene.inside.client.delete(f"{scene.inside.base}:{scene.job_id}:lock")


async def close_its_worker(scene: Scene) -> None:
    await scene.worker.close(timeout=0)


async def close_its_store(scene: Scene) -> None:
    await scene.store.close()


ends = pytest.mark.parametrize("end", [cancel, take_its_lock, close_its_worker, close_its_store])


@both
@ends
async def test_a_stopped_job_does_not_wait_to_be_recorded(
    wrap, end, start_server, queue, start_worker, inside, caplog
):
    """The server of the store stays away; that of the queue is there."""
    caplog.set_level(logging.WARNING, "toril.idempotency")
    server = start_server(tcp=True)
    store, outage = open_store(server), Outage(server)
    worker = await start_worker(wrap(outage, store), lock_duration=5000)
    job = await queue.add("a")
    await wait_until(lambda: "waits to be recorded" in caplog.text)
    assert outage.ended == []

    await end(Scene(queue, inside, worker, store, job.id))

    await wait_until(lambda: outage.ended == [job.id])
    assert outage.runs == [job.id]
    await store.close()


@both
async def test_after_its_lease_a_job_does_not_wait_to_be_recorded(
    wrap, start_server, queue, start_worker, inside
):
    server = start_server(tcp=True)
    store, outage = open_store(server, lease=1500), Outage(server)
    await start_worker(wrap(outage, store))
    job = await queue.add("a")

    await inside.until_finished(1)

    assert await inside.ids("failed") == [job.id]
    assert outage.ended == outage.runs == [job.id]
    await store.close()


async def test_work_that_ignores_that_it_was_stopped_does_not_wait_to_be_recorded(
    start_server, queue, start_worker
):
    server = start_server(tcp=True)
    store, ended = open_store(server), asyncio.Event()

    @idempotent(store)
    async def work(job: Any) -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await job.log("runs")
            await asyncio.Event().wait()
        await asyncio.to_thread(server.stop)
        return "done"

    async def handler(job: Any) -> str:
        try:
            result: str = await work(job)
            return result
        finally:
            ended.set()

    worker = await start_worker(handler)
    job = await queue.add("a")
    await wait_until(lambda: queue.get_job_log_count(job.id))

    await worker.close(timeout=0)

    await asyncio.wait_for(ended.wait(), 60)
    await store.close()
