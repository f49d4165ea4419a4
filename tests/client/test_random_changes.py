"""Random changes to living queues, then the audit of the keyspace.

``TORIL_FUZZ_SEED`` repeats a run; a failure names its seed.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest

from tests.client.support import working
from tests.helpers import wait_until
from tests.keyspace import audit
from toril import Deduplication, Queue
from toril.errors import RefusedError
from toril.protocol import cancelling, moving, pausing, removing

OPERATIONS = 1200
STREAMS = 4

# Lets a new job wait for children before any worker can see it.
ADD_PARENT = """
local base, id = KEYS[1], ARGV[1]
redis.call("HSET", base .. ":" .. id, "name", "parent", "data", "{}", "opts", "{}", "timestamp", 1,
  "delay", 0, "priority", ARGV[2])
redis.call("ZADD", base .. ":waiting-children", 1, id)
for n = 1, 2 do
  local child = id .. "-" .. n
  redis.call("HSET", base .. ":" .. child, "name", n == 1 and "fails" or "plain", "data", "{}",
    "opts", "{}", "timestamp", 1, "delay", 0, "priority", 0, "parentKey", base .. ":" .. id,
    "parent", ARGV[3])
  redis.call("SADD", base .. ":" .. id .. ":dependencies", base .. ":" .. child)
  local held = redis.call("EXISTS", base .. ":paused") == 1
  redis.call("LPUSH", base .. (held and ":paused" or ":wait"), child)
end
redis.call("ZADD", base .. ":marker", 0, "0")
"""


class Meddler:
    """One stream of random operations on one queue."""

    def __init__(self, queue: Queue, client: Any, dice: random.Random, ids: list[str]) -> None:
        self.queue = queue
        self.client = client
        self.dice = dice
        self.ids = ids

    async def meddle(self) -> None:
        dice, queue = self.dice, self.queue
        job_id = dice.choice(self.ids) if self.ids else "nobody"
        roll = dice.random()
        if roll < 0.4 or not self.ids:
            await self.add()
        elif roll < 0.44:
            await self.add_family()
        elif roll < 0.54:
            await queue.cancel(job_id, "by chance")
        elif roll < 0.62:
            await queue.remove(job_id, remove_children=dice.random() < 0.7)
        elif roll < 0.70:
            await queue.retry(job_id, reset_attempts=dice.random() < 0.5)
        elif roll < 0.75:
            await queue.promote(job_id)
        elif roll < 0.80:
            await queue.change_priority(job_id, dice.randint(0, 3), lifo=dice.random() < 0.3)
        elif roll < 0.84:
            await queue.change_delay(job_id, dice.choice((1, 40)))
        elif roll < 0.87:
            await queue.pause()
        elif roll < 0.93:
            await queue.resume()
        elif roll < 0.95:
            await queue.retry_all(dice.choice(("failed", "completed")))
        elif roll < 0.97:
            await queue.promote_all()
        elif roll < 0.98:
            await queue.drain(delayed=dice.random() < 0.5)
        else:
            states = ("completed", "failed", "waiting", "prioritized", "delayed", "active")
            await queue.clean(dice.choice(states), dice.choice((0, 5)), dice.choice((0, 4)))

    async def add(self) -> None:
        dice = self.dice
        options: dict[str, Any] = {}
        if dice.random() < 0.3:
            options["priority"] = dice.randint(1, 3)
        if dice.random() < 0.3:
            options["delay"] = dice.choice((1, 30, 100))
        if dice.random() < 0.3:
            options["attempts"] = 3
        if dice.random() < 0.2:
            options["remove_on_fail"] = dice.choice((True, 3))
        if dice.random() < 0.2:
            options["deduplication"] = Deduplication(
                f"d{dice.randint(1, 4)}", keep_last_if_active=dice.random() < 0.5
            )
        name = dice.choice(("plain", "slow", "fails"))
        self.ids.append((await self.queue.add(name, **options)).id)

    async def add_family(self) -> None:
        base, parent = self.queue.keys.base, f"parent-{len(self.ids)}-{self.dice.random()}"
        flag = self.dice.choice(("fpof", "cpof", "idof", "rdof"))
        link = f'{{"id":"{parent}","queueKey":"{base}","{flag}":true}}'
        await self.client.eval(ADD_PARENT, 1, base, parent, self.dice.randint(0, 2), link)
        self.ids += [parent, f"{parent}-1", f"{parent}-2"]


@pytest.mark.parametrize("style", [5, 6])
async def test_whatever_is_changed_the_queue_stays_whole(
    style, queue, url, client, prefix, monkeypatch
):
    for module in (removing, moving, pausing):
        monkeypatch.setattr(module, "SLICE", 4)
    monkeypatch.setattr(cancelling, "LONG_LIST", 5)
    seed = int(os.environ.get("TORIL_FUZZ_SEED", random.randrange(2**32)))
    await client.hset(queue.keys.meta, "version", f"bullmq:{style}.81.0")
    ids: list[str] = []

    async def handle(job):
        if job.name == "fails":
            raise ValueError("on purpose")
        if job.name == "slow":
            await asyncio.sleep(0.01)

    async def stream(number: int) -> None:
        meddler = Meddler(queue, client, random.Random(seed * STREAMS + number), ids)
        for _ in range(OPERATIONS // STREAMS):
            try:
                await meddler.meddle()
            except RefusedError:
                continue

    async def is_done() -> bool:
        places = (queue.keys.wait, queue.keys.paused, queue.keys.active)
        sets = (queue.keys.prioritized, queue.keys.delayed, queue.keys.waiting_children)
        return await client.exists(*places, *sets) == 0

    async with working(queue, url, handle, concurrency=5, stalled_interval=100):
        await asyncio.gather(*(stream(number) for number in range(STREAMS)))
        await queue.resume()
        await wait_until(is_done, 60, message=f"every job ends (TORIL_FUZZ_SEED={seed})")

    assert await audit(client, prefix, expects_marker=True) == [], f"TORIL_FUZZ_SEED={seed}"
    await queue.obliterate(force=True)
    assert await client.dbsize() == 0, f"TORIL_FUZZ_SEED={seed}"
