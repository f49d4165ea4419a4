"""Replies bring the parcels that their calls left, and later calls name those that arrived."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from tests.counting import counting
from tests.features.parcels.conftest import Slots
from tests.features.parcels.shop import Shop
from tests.features.parcels.test_couriers import are_put_off, due, put_off
from tests.features.parcels.test_seeing_off import burials, producer  # noqa: F401 (a fixture)
from tests.helpers import wait_until
from toril import GroupJob, Queue, Worker
from toril.errors import ServerUnusableError
from toril.protocol import parceling, reading
from toril.protocol.keys import Keys
from toril.protocol.parceling import Handed, Parcel
from toril.worker import courier, group_keeper, pump

HOUR_S = 3600.0


@pytest.fixture
def unhurried(monkeypatch):
    """Nothing happens by the clock: what workers do follows from jobs and parcels alone."""
    for module in (courier, group_keeper):
        for name in vars(module):
            if name.endswith("_S"):
                monkeypatch.setattr(module, name, HOUR_S)
    monkeypatch.setattr(pump, "CONFIRM_AFTER_S", HOUR_S)


async def test_a_group_over_three_slots_makes_twelve_calls(shop, unhurried):
    """One group after another, so that every worker is idle when its member comes.

    For each: its creation, two members delivered and collected; of each worker a take and an end;
    two ends delivered. The ends are collected by what their workers call next.
    """
    groups = 4
    cluster = shop.slots.cluster
    async with shop.open(undoing=False, drain_delay=600_000, concurrency=20):
        await shop.until(await shop.add(), "COMPLETED")
        await wait_until(lambda: _waiting(cluster) == 6)
        with ExitStack() as stack:
            nodes = [stack.enter_context(counting(node)) for node in cluster.nodes]
            for _ in range(groups):
                await shop.until(await shop.add(), "COMPLETED")
                await wait_until(lambda: _waiting(cluster) == 6)

    calls = [{name: count / groups for name, count in node.calls.items()} for node in nodes]
    assert calls == [
        {"addGroup": 1, "settle": 2, "deliverParcels": 2, "collectParcels": 1},
        {"settle": 2, "deliverParcels": 1},
        {"settle": 2, "deliverParcels": 1},
    ]
    await shop.check()


async def test_a_group_in_one_slot_makes_seven_calls(slots, unhurried):
    """Its creation, and of each of three idle workers a take and an end."""
    tag = slots.name(0)
    names = [f"{tag}-{number}" for number in range(3)]
    shop = Shop(slots)
    shop.names = names
    shop.queues[0] = Queue(names[0], **slots.options)
    async with shop.open(undoing=False, drain_delay=600_000, concurrency=20):
        await shop.until(await shop.add(), "COMPLETED")
        await wait_until(lambda: _waiting(slots.cluster) == 6)
        with counting(slots.cluster.nodes[0]) as counted:
            await shop.until(await shop.add(), "COMPLETED")
            await wait_until(lambda: _waiting(slots.cluster) == 6)
    await shop.close()

    assert counted.calls == {"addGroup": 1, "settle": 6}


def _waiting(cluster) -> int:
    """How many workers wait at the servers, on two connections each."""
    count = 0
    for node in cluster.nodes:
        with node.client() as client:
            count += client.info("clients")["blocked_clients"]
    return count


async def test_what_a_reply_brings_is_due_a_second_later(slots, producer):  # noqa: F811
    orders, dlq = slots.name(0), slots.name(1)
    (burial,) = await burials(slots, orders, dlq)
    source, target = Keys(slots.prefix, orders), Keys(slots.prefix, dlq)
    heard, handed = _listen(producer)

    await producer.run(burial)

    ((base, (parcel,)),) = handed
    assert (heard, base, parcel.target) == ([], source.base, target.base)
    assert parcel.is_job
    key = slots.key(orders, "toril:parcels-due")
    put_off_ms = await slots.client.zscore(key, parcel.id) - parceling.sent_at(parcel.id)
    assert put_off_ms == 1000
    await due(slots, orders)
    assert await producer.run(parceling.fetch(source)) == ([parcel], False)


async def test_a_call_that_is_sent_again_brings_them_again(slots, producer):  # noqa: F811
    """Its first reply was lost, and with it what it brought."""
    orders, dlq = slots.name(0), slots.name(1)
    (burial,) = await burials(slots, orders, dlq)
    heard, handed = _listen(producer)

    await producer.run(burial)
    await producer.run(burial)

    assert handed[0] == handed[1]
    assert heard == []
    assert await are_put_off(slots, orders)


async def test_a_call_that_is_sent_again_brings_nothing_that_was_collected(
    slots,
    producer,  # noqa: F811
):
    orders, dlq = slots.name(0), slots.name(1)
    (burial,) = await burials(slots, orders, dlq)
    await producer.run(burial)
    heard, handed = _listen(producer)

    await producer.run(burial)

    assert (heard, handed) == ([], [])


@pytest.mark.parametrize(
    ("count", "size", "brought"),
    [(99, 10, 99), (100, 10, 100), (103, 10, 100), (3, 240_000, 2), (2, 600_000, 0)],
)
async def test_a_reply_brings_no_more_than_a_courier_fetches(shop, count, size, brought):
    connection = shop.flow._connection
    heard, handed = _listen(connection)
    members = [
        GroupJob("x", "x" * size, queue_name=shop.names[1], job_id=f"m{n}") for n in range(count)
    ]

    await shop.flow.add_group("big", members, queue_name=shop.names[0])

    found = [parcel for _, parcels in handed for parcel in parcels]
    assert len(found) == brought
    assert bool(heard) == (brought < count)
    client, key = shop.slots.client, shop.slots.key(shop.names[0], "toril:parcels-due")
    due_ms = dict(await client.zrange(key, 0, -1, withscores=True))
    assert all(due_ms[one.id] == parceling.sent_at(one.id) + 1000 for one in found)
    if found:  # a busy machine may take that second
        await client.zadd(key, {one.id: due_ms[one.id] + 3_600_000 for one in found})
    rest, _ = await connection.run(parceling.fetch(shop.queues[0].keys))
    assert len(rest) == min(count - brought, 1 if size == 600_000 else 100)
    await due(shop.slots, shop.names[0])
    await shop.carry()
    assert await shop.queues[1].get_waiting_count() == count
    assert await shop.is_quiet()


async def test_what_no_reply_brings_is_delivered_right_afterwards(shop):
    members = [GroupJob("x", {"n": n}, queue_name=shop.names[1]) for n in range(203)]

    await shop.flow.add_group("big", members, queue_name=shop.names[0])

    assert await shop.queues[1].get_waiting_count() == 203
    assert await shop.is_quiet()


async def test_one_caller_delivers_for_those_who_wait(shop, monkeypatch):
    """Else each of them would make its own calls, at the same queues."""
    connection = shop.flow._connection
    carry, rounds = connection._carry, []

    async def slowly(base, handed):
        rounds.append(len(handed.parcels))
        if len(rounds) == 1:
            waiting = connection._rounds.here().waiting
            await wait_until(lambda: rounds[0] + 2 * len(waiting[base]) == 20)
        await carry(base, handed)

    monkeypatch.setattr(connection, "_carry", slowly)
    await asyncio.gather(*[shop.add() for _ in range(10)])

    assert len(rounds) <= 2
    assert sum(rounds) == 20
    assert connection._rounds.here().waiting == {}
    assert [await queue.get_waiting_count() for queue in shop.queues] == [10, 10, 10]
    assert await shop.is_quiet()


@pytest.mark.parametrize("leaver", range(3))
async def test_who_gives_up_holds_nobody_up(shop, monkeypatch, leaver):
    """Neither the one for whom a delivery began, nor one that waits for the next."""
    connection = shop.flow._connection
    carry, go_on, under_way = connection._carry, asyncio.Event(), []

    async def slowly(base, handed):
        under_way.extend(handed.parcels)
        await go_on.wait()
        await carry(base, handed)

    monkeypatch.setattr(connection, "_carry", slowly)
    rounds = connection._rounds.here()
    adds = [asyncio.create_task(shop.add()) for _ in range(3)]
    await wait_until(
        lambda: len(under_way) + 2 * sum(map(len, rounds.waiting.values())) == 6 and under_way
    )
    adds[leaver].cancel()
    await asyncio.wait([adds[leaver]])
    go_on.set()
    await asyncio.gather(*adds, return_exceptions=True)
    await wait_until(lambda: rounds.waiting == {})

    assert [add.cancelled() for add in adds].count(True) == 1
    assert [await queue.get_waiting_count() for queue in shop.queues] == [3, 3, 3]
    assert await shop.is_quiet()


async def test_a_delivery_that_goes_wrong_lets_its_callers_go(shop, monkeypatch):
    """What they did has succeeded, and workers deliver what is left."""

    async def fail(base, handed):
        raise OSError("the disk is full")

    monkeypatch.setattr(shop.flow._connection, "_carry", fail)
    await asyncio.gather(*[shop.add() for _ in range(3)])

    assert shop.flow._connection._rounds.here().waiting == {}
    assert await shop.queues[0].get_waiting_count() == 3


async def test_a_courier_keeps_only_so_much(slots, monkeypatch):
    """The rest is still at the server, and due a second later."""
    monkeypatch.setattr(courier, "MOST_HELD", 2)
    orders, dlq = slots.name(0), slots.name(1)

    async def refuse(job):
        raise ValueError("no")

    async with Queue(orders, **slots.options) as queue, Queue(dlq, **slots.options) as letters:
        await queue.pause()
        for number in range(12):
            await queue.add("charge", {"n": number}, attempts=1)
        options = {"dead_letter_queue": dlq, "concurrency": 12, **slots.options}
        async with Worker(orders, refuse, **options):
            await queue.resume()
            await wait_until(lambda: _count(letters, 12))
            await wait_until(lambda: _is_clean(slots, orders))


async def test_delivered_parcels_are_collected_soon(shop, monkeypatch):
    """Without another call of their queue; workers that look would collect them too."""
    monkeypatch.setattr(courier, "LOOK_S", HOUR_S)
    async with shop.open(undoing=False, drain_delay=600_000):
        await shop.until(await shop.add(), "COMPLETED")

        await wait_until(shop.is_quiet)


async def test_what_was_delivered_is_named_by_the_next_call_in_its_slot(
    slots,
    producer,  # noqa: F811
):
    orders, dlq = slots.name(0), slots.name(1)
    calls = await burials(slots, orders, dlq, 2)
    source = Keys(slots.prefix, orders)
    _, handed = _listen(producer)
    await producer.run(calls[0])
    ((_, (parcel,)),) = handed
    await producer.run(parceling.deliver(Keys(slots.prefix, dlq), [parcel]))

    producer.note_delivered(source.base, [parcel.id])
    assert await slots.parcels(orders) == 1
    await producer.run(calls[1])

    assert await slots.client.hkeys(slots.key(orders, "toril:parcels")) == [handed[1][1][0].id]
    assert producer.take_delivered(source.base) == []


async def test_a_call_is_made_even_if_what_it_names_cannot_be_forgotten(slots, producer):  # noqa: F811
    orders = slots.name(0)
    base = Keys(slots.prefix, orders).base
    await slots.client.set(slots.key(orders, "toril:parcels"), "no hash")

    producer.note_delivered(base, ["p1"])
    job = await Queue(orders, connection=producer, prefix=slots.prefix).add("charge")

    assert await slots.client.lrange(slots.key(orders, "wait"), 0, -1) == [job.id]
    assert producer.take_delivered(base) == []


async def test_one_call_names_at_most_a_hundred(slots, producer):  # noqa: F811
    producer.note_delivered("b:{q}", [f"p{n}" for n in range(130)])

    assert [len(producer.take_delivered("b:{q}")) for _ in range(3)] == [100, 30, 0]


async def test_a_call_that_only_reads_names_nothing(slots, producer):  # noqa: F811
    keys = Keys(slots.prefix, slots.name(0))
    producer.note_delivered(keys.base, ["p1"])

    await producer.run(reading.counts(keys, ["wait"]))

    assert producer.take_delivered(keys.base) == ["p1"]


async def test_who_may_not_deliver_is_not_brought_anything_again(
    slots: Slots,
    producer,  # noqa: F811
    monkeypatch,
):
    """Workers find what it leaves without having to wait."""
    orders, dlq = slots.name(0), slots.name(1)
    first, second = await burials(slots, orders, dlq, 2)

    def refuse(*args):
        raise ServerUnusableError("no permissions")

    with monkeypatch.context() as patch:
        patch.setattr(parceling, "fetch", refuse)
        patch.setattr(parceling, "deliver", refuse)
        await producer.run(first)
        await put_off(slots, orders)
        await producer.run(second)

    parcels, _ = await producer.run(parceling.fetch(Keys(slots.prefix, orders)))
    assert len(parcels) == 1


def test_parcels_are_carried_in_the_order_in_which_they_were_left():
    parcels = [Parcel(f"p{n:013}-0001-x", "b:{t}", b"x") for n in (3, 1, 2)]

    command = next(parceling.carry(Keys("b", "{s}"), Handed(tuple(parcels), has_more=False)))

    assert command.args["ids"] == [parcel.id for parcel in sorted(parcels, key=lambda one: one.id)]


def test_handed_parcels_are_carried_in_slices():
    many = [Parcel(f"p{n:013}-0001-x", "b:{t}", b"x") for n in range(150)]
    big = [Parcel(f"q{n:013}-0001-x", "b:{t}", b"x" * 300_000) for n in range(3)]

    sizes = [len(some) for some in parceling._slices([*many, *big])]

    assert sizes == [100, 51, 1, 1]


def _listen(connection) -> tuple[list[str], list[tuple[str, tuple[Parcel, ...]]]]:
    """What a connection hears of, and what it is given."""
    heard: list[str] = []
    handed: list[tuple[str, tuple[Parcel, ...]]] = []
    connection.on_parcels = heard.append
    connection.on_handed = lambda base, parcels: handed.append((base, tuple(parcels)))
    return heard, handed


async def _count(letters: Queue, count: int) -> bool:
    return await letters.get_dead_letter_count() == count


async def _is_clean(slots: Slots, queue: str) -> bool:
    return not await slots.leftovers(queue)
