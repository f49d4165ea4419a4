"""An id that a job has is never written over, by any way in."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers import wait_until
from toril import (
    Compensation,
    Deduplication,
    FlowJob,
    FlowProducer,
    GroupJob,
    Queue,
    Worker,
)
from toril.errors import GroupValidationError, RefusedError
from toril.protocol import dead_letters, replaying


@pytest.fixture
async def orders(url: str, prefix: str) -> Any:
    async with Queue("orders", connection=url, prefix=prefix) as queue:
        yield queue


async def refuse(job: Any) -> None:
    raise ConnectionError("no")


async def test_letters_pass_over_numbers_that_jobs_have(orders, url, prefix, client):
    """The counter of the queue was lost: its numbers begin again, and jobs are there."""
    taken = ("1", "2", "3", "4", "7")
    for number in taken:
        key = f"{prefix}:orders-dlq:{number}"
        await client.hset(key, mapping={"name": "old", "data": "{}", "timestamp": 5})
        await client.lpush(f"{prefix}:orders-dlq:wait", number)
    for number in range(5):
        await orders.add("charge", {"n": number})

    worker = Worker("orders", refuse, connection=url, prefix=prefix, dead_letter_queue="orders-dlq")
    async with worker:
        await wait_until(lambda: worker.dead_lettered == 5)

    for number in taken:
        assert await client.hget(f"{prefix}:orders-dlq:{number}", "name") == "old"
    ids = await client.lrange(f"{prefix}:orders-dlq:wait", 0, -1)
    assert len(set(ids)) == len(ids) == 10


async def test_a_replay_does_not_take_an_id_that_is_in_use(orders, url, prefix):
    options = {"connection": url, "prefix": prefix}
    await orders.add("charge", {"n": 1})
    async with Worker("orders", refuse, dead_letter_queue="orders-dlq", **options) as worker:
        await wait_until(lambda: worker.dead_lettered == 1)
    await orders.add("mine", {"keep": True}, job_id="taken")
    async with Queue("orders-dlq", **options) as dlq:
        run = dead_letters.Run("replay", "r", dead_letters.Filter())
        slice_ = await dlq._connection.run(
            replaying.replay_slice(
                dlq.keys, dead_letters.Walk(), dead_letters.Filter(), ["taken"], run=run
            )
        )
        with pytest.raises(RefusedError, match="in use"):
            await dlq._connection.run(replaying.replay(dlq.keys, "1", "taken", "orders"))

        assert slice_.count == 0
        assert await dlq.get_dead_letter_count() == 1
    assert (await orders.get_job("taken")).data == {"keep": True}


async def test_a_compensation_does_not_take_an_id_that_is_in_use(orders, url, prefix, client):
    options = {"connection": url, "prefix": prefix}
    async with FlowProducer(**options) as flow:
        node = await flow.add_group(
            "order",
            [GroupJob("charge", queue_name="orders"), GroupJob("fails", queue_name="orders")],
            {"charge": Compensation("refund")},
            compensation_queue="undo",
        )
    undone: list[str] = []

    async def run(job: Any) -> None:
        if job.name == "fails":
            await wait_until(lambda: charged)
            raise ValueError("no")
        charged.append(job.id)

    async def undo(job: Any) -> None:
        undone.append(job.id)

    charged: list[str] = []
    async with Queue("undo", **options) as mine:
        await client.hset(f"{prefix}:undo:{node.group_id}-c0", mapping={"name": "m", "data": "{}"})
        await client.zadd(f"{prefix}:undo:completed", {f"{node.group_id}-c0": 1})
        async with (
            Worker("orders", run, concurrency=2, **options),
            Worker("undo", undo, **options),
        ):
            await wait_until(lambda: undone)

            async def is_over() -> bool:
                key = f"{prefix}:orders:groups:{node.group_id}"
                return await client.hget(key, "state") == "FAILED"

            await wait_until(is_over)
        assert undone == [f"{node.group_id}-c1-0"]
        assert await client.hget(f"{prefix}:undo:{node.group_id}-c0", "name") == "m"
        assert (await mine.get_job(f"{node.group_id}-c1-0")).name == "refund"


async def test_a_group_sent_again_after_it_was_forgotten_does_not_touch_its_jobs(
    orders, url, prefix, client
):
    options = {"connection": url, "prefix": prefix}
    async with FlowProducer(**options) as flow:
        run, sent = flow._connection.run, []

        async def noting(command: Any) -> Any:
            sent.append(command)
            return await run(command)

        flow._connection.run = noting
        node = await flow.add_group("order", [GroupJob("charge", {"n": 1}, queue_name="orders")])
        (member,) = [job.id for job in node.jobs]
        keys = [key async for key in client.scan_iter(match=f"{prefix}:orders:groups*")]
        await client.delete(*keys)
        await client.hset(f"{prefix}:orders:{member}", "data", '{"n":2}')

        with pytest.raises(GroupValidationError, match=member):
            await run(sent[-1])

    assert (await orders.get_job(member)).data == {"n": 2}
    await client.flushdb()


async def test_a_job_put_aside_does_not_take_an_id_that_was_used_meanwhile(orders, url, prefix):
    last = Deduplication("d", keep_last_if_active=True)

    async def handler(job: Any) -> None:
        if job.name == "first":
            await orders.add("parked", {"n": 2}, job_id="x", deduplication=last)
            await orders.add("other", {"n": 3}, job_id="x", delay=3_600_000)

    async def orders_are_done() -> bool:
        return await orders.get_completed_count() == 1

    await orders.add("first", {"n": 1}, deduplication=last)
    async with Worker("orders", handler, connection=url, prefix=prefix):
        await wait_until(orders_are_done)

    job = await orders.get_job("x")
    assert (job.name, job.data) == ("other", {"n": 3})
    assert await orders.get_state("x") == "delayed"
    assert await orders.add("again", deduplication=last) is not None


async def test_a_flow_leaves_a_job_with_an_id_of_its_own_as_it_is(orders, url, prefix):
    await orders.add("mine", {"n": 1}, job_id="x")
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        await flow.add(
            FlowJob(
                "parent",
                queue_name="orders",
                children=[FlowJob("child", {"n": 2}, queue_name="orders", job_id="x")],
            )
        )

    assert (await orders.get_job("x")).name == "mine"


async def test_an_iteration_does_not_take_an_id_that_is_in_use(orders, client, prefix):
    at = 4_000_000_000_000
    key = f"{prefix}:orders:repeat:daily:{at}"
    await client.hset(key, mapping={"name": "mine", "data": "{}"})

    await orders.upsert_job_scheduler("daily", every=86_400_000, start=at)

    assert await client.hget(key, "name") == "mine"
    await client.delete(key)
