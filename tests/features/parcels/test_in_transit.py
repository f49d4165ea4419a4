"""A job between two slots: where it is, who tells of it, and what the doctor says."""

from __future__ import annotations

import asyncio

from tests.features.parcels.test_couriers import bury, letters_of
from tests.helpers import wait_until
from toril import Queue, Worker
from toril.cli.main import run
from toril.doctor import examine
from toril.doctor.keyspace import audit
from toril.doctor.reader import ConnectionReader
from toril.protocol import glancing, parceling
from toril.protocol.keys import Keys


async def _job_of(slots, queue: str) -> str:
    (job_id,) = await slots.client.hkeys(slots.key(queue, "toril:in-transit"))
    return job_id


async def test_a_job_between_two_slots_is_in_transit(slots):
    orders, dlq = slots.name(0), slots.name(1)
    await bury(slots, orders, dlq)
    job_id = await _job_of(slots, orders)
    async with Queue(orders, **slots.options) as queue:
        assert await queue.get_state(job_id) == "in_transit"
        assert await queue.get_job_counts("in_transit", "failed") == {"in_transit": 1, "failed": 0}
        assert "in_transit" not in await queue.get_job_counts()
        sentence = await queue.explain(job_id)
        assert f"is on its way to '{slots.prefix}:{dlq}' in another slot" in sentence
        assert (await queue._connection.run(glancing.look(queue.keys))).in_transit == 1
        reader = await ConnectionReader.open(queue._connection)
        assert await audit(reader, slots.prefix) == []

        await queue._connection.follow(parceling.carry(queue.keys))

        assert await queue.get_state(job_id) is None
        assert await queue.get_job_counts("in_transit") == {"in_transit": 0}
        assert "does not exist" in await queue.explain(job_id)


async def test_the_audit_misses_a_parcel_that_is_gone(slots):
    orders, dlq = slots.name(0), slots.name(1)
    await bury(slots, orders, dlq)
    async with Queue(orders, **slots.options) as queue:
        reader = await ConnectionReader.open(queue._connection)
        await slots.client.delete(slots.key(orders, "toril:parcels"))

        problems = await audit(reader, slots.prefix)

        assert [problem[:4] for problem in problems] == ["K12:", "K12:"]


async def test_the_doctor_tells_of_parcels_that_wait_for_long(slots):
    orders, dlq = slots.name(0), slots.name(1)
    await bury(slots, orders, dlq)
    codes = [one.code for one in (await examine(slots.url, prefix=slots.prefix)).findings]
    assert "D236" not in codes

    due = slots.key(orders, "toril:parcels-due")
    await slots.client.zadd(due, {"p1-0001-aged": 0})

    findings = (await examine(slots.url, prefix=slots.prefix)).findings
    (found,) = [one for one in findings if one.code == "D236"]
    assert found.subject == f"queue {orders}"
    assert "2 parcels for queues in other slots not delivered" in found.problem


async def test_the_doctor_tells_of_refused_parcels_and_offers_them_again(slots, capsys):
    orders, dlq = slots.name(0), slots.name(1)
    await bury(slots, orders, dlq)
    job_id = await _job_of(slots, orders)
    await slots.client.set(slots.key(dlq, "wait"), "not a list")
    async with letters_of(slots, dlq) as (letters, line), Queue(orders, **slots.options) as queue:
        await line.follow(parceling.carry(Keys(slots.prefix, orders)))

        findings = (await examine(slots.url, prefix=slots.prefix)).findings
        (found,) = [one for one in findings if one.code == "D237"]
        assert "holds a value of another kind" in found.problem
        assert await queue.get_state(job_id) == "in_transit"
        assert "does not take it" in await queue.explain(job_id)

        await slots.client.delete(slots.key(dlq, "wait"))
        argv = ["--url", slots.url, "--prefix", slots.prefix, "doctor", "--fix", "--no-audit"]
        await asyncio.to_thread(run, argv)
        assert "offered 1 refused parcel again" in capsys.readouterr().out
        async with Worker(orders, print, **slots.options):

            async def is_there() -> bool:
                return await letters.get_dead_letter_count() == 1

            await wait_until(is_there)
        assert await slots.leftovers(orders) == {}


async def test_a_member_that_is_on_its_way_is_in_transit(shop, slots, monkeypatch):
    await shop.add()
    monkeypatch.setattr(shop.flow._connection, "on_parcels", lambda _: None)
    group_id = await shop.add()
    members = {one.name: one for one in await shop.queues[0].get_group_jobs(group_id)}
    job_id, queue = members["b"].job_id, shop.queues[1]

    assert await queue.get_state(job_id) == "in_transit"
    sentence = await queue.explain(job_id)
    assert f"is on its way to '{slots.prefix}:{shop.names[1]}' in another slot" in sentence
    assert f"a worker of queue '{shop.names[0]}' delivers it" in sentence
    assert await shop.queues[0].get_job_counts("in_transit") == {"in_transit": 2}
    assert await queue.get_state("nobody") is None
    assert "does not exist" in await queue.explain("nobody")
    reader = await ConnectionReader.open(queue._connection)
    assert await audit(reader, slots.prefix) == []

    await shop.carry()
    assert await queue.get_state(job_id) == "waiting"
    await shop.check()


async def test_a_member_that_its_queue_refuses_says_why(shop, slots, monkeypatch):
    await shop.add()
    damaged = slots.key(shop.names[1], "delayed")
    await slots.client.set(damaged, "not a set")
    await shop.add(shop.member("b", 1, job_id="b-1"), queue_name=shop.names[0])
    assert await shop.queues[0].get_job_counts("in_transit") == {"in_transit": 1}
    await slots.client.delete(damaged)

    assert await shop.queues[1].get_state("b-1") == "in_transit"
    assert "does not take it: a key of its target" in await shop.queues[1].explain("b-1")
