"""Every kind of handler is given a ``Context``, with a signal that tells it to stop."""

from __future__ import annotations

import asyncio
import threading
import warnings
from typing import Any, cast

import pytest

from tests.helpers import wait_until
from toril import Context, ManualWorker
from toril.testing import make_context
from toril.worker.child import AsyncChildJob, BlockingChildJob, Child

MESSAGE = {"prefix": "bull", "queue": "q", "id": "1", "fields": {b"name": b"a"}, "token": "t"}
MEMBERS = {name for name in dir(Context) if not name.startswith("_")} | set(Context.__annotations__)


def test_jobs_of_child_processes_are_contexts():
    for kind, event in ((BlockingChildJob, threading.Event), (AsyncChildJob, asyncio.Event)):
        with asyncio.Runner() as runner:
            child = Child(cast("Any", None), cast("Any", None), runner)
            job = kind(child, dict(MESSAGE))
            assert isinstance(job, Context)

        assert isinstance(job.signal, event)
        assert job.signal is job.signal
        assert not job.signal.is_set()


async def test_a_context_of_a_test_is_a_context():
    assert isinstance(make_context(), Context)
    assert isinstance(make_context().signal, asyncio.Event)
    plain = await asyncio.to_thread(lambda: make_context().signal)
    assert isinstance(plain, threading.Event)


async def test_a_job_taken_by_hand_has_all_but_what_a_worker_gives(queue, url, prefix):
    await queue.add("a")
    async with ManualWorker("q", connection=url, prefix=prefix) as worker:
        job = await worker.get_next_job(timeout=60_000)
        assert job is not None

        assert {name for name in MEMBERS if not hasattr(job, name)} == {"signal", "state"}
        assert (await job.dependencies_count()).processed == 0
        assert (await job.dependencies()).failed == []
        assert await job.failed_children() == {}
        await job.complete()


async def test_a_signal_is_made_when_it_is_asked_for(queue, start_worker, inside):
    seen: list[Any] = []

    async def handler(job):
        assert job._signals is None
        seen.append(job.signal)
        assert job.signal is seen[0]
        assert isinstance(job, Context)

    await queue.add("a")
    await start_worker(handler)
    await inside.until_finished(1)

    assert isinstance(seen[0], asyncio.Event)
    assert not seen[0].is_set()


async def test_the_signal_of_a_cancelled_job_is_set(queue, start_worker):
    """For an async handler it tells what runs beside it; a plain one waits for it."""
    waiting: list[str] = []
    ended: list[str] = []
    beside: list[asyncio.Task[None]] = []

    async def look(job):
        await job.signal.wait()
        ended.append("beside")

    async def on_loop(job):
        beside.append(asyncio.create_task(look(job)))
        waiting.append(job.id)
        await asyncio.Event().wait()

    def in_thread(job):
        assert isinstance(job, Context)
        waiting.append(job.id)
        assert job.signal.wait(60)
        assert job.is_cancelled
        ended.append("thread")

    for handler, expected in ((on_loop, "beside"), (in_thread, "thread")):
        worker = await start_worker(handler)
        job = await queue.add("a")
        await wait_until(lambda job=job: job.id in waiting)
        await queue.cancel(job.id)
        await wait_until(lambda expected=expected: expected in ended)
        await worker.close()


async def test_the_signal_is_set_when_a_lock_is_lost_and_when_a_worker_gives_up(
    queue, start_worker, client, prefix
):
    reasons: list[tuple[bool, bool]] = []
    begun = threading.Event()

    def in_thread(job):
        begun.set()
        assert job.signal.wait(60)
        reasons.append((job.is_lost, job.is_cancelled))

    worker = await start_worker(in_thread, lock_duration=300)
    job = await queue.add("a")
    await wait_until(begun.is_set)
    await client.set(f"{prefix}:q:{job.id}:lock", "another worker")
    await wait_until(lambda: reasons)
    assert reasons == [(True, True)]

    await client.delete(f"{prefix}:q:{job.id}:lock")
    await worker.close()
    await queue.obliterate(force=True)
    begun.clear()
    worker = await start_worker(in_thread)
    await queue.add("b")
    await wait_until(begun.is_set)
    await worker.close(timeout=0)
    await wait_until(lambda: len(reasons) == 2)

    assert reasons[1] == (False, True)


async def test_progress_is_an_old_name_that_works_and_warns(queue, start_worker, inside):
    reported: list[Any] = []

    async def on_loop(job):
        with pytest.warns(DeprecationWarning, match=r"report\(…\)"):
            await job.progress(50)
        reported.append(job.id)

    job = await queue.add("a")
    await start_worker(on_loop)
    await inside.until_finished(1)

    assert reported == [job.id]
    assert (await inside.job(job.id))["progress"] == "50"
    with pytest.warns(DeprecationWarning, match="report"):
        await make_context().progress(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stored = await queue.get_job(job.id)
        assert stored is not None
        assert stored.progress == 50
