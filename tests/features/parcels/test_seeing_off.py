"""Whoever made a call that left parcels sees to it that they are delivered."""

from __future__ import annotations

import logging

import pytest
import redis.exceptions

from tests.features.lanes import Hand
from tests.features.parcels.conftest import Slots
from tests.helpers import wait_until
from toril import Queue
from toril.client.connection import Connection
from toril.protocol import parceling, reading, settling
from toril.protocol.burying import BurialPolicy
from toril.protocol.command import Command
from toril.protocol.keys import Keys
from toril.protocol.settling import Policy, Raised, Settled, Take


@pytest.fixture
async def producer(slots: Slots):
    connection = Connection(slots.url)
    yield connection
    await connection.close()


async def burials(slots: Slots, orders: str, dlq: str, count: int = 1) -> list[Command]:
    """Calls that each leave a parcel, not sent yet."""
    calls: list[Command] = []
    policy = Policy(dead_letters=BurialPolicy())
    async with Queue(orders, **slots.options) as queue:
        hand = Hand(queue._connection, queue.keys, "one")
        for number in range(count):
            await queue.add("charge", {"n": number}, attempts=1)
            (job,) = await hand.take(1)
            outcome = settling.decide(job, Raised(ValueError("no")), policy, dice=0.5)
            settled = Settled(job.id, hand.held[job.id][1], outcome, job)
            calls.append(
                settling.settle(
                    queue.keys,
                    [settled],
                    Take(count=0, token="", lock_ms=30_000),
                    flight=f"burial{number}",
                    request=1,
                    dead_letters=Keys(slots.prefix, dlq),
                )
            )
    return calls


async def test_parcels_of_a_posted_call_are_told_at_once(slots, producer):
    orders, dlq = slots.name(0), slots.name(1)
    (burial,) = await burials(slots, orders, dlq)
    counting = reading.counts(Keys(slots.prefix, orders), ["wait"])
    heard: list[str] = []
    producer.on_parcels = heard.append
    await Queue(orders, connection=producer, prefix=slots.prefix).add("other")

    replies: list = []
    assert producer.post(counting, replies.append)
    await wait_until(lambda: replies)
    assert heard == []

    assert producer.post(burial, replies.append)
    await wait_until(lambda: len(replies) == 2)
    assert heard == [Keys(slots.prefix, orders).base]

    assert await slots.parcels(orders) == 1


async def test_parcels_of_calls_that_went_together_are_delivered(slots, producer):
    orders, dlq = slots.name(0), slots.name(1)

    await producer.run_each(await burials(slots, orders, dlq, 2))

    assert await slots.parcels(orders) == 0
    async with Queue(dlq, **slots.options) as letters:
        assert await letters.get_dead_letter_count() == 2


async def test_parcels_of_calls_in_the_same_millisecond_keep_their_order(slots, producer):
    """Those of a burial and of the diversion behind it, for example."""
    orders, dlq = slots.name(0), slots.name(1)
    calls = await burials(slots, orders, dlq, 40)

    await producer.run_each(calls)

    async with Queue(dlq, **slots.options) as queue:
        letters = (await queue.get_dead_letter_jobs(0, -1))[::-1]
        assert [letter.data["n"] for letter in letters] == list(range(40))
    left_at = [parceling.sent_at(letter.id) for letter in letters]
    assert len(set(left_at)) < len(left_at), "no two were left in one millisecond"


async def test_a_producer_says_that_parcels_have_to_wait(slots, producer, caplog):
    """And only then: a parcel that was delivered is no news."""
    orders, dlq = slots.name(0), slots.name(1)
    delivered, kept = await burials(slots, orders, dlq, 2)
    caplog.set_level(logging.WARNING, logger="toril")

    await producer.run(delivered)
    assert "have to wait" not in caplog.text

    exchange = producer._transport.exchange

    async def refuse(sending, timeout_s):
        script = sending.command.script
        if script is not None and script.name == "deliverParcels":
            raise redis.exceptions.ConnectionError("nobody is there")
        return await exchange(sending, timeout_s)

    producer._transport.exchange = refuse
    producer._patience_s = 0.0
    await producer.run(kept)

    assert f"parcels of {Keys(slots.prefix, orders).base} have to wait for a worker" in caplog.text
    assert await slots.parcels(orders) == 1
