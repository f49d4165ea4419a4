"""A queue that several programs pause, fill and resume: Toril, BullMQ 5 and BullMQ 6 at once.

BullMQ 5 renames `wait` to `paused` when it pauses and back when it resumes, over whatever is there.
BullMQ 6 leaves jobs in `wait`, and its resume puts both lists together.
"""

import asyncio
from itertools import product

import pytest

from tests.interop.support import wait_for_finished


@pytest.fixture
async def both(node_peers, prefix):
    """BullMQ 5 and BullMQ 6 at the same queues."""
    views = {version: shared.at(prefix) for version, shared in node_peers.items()}
    yield views
    for view in views.values():
        await view.close_all()


LAST = ("nobody", 5, 6)
"""Whose version `meta` tells; "nobody" is Python's `bullmq` below 3, which writes none."""
PARTIES = ("toril", 5, 6)


class World:
    """The three parties at the queues of one test."""

    def __init__(self, both, toril, client, prefix):
        self.both, self.toril, self.client, self.prefix = both, toril, client, prefix

    async def open(self, queue, last):
        for version in (5, 6) if last != 5 else (6, 5):
            await self.both[version].call("queue.open", queue=queue)
        if last == "nobody":
            await self.client.hdel(f"{self.prefix}:{queue}:meta", "version")

    async def add(self, who, queue):
        return await (self.toril if who == "toril" else self.both[who]).add(queue, f"by {who}")

    async def pause(self, who, queue):
        if who == "toril":
            await self.toril.pause(queue)
        else:
            await self.both[who].call("queue.pause", queue=queue)

    async def resume(self, who, queue):
        if who == "toril":
            await self.toril.resume(queue)
        else:
            await self.both[who].call("queue.resume", queue=queue)

    async def ready(self, queue):
        return await self.client.lrange(f"{self.prefix}:{queue}:wait", 0, -1)


@pytest.fixture
def world(both, toril, client, prefix):
    return World(both, toril, client, prefix)


async def lost_in(world, queue, last, pauser, resumer, before, adders):
    """The programs whose jobs are gone when the queue goes on."""
    await world.open(queue, last)
    added = {await world.add(pauser, queue): "before" for _ in range(before)}
    await world.pause(pauser, queue)
    for who in adders:
        added[await world.add(who, queue)] = who
    await world.resume(resumer, queue)
    ready = await world.ready(queue)
    assert len(ready) == len(set(ready))
    return {added[job_id] for job_id in added.keys() - set(ready)}


@pytest.mark.no_audit
async def test_who_resumes_decides_what_a_pause_loses(world):
    """Every mixture of who opened last, who paused, who added and who resumed."""
    cases = list(product(LAST, PARTIES, PARTIES, (0, 1), product(PARTIES, repeat=2)))
    at_once = asyncio.Semaphore(40)

    async def play(number, case):
        async with at_once:
            return await lost_in(world, f"q{number}", *case)

    all_lost = await asyncio.gather(*(play(number, case) for number, case in enumerate(cases)))

    for case, lost in zip(cases, all_lost, strict=True):
        last, pauser, resumer, before, adders = case
        if resumer != 5:
            assert not lost, f"{resumer} brings both lists together: {case}"
        if pauser == 5 and 6 not in adders:
            assert not lost, f"BullMQ 6 did no more than open the queue: {case}"
        if "toril" in lost:
            is_in_wait = last == 6 and before and pauser in ("toril", 6)
            assert is_in_wait, f"what Toril adds is safe but for this mixture: {case}"
            assert adders == ("toril", 5), case


@pytest.mark.parametrize("last", LAST)
async def test_jobs_that_toril_adds_to_an_empty_paused_queue_survive_bullmq_5(last, world):
    await world.open("q", last)
    await world.pause(5, "q")
    ids = [await world.add("toril", "q") for _ in range(3)] + [await world.add(5, "q")]

    await world.resume(5, "q")

    assert await world.ready("q") == ids[::-1]


async def test_a_pause_by_toril_survives_bullmq_5_although_bullmq_6_opened_the_queue(world):
    await world.open("q", 5)
    ids = [await world.add("toril", "q")]
    await world.both[6].call("queue.forget", queue="q")
    await world.both[6].call("queue.open", queue="q")

    await world.pause("toril", "q")
    ids += [await world.add("toril", "q"), await world.add(5, "q")]
    await world.resume(5, "q")

    assert await world.ready("q") == ids[::-1]


async def test_jobs_left_in_the_paused_list_of_a_running_queue_come_back(world, toril, client):
    """BullMQ 6 resumes a long list in several calls; it can die between two of them."""
    prefix = world.prefix
    await world.open("q", 5)
    await world.pause(5, "q")
    ids = [await world.add(5, "q") for _ in range(3)]
    await client.hdel(f"{prefix}:q:meta", "paused")
    later = await world.add("toril", "q")

    running = await toril.start_worker("q", stalled_interval=50)
    await wait_for_finished(client, prefix, "q", 4)

    assert {job.id for job in running.handler.seen} == {*ids, later}
    assert not await client.exists(f"{prefix}:q:paused")
