"""Removing a queue that has something for queues in other slots."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import redis.exceptions

from tests.features.parcels.conftest import Slots
from tests.features.parcels.test_couriers import _lose_reply, bury, idle, put_off
from tests.helpers import wait_until
from toril import FlowJob, FlowProducer, Queue, Worker
from toril.errors import NotDeliveredError
from toril.protocol import parceling, removing


class Sorrow:
    """A queue that has buried jobs in another slot, by a process that died before it carried them:
    they are in no other place."""

    def __init__(self, slots: Slots, queue: Queue, letters: Queue) -> None:
        self.slots = slots
        self.queue = queue
        self.letters = letters

    async def keys(self) -> set[str]:
        """The keys that are left of the queue."""
        head = f"{self.queue.keys.base}:"
        found = self.slots.client.scan_iter(match=f"{head}*")
        return {key.removeprefix(head) async for key in found}

    def cut_off(self) -> None:
        cut_off(self.queue)


def cut_off(queue: Queue) -> None:
    """Let the queue's line reach no queue in another slot."""
    line = queue._connection
    line._patience_s = 0.01
    exchange = line._transport.exchange

    async def deliver_nothing(sending, timeout_s):
        script = sending.command.script
        if script is not None and script.name == "deliverParcels":
            raise redis.exceptions.ConnectionError("nobody is there")
        return await exchange(sending, timeout_s)

    line._transport.exchange = deliver_nothing


@asynccontextmanager
async def sorrow_of(slots: Slots, count: int) -> AsyncIterator[Sorrow]:
    orders, dlq = slots.name(0), slots.name(1)
    await bury(slots, orders, dlq, count)
    async with Queue(orders, **slots.options) as queue, Queue(dlq, **slots.options) as letters:
        yield Sorrow(slots, queue, letters)


@pytest.fixture
async def sorrow(slots):
    async with sorrow_of(slots, 3) as one:
        yield one


@pytest.mark.parametrize("force", [False, True])
async def test_parcels_are_delivered_before_their_queue_goes(sorrow, force, monkeypatch):
    """Even those that another courier was given, and may have lost."""
    monkeypatch.setattr(parceling, "PARCELS_PER_SLICE", 2)
    await put_off(sorrow.slots, sorrow.queue.name)
    await sorrow.queue.pause()

    await sorrow.queue.obliterate(force)

    assert await sorrow.letters.get_dead_letter_count() == 3
    assert await sorrow.keys() == set()


async def test_a_queue_whose_parcels_cannot_be_delivered_is_kept(sorrow):
    sorrow.cut_off()
    job = await sorrow.queue.add("another")
    await sorrow.queue.pause()

    with pytest.raises(NotDeliveredError, match="3 not delivered yet, 0 refused") as refused:
        await sorrow.queue.obliterate()

    assert "nobody is there" in str(refused.value.__cause__)
    assert await sorrow.queue.get_state(job.id) == "waiting"
    assert await sorrow.queue.get_job_counts("in_transit") == {"in_transit": 3}


async def test_parcels_that_are_left_in_the_meantime_keep_the_queue(sorrow):
    """A job that ends while its queue is erased leaves a parcel between two slices."""
    sorrow.cut_off()
    await sorrow.queue.pause()
    line = sorrow.queue._connection
    plan = removing.obliterate(sorrow.queue.keys)
    command = next(plan)
    assert command.script.name == "obliterate"

    command = plan.send([0, 0])
    answer = await line.run(command)

    assert command.script.name == "eraseKeys"
    assert answer == -116
    assert await sorrow.slots.parcels(sorrow.queue.name) == 3
    assert await sorrow.queue.is_paused()


async def test_force_leaves_what_cannot_be_delivered_to_a_worker(sorrow):
    """The rest is gone, and the queue can be used at once."""
    sorrow.cut_off()
    await sorrow.queue.add("another")

    assert await sorrow.queue.obliterate(force=True) == 1

    left = {"toril:parcels", "toril:parcels-due", "toril:in-transit", "meta"}
    assert await sorrow.keys() == left
    assert not await sorrow.queue.is_paused()
    async with Worker(sorrow.queue.name, idle, **sorrow.slots.options):
        await wait_until(lambda: _letters(sorrow, 3))
        job = await sorrow.queue.add("after it")
        await sorrow.queue.wait_for(job.id, 60_000)
    assert await sorrow.slots.leftovers(sorrow.queue.name) == {}


async def test_force_that_leaves_parcels_ends_although_its_last_reply_is_lost(sorrow):
    sorrow.cut_off()
    lost = _lose_reply(sorrow.queue._connection, "eraseKeys")

    assert await sorrow.queue.obliterate(force=True) == 0

    assert lost == ["eraseKeys"]
    assert await sorrow.slots.parcels(sorrow.queue.name) == 3


async def _letters(sorrow: Sorrow, count: int) -> bool:
    return await sorrow.letters.get_dead_letter_count() == count


async def test_only_force_erases_what_was_refused(sorrow):
    await sorrow.slots.client.set(sorrow.letters.keys.wait, "not a list")
    await sorrow.queue.pause()

    with pytest.raises(NotDeliveredError, match="0 not delivered yet, 3 refused"):
        await sorrow.queue.obliterate()
    assert len(await sorrow.slots.refused(sorrow.queue.name)) == 3

    await sorrow.queue.obliterate(force=True)
    assert await sorrow.keys() == set()


async def test_a_parent_hears_that_the_queue_of_its_child_is_gone(slots):
    """Although nobody carries what the replies bring."""
    parents, children = slots.name(1), slots.name(0)
    flow = FlowJob("parent", queue_name=parents, children=[FlowJob("child", queue_name=children)])
    async with (
        FlowProducer(**slots.options) as producer,
        Queue(parents, **slots.options) as above,
        Queue(children, **slots.options) as below,
    ):
        node = await producer.add(flow)
        assert await above.get_state(node.job.id) == "waiting_children"
        below._connection.on_parcels = lambda base: None

        assert await below.obliterate(force=True) == 1

        assert await above.get_state(node.job.id) == "waiting"
        assert await slots.leftovers(children) == {}


async def test_force_erases_what_was_refused_beside_what_is_due(sorrow):
    await sorrow.slots.client.set(sorrow.letters.keys.wait, "not a list")
    await sorrow.queue.pause()
    with pytest.raises(NotDeliveredError, match="0 not delivered yet, 3 refused"):
        await sorrow.queue.obliterate()
    await sorrow.queue.resume()
    await sorrow.slots.client.delete(sorrow.letters.keys.wait)
    await bury(sorrow.slots, sorrow.queue.name, sorrow.letters.name, 2)
    sorrow.cut_off()

    await sorrow.queue.obliterate(force=True)

    assert await sorrow.slots.refused(sorrow.queue.name) == {}
    assert await sorrow.slots.parcels(sorrow.queue.name) == 2


@pytest.fixture
async def halves(slots):
    """A queue of two partitions that reaches no queue in another slot."""
    name = slots.name(0).strip("{}")
    async with Queue(name, partitions=2, **slots.options) as queue:
        await queue.pause()
        await queue.resume()
        cut_off(queue)
        yield queue


async def test_parcels_of_one_partition_keep_the_jobs_of_all(slots, halves):
    first, second = halves.partitions
    await bury(slots, second.name, slots.name(1), 2)
    job = await first.add("x")
    await halves.pause()

    with pytest.raises(NotDeliveredError, match="2 not delivered yet"):
        await halves.obliterate()

    assert await first.get_state(job.id) == "waiting"
    assert await first.is_paused()


async def test_what_the_jobs_of_one_partition_leave_keeps_all_of_them_paused(slots, halves):
    """A parent in another slot has to hear that the job of its child was removed."""
    first, second = halves.partitions
    await first.add("x")
    child = FlowJob("c", queue_name=second.name)
    async with FlowProducer(**slots.options) as flows:
        await flows.add(FlowJob("p", queue_name=slots.name(1), children=[child]))
    await halves.pause()

    with pytest.raises(NotDeliveredError, match="1 not delivered yet"):
        await halves.obliterate()

    assert await first.is_paused()
    assert await second.is_paused()
