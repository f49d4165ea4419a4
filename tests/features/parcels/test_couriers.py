"""Parcels when couriers die or meet, replies are lost, nodes go and targets refuse."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest
import redis.asyncio.cluster

from tests.features.parcels.conftest import Slots
from tests.helpers import wait_until
from tests.servers import Cluster
from toril import ManualWorker, Queue, Worker
from toril.protocol import parceling
from toril.protocol.keys import Keys


async def refuse(job):
    raise ValueError("no")


async def idle(job):
    return None


async def bury(slots: Slots, orders: str, dlq: str, count: int = 1) -> None:
    """Let jobs fail for good, by a process that dies before it carries anything."""
    before = await slots.parcels(orders)
    async with (
        Queue(orders, **slots.options) as queue,
        ManualWorker(orders, dead_letter_queue=dlq, **slots.options) as worker,
    ):
        worker._connection.on_parcels = lambda base: None
        for number in range(count):
            await queue.add("charge", {"n": number}, attempts=1)
            job = await worker.get_next_job(20_000)
            await job.fail(ValueError("no"))
    assert await slots.parcels(orders) == before + count


async def due(slots: Slots, queue: str) -> None:
    """Let what is put off be carried at once, as if the time had passed."""
    key = slots.key(queue, "toril:parcels-due")
    for parcel in await slots.client.zrange(key, 0, -1):
        await slots.client.zadd(key, {parcel: 0})


async def put_off(slots: Slots, queue: str) -> None:
    """Let nothing be carried for an hour, however long the test takes."""
    key = slots.key(queue, "toril:parcels-due")
    for parcel, due_ms in await slots.client.zrange(key, 0, -1, withscores=True):
        await slots.client.zadd(key, {parcel: due_ms + 3_600_000})


async def are_put_off(slots: Slots, queue: str) -> bool:
    """Were its parcels made due later than they were left? It does not matter what time it is."""
    key = slots.key(queue, "toril:parcels-due")
    rows = await slots.client.zrange(key, 0, -1, withscores=True)
    return bool(rows) and all(due_ms > parceling.sent_at(parcel) for parcel, due_ms in rows)


@asynccontextmanager
async def letters_of(slots: Slots, dlq: str):
    async with Queue(dlq, **slots.options) as letters:
        yield letters, letters._connection


async def test_a_worker_carries_what_a_dead_process_left(slots):
    orders, dlq = slots.name(0), slots.name(1)
    await bury(slots, orders, dlq, 5)
    async with letters_of(slots, dlq) as (letters, _):
        assert await letters.get_dead_letter_count() == 0
        async with Worker(orders, idle, **slots.options):
            await wait_until(lambda: _is_clean(slots, orders))

        found = await letters.get_dead_letter_jobs(0, -1)
        assert sorted(job.data["n"] for job in found) == list(range(5))


async def test_the_worker_that_buries_looks_at_the_queue_of_letters_too(slots):
    """Nobody works there, and whoever replays may die before it carries."""
    orders, dlq = slots.name(0), slots.name(1)
    await bury(slots, orders, dlq)
    async with Queue(orders, **slots.options) as queue, letters_of(slots, dlq) as (letters, line):
        await line.follow(parceling.carry(queue.keys))
        line.on_parcels = lambda base: None
        assert await letters.replay_all_dead_letters() == 1
        assert await queue.get_waiting_count() == 0

        async with Worker(orders, idle, dead_letter_queue=dlq, **slots.options):
            await wait_until(lambda: _completed(queue, 1))
        assert await slots.leftovers(dlq) == {}


async def test_a_parcel_that_is_delivered_and_not_collected_is_delivered_once(slots):
    """The courier died between its two calls, or its reply was lost."""
    orders, dlq = slots.name(0), slots.name(1)
    await bury(slots, orders, dlq, 3)
    source, target = Keys(slots.prefix, orders), Keys(slots.prefix, dlq)
    async with letters_of(slots, dlq) as (letters, line):
        parcels, _ = await line.run(parceling.fetch(source))
        assert await line.run(parceling.deliver(target, parcels)) == [0, 0, 0]
        assert await are_put_off(slots, orders)
        assert await letters.get_dead_letter_count() == 3
        assert await slots.parcels(orders) == 3
        for letter in await letters.get_dead_letter_jobs(0, -1):
            await letters.remove(letter.id)

        await due(slots, orders)
        carried = await line.follow(parceling.carry(source))

        assert carried == parceling.Carried(delivered=3)
        assert await letters.get_dead_letter_count() == 0
        assert await slots.leftovers(orders) == {}


async def test_many_couriers_at_once_do_no_harm(slots):
    orders, dlq = slots.name(0), slots.name(1)
    await bury(slots, orders, dlq, 20)
    source = Keys(slots.prefix, orders)
    async with letters_of(slots, dlq) as (letters, line):

        async def carry() -> None:
            await due(slots, orders)
            await line.follow(parceling.carry(source))

        await asyncio.gather(*[carry() for _ in range(8)])
        await line.follow(parceling.carry(source))

        found = await letters.get_dead_letter_jobs(0, -1)
        assert sorted(job.data["n"] for job in found) == list(range(20))
        assert await letters.get_dead_letter_count() == 20


async def test_parcels_are_carried_in_slices(slots, monkeypatch):
    orders, dlq = slots.name(0), slots.name(1)
    await bury(slots, orders, dlq, 7)
    source = Keys(slots.prefix, orders)
    async with letters_of(slots, dlq) as (letters, line):
        monkeypatch.setattr(parceling, "PARCELS_PER_SLICE", 3)
        first, has_more = await line.run(parceling.fetch(source))
        assert (len(first), has_more) == (3, True)
        await due(slots, orders)
        monkeypatch.setattr(parceling, "BYTES_PER_SLICE", 10)
        first, has_more = await line.run(parceling.fetch(source))
        assert (len(first), has_more) == (1, True)

        await due(slots, orders)
        assert (await line.follow(parceling.carry(source))).delivered == 7
        assert await letters.get_dead_letter_count() == 7


async def test_a_refused_parcel_is_set_aside_and_can_be_offered_again(slots):
    orders, dlq = slots.name(0), slots.name(1)
    await slots.client.set(slots.key(dlq, "wait"), "not a list")
    await bury(slots, orders, dlq, 2)
    source = Keys(slots.prefix, orders)
    async with letters_of(slots, dlq) as (letters, line):
        assert await line.follow(parceling.carry(source)) == parceling.Carried(refused=2)

        words = set((await slots.refused(orders)).values())
        assert words == {"a key of its target holds a value of another kind"}
        assert await slots.parcels(orders) == 2
        await due(slots, orders)
        assert await line.follow(parceling.carry(source)) == parceling.Carried()

        await slots.client.delete(slots.key(dlq, "wait"))
        assert await line.follow(parceling.offer_again(source)) == 2
        assert await line.follow(parceling.carry(source)) == parceling.Carried(delivered=2)
        assert await letters.get_dead_letter_count() == 2
        assert await slots.leftovers(orders) == {}


async def test_what_waits_for_a_day_is_set_aside(slots):
    """Its target may have forgotten by then that it was delivered."""
    orders, dlq = slots.name(0), slots.name(1)
    await bury(slots, orders, dlq)
    source = Keys(slots.prefix, orders)
    async with letters_of(slots, dlq) as (letters, line):
        command = parceling.fetch(source)
        late = {**command.args, "skew_ms": 23 * 3_600_000 + 60_000}
        assert await line.run(_with(command, late)) == ([], False)

        assert ["23 hours" in words for words in (await slots.refused(orders)).values()] == [True]
        assert await line.follow(parceling.offer_again(source)) == 1
        assert (await line.follow(parceling.carry(source))).delivered == 1
        assert await letters.get_dead_letter_count() == 1


async def test_a_parcel_that_nobody_can_read_or_do_is_set_aside(slots):
    orders, dlq = slots.name(0), slots.name(1)
    await bury(slots, orders, dlq)
    source, target = Keys(slots.prefix, orders), Keys(slots.prefix, dlq)
    async with letters_of(slots, dlq) as (_, line):
        parcels, _ = await line.run(parceling.fetch(source))
        odd = [
            parceling.Parcel("p1", target.base, b"\xc1"),
            parceling.Parcel("p2", target.base, b"\x81\xa4verb\xa4fold"),
            parceling.Parcel("p3", target.base, b"\x81\xa4verb\xa4bury"),
        ]
        answers = await line.run(parceling.deliver(target, [*odd, *parcels]))

        assert answers[0] == "it cannot be read"
        assert "the verb fold is not known" in answers[1]
        assert isinstance(answers[2], str)
        assert answers[3] == 0


@pytest.mark.parametrize("call", ["settle", "fetchParcels", "deliverParcels", "collectParcels"])
async def test_a_lost_reply_changes_nothing(slots, call):
    """The call has been made, its reply does not come, and it is sent again."""
    orders, dlq = slots.name(0), slots.name(1)
    async with (
        Queue(orders, **slots.options) as queue,
        ManualWorker(orders, dead_letter_queue=dlq, **slots.options) as worker,
        letters_of(slots, dlq) as (letters, _),
    ):
        await queue.add("charge", {"n": 1}, attempts=1)
        job = await worker.get_next_job(20_000)
        is_fetched = call == "fetchParcels"

        async def meanwhile() -> None:
            if is_fetched:  # it is due a second later, and a busy machine may take as long
                assert await are_put_off(slots, orders)
                await put_off(slots, orders)

        lost = _lose_reply(worker._connection, call, meanwhile)
        if is_fetched:  # only who looks for parcels fetches them
            worker._connection.on_parcels = lambda base: None

        await job.fail(ValueError("no"))

        if is_fetched:
            await worker._connection.follow(parceling.carry(queue.keys))
            assert await slots.parcels(orders) == 1
            await due(slots, orders)
            await worker._connection.follow(parceling.carry(queue.keys))
        assert lost == [call]
        assert await letters.get_dead_letter_count() == 1
        assert await slots.leftovers(orders) == {}


def _lose_reply(connection, call: str, meanwhile=None) -> list[str]:
    """Let the next reply to this call get lost behind the server.

    ``meanwhile`` is called before it is sent again.
    """
    transport, lost = connection._transport, []
    exchange = transport.exchange

    async def lose(sending, timeout_s):
        reply = await exchange(sending, timeout_s)
        script = sending.command.script
        if script is not None and script.name == call and not lost:
            lost.append(call)
            if meanwhile is not None:
                await meanwhile()
            raise redis.exceptions.ConnectionError("the reply was lost")
        return reply

    transport.exchange = lose
    return lost


async def test_parcels_arrive_while_slots_move(slots):
    orders, dlq = slots.name(0), slots.name(1)
    async with Queue(orders, **slots.options) as queue, letters_of(slots, dlq) as (letters, _):
        jobs = [await queue.add("charge", {"n": n}, attempts=1) for n in range(60)]
        slot_numbers = [slots.cluster.slot_of(slots.key(name, "wait")) for name in (orders, dlq)]
        async with Worker(orders, refuse, dead_letter_queue=dlq, **slots.options):
            for number in slot_numbers:
                await asyncio.to_thread(slots.cluster.migrate_slot, number, step=3)
            await wait_until(lambda: _has(letters, len(jobs)))
            await wait_until(lambda: _is_clean(slots, orders))

        found = await letters.get_dead_letter_jobs(0, -1)
        assert sorted(job.data["n"] for job in found) == list(range(60))


async def test_parcels_for_a_node_that_is_gone_arrive_when_it_is_back():
    with Cluster({"cluster-require-full-coverage": "no", "appendonly": "yes"}) as cluster:
        client = redis.asyncio.cluster.RedisCluster.from_url(cluster.url, decode_responses=True)
        async with client:
            slots = Slots(cluster, client)
            await _cut_and_bring_back(slots, cluster)


async def _cut_and_bring_back(slots: Slots, cluster: Cluster) -> None:
    orders, dlq = slots.name(0), slots.name(2)
    gone = cluster.nodes[2]
    async with Queue(orders, **slots.options) as queue:
        for number in range(10):
            await queue.add("charge", {"n": number}, attempts=1)
        gone.kill()
        async with Worker(orders, refuse, dead_letter_queue=dlq, concurrency=5, **slots.options):
            node = cluster.nodes[0].client()
            key = slots.key(orders, "toril:parcels")
            await wait_until(lambda: node.hlen(key) == 10)
            assert (await queue.get_job_counts())["active"] == 0
            # Those who do not need that node go on.
            await queue.add("charge", {"n": 10}, attempts=1)
            await wait_until(lambda: node.hlen(key) == 11)
            gone.start()
            await wait_until(lambda: node.hlen(key) == 0, 60)
            node.close()
    async with Queue(dlq, **slots.options) as letters:
        found = await letters.get_dead_letter_jobs(0, -1)
        assert sorted(job.data["n"] for job in found) == list(range(11))


async def test_one_slot_pays_nothing(slots, server, prefix):
    """The commands inside the server are those of a single server, one by one."""
    single = await _commands({"connection": server.url, "prefix": prefix}, slots.name(0), server)
    shared = await _commands(slots.options, slots.name(0), slots.cluster.nodes[0])

    assert single["hset"] > 0
    assert shared == single
    assert not any("parcel" in key for key in server.client().keys(f"{prefix}:*"))


async def _commands(options, orders: str, node) -> dict[str, int]:
    """What the server does for a job that becomes a letter in the same slot."""
    dlq = orders.replace("}", "}-dlq")
    async with (
        Queue(orders, **options) as queue,
        ManualWorker(orders, dead_letter_queue=dlq, renew=False, **options) as worker,
    ):
        await queue.add("charge", {"n": 0}, attempts=1)
        job = await worker.get_next_job(20_000)
        with node.client() as raw:
            raw.config_resetstat()
            await job.fail(ValueError("no"))
            stats = raw.info("commandstats")
    noise = ("config", "info", "client", "hello", "cluster", "ping", "select")
    counted = {name.removeprefix("cmdstat_"): one["calls"] for name, one in stats.items()}
    return {name: calls for name, calls in counted.items() if not name.startswith(noise)}


def _with(command, args):
    return msgspec.structs.replace(command, args=args)


async def _is_clean(slots: Slots, queue: str) -> bool:
    return not await slots.leftovers(queue)


async def _has(letters: Queue, count: int) -> bool:
    return await letters.get_dead_letter_count() == count


async def _completed(queue: Queue, count: int) -> bool:
    return (await queue.get_job_counts())["completed"] == count
