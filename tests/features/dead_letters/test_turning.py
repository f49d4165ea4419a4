"""Walks that leave many letters behind: the list goes round, nothing is lost or out of order."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from pathlib import Path

import pytest

from tests.features.dead_letters.conftest import DLQ
from tests.features.dead_letters.forging import forge
from tests.features.dead_letters.test_keeping import bury
from tests.helpers import wait_until
from toril.protocol import dead_letters
from toril.protocol.dead_letters import Filter, Walk


@pytest.fixture(autouse=True)
def small_slices(monkeypatch):
    """So that a few hundred letters go round."""
    monkeypatch.setattr(dead_letters, "LEFT_BEHIND", 30)
    monkeypatch.setattr(dead_letters, "LETTERS_PER_LOOK", 20)
    monkeypatch.setattr(dead_letters, "PURGES_PER_SLICE", 10)


def many(side, count, names):
    return forge(side.client, side.prefix, DLQ, count, names=names)


async def ids_of(side, list_name: str = "wait") -> list[str]:
    return await side.client.lrange(f"{side.prefix}:{DLQ}:{list_name}", 0, -1)


async def turning(side) -> dict | None:
    text = await side.client.get(f"{side.prefix}:{DLQ}:toril:turning")
    return None if text is None else json.loads(text)


class Purge:
    """A purge whose slices are asked for one by one."""

    def __init__(self, side, run: str = "one", **filters) -> None:
        self.side = side
        self.run = run
        self.wanted = Filter.of(**filters)
        self.walk = Walk()
        self.is_done = False

    async def step(self) -> None:
        keys = self.side.dlq.keys
        run = dead_letters.Run("purge", self.run, self.wanted)
        command = dead_letters.purge_slice(keys, self.walk, self.wanted, run=run)
        result = await self.side.dlq._connection.run(command)
        self.is_done = result.is_last
        self.walk = dead_letters.after(self.walk, result)

    async def steps(self, count: int) -> None:
        for _ in range(count):
            await self.step()

    async def finish(self) -> int:
        while not self.is_done:
            await self.step()
        return self.walk.done


@pytest.mark.parametrize("every", [2, 3, 100, 1000])
async def test_after_a_whole_turn_the_order_is_the_old_one(side, every):
    """DLQ-30."""
    names = ["send", *["keep"] * (every - 1)]
    await many(side, 500, names)
    before = await ids_of(side)
    seen_turning = []

    async def look(_) -> None:
        seen_turning.append(await turning(side) is not None)
        assert len(await ids_of(side)) >= 500 - (500 + every - 1) // every

    assert await side.dlq.purge_dead_letters(name="send", on_progress=look) == len(before[::every])

    gone = {letter_id for letter_id in before if (int(letter_id) - 1) % every == 0}
    assert await ids_of(side) == [each for each in before if each not in gone]
    assert any(seen_turning)
    assert await turning(side) is None


async def test_a_replay_takes_the_oldest_first_and_keeps_the_order_of_the_others(side):
    await many(side, 300, ("send", "keep", "keep"))

    assert await side.dlq.replay_all_dead_letters(name="send") == 100

    assert await ids_of(side) == [str(n) for n in range(300, 0, -1) if n % 3 != 1]
    waiting = await side.client.lrange(f"{side.prefix}:orders:wait", 0, -1)
    keys = [f"{side.prefix}:orders:{job_id}" for job_id in reversed(waiting)]
    numbers = [json.loads(await side.client.hget(key, "data"))["n"] for key in keys]
    assert numbers == list(range(0, 300, 3))


async def test_few_letters_stay_where_they_are(side):
    """Only what is left behind in great numbers goes round: most queues never see it."""
    await many(side, 60, ("send", "keep"))
    purge = Purge(side, name="send")

    while not purge.is_done:
        before = await ids_of(side)
        await purge.step()
        after = await ids_of(side)
        assert after == [each for each in before if each in after]
        assert await turning(side) is None


async def test_what_arrives_during_a_turn_stays_the_newest(side):
    await many(side, 200, ("send", *["keep"] * 9))
    purge = Purge(side, name="send")
    while not purge.is_done:
        await purge.step()
        await many(side, 3, ("send",))  # newer than the walk: left alone

    ids = await ids_of(side)

    assert ids == sorted(ids, key=int, reverse=True)
    assert [each for each in ids if int(each) <= 200] == [
        str(number) for number in range(200, 0, -1) if number % 10 != 1
    ]


async def test_workers_may_take_letters_during_a_turn(side):
    """They take from the tail, and find everything that has not been taken out."""
    await many(side, 400, ("send", "keep", "keep"))
    purge = Purge(side, name="send")
    wait = f"{side.prefix}:{DLQ}:wait"
    eaten = []
    while not purge.is_done:
        await purge.step()
        letter_id = await side.client.rpop(wait)
        if letter_id is not None:
            eaten.append(letter_id)
            await side.client.unlink(f"{side.prefix}:{DLQ}:{letter_id}")

    left = await ids_of(side)

    assert left == sorted(left, key=int, reverse=True)
    sent = {str(number) for number in range(1, 401, 3)}
    assert not sent & set(left)
    assert set(left) | set(eaten) >= {str(n) for n in range(1, 401)} - sent
    assert purge.walk.done + len(sent & set(eaten)) == len(sent)


@pytest.mark.parametrize("steps", [1, 4, 9, 15, 19, 20])
async def test_a_walk_that_died_is_resumed_and_brings_the_list_home(side, steps):
    """DLQ-29, wherever it died."""
    await many(side, 400, ("send", *["keep"] * 19))
    first = Purge(side, name="send")
    await first.steps(steps)

    assert await side.dlq.purge_dead_letters(name="send", resume=True) == 20

    assert await ids_of(side) == [str(n) for n in range(400, 0, -1) if n % 20 != 1]
    assert await turning(side) is None


@pytest.mark.parametrize("steps", [4, 9, 15, 22])
async def test_a_turn_that_was_left_lying_is_brought_home_by_the_next_walk(side, steps):
    await many(side, 400, ("send", "back", *["keep"] * 18))
    await Purge(side, run="dead", name="send").steps(steps)
    await age(side)

    assert await Purge(side, run="other", name="back").finish() == 20

    ids = await ids_of(side)
    assert ids == sorted(ids, key=int, reverse=True)
    assert len([each for each in ids if int(each) % 20 == 2]) == 0
    assert await turning(side) is None


async def age(side) -> None:
    """As if nobody had gone on with the turn for more than a minute."""
    turn = await turning(side)
    if turn is not None:
        text = json.dumps({**turn, "at": turn["at"] - 61_000})
        await side.client.set(f"{side.prefix}:{DLQ}:toril:turning", text, px=60_000)


async def test_a_walk_whose_turn_was_taken_over_still_sees_every_letter(side):
    await many(side, 400, ("send", "back", *["keep"] * 18))
    slow = Purge(side, run="slow", name="send")
    await slow.steps(9)
    await age(side)
    await Purge(side, run="other", name="back").steps(5)

    assert await slow.finish() == 20

    ids = await ids_of(side)
    assert not [each for each in ids if int(each) % 20 == 1]
    assert sorted(map(int, ids)) == sorted({int(each) for each in ids})


@pytest.mark.parametrize("seed", range(6))
async def test_two_walks_and_others_at_once_lose_and_double_nothing(side, seed):
    """Each sees every letter that was there from its beginning to its end."""
    dice = random.Random(seed)
    count = 300
    await many(side, count, ("send", "back", *["keep"] * 6))
    wait = f"{side.prefix}:{DLQ}:wait"
    walks = [Purge(side, run="one", name="send"), Purge(side, run="two", name="back")]
    removed = set()
    while not all(walk.is_done for walk in walks):
        walk = dice.choice([walk for walk in walks if not walk.is_done])
        await walk.step()
        if dice.random() < 0.2:
            await many(side, dice.randrange(1, 4), ("keep",))
        if dice.random() < 0.2:
            victim = str(dice.randrange(1, count + 1))
            if await side.client.lrem(wait, 1, victim):
                removed.add(victim)
                await side.client.unlink(f"{side.prefix}:{DLQ}:{victim}")
        if dice.random() < 0.1:
            await age(side)

    ids = await ids_of(side)

    assert len(ids) == len(set(ids))
    old = {int(each) for each in ids if int(each) <= count}
    kept = {number for number in range(1, count + 1) if (number - 1) % 8 > 1}
    assert old == kept - {int(each) for each in removed}


async def test_a_turn_ends_though_all_that_marked_it_is_gone(side):
    await many(side, 300, ("send", *["keep"] * 9))
    purge = Purge(side, name="send")
    await purge.steps(6)
    marks = (await turning(side))["fence"]
    for letter_id in marks:
        await side.client.lrem(f"{side.prefix}:{DLQ}:wait", 0, letter_id)
        await side.client.unlink(f"{side.prefix}:{DLQ}:{letter_id}")

    assert await purge.finish() == 30

    ids = await ids_of(side)
    assert set(ids) == {str(n) for n in range(1, 301) if n % 10 != 1} - set(marks)


async def test_letters_of_another_program_are_asked_about_during_a_turn(side):
    await many(side, 200, ("keep",))
    base = f"{side.prefix}:{DLQ}"
    for letter_id in range(60, 200, 10):
        meta = {"sourceQueue": "orders", "failedReason": "odd" if letter_id % 20 else "even"}
        await side.client.hset(f"{base}:{letter_id}", "data", json.dumps({"_dlqMeta": meta}))
        await side.client.hdel(f"{base}:{letter_id}", "x.letter")

    assert await side.dlq.purge_dead_letters(failed_reason="odd") == 7

    gone = set(range(70, 200, 20))
    assert await ids_of(side) == [str(n) for n in range(200, 0, -1) if n not in gone]


BULK = """
import asyncio, sys
from toril import Queue
from toril.protocol import dead_letters

dead_letters.LEFT_BEHIND = 30
dead_letters.LETTERS_PER_LOOK = 20

async def main(url, prefix):
    async with Queue("orders-dlq", connection=url, prefix=prefix) as dlq:
        await dlq.replay_all_dead_letters(name="send", rate=50)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_kill_9_during_a_turn(side, url, prefix):
    """DLQ-29: nothing is lost or doubled, and after the rest of the walk the order is back."""
    total = 2000
    await many(side, total, ("send", "keep", "keep", "keep"))
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BULK, url, prefix, cwd=Path(__file__).parents[3]
    )

    async def is_turning() -> bool:
        return (
            await turning(side) is not None
            and await side.client.llen(f"{prefix}:orders:wait") > 100
        )

    await wait_until(is_turning, 60)
    child.send_signal(signal.SIGKILL)
    await child.wait()
    replayed = await side.client.llen(f"{prefix}:orders:wait")
    assert sorted(await ids_of(side), key=int, reverse=True) != await ids_of(side)
    assert len(set(await ids_of(side))) == total - replayed

    assert await side.dlq.replay_all_dead_letters(name="send", resume=True) == total // 4

    assert await ids_of(side) == [str(n) for n in range(total, 0, -1) if n % 4 != 1]
    assert await side.client.llen(f"{prefix}:orders:wait") == total // 4


@pytest.mark.parametrize(("count", "steps"), [(400, 4), (400, 9), (400, 15), (3000, 60)])
async def test_a_turn_that_was_left_lying_does_not_end_the_retention(side, count, steps):
    """For a week nothing was removed: the oldest were not where they are looked for."""
    await many(side, count, ("send", *["keep"] * 19))
    await Purge(side, run="dead", name="send").steps(steps)
    await age(side)
    assert await turning(side) is not None
    keep = len(await ids_of(side)) - 60

    for _ in range(5):
        await bury(side, 1, keep)

    ids = await ids_of(side)
    assert len(ids) == keep
    assert ids == sorted(ids, key=int, reverse=True)
    assert await turning(side) is None


async def test_a_walk_whose_list_was_partly_brought_home_is_resumed_and_sees_every_letter(side):
    count = 3000
    await many(side, count, ("send", *["keep"] * 19))
    await Purge(side, run="dead", name="send").steps(60)
    await age(side)
    await bury(side, 1, 2000)
    assert (await turning(side))["owner"] == ""

    done = await side.dlq.purge_dead_letters(name="send", resume=True)

    assert not [n for n in map(int, await ids_of(side)) if n % 20 == 1 and n <= count]
    assert done == count // 20


async def test_a_turn_that_is_under_way_is_left_to_its_walk(side):
    await many(side, 400, ("send", *["keep"] * 19))
    purge = Purge(side, name="send")
    await purge.steps(9)
    before = await turning(side)

    await bury(side, 3, 100)

    assert await turning(side) == before
    assert await purge.finish() == 20
    assert await turning(side) is None
