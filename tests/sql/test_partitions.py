"""The relay and queues with partitions: each row is one job, where it belongs."""

from __future__ import annotations

import pytest
from sqlalchemy import select, update

from toril import Deduplication, FlowJob, GroupJob, Queue, Worker
from toril.client import agreeing, growing
from toril.client import partitions as partitions_module
from toril.protocol import partitioning
from toril.protocol.partitioning import Numbers


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Processes ask at every call whether the number is still the same."""
    monkeypatch.setattr(partitions_module, "AGREE_AGAIN_S", 0.0)
    monkeypatch.setattr(agreeing, "AGREE_AGAIN_S", 0.0)


@pytest.fixture
async def payments(url, prefix):
    async with Queue("payments", connection=url, prefix=prefix, partitions=4) as queue:
        await queue.pause()
        yield queue


def write(engine, outbox, count, **options):
    with engine.begin() as connection:
        return [
            outbox.add(connection, "payments", "charge", {"n": n}, **options) for n in range(count)
        ]


def statuses(engine, outbox):
    with engine.connect() as connection:
        table = outbox.table
        return list(connection.execute(select(table.c.status).order_by(table.c.seq)).scalars())


def send_again(engine, outbox):
    """As after a relay that died before it wrote down what it had sent."""
    with engine.begin() as connection:
        connection.execute(update(outbox.table).values(status="pending", due_at=0))


async def test_rows_go_to_the_partitions_of_their_queue(
    engine, outbox, relay, payments, make_relay
):
    ids = write(engine, outbox, 40)
    write(engine, outbox, 5, lane="user-7")
    write(engine, outbox, 2, deduplication=Deduplication("daily"))

    assert await relay.drain() == 47

    assert await payments.get_waiting_count() + await payments.get_lane_count() > 40
    counts = [await part.get_job_counts("waiting") for part in payments.partitions]
    assert all(any(one.values()) for one in counts)
    for job_id in ids:
        assert await payments.get_job(job_id) is not None
    lane = payments.partitions[partitioning.home_of("user-7", 4)]
    assert len(await lane.get_lane_jobs("user-7")) == 5
    owner = payments.partitions[partitioning.home_of("daily", 4)]
    assert await owner.get_deduplication_job_id("daily") is not None
    send_again(engine, outbox)
    assert await make_relay().drain() == 47
    total = await payments.get_job_counts()
    assert sum(total.values()) == 46, "each row is one job, but for the duplicate"


async def test_a_row_is_one_job_although_the_queue_has_grown(
    engine, outbox, payments, make_relay, url, prefix
):
    ids = write(engine, outbox, 30)
    await make_relay(confirm=True).drain()
    await growing.grow(payments._connection, payments.keys, 16, grace_s=0.0)
    async with Queue("payments", connection=url, prefix=prefix, partitions=16) as grown:
        ran = []

        async def charge(job):
            ran.append(job.id)

        where = {"connection": url, "prefix": prefix}
        await grown.resume()
        worker = Worker(
            "payments", charge, partitions=16, concurrency=8, remove_on_complete=True, **where
        )
        async with worker:
            assert await grown.wait_until_empty(60_000)
        send_again(engine, outbox)
        relay = make_relay(confirm=True, confirm_interval=1)
        assert await relay.drain() == 30
        assert await relay.confirm_once() == 30
        assert set(statuses(engine, outbox)) == {"done"}
        async with Worker("payments", charge, partitions=16, concurrency=8, **where):
            assert await grown.wait_until_empty(60_000)

    assert sorted(ran) == sorted(ids)


async def test_a_row_is_one_group_although_the_queue_has_grown(
    engine, outbox, relay, payments, make_relay, url, prefix
):
    with engine.begin() as connection:
        members = [GroupJob("charge", queue_name="payments")]
        ids = [outbox.add_group(connection, "order", members) for _ in range(20)]
    assert await relay.drain() == 20
    await growing.grow(payments._connection, payments.keys, 16, grace_s=0.0)

    send_again(engine, outbox)
    assert await make_relay().drain() == 20

    async with Queue("payments", connection=url, prefix=prefix, partitions=16) as grown:
        assert sorted(group.id for group in await grown.get_groups()) == sorted(ids)
        assert await grown.get_waiting_count() == 20


async def test_rows_wait_while_their_queue_grows(engine, outbox, relay, payments):
    write(engine, outbox, 3)
    with engine.begin() as connection:
        outbox.add(connection, "plain", "x")
    grows = Numbers((), 4, 8, "j1")
    await payments._connection.run(partitioning.swap(payments.keys, Numbers((), 4), grows))

    assert await relay.run_once() == 4

    assert statuses(engine, outbox) == ["pending"] * 3 + ["dispatched"]
    assert relay.metrics.put_off == 3
    assert (await relay.stats()).parked == 0
    await payments._connection.run(partitioning.swap(payments.keys, grows, Numbers((4,), 8)))
    with engine.begin() as connection:
        connection.execute(update(outbox.table).values(due_at=0))
    assert await relay.drain() == 3
    assert await payments._connection.run(partitioning.read(payments.keys)) == Numbers((4,), 8)


async def test_flows_and_groups_of_rows_go_to_partitions(
    engine, outbox, relay, payments, url, prefix
):
    with engine.begin() as connection:
        child = FlowJob("charge", queue_name="payments")
        flow_id = outbox.add_flow(
            connection, FlowJob("sum", queue_name="payments", children=[child])
        )
        group_id = outbox.add_group(
            connection, "order", [GroupJob("charge", queue_name="payments")] * 2
        )

    assert await relay.drain() == 2

    owner = payments.partitions[partitioning.home_of(group_id, 4)]
    assert [group.id for group in await owner.get_groups()] == [group_id]
    root = await payments.get_job(flow_id)
    assert partitioning.whole_of(root.queue_name) == ("payments", partitioning.home_of(flow_id, 4))
    send_again(engine, outbox)
    assert await relay.drain() == 2
    assert relay.metrics.duplicates == 2


async def test_a_relay_can_be_the_first_to_know(engine, outbox, make_relay, url, prefix):
    write(engine, outbox, 10)

    assert await make_relay(partitions={"payments": 4}).drain() == 10

    async with Queue("payments", connection=url, prefix=prefix, partitions=4) as queue:
        assert await queue.get_waiting_count() == 10
