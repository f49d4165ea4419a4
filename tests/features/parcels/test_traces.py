"""What deliveries leave behind, in their queue and in the records of groups."""

from __future__ import annotations

import time

import msgspec
import pytest

from tests.features.parcels.test_replays import OWNER, block, letters_at
from tests.helpers import wait_until
from toril import ManualWorker
from toril.protocol import parceling, replaying

DAY_MS = 86_400_000


async def test_a_member_that_comes_wakes_an_idle_worker(shop, slots):
    await shop.add()

    marker = slots.key(shop.names[1], "marker")
    assert await slots.client.zrange(marker, 0, -1, withscores=True) == [("0", 0.0)]
    assert await slots.client.get(slots.key(shop.names[1], "id")) == "1"


async def test_a_queue_with_a_member_watches_the_owner_for_a_day(shop, slots):
    """The owner may have no worker that looks for its parcels."""
    began = time.time() * 1000
    await shop.add()

    owner = f"{slots.prefix}:{shop.names[0]}"
    until = await slots.client.zscore(slots.key(shop.names[1], "toril:group-deadlines"), owner)
    assert began + DAY_MS - 60_000 < until < time.time() * 1000 + DAY_MS + 60_000


async def test_a_queue_whose_member_comes_later_watches_the_time_limit(shop, slots):
    began = time.time() * 1000
    members = [shop.member("a", 0), shop.member("c", 2, after=["a"])]
    await shop.add(*members, timeout=3_600_000)

    assert await shop.queues[2].get_waiting_count() == 0
    owner = f"{slots.prefix}:{shop.names[0]}"
    until = await slots.client.zscore(slots.key(shop.names[2], "toril:group-deadlines"), owner)
    assert until >= began + 3_600_000 - 60_000


async def test_the_letter_of_a_member_that_is_retried_is_gone(shop):
    async with await letters_at(shop, 1) as letters:
        group_id = await block(shop, 2, letters)
        assert await letters.get_dead_letter_count() == 1

        assert await shop.queues[OWNER].retry_group(group_id) == 1
        await shop.carry()

        assert await letters.get_dead_letter_count() == 0
        async with shop.open():
            await shop.until(group_id, "COMPLETED")
        await shop.check()


async def test_a_compensation_whose_end_was_lost_is_found(shop, slots):
    shop.refused = {"a"}
    members = [shop.member("b", 1), shop.member("a", 0, after=["b"])]
    group_id = await shop.add(*members, queue_name=shop.names[0])
    async with shop.open():
        await shop.until(group_id, "FAILED")
        await wait_until(shop.is_quiet)
    record = slots.key(shop.names[0], f"groups:{group_id}")
    (undo,) = await slots.client.hkeys(f"{record}:compensations")
    await slots.client.hset(f"{record}:compensations", undo, "pending")
    await slots.client.hset(record, mapping={"state": "COMPENSATING", "x.running": "1"})
    await slots.client.zadd(slots.key(shop.names[0], "toril:groups-open"), {group_id: 1})

    await shop.queues[0].reconcile_groups()
    await shop.carry()

    assert await shop.state(group_id) == "FAILED"
    await shop.check()


async def test_that_a_job_runs_again_does_not_overtake_that_it_failed(shop):
    group_id = await shop.add(
        shop.member("a", 0, pivot=True, undo=None), shop.member("b", 1, after=["a"], undo=None)
    )
    async with shop.open(0):
        await wait_until(shop.queues[1].get_waiting_count)
    async with ManualWorker(shop.names[1], **shop.slots.options) as worker:
        for connection in (worker._connection, shop.queues[1]._connection):
            connection.on_parcels = lambda _: None
        job = await worker.get_next_job(20_000)
        await job.fail(ValueError("no"))
        await shop.queues[1].retry(job.id, force=True)

        run, target = shop.queues[0]._connection.run, shop.queues[0].keys
        parcels, _ = await run(parceling.fetch(shop.queues[1].keys))
        assert len(parcels) == 2
        parcels.sort(key=lambda one: b"memberRetried" in one.body)  # both may be of one millisecond
        assert await run(parceling.deliver(target, [parcels[1]])) == [1]
        assert await run(parceling.deliver(target, [parcels[0]])) == [0]
        assert await shop.state(group_id) == "BLOCKED"
        assert await run(parceling.deliver(target, [parcels[1]])) == [0]
        assert await shop.state(group_id) == "ACTIVE"
        await run(parceling.collect(shop.queues[1].keys, [one.id for one in parcels]))
    async with shop.open():
        await shop.until(group_id, "COMPLETED")
    await shop.check()


async def test_deliveries_of_days_ago_are_forgotten(shop, slots):
    received = slots.key(shop.names[1], "toril:received")
    await slots.client.zadd(received, {"p1": 1, "p2": time.time() * 1000 - DAY_MS - 60_000})
    await slots.client.zadd(received, {"p3": time.time() * 1000 - DAY_MS + 600_000})

    await shop.add()

    known = await slots.client.zrange(received, 0, -1)
    assert (known[0], len(known)) == ("p3", 2)


@pytest.mark.timeout(1800)
async def test_no_more_than_a_million_deliveries_are_remembered(shop, slots):
    received = slots.key(shop.names[1], "toril:received")
    fill = """
        for first = ARGV[1], ARGV[1] + 9999, 1000 do
            local words = {}
            for i = first, first + 999 do
                words[#words + 1], words[#words + 2] = ARGV[2] + i, "p" .. i
            end
            redis.call("ZADD", KEYS[1], unpack(words))
        end
    """
    now = int(time.time() * 1000) - 3_600_000
    # A node that is busy for two seconds is taken for dead by the others.
    for first in range(0, 1_000_000, 10_000):
        await slots.client.eval(fill, 1, received, first, now)
    await slots.client.zadd(received, {"newest": now + 3_600_000})
    try:
        await shop.add()

        assert await slots.client.zcard(received) == 1_000_000
        assert await slots.client.zmscore(received, ["p0", "p1"]) == [None, None]
        assert await slots.client.zscore(received, "newest")
    finally:
        await slots.client.unlink(received)


async def test_a_job_that_comes_back_to_its_group_wakes_an_idle_worker(shop, slots):
    async with await letters_at(shop, 1) as letters:
        await block(shop, OWNER, letters)
        marker = slots.key(shop.names[OWNER], "marker")
        await slots.client.delete(marker)
        (letter,) = await letters.get_dead_letter_jobs(0, -1)

        await letters.replay_dead_letter(letter.id)
        await shop.carry()

        assert await slots.client.zrange(marker, 0, -1, withscores=True) == [("0", 0.0)]


async def test_a_replay_that_is_sent_again_says_that_its_parcel_is_still_there(shop):
    async with await letters_at(shop, 1) as letters:
        await block(shop, 2, letters)
        (letter,) = await letters.get_dead_letter_jobs(0, -1)
        told: list[object] = []
        letters._connection.on_parcels = told.append
        first = replaying.replay(letters.keys, letter.id, "new-1", shop.names[2])
        again = msgspec.structs.replace(first, args={**first.args, "resend": True})

        for command in (first, again):
            await letters._connection.run(command)

        assert len(told) == 2
