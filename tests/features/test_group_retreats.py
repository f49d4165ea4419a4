"""The way back: a step of undoing costs what it opens, whoever took the step before."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from tests.features.group_support import World, open_world
from tests.proving import amount
from tests.servers import Server
from toril import Compensation, GroupJob
from toril.protocol import scripts


def library_before() -> scripts.Library:
    """Scripts that keep nothing of the way back, as in the version before."""
    library = scripts.library()
    text = library.rooms["retreats"]
    for old, new in (
        ("  if not group.follows_graph or", "  if true or"),
        ("  if was then redis.call(", "  if false then redis.call("),
        ('  redis.call("UNLINK", key)\n', ""),
        ('    redis.call("HSET", key, unpack(written', "    tostring(unpack(written"),
        ('  redis.call("PEXPIRE", key, KEPT_MS)\n', ""),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return library.with_texts({"rooms/retreats": text})


BEFORE = library_before()


@contextmanager
def version_before() -> Iterator[None]:
    loaded = scripts.load
    scripts.load = BEFORE.script  # type: ignore[assignment]
    try:
        yield
    finally:
        scripts.load = loaded  # type: ignore[assignment]


class Saga:
    """A group whose members are in one queue and are undone in another."""

    def __init__(self, world: World, after: list[list[int]], **options: Any) -> None:
        self.world = world
        self.after = after
        self.options = options
        self.done: set[int] = set()
        self.undone: list[int] = []
        self.broken: set[int] = set()

    @property
    def key(self) -> str:
        return f"{self.world.prefix}:q:groups:g"

    async def start(self) -> None:
        members = [
            GroupJob(f"m{number}", {}, queue_name="q", after=[f"m{one}" for one in before])
            for number, before in enumerate(self.after)
        ]
        undo = {
            f"m{number}": Compensation(f"undo-m{number}", attempts=1, backoff=None)
            for number in range(len(self.after))
            if number not in self.options.get("not_undone", ())
        }
        late = self.options.get("late", True)
        await self.world.flow.add_group(
            "saga", members, undo, group_id="g", queue_name="q", compensate_late=late
        )

    async def complete(self, count: int) -> None:
        """Complete so many members, each as soon as it is a job."""
        hand = self.world.hand("q")
        for _ in range(count):
            one = await hand.take_one()
            assert await hand.complete(one) == [0]
            self.done.add(int(one.name[1:]))

    def open_behind(self, number: int) -> set[int]:
        """Members behind this one, at any distance, that are done and not undone."""
        behind = {one for one, before in enumerate(self.after) if number in before}
        far = {two for one in behind for two in self.open_behind(one)}
        skipped = self.options.get("not_undone", ())
        return far | (behind & self.done - set(self.undone) - set(skipped))

    async def take_undoing(self) -> Any:
        """A job that undoes; nothing behind its member may be left to undo."""
        found = await self.world.hand("q:compensation").take()
        for one in found:
            number = int(one.name.removeprefix("undo-m"))
            assert not self.open_behind(number), (number, self.open_behind(number))
        return found[0] if found else None

    async def end_undoing(self, one: Any, *, fails: bool = False) -> None:
        hand, number = self.world.hand("q:compensation"), int(one.name.removeprefix("undo-m"))
        if fails:
            self.broken.add(number)
            assert await hand.fail(one) == [0]
        else:
            self.undone.append(number)
            assert await hand.complete(one) == [0]

    async def state(self) -> str:
        info = await self.world.queue("q").get_group_state("g")
        assert info is not None
        return str(info.state)


def chain(length: int) -> list[list[int]]:
    return [[number - 1] if number else [] for number in range(length)]


def commands_in(stats: dict[str, Any]) -> dict[str, int]:
    names = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
    outside = ("eval", "fcall", "info", "config", "client", "hello", "function")
    return {name: calls for name, calls in names.items() if not name.startswith(outside)}


async def cost_of_a_step(world: World, length: int) -> tuple[dict[str, int], dict[str, int]]:
    """What the server does for one step of undoing in the middle of a chain, and for a plain job
    that is completed and one that is added."""
    saga = Saga(world, chain(length))
    await saga.start()
    await saga.complete(length - 1)
    last = await world.hand("q").take_one()
    await world.hand("q").fail(last)
    for _ in range(3):
        await saga.end_undoing(await saga.take_undoing())
    one = await saga.take_undoing()
    await world.client.config_resetstat()
    await saga.end_undoing(one)
    step = commands_in(await world.client.info("commandstats"))
    await world.queue("plain").add("x")
    plain = await world.hand("plain").take_one()
    await world.client.config_resetstat()
    await world.hand("plain").complete(plain)
    await world.queue("plain").add("y")
    return step, commands_in(await world.client.info("commandstats"))


@pytest.mark.no_audit("commands are counted on a server of its own")
@pytest.mark.timeout(1800)
async def test_a_step_back_costs_the_same_in_a_chain_of_a_thousand(client: Any, prefix: str):
    """Each step looked at all members: 6 to 37 ms of the server's time in a chain of 1,000."""
    costs = []
    for length in (200, 1000):
        with Server() as server:
            counting = type(client).from_url(server.url, decode_responses=True)
            async with open_world(server.url, prefix, counting) as world:
                costs.append(await cost_of_a_step(world, length))
            await counting.aclose()

    (short, _), (long, plain) = costs
    print(long)
    assert short == long
    assert sum(long.values()) <= 60
    for reads_all in ("hgetall", "lrange", "hvals", "smembers"):
        assert long.get(reads_all, 0) <= plain.get(reads_all, 0), (
            "of the group nothing is read whole"
        )


async def test_what_the_version_before_began_is_taken_on(world: World):
    """A group that turned before the update has nothing written down of its way back."""
    saga = Saga(world, chain(5))
    await saga.start()
    with version_before():
        await saga.complete(4)
        await world.hand("q").fail(await world.hand("q").take_one())
        assert await world.client.exists(f"{saga.key}:retreat") == 0
        await saga.end_undoing(await saga.take_undoing())

    for _ in range(3):
        await saga.end_undoing(await saga.take_undoing())

    assert saga.undone == [3, 2, 1, 0]
    assert await saga.state() == "FAILED"


async def test_a_step_that_the_version_before_took_is_seen(world: World):
    saga = Saga(world, chain(6))
    await saga.start()
    await saga.complete(5)
    await world.hand("q").fail(await world.hand("q").take_one())

    for is_before in (False, True, False, True, False):
        one = await saga.take_undoing()
        with version_before() if is_before else nullcontext():
            await saga.end_undoing(one)

    assert saga.undone == [4, 3, 2, 1, 0]
    assert await saga.state() == "FAILED"


async def test_the_way_back_is_gone_with_the_group(world: World):
    saga = Saga(world, chain(3))
    await saga.start()
    await saga.complete(2)
    await world.hand("q").fail(await world.hand("q").take_one())
    assert 0 < await world.client.pttl(f"{saga.key}:retreat") <= 3_600_000

    for _ in range(2):
        await saga.end_undoing(await saga.take_undoing())

    assert await saga.state() == "FAILED"
    assert await world.client.exists(f"{saga.key}:retreat") == 0


@pytest.mark.parametrize("damage", ["gone", "text"])
async def test_a_way_back_that_is_damaged_is_found_anew(world: World, damage: str):
    saga = Saga(world, chain(4))
    await saga.start()
    await saga.complete(3)
    await world.hand("q").fail(await world.hand("q").take_one())
    one = await saga.take_undoing()
    await world.client.delete(f"{saga.key}:retreat")
    if damage == "text":
        await world.client.set(f"{saga.key}:retreat", "hello")

    await saga.end_undoing(one)
    for _ in range(2):
        await saga.end_undoing(await saga.take_undoing())

    assert await saga.state() == "FAILED"


async def test_an_earlier_run_is_undone_before_what_stands_before_it(world: World):
    """A member that was run again by force has done its work twice."""
    saga = Saga(world, chain(3))
    await saga.start()
    await saga.complete(2)
    queue = world.queue("q")
    again = next(one for one in await queue.get_completed() if one.name == "m1")
    await queue.retry(again.id, force=True)
    hand = world.hand("q")
    both = await hand.take(2)
    for one in both:
        await (hand.fail(one) if one.name == "m2" else hand.complete(one))

    names = []
    undoing = world.hand("q:compensation")
    while jobs := await undoing.take(5):
        assert len({one.name for one in jobs}) == 1
        names += [one.name for one in jobs]
        for one in jobs:
            await undoing.complete(one)

    assert names == ["undo-m1", "undo-m1", "undo-m0"]
    assert await saga.state() == "FAILED"


@pytest.mark.parametrize("is_undone", [True, False])
async def test_a_member_that_ends_late_sets_free_what_stands_before_it(
    world: World, is_undone: bool
):
    """It ran while the group turned; with nothing to undo of it, its end alone is waited for."""
    saga = Saga(world, [[], [0], [0]], not_undone=[] if is_undone else [1])
    await saga.start()
    await saga.complete(1)
    one, two = await world.hand("q").take(2)
    await world.hand("q").fail(two)
    assert await saga.take_undoing() is None

    await world.hand("q").complete(one)

    for number in [1, 0] if is_undone else [0]:
        await saga.end_undoing(await saga.take_undoing())
        assert saga.undone[-1] == number
    assert await saga.state() == "FAILED"


def random_graph(dice: random.Random, size: int) -> list[list[int]]:
    """Deep more than wide: most members wait for one or two of the last."""
    graph: list[list[int]] = []
    for number in range(size):
        near = range(max(0, number - 3), number)
        graph.append(sorted(dice.sample(near, min(len(near), dice.choice((0, 1, 1, 1, 2, 3))))))
    return graph


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(amount(25, 500)))
async def test_any_graph_is_undone_by_both_versions_in_turn(world: World, seed: int):
    """G5: nothing is undone before what is behind it, with late ones, failures and retries."""
    dice = random.Random(seed)
    size = dice.randint(5, 12)
    not_undone = dice.sample(range(size), dice.randint(0, 2))
    saga = Saga(world, random_graph(dice, size), not_undone=not_undone, late=dice.random() < 0.8)
    await saga.start()
    await saga.complete(dice.randint(size // 2, size - 1))
    hand, undoing = world.hand("q"), world.hand("q:compensation")
    running = await hand.take(dice.randint(1, 3))
    failed = running.pop()
    with version_before() if dice.random() < 0.5 else nullcontext():
        await hand.fail(failed)

    under_way: list[Any] = []
    for _ in range(200):
        with version_before() if dice.random() < 0.5 else nullcontext():
            if running and dice.random() < 0.3:
                one = running.pop()
                await hand.complete(one)
                if saga.options["late"]:
                    saga.done.add(int(one.name[1:]))
            elif await saga.state() == "FAILED_COMPENSATION":
                saga.broken.clear()
                await world.queue("q").retry_compensation("g")
            elif under_way and dice.random() < 0.6:
                one = under_way.pop(dice.randrange(len(under_way)))
                await saga.end_undoing(one, fails=dice.random() < 0.2)
            elif (found := await saga.take_undoing()) is not None:
                under_way.append(found)
            elif not under_way and not running and await saga.state() == "FAILED":
                break

    assert await saga.state() == "FAILED"
    assert sorted(saga.undone) == sorted(saga.done - set(not_undone))
    assert await undoing.take() == []
