"""Lanes under random interleavings of everything that two workers and an operator can do.

Each script is atomic, so an interleaving is an order of calls. After every call the keyspace audit
looks at all of it, and what was taken is compared with what the lanes said before. Zombies, lost
replies and repeated sweeps are among the calls. A failing seed is in the test's name.
"""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis.asyncio

from tests.features.lanes import Hand, fence_of, lose_lock, sweep
from tests.keyspace import ClientReader, audit, keys_under
from toril import JobLockedError, JobNotInStateError, Queue, RateLimit
from toril.client.connection import Connection
from toril.doctor import keyspace, lane_keys
from toril.protocol import settling
from toril.protocol.job import StoredJob
from toril.protocol.settling import Outcome, Policy, Raised, Released, Returned

LANES = ("a", "b")
STEPS = 45
SEEDS = range(int(os.environ.get("TORIL_LANE_SEEDS", "24")))


class World:
    """A queue with two lanes, two workers moved by hand, and an operator."""

    def __init__(
        self, queue: Queue, connection: Connection, client: redis.asyncio.Redis, dice: random.Random
    ) -> None:
        self.queue = queue
        self.keys = queue.keys
        self.connection = connection
        self.client = client
        self.dice = dice
        self.hands = [Hand(connection, queue.keys, name) for name in ("one", "two")]
        self.fences: list[int] = []
        self.log: list[str] = []

    async def values(self) -> dict[str, Any]:
        queues, _ = await keyspace.read(ClientReader(self.client), self.keys.prefix)
        found = queues.get(self.keys.base)
        return {} if found is None else found.values

    async def step(self) -> None:
        actions: list[tuple[int, Callable[[], Awaitable[object]]]] = [
            (6, self.add),
            (8, self.take),
            (10, self.settle),
            (2, self.expire),
            (3, self.sweep),
            (2, self.remove),
            (1, self.cancel),
            (2, self.promote),
            (1, self.pause),
            (2, self.resume),
            (2, self.send_again),
            (1, self.recover),
            (4, self.limit),
            (1, self.put_off),
            (1, self.drain),
        ]
        weights = [weight for weight, _ in actions]
        (_, action) = self.dice.choices(actions, weights)[0]
        self.log.append(action.__name__)
        await action()
        problems = await audit(self.client, self.keys.prefix)
        problems += await self.overlaps()
        assert not problems, (self.log, problems)

    async def overlaps(self) -> list[str]:
        """Two jobs of a lane that both hold a lock."""
        locked: dict[str, list[str]] = {}
        for job_id in await self.client.lrange(self.keys.active, 0, -1):
            if await self.client.exists(f"{self.keys.job(job_id)}:lock"):
                field = await self.client.hget(self.keys.job(job_id), "x.lane")
                locked.setdefault(field[32:], []).append(job_id)
        return [f"lane {lane} runs {ids}" for lane, ids in locked.items() if len(ids) > 1]

    async def add(self) -> None:
        lane, order_ms = self.dice.choice(LANES), self.dice.randrange(5)
        options: dict[str, Any] = {
            "attempts": self.dice.choice([1, 2, 3]),
            "backoff": self.dice.choice([0, 3_600_000]),
            "on_retry": self.dice.choice(["block", "skip"]),
            "on_exhausted": self.dice.choice(["skip", "skip", "halt"]),
        }
        if self.dice.random() < 0.2:
            options["delay"] = 3_600_000
        await self.queue.add("x", lane=lane, order_ms=order_ms, **options)

    async def take(self) -> None:
        await self.call(self.dice.choice(self.hands), [])

    async def settle(self) -> None:
        hand = self.dice.choice(self.hands)
        held = [job for job, _ in hand.held.values()]
        attempts = [Returned(None), Returned(None), Raised(ValueError("no")), Released()]
        outcomes = [
            (job, settling.decide(job, self.dice.choice(attempts), Policy(), dice=0.5))
            for job in self.dice.sample(held, self.dice.randrange(len(held) + 1))
        ]
        await self.call(hand, outcomes)

    async def call(self, hand: Hand, outcomes: list[tuple[StoredJob, Outcome]]) -> None:
        before = await self.values()
        tokens = {job.id: hand.held[job.id][1] for job, _ in outcomes}
        locks = {
            job_id: await self.client.get(f"{self.keys.job(job_id)}:lock") for job_id in tokens
        }
        results, jobs = await hand.call(outcomes, self.dice.randrange(4))
        for (job, _), result in zip(outcomes, results, strict=True):
            assert (result == 0) == (locks[job.id] == tokens[job.id]), "a zombie was heard"
        self.check_taken(before, jobs, free={job.id for job, _ in outcomes})

    def check_taken(self, before: dict[str, Any], jobs: list[StoredJob], free: set[str]) -> None:
        """What was taken is the head of a lane that nobody else held, and has a new fence."""
        heads: dict[str, str] = {}
        for member in before.get("lanes:waiting", ()):
            heads.setdefault(lane_keys.lane_in(member), lane_keys.id_in(member))
        holders = lane_keys.holders_by_lane(before)
        for job in jobs:
            assert job.lane is not None
            others = set(holders.get(job.lane, ())) - free
            assert not others, f"{job.id} was taken from a lane that {others} held"
            assert job.id in free or job.id == heads[job.lane], "not the head"
            assert not self.fences or fence_of(job) > self.fences[-1]
            self.fences.append(fence_of(job))

    async def expire(self) -> None:
        active = await self.client.lrange(self.keys.active, 0, -1)
        if active:
            await lose_lock(self.client, self.keys, self.dice.choice(active))

    async def sweep(self) -> None:
        await sweep(self.connection, self.client, self.keys)

    async def remove(self) -> None:
        if job_id := await self.any_job():
            try:
                await self.queue.remove(job_id)
            except JobLockedError:
                self.log[-1] += " refused"

    async def cancel(self) -> None:
        if job_id := await self.any_job():
            try:
                await self.queue.cancel(job_id)
            except JobNotInStateError:
                self.log[-1] += " refused"

    async def any_job(self) -> str | None:
        jobs = await self.queue.get_jobs(["waiting", "delayed", "active"])
        return self.dice.choice(jobs).id if jobs else None

    async def promote(self) -> None:
        await self.queue.promote_all()

    async def pause(self) -> None:
        await self.queue.pause_lane(self.dice.choice(LANES))

    async def resume(self) -> None:
        await self.queue.resume_lane(self.dice.choice(LANES))

    async def limit(self) -> None:
        limit = self.dice.choice([None, RateLimit(1, 3_600_000)])
        await self.queue.set_lane_rate_limit(self.dice.choice([None, *LANES, *LANES]), limit)

    async def put_off(self) -> None:
        if delayed := await self.queue.get_jobs(["delayed"]):
            await self.queue.change_delay(self.dice.choice(delayed).id, 7_200_000)

    async def drain(self) -> None:
        lane = self.dice.choice(LANES)
        await self.queue.drain_lane(lane, delayed=self.dice.random() < 0.5)

    async def send_again(self) -> None:
        """The reply of a call is lost: the same request brings the same jobs, and nothing more."""
        hand = self.dice.choice(self.hands)
        request = hand.next_request()
        command = hand.command([], 2, request)
        before = await self.values()
        first = await self.connection.run(command)
        between = await self.values()
        again = await self.connection.run(command)
        after = await self.values()
        assert [row[-1] for row in again.jobs] == [row[-1] for row in first.jobs]
        assert between == after
        self.check_taken(before, hand.receive(again.jobs, request), free=set())

    async def recover(self) -> None:
        assert await self.queue.recover_lanes() == 0, "nothing was broken"

    async def finish(self) -> None:
        """Everybody dies, the rest is done by one worker: nothing is lost, nothing stays."""
        for job_id in await self.client.lrange(self.keys.active, 0, -1):
            await lose_lock(self.client, self.keys, job_id)
        await self.sweep()
        await self.queue.promote_all()
        for lane in (None, *LANES):
            await self.queue.set_lane_rate_limit(lane, None)
        last = Hand(self.connection, self.keys, "last")
        while True:
            for lane in LANES:
                await self.queue.resume_lane(lane)
            jobs = await last.take(4)
            if not jobs:
                break
            for job in jobs:
                await last.complete(job)
        counts = await self.queue.get_job_counts("waiting", "active", "delayed")
        assert not any(counts.values()), (self.log, counts)
        keys = await keys_under(self.client, self.keys.prefix)
        # What a rate limit counted expires with its window.
        lanes = [key for key in keys if ":lanes:" in key and ":lanes:rate:" not in key]
        assert not lanes, (self.log, lanes)


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_interleaving_breaks_a_lane(seed, url, prefix, client):
    """FIFO-02, FIFO-04, FIFO-07, FIFO-13, FIFO-20, FIFO-30, C-20, C-22."""
    connection = Connection(url)
    async with Queue("q", connection=url, prefix=prefix) as queue:
        world = World(queue, connection, client, random.Random(seed))
        for _ in range(STEPS):
            await world.step()
        await world.finish()
    await connection.close()
