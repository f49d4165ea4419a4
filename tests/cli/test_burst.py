"""When ``--burst`` ends, and what it asks the server until then."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from tests.helpers import PATIENCE_S, let_pass, wait_until
from toril import App, Queue, Worker
from toril.cli import worker as command
from toril.cli.loading import RunningApp, RunningQueue, Wishes
from toril.cli.worker import Burst


async def test_a_burst_keeps_one_connection_however_often_it_looks(
    queue, url, prefix, client, monkeypatch
):
    monkeypatch.setattr(command, "_LOOK_S", 0.005)
    may_end = asyncio.Event()

    async def handler(job):
        await may_end.wait()

    async def seen(what):
        return (await client.info("stats"))[what]

    worker = Worker("q", handler, connection=url, prefix=prefix)
    queue.add("job")
    burst = Burst([worker], [])
    async with worker, asyncio.TaskGroup() as group:
        await wait_until(queue.get_active_count)
        group.create_task(burst.run())
        connections = await seen("total_connections_received")
        enough = await seen("total_commands_processed") + 100

        async def has_looked_often():
            return await seen("total_commands_processed") > enough

        await wait_until(has_looked_often)
        opened = await seen("total_connections_received") - connections
        may_end.set()

    assert opened <= 3


async def _run(*services):
    """Run services and a burst beside them, until the burst ends them."""
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for service in (*services, Burst(services, [])):
            group.create_task(service.run())


async def test_a_burst_waits_for_the_worker_of_every_queue(url, prefix, monkeypatch):
    """One queue was empty and served; the server had not yet told of the other."""
    monkeypatch.setattr(command, "_LOOK_S", 0.005)
    may_tell = asyncio.Event()
    done = []

    async def handler(job):
        done.append(job.queue_name)

    first, late = (
        RunningQueue(name, handler, connection=url, prefix=prefix) for name in ("first", "late")
    )
    really_ask = late._partitions

    async def ask_late():
        await may_tell.wait()
        return await really_ask()

    monkeypatch.setattr(late, "_partitions", ask_late)
    async with Queue("late", connection=url, prefix=prefix) as queue:
        await queue.add("job")
    running = asyncio.create_task(_run(first, late))
    await wait_until(lambda: first.workers and first.workers[0].is_running)
    await let_pass(0.3, "the burst must not end in it")
    may_tell.set()
    await running

    assert done == ["late"]


async def test_a_burst_waits_for_an_app_that_is_starting(url, prefix, monkeypatch):
    """Its workers were closed before they ran, and the command failed."""
    monkeypatch.setattr(command, "_LOOK_S", 0.005)
    may_start, ended = asyncio.Event(), []

    @asynccontextmanager
    async def lifespan(app):
        await may_start.wait()
        yield
        ended.append(True)

    app = App(connection=url, prefix=prefix, lifespan=lifespan)

    @app.task
    async def hello() -> None: ...

    running = asyncio.create_task(_run(RunningApp(app, Wishes())))
    await wait_until(lambda: app.workers)
    await let_pass(0.3, "the burst must not end in it")
    may_start.set()
    await running

    assert ended == [True]


@pytest.mark.parametrize("look", [1, 2])
async def test_a_burst_misses_no_job_that_hops_to_a_queue_it_has_seen_empty(
    url, prefix, monkeypatch, look
):
    """A job of "b" adds one to "a" between the look at "a" and that at "b"."""
    asked = {"a": 0, "b": 0}
    may_hop = asyncio.Event()
    done = []

    async def hop(job):
        await may_hop.wait()
        await a.add("job")
        done.append("b")

    async def handler(job):
        done.append("a")

    really_ask = Queue.get_job_counts

    async def ask(self, *states):
        counts = await really_ask(self, *states)
        asked[self.name] += 1
        if self.name == "b" and asked["b"] == look - 1:
            await b.add("job")  # somebody else's, as soon as "b" was seen empty
        if self.name == "a" and asked["a"] == look:
            await wait_until(b.get_active_count)
            may_hop.set()
            await wait_until(b_is_empty)
        if self.name == "a" and asked["a"] > look:
            takes.resume()
        return counts

    async def b_is_empty():
        return not any((await really_ask(b, "waiting", "active")).values())

    takes = Worker("a", handler, connection=url, prefix=prefix)
    gives = Worker("b", hop, connection=url, prefix=prefix)
    where = {"connection": url, "prefix": prefix}
    async with Queue("a", **where) as a, Queue("b", **where) as b:
        if look == 1:
            await b.add("job")
        monkeypatch.setattr(Queue, "get_job_counts", ask)
        takes.pause()  # what hops is still there when the burst has ended too early
        await _run(takes, gives)

    assert done == ["b", "a"]
