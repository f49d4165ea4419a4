"""Closing a worker: what runs may finish, the rest goes to others at once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.helpers import let_pass, wait_until
from tests.keyspace import lasting_keys
from toril import NewJob, Queue, Router, Worker
from toril.errors import InvalidOptionError


async def test_close_lets_running_jobs_finish(queue, start_worker, inside):
    go_on = asyncio.Event()

    async def handler(job):
        await go_on.wait()

    jobs = [await queue.add(f"{n}") for n in range(3)]
    worker = await start_worker(handler, concurrency=2)
    await wait_until(lambda: len(worker.current_jobs) == 2)
    closing = asyncio.create_task(worker.close())
    await asyncio.sleep(0)
    go_on.set()
    await closing

    assert await inside.ids("completed") == [job.id for job in jobs[:2]]
    assert await inside.ids("wait") == [jobs[2].id]
    assert not worker.is_running


async def on_loop(job):
    await asyncio.sleep(600)


def in_thread(job):
    while not job.is_cancelled:
        time.sleep(0.01)


tests_are_over = threading.Event()


@pytest.fixture(autouse=True, scope="module")
def _let_deaf_threads_go():
    yield
    tests_are_over.set()


def deaf_thread(job):
    tests_are_over.wait(600)


async def deaf_task(job):
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            if job.data == "end":
                return


async def failing_cleanup(job):
    try:
        await asyncio.sleep(600)
    finally:
        raise ValueError("the cleanup failed")


def router():
    router = Router()
    router.otherwise(on_loop)
    return router


@pytest.mark.parametrize(
    "handler",
    [on_loop, in_thread, deaf_thread, failing_cleanup, router()],
    ids=["async", "thread", "deaf thread", "failing cleanup", "router"],
)
async def test_what_does_not_finish_in_time_is_handed_back(handler, queue, start_worker, inside):
    """Jobs handed back are first in line, uncounted, without a lock, and run once elsewhere."""
    jobs = [await queue.add(f"{n}") for n in range(4)]
    worker = await start_worker(handler, concurrency=2)
    await wait_until(lambda: len(worker.current_jobs) == 2)

    await asyncio.wait_for(worker.close(timeout=50), 60)

    waiting = await inside.ids("wait")
    # RPOP takes from the end: those that were handed back come first.
    assert set(waiting[-2:]) == {job.id for job in jobs[:2]}
    assert set(waiting[:2]) == {job.id for job in jobs[2:]}
    for job in jobs[:2]:
        stored = await inside.job(job.id)
        assert (stored.get("atm", "0"), stored.get("stc", "0")) == ("0", "0")
        assert await inside.lock(job.id) is None

    runs = []

    async def other(job):
        runs.append(job.id)

    await start_worker(other, concurrency=4, stalled_interval=600_000)
    await inside.until_finished(4)
    assert sorted(runs) == sorted(job.id for job in jobs)
    assert await inside.events("stalled") == []


async def test_an_idle_worker_gets_what_another_hands_back_at_once(queue, start_worker, inside):
    taken = asyncio.Event()

    async def other(job):
        taken.set()

    await queue.add("job")
    worker = await start_worker(on_loop)
    await wait_until(lambda: worker.is_processing)
    await start_worker(other, stalled_interval=600_000)
    await wait_until(lambda: _is_blocked(inside))
    await worker.close(timeout=0)

    await asyncio.wait_for(taken.wait(), 60)
    await inside.until_finished(1)


async def _is_blocked(inside) -> bool:
    """Two leases and the wait of the idle worker."""
    return (await inside.client.info("clients"))["blocked_clients"] >= 3


async def test_a_handler_deaf_to_cancellation_is_left_behind(queue, start_worker, inside):
    job = await queue.add("deaf")
    worker = await start_worker(deaf_task)
    await wait_until(lambda: worker.is_processing)
    deaf = worker.current_jobs[0]

    await worker.close(timeout=0)

    assert await inside.ids("wait") == [job.id]
    assert (await inside.job(job.id)).get("atm", "0") == "0"
    deaf._data = "end"
    for task in asyncio.all_tasks():
        if task.get_coro().__name__ == "_attempt":
            task.cancel()
            await task


async def test_a_second_close_can_shorten_the_first(queue, start_worker, inside):
    await queue.add("job")
    worker = await start_worker(on_loop)
    await wait_until(lambda: worker.is_processing)
    patient = asyncio.create_task(worker.close())
    await let_pass(0.02, "nothing ends it but its job")
    assert not patient.done()

    await worker.close(timeout=0)

    await patient
    assert len(await inside.ids("wait")) == 1


async def test_jobs_on_their_way_are_handed_back_too(queue, start_worker, inside):
    """A call that is away when the worker closes brings jobs; they must not be forgotten."""
    for n in range(50):
        await queue.add(f"{n}")
    for _ in range(5):
        worker = await start_worker(on_loop, concurrency=10)
        await asyncio.sleep(0)
        await worker.close(timeout=0)

        assert await inside.ids("active") == []
        assert len(await inside.ids("wait")) == 50
    assert {
        int((await inside.job(job_id)).get("atm", 0)) for job_id in await inside.ids("wait")
    } == {0}


async def test_closing_under_load_loses_nothing_and_doubles_nothing(queue, start_worker, inside):
    runs: list[str] = []

    async def handler(job):
        await asyncio.sleep(0.001)
        runs.append(job.id)

    added = {job.id for job in await queue.add_bulk([_new(n) for n in range(300)])}
    while len(await inside.ids("completed")) < 300:
        worker = await start_worker(handler, concurrency=20)
        await let_pass(0.015, "some of the jobs run")
        await worker.close(timeout=60_000)
        assert await inside.ids("active") == []

    assert sorted(runs) == sorted(added)


def _new(n):
    return NewJob(f"{n}")


@pytest.mark.parametrize("concurrency", [1, 2], ids=["busy", "with a free slot"])
async def test_close_ends_although_the_server_does_not_answer(concurrency, start_server):
    server = start_server()
    async with Queue("q", connection=server.unix_url) as own:
        await own.add("job")
        worker = Worker("q", on_loop, connection=server.unix_url, concurrency=concurrency)
        await worker.start()
        await wait_until(lambda: worker.is_processing)
        server.freeze()
        await asyncio.wait_for(worker.close(timeout=100), 30)

        left = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]
        assert not [name for name in left if name.startswith(("Worker", "Pump", "Watch", "Sweep"))]
        server.thaw()


SILENT = ["refuses", "accepts and is silent", "fell silent"]


@pytest.mark.parametrize("how", SILENT)
async def test_without_a_job_a_silent_server_is_not_waited_for(how, start_server):
    """The limit is for jobs: a deployment is not to hang because Redis is away."""
    server = start_server(tcp=True)
    listener = socket.create_server(("127.0.0.1", 0))
    url = {
        "refuses": "redis://127.0.0.1:1",
        "accepts and is silent": f"redis://127.0.0.1:{listener.getsockname()[1]}",
        "fell silent": server.url,
    }[how]
    worker = Worker("q", on_loop, connection=url)
    errors: list[Exception] = []
    worker.on("error", errors.append)
    await worker.start()
    if how == "fell silent":
        await wait_until(lambda: worker.last_reply_age is not None)
        server.freeze()
    elif how == "refuses":
        await wait_until(lambda: errors)

    await asyncio.wait_for(worker.close(timeout=600_000), 30)

    server.thaw()
    listener.close()


@pytest.mark.parametrize("work", ["none", "on the loop", "in a thread"])
async def test_a_loop_ends_although_nobody_closed_its_worker(work, start_server):
    """Its server is silent, and nothing may keep ``asyncio.run`` from returning."""
    server = start_server()
    release = threading.Event()

    def in_thread(job):
        release.wait(60)

    async def main() -> None:
        handler = in_thread if work == "in a thread" else on_loop
        worker = Worker("q", handler, connection=server.unix_url)
        if work == "none":
            with server.client() as client:
                await worker.start()
                # Both wait: the one for jobs, and the lease for its mail.
                await wait_until(lambda: client.info("clients")["blocked_clients"] == 2)
        else:
            async with Queue("q", connection=server.unix_url) as own:
                await own.add("job")
            await worker.start()
            await wait_until(lambda: worker.is_processing)
        server.freeze()

    await asyncio.wait_for(asyncio.to_thread(asyncio.run, main()), 60)

    release.set()
    server.thaw()


async def test_with_a_job_a_silent_server_is_waited_for(start_server, monkeypatch):
    """It has a result to write, so it uses its time."""
    monkeypatch.setattr("toril.worker.life.SILENCE_S", 0.2)
    server = start_server()
    go_on = asyncio.Event()

    async def handler(job):
        await go_on.wait()

    async with Queue("q", connection=server.unix_url) as own:
        job = await own.add("job")
        worker = Worker("q", handler, connection=server.unix_url)
        await worker.start()
        await wait_until(lambda: worker.is_processing)
        server.freeze()
        go_on.set()
        closing = asyncio.create_task(worker.close(timeout=60_000))
        await let_pass(1, "it might give a silent server up")
        assert not closing.done()

        server.thaw()
        await asyncio.wait_for(closing, 60)

        assert await own.get_state(job.id) == "completed"


@pytest.mark.usefixtures("patient_end")
async def test_cancelling_run_hands_jobs_back(queue, url, prefix, inside):
    job = await queue.add("job")
    worker = Worker("q", on_loop, connection=url, prefix=prefix)
    running = asyncio.create_task(worker.run())
    await wait_until(lambda: worker.is_processing)

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert await inside.ids("wait") == [job.id]


async def test_a_worker_runs_once(start_worker, url, prefix):
    worker = await start_worker(on_loop)
    with pytest.raises(InvalidOptionError, match=r"already (been )?started"):
        await worker.start()
    await worker.close()
    with pytest.raises(InvalidOptionError, match=r"already (been )?started"):
        await worker.run()


async def test_a_worker_that_was_never_started_closes(url, prefix):
    worker = Worker("q", on_loop, connection=url, prefix=prefix)
    await worker.close()
    with pytest.raises(InvalidOptionError, match="is closed"):
        await worker.start()


async def test_a_closed_worker_leaves_no_trace(queue, start_worker, inside):
    await queue.add("job")
    worker = await start_worker(lambda job: 1)
    await inside.until_finished(1)
    await worker.close()

    keys = [key for key in await lasting_keys(inside.client, inside.base) if ":toril:" in key]
    assert keys == []
    names = [row["name"] for row in await inside.client.client_list() if inside.base in row["name"]]
    assert names == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
async def test_a_worker_closes_although_a_handler_raised_what_ends_loops(
    error, queue, url, prefix, start_worker, inside
):
    """Regression: closing it waited for ever, at first with a whole core."""
    job = await queue.add("job")
    has_closed = threading.Event()

    async def handler(job):
        raise error

    async def main() -> None:
        worker = Worker("q", handler, connection=url, prefix=prefix, lock_duration=1000)
        await worker.start()
        try:
            async with asyncio.timeout(60):
                await wait_until(lambda: not worker.is_processing)
                await let_pass(0.2, "KeyboardInterrupt ends the loop meanwhile")
        finally:
            await worker.close()
            has_closed.set()

    def run() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(main())

    await asyncio.wait_for(asyncio.to_thread(run), 60)
    assert has_closed.is_set()
    await start_worker(lambda job: 1, stalled_interval=200)
    await inside.until_finished(1)

    assert await inside.ids("completed") == [job.id]


async def test_an_end_waits_for_no_function_that_handlers_left_in_threads(queue, start_worker):
    """``asyncio.to_thread`` goes on after its handler, and the threads of a loop are few."""
    may_end = threading.Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))

    async def handler(job):
        await asyncio.to_thread(may_end.wait, 600)

    try:
        worker = await start_worker(handler, concurrency=4)
        await queue.add_bulk([NewJob("blocks") for _ in range(4)])
        await wait_until(lambda: len(worker.current_jobs) == 4)

        await asyncio.wait_for(worker.close(timeout=0), 60)

        assert not may_end.is_set()
    finally:
        may_end.set()
