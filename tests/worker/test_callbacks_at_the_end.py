"""A worker ends although its callbacks or handlers close it, or callbacks hang."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.helpers import let_pass, wait_until
from toril import Queue, Worker
from toril.worker import events
from toril.worker.crew import GRACE_S

LATE_S = 20
"""Where a worker that has to end at once has not."""


async def do_nothing(job):
    pass


@pytest.fixture(params=[1, 2])
def options(request, url, prefix) -> dict:
    return {"connection": url, "prefix": prefix, "partitions": request.param}


async def close_plainly(worker):
    await worker.close()


async def close_in_time(worker):
    await asyncio.wait_for(worker.close(), 60)


async def close_in_a_group(worker):
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.close())


@pytest.mark.parametrize("close", [close_plainly, close_in_time, close_in_a_group])
@pytest.mark.parametrize("event", ["drained", "closing", "closed"])
async def test_a_callback_may_close_its_worker(event, close, options):
    worker = Worker("q", do_nothing, **options)
    ended = []

    async def stop():
        await close(worker)
        ended.append(event)

    worker.on(event, stop)
    async with Queue("q", **options) as queue:
        await queue.add("x")
        running = asyncio.create_task(worker.run())
        if event != "drained":
            await wait_until(lambda: worker.is_running)
            await asyncio.wait_for(worker.close(), LATE_S)
        await asyncio.wait_for(running, LATE_S)
        await wait_until(lambda: ended)


@pytest.mark.parametrize("close", [close_plainly, close_in_time, close_in_a_group])
async def test_a_handler_may_close_its_worker(close, options):
    """It returns at once; the worker ends when its jobs have, this one too."""
    may_end = asyncio.Event()

    async def handle(job):
        if job.name == "other":
            await may_end.wait()
            return "waited for"
        await close(worker)
        return "closed"

    async with Queue("q", **options) as queue:
        worker = Worker("q", handle, concurrency=2, **options)
        other = await queue.add("other")
        running = asyncio.create_task(worker.run())
        await wait_until(lambda: worker.is_processing)

        last = await queue.add("last")

        assert await queue.wait_for(last.id, LATE_S * 1000) == "closed"
        assert not running.done(), "the other job has not ended"
        may_end.set()
        await asyncio.wait_for(running, LATE_S)
        assert await queue.wait_for(other.id, LATE_S * 1000) == "waited for"


async def test_a_handler_that_closes_its_worker_in_time_keeps_its_job(options):
    async def handle(job):
        await worker.close(timeout=LATE_S * 1000)
        await let_pass(0.2, "all that does not wait for this job has ended")
        await job.log("and can still write")

    async with Queue("q", **options) as queue:
        worker = Worker("q", handle, **options)
        job = await queue.add("x")

        await asyncio.wait_for(worker.run(), 2 * LATE_S)

        assert await queue.get_state(job.id) == "completed"
        assert await queue.get_job_logs(job.id) == ["and can still write"]


async def test_what_a_handler_started_waits_for_the_end_once_its_job_is_over(options):
    closings = []

    async def handle(job):
        async def close_later():
            await is_over.wait()
            await worker.close()
            assert not worker.is_running

        closings.append(asyncio.create_task(close_later()))

    is_over = asyncio.Event()
    worker = Worker("q", handle, **options)
    worker.on("completed", lambda *_: is_over.set())
    async with Queue("q", **options) as queue:
        await queue.add("x")
        await asyncio.wait_for(worker.run(), LATE_S)
        await asyncio.wait_for(closings[0], LATE_S)


async def test_what_an_earlier_run_of_a_job_started_waits_for_the_end(options):
    """It is not called for the run that goes on."""
    begun, may_end, closings = asyncio.Event(), asyncio.Event(), []

    async def handle(job):
        if job.attempts_made:
            begun.set()
            await may_end.wait()
            return

        async def close_later():
            await begun.wait()
            asyncio.get_running_loop().call_later(0.1, may_end.set)
            await worker.close()
            assert not worker.is_running

        closings.append(asyncio.create_task(close_later()))
        raise ValueError("once more")

    worker = Worker("q", handle, **options)
    async with Queue("q", **options) as queue:
        await queue.add("x", attempts=2)
        await asyncio.wait_for(worker.run(), LATE_S)
        await asyncio.wait_for(closings[0], LATE_S)


async def test_a_callback_that_hangs_keeps_no_worker_from_ending(options, caplog):
    begun = asyncio.Event()

    async def hang(job, result):
        begun.set()
        await asyncio.Event().wait()

    async with Queue("q", **options) as queue:
        worker = Worker("q", do_nothing, **options)
        worker.on("completed", hang)
        await worker.start()
        await queue.add("x")
        await begun.wait()

        first = asyncio.create_task(worker.close())
        await let_pass(0.1, "it waits for the callback meanwhile")
        assert not first.done()
        with caplog.at_level(logging.WARNING, "toril.worker"):
            await asyncio.wait_for(worker.close(timeout=0), GRACE_S + LATE_S)
        await first

    assert "1 of its callbacks still run" in caplog.text


async def test_without_a_limit_a_callback_that_hangs_has_a_while(options, caplog, monkeypatch):
    monkeypatch.setattr(events, "LONGEST_DRAIN_S", 0.1)
    done = []

    async def hang():
        await asyncio.Event().wait()

    async def end():
        done.append(True)

    worker = Worker("q", do_nothing, **options)
    worker.on("closing", hang)
    worker.on("closed", end)
    await worker.start()

    with caplog.at_level(logging.WARNING, "toril.worker"):
        await asyncio.wait_for(worker.close(), LATE_S)

    assert done == [True]
    assert "1 of its callbacks still run" in caplog.text
