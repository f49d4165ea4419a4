"""An app whose queues have partitions, on one server and on a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.helpers import wait_until
from tests.servers import Cluster
from toril import App, Context, JobFailedError, every
from toril.errors import InvalidOptionError, PartitionMismatchError
from toril.sync import Queue as BlockingQueue

PATIENCE_MS = 30_000

Start = Callable[..., None]


@pytest.fixture
async def app(url: str, prefix: str) -> AsyncIterator[App]:
    app = App(connection=url, prefix=prefix, queue="mail", partitions={"mail": 4})
    yield app
    await app.close()


@pytest.fixture
async def run() -> AsyncIterator[Start]:
    """Starts an app; it is closed after the test."""
    running: list[tuple[App, asyncio.Task[None]]] = []

    def start(app: App, *args: Any, **options: Any) -> None:
        running.append((app, asyncio.create_task(app.run(*args, **options))))

    yield start
    for app, task in running:
        await asyncio.sleep(0)
        await app.close(timeout=1000)
        await task


async def test_tasks_are_spread_and_their_results_come_back(app: App, run: Start):
    @app.task
    async def double(ctx: Context, n: int) -> int:
        return n * 2

    run(app)
    handles = await app.enqueue_many([double.call(n) for n in range(40)])
    handles += [await double.using(lane=f"l{n}").enqueue(n) for n in range(8)]

    results = [await handle.result(PATIENCE_MS) for handle in handles]

    assert results == [n * 2 for n in range(40)] + [n * 2 for n in range(8)]
    queue = app.queue("mail")
    assert len(queue.partitions) == 4
    assert await queue.get_completed_count() == 48
    homes = [part for part in queue.partitions if await part.get_completed_count()]
    assert len(homes) > 1
    assert await asyncio.to_thread(lambda: double.sync.enqueue(4).result(PATIENCE_MS)) == 8


async def test_a_schedule_is_declared_once_and_runs(app: App, run: Start):
    ran = asyncio.Event()

    @app.task(schedule=every(seconds=1))
    async def tick() -> None:
        ran.set()

    assert [one.id for one in await app.declare_schedules()] == ["task.tick"]
    assert await app.declare_schedules() == []
    assert await app.queue("mail").get_job_scheduler_count() == 1
    run(app)
    await asyncio.wait_for(ran.wait(), 60)
    del app._tasks["tick"]
    app._tasks["other"] = app.task(name="other")(lambda: None)
    assert len(await app.prune_schedules()) == 1


async def test_a_group_that_fails_is_undone_in_the_same_partition(app: App, run: Start):
    undone: list[int] = []

    @app.task
    async def charge(order: int) -> int:
        return order

    @charge.undo
    async def refund(order: int) -> None:
        undone.append(order)

    @app.task(attempts=1)
    async def ship(order: int, receipt: int) -> None:
        raise ValueError("no stock")

    run(app)
    assert app.queue_names == ["mail", "{mail}:compensation"]
    for order in range(6):
        async with app.group("order", group_id=f"order-{order}") as saga:
            receipt = saga.add(charge.call(order))
            saga.add(ship.call(order, receipt=receipt.result))
        assert (await saga.wait(PATIENCE_MS)).state == "FAILED"

    assert sorted(undone) == list(range(6))
    handle = await app.chain(charge.call(7), charge.call(8))
    assert await handle.result(PATIENCE_MS) == 8
    queue = app.queue("mail")
    owners = [part for part in queue.partitions if await part.get_groups()]
    assert len(owners) > 1, "groups are spread by their ids"


async def test_a_task_that_fails_for_good_has_its_letter_beside_it(app: App, run: Start):
    app.worker_options["dead_letter_queue"] = "{queue}-dlq"

    @app.task(attempts=1)
    async def fail(n: int) -> None:
        raise ValueError("no")

    run(app)
    for handle in [await fail.enqueue(n) for n in range(8)]:
        with pytest.raises(JobFailedError):
            await handle.result(PATIENCE_MS)

    letters = app.queue("{mail}-dlq")
    assert len(letters.partitions) == 4
    assert await letters.get_dead_letter_count() == 8


async def test_another_number_than_the_servers_is_refused(app: App, url: str, prefix: str):
    with BlockingQueue("mail", connection=url, prefix=prefix, partitions=8) as queue:
        queue.add("x")

    @app.task
    async def work() -> None: ...

    with pytest.raises(
        PartitionMismatchError, match="has 8 partitions and this process was told 4"
    ):
        await work.enqueue()
    with pytest.raises(InvalidOptionError, match="by queue"):
        App(worker_options={"partitions": 4})
    with pytest.raises(InvalidOptionError, match="takes a dict"):
        App(partitions=4)  # type: ignore[arg-type]


async def test_an_app_on_a_cluster(cluster: Cluster, run: Start):
    app = App(connection=cluster.url, queue="shop", partitions={"shop": 6})
    undone: list[int] = []

    @app.task
    async def charge(order: int) -> int:
        return order

    @charge.undo
    async def refund(order: int) -> None:
        undone.append(order)

    @app.task(attempts=1)
    async def ship(order: int) -> None:
        raise ValueError("no stock")

    run(app)
    for order in range(6):
        async with app.group("order") as saga:
            first = saga.add(charge.call(order))
            saga.add(ship.call(order), after=[first])
        assert (await saga.wait(PATIENCE_MS)).state == "FAILED"
    handles = await app.enqueue_many([charge.call(n) for n in range(30)])
    assert [await handle.result(PATIENCE_MS) for handle in handles] == list(range(30))
    await wait_until(lambda: sorted(undone) == list(range(6)))
    await app.queue("shop").obliterate(force=True)
    await app.queue("{shop}:compensation").obliterate(force=True)
