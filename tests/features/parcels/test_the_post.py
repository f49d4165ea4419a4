"""What the post of a queue keeps and clears away: parcels that were lost, refused or sent twice."""

from __future__ import annotations

import msgspec
import redis

from tests.features.lanes import Hand
from tests.features.parcels.conftest import Slots
from tests.features.parcels.test_couriers import _lose_reply, bury, letters_of
from tests.features.parcels.test_replays import OWNER, block, letters_at
from toril import FlowJob, FlowProducer, ManualWorker, Parent, Queue
from toril.protocol import parceling
from toril.protocol.keys import Keys

DAY_MS = 86_400_000


async def test_a_letter_keeps_the_order_of_its_log(slots):
    orders, dlq = slots.name(0), slots.name(1)
    async with (
        Queue(orders, **slots.options) as queue,
        Queue(dlq, **slots.options) as letters,
        ManualWorker(orders, dead_letter_queue=dlq, **slots.options) as worker,
    ):
        job = await queue.add("charge", attempts=1)
        for row in ("first", "second"):
            await queue.add_log(job.id, row)
        await (await worker.get_next_job(20_000)).fail(ValueError("no"))

        (letter,) = await letters.get_dead_letter_jobs()
        assert await letters.get_job_logs(letter.id) == ["first", "second"]


async def test_a_parcel_that_was_refused_and_then_delivered_is_forgotten(slots):
    """Two couriers met: the one whose target refused was the first to come back."""
    orders, dlq = slots.name(0), slots.name(1)
    await bury(slots, orders, dlq)
    source = Keys(slots.prefix, orders)
    async with letters_of(slots, dlq) as (_, line):
        ((parcel,), _) = await line.run(parceling.fetch(source))
        await line.run(parceling.collect(source, [], [{"id": parcel.id, "words": "no"}]))
        assert await slots.refused(orders) == {parcel.id: "no"}

        await line.run(parceling.collect(source, [parcel.id]))

        assert await slots.leftovers(orders) == {}


def _make_older(slots: Slots, queue: str, age_ms: int) -> None:
    """Let the parcels of a queue have waited for longer."""
    key = slots.key(queue, "toril:parcels")
    with redis.Redis.from_url(slots.cluster.nodes[0].url) as raw:
        for parcel, text in raw.hgetall(key).items():
            size, _, rest = text.partition(b":")
            head = msgspec.msgpack.decode(rest[: int(size)])
            head["at"] -= age_ms
            older = msgspec.msgpack.encode(head)
            raw.hset(key, parcel, b"%d:%b%b" % (len(older), older, rest[int(size) :]))


async def test_a_parcel_that_is_offered_again_has_a_day_again(slots):
    orders, dlq = slots.name(0), slots.name(1)
    await bury(slots, orders, dlq)
    _make_older(slots, orders, DAY_MS)
    source = Keys(slots.prefix, orders)
    async with letters_of(slots, dlq) as (letters, line):
        assert await line.follow(parceling.carry(source)) == parceling.Carried()
        assert len(await slots.refused(orders)) == 1

        assert await line.follow(parceling.offer_again(source)) == 1

        assert await line.follow(parceling.carry(source)) == parceling.Carried(delivered=1)
        assert await letters.get_dead_letter_count() == 1


async def test_what_is_no_parcel_is_set_aside_or_forgotten(slots):
    """Else couriers would find it at each look, for ever."""
    orders = slots.name(0)
    await slots.client.hset(slots.key(orders, "toril:parcels"), "odd", "no parcel")
    await slots.client.zadd(slots.key(orders, "toril:parcels-due"), {"odd": 0, "gone": 0})
    async with Queue(orders, **slots.options) as queue:
        fetched = await queue._connection.run(parceling.fetch(queue.keys))

    assert fetched == ([], False)
    assert await slots.refused(orders) == {"odd": "it cannot be read"}
    assert await slots.client.exists(slots.key(orders, "toril:parcels-due")) == 0


async def test_a_replay_whose_reply_was_lost_is_made_once_and_carried(slots):
    orders, dlq = slots.name(0), slots.name(1)
    await bury(slots, orders, dlq)
    async with Queue(orders, **slots.options) as queue, letters_of(slots, dlq) as (letters, line):
        await line.follow(parceling.carry(queue.keys))
        (letter,) = await letters.get_dead_letter_jobs()
        lost = _lose_reply(line, "replayDeadLetter")

        new_id = await letters.replay_dead_letter(letter.id)

        assert lost == ["replayDeadLetter"]
        assert [job.id for job in await queue.get_waiting()] == [new_id]
        assert await slots.leftovers(dlq) == {}


async def test_a_flow_whose_reply_was_lost_is_carried(slots):
    parents, children = slots.name(0), slots.name(1)
    flow = FlowJob("parent", queue_name=parents, children=[FlowJob("child", queue_name=children)])
    async with (
        FlowProducer(**slots.options) as producer,
        Queue(children, **slots.options) as queue,
    ):
        lost = _lose_reply(producer._connection, "addFlow")

        await producer.add(flow)

        assert lost == ["addFlow"]
        assert await queue.get_waiting_count() == 1
        assert await slots.leftovers(parents) == {}


async def test_a_job_that_has_completed_counts_for_a_new_parent_in_another_slot(slots):
    async with (
        Queue(slots.name(0), **slots.options) as parents,
        Queue(slots.name(1), **slots.options) as children,
    ):
        child = await children.add("child", job_id="c")
        hand = Hand(children._connection, children.keys, "one")
        await hand.complete(await hand.take_one())
        parent = await parents.add("parent", job_id="p", delay=3_600_000)

        await children.add("child", job_id="c", parent=Parent(parent.id, parents.name))
        await children._connection.follow(parceling.carry(children.keys))

        key = slots.key(children.name, child.id)
        assert await parents.get_children_values(parent.id) == {key: None}
        assert (await parents.get_dependencies(parent.id)).unprocessed == []


async def test_the_end_of_a_child_is_sent_to_its_parent(slots):
    parents, children = slots.name(0), slots.name(1)
    flow = FlowJob("parent", queue_name=parents, children=[FlowJob("child", queue_name=children)])
    async with (
        FlowProducer(**slots.options) as producer,
        Queue(parents, **slots.options) as above,
        Queue(children, **slots.options) as below,
    ):
        node = await producer.add(flow)
        hand = Hand(below._connection, below.keys, "one")
        await hand.complete(await hand.take_one())
        await below._connection.follow(parceling.carry(below.keys))

        assert await above.get_state(node.job.id) == "waiting"


async def test_a_letter_that_was_taken_back_is_sent_once(slots):
    """Its parent cannot be told of the end: the letter is written again, without the tie."""
    orders, dlq = slots.name(0), slots.name(1)
    async with (
        Queue(orders, **slots.options) as queue,
        Queue(dlq, **slots.options) as letters,
        ManualWorker(orders, dead_letter_queue=dlq, **slots.options) as worker,
    ):
        await queue.add("charge", {"n": 1}, attempts=1)
        job = await worker.get_next_job(20_000)
        parent = queue.keys.job("p")
        tie = {"parentKey": parent, "parent": f'{{"id":"p","queueKey":"{queue.keys.base}"}}'}
        await slots.client.hset(queue.keys.job(job.id), mapping=tie)
        await slots.client.set(f"{parent}:dependencies", "no set")

        await job.fail(ValueError("no"))

        (letter,) = await letters.get_dead_letter_jobs()
        assert letter.data["n"] == 1
        assert await slots.leftovers(orders) == {}


async def test_a_member_that_comes_back_to_its_group_is_announced(shop):
    async with await letters_at(shop, 1) as letters:
        await block(shop, OWNER, letters)
        owner = shop.queues[OWNER]
        await shop.slots.client.delete(owner.keys.marker)

        assert await letters.replay_all_dead_letters() == 1
        await shop.carry()

        assert await owner.get_waiting_count() == 1
        assert await shop.slots.client.zrange(owner.keys.marker, 0, -1) == ["0"]
