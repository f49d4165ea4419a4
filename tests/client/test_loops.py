"""What is made at the top of a module outlives the event loop that used it first."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from toril import App, FlowJob, FlowProducer, Queue, QueueEvents, Worker
from toril.client.connection import Connection
from toril.client.places import PerPlace
from toril.protocol.command import plain

Program = Callable[[Coroutine[Any, Any, Any]], Any]


def leave_running(program: Coroutine[Any, Any, Any]) -> Any:
    """Runs a program, and closes its loop with everything that still runs on it."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    try:
        return loop.run_until_complete(program)
    finally:
        loop.close()


def with_uvloop(program: Coroutine[Any, Any, Any]) -> Any:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(program)


@pytest.fixture(params=[asyncio.run, leave_running, with_uvloop], ids=lambda one: one.__name__)
def run(request: pytest.FixtureRequest) -> Program:
    return request.param


@pytest.fixture
def space(url: str) -> Any:
    """A prefix of the test's own, for tests without a loop."""
    prefix = f"t{os.urandom(5).hex()}"
    yield prefix

    async def clean() -> None:
        connection = Connection(url)
        keys = await connection.run(plain("KEYS", f"{prefix}:*", parse=list))
        if keys:
            await connection.run(plain("UNLINK", *keys, parse=int))
        await connection.close()

    asyncio.run(clean())


async def double(job: Any) -> int:
    return int(job.data) * 2


@contextlib.asynccontextmanager
async def working(name: str, url: str, prefix: str) -> Any:
    worker = Worker(name, double, connection=url, prefix=prefix)
    await worker.start()
    try:
        yield
    finally:
        await worker.close()


def test_a_queue_waits_for_results_on_one_loop_after_another(run, url, space):
    queue = Queue("numbers", connection=url, prefix=space)

    async def program(number: int) -> Any:
        async with working("numbers", url, space):
            jobs = await asyncio.gather(*(queue.add("double", number) for _ in range(20)))
            return await queue.wait_for(jobs[-1].id, timeout=60_000)

    assert [run(program(number)) for number in (1, 2, 3)] == [2, 4, 6]
    asyncio.run(queue.close())


def test_adds_that_a_closed_loop_left_behind_hold_up_nobody(url, space):
    queue = Queue("numbers", connection=url, prefix=space)

    async def leave() -> None:
        left = [asyncio.ensure_future(queue.add("double", number)) for number in range(5)]
        assert left
        await asyncio.sleep(0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        leave_running(leave())
        gc.collect()

    assert asyncio.run(queue.add("double", 9)).data == 9
    asyncio.run(queue.close())


def test_a_flow_producer_adds_on_one_loop_after_another(run, url, space):
    producer = FlowProducer(connection=url, prefix=space)

    async def program() -> Any:
        child = FlowJob("one", queue_name="numbers")
        node = await producer.add(FlowJob("parent", queue_name="numbers", children=[child]))
        return await producer.get_flow(node.job.id, "numbers")

    assert all(run(program()) is not None for _ in range(2))
    asyncio.run(producer.close())


def test_queue_events_keep_their_place_from_one_loop_to_the_next(run, url, space):
    queue = Queue("numbers", connection=url, prefix=space)
    events = QueueEvents("numbers", connection=url, prefix=space, last_event_id="0")

    async def program() -> list[str | None]:
        job = await queue.add("double", 1)
        seen = []
        async for event in events:
            if event.name == "added":
                seen.append(event.job_id)
            if event.job_id == job.id and event.name == "waiting":
                break
        return [job.id, *seen]

    assert [len(set(run(program()))) for _ in range(2)] == [1, 1]

    async def close() -> None:
        await queue.close()
        await events.close()

    asyncio.run(close())


def test_callbacks_are_called_on_the_loop_that_listens(run, url, space):
    queue = Queue("numbers", connection=url, prefix=space)
    events = QueueEvents("numbers", connection=url, prefix=space)

    async def program() -> bool:
        heard = asyncio.Event()

        def hear(event: Any) -> None:
            heard.set()

        await events.__aenter__()
        events.on("added", hear)
        await queue.add("double", 1)
        async with asyncio.timeout(60):
            await heard.wait()
        events.off("added", hear)
        return True

    assert [run(program()) for _ in range(2)] == [True, True]

    async def close() -> None:
        await queue.close()
        await events.close()

    asyncio.run(close())


def test_an_app_enqueues_and_awaits_results_on_one_loop_after_another(run, url, space):
    app = App(connection=url, prefix=space)

    @app.task
    async def triple(number: int) -> int:
        return number * 3

    async def program(number: int) -> Any:
        running = asyncio.create_task(app.run())
        handle = await triple.enqueue(number)
        result = await handle.result(timeout=60_000)
        await app.close()
        await running
        return result

    assert [run(program(number)) for number in (1, 2)] == [3, 6]


def test_a_producer_only_app_needs_no_close(run, url, space):
    app = App(connection=url, prefix=space)

    @app.task
    async def triple(number: int) -> int:
        return number * 3

    async def program(number: int) -> str:
        return (await triple.enqueue(number)).id

    assert len({run(program(number)) for number in (1, 2)}) == 2
    asyncio.run(app.close())


def test_a_shared_connection_serves_one_loop_after_another(run, url, space):
    connection = Connection(url)

    async def program() -> Any:
        return await asyncio.gather(
            *(connection.run(plain("ECHO", "hello", parse=bytes)) for _ in range(40))
        )

    assert [run(program()) for _ in range(2)] == [[b"hello"] * 40] * 2
    asyncio.run(connection.close())


@pytest.mark.parametrize("run", [asyncio.run, leave_running])
def test_sockets_of_closed_loops_are_closed_without_a_word(run, url):
    connection = Connection(url)

    async def program() -> int:
        await connection.run(plain("ECHO", "hello", parse=bytes))
        return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc").exists() else 0

    run(program())
    gc.collect()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        counts = [run(program()) for _ in range(5)]
        gc.collect()

    assert len(set(counts)) == 1
    assert [str(one.message) for one in told if "unclosed" in str(one.message)] == []
    asyncio.run(connection.close())


def test_two_loops_at_once_have_sockets_of_their_own(url, space):
    queue = Queue("numbers", connection=url, prefix=space)
    added: list[str] = []

    async def program() -> None:
        for _ in range(20):
            jobs = await asyncio.gather(*(queue.add("double", 1) for _ in range(10)))
            added.extend(job.id for job in jobs)

    threads = [threading.Thread(target=asyncio.run, args=(program(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len(set(added)) == 600
    asyncio.run(queue.close())


def test_a_cluster_serves_one_loop_after_another(run, cluster, space):
    address = cluster.url.replace("redis:", "redis+cluster:")
    queue = Queue("numbers", connection=address, prefix="{" + space + "}")

    async def program(number: int) -> Any:
        await asyncio.gather(*(queue.add("double", number) for _ in range(5)))
        return await queue.get_job_counts("waiting")

    assert [run(program(number)) for number in (1, 2)] == [{"waiting": 5}, {"waiting": 10}]

    async def close() -> None:
        await queue.obliterate(force=True)
        await queue.close()

    asyncio.run(close())


def test_a_closed_queue_stays_closed_on_every_loop(url, space):
    queue = Queue("numbers", connection=url, prefix=space)
    asyncio.run(queue.add("double", 1))
    asyncio.run(queue.close())

    with pytest.raises(Exception, match="is closed"):
        asyncio.run(queue.add("double", 1))


def test_what_belonged_to_a_closed_loop_is_forgotten():
    forgotten: list[object] = []
    per = PerPlace(object, forgotten.append)

    async def here() -> tuple[object, object]:
        return per.here(), per.here()

    first, again = asyncio.run(here())
    second, _ = asyncio.run(here())

    assert first is again
    assert first is not second
    assert forgotten == [first]
    assert per.values() == [second]
