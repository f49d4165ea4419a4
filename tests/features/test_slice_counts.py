"""What one call of a long task does is bounded: so many jobs, so many commands, no payload.

The commands inside the calls are counted, so the figures are the same on any machine, and they do
not depend on how much there is to do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest

from tests.counting import inside, verb_of
from tests.features.group_support import open_world
from tests.features.lanes import Hand
from toril import NewJob
from toril.protocol import lanes, leasing, pausing, settling
from toril.protocol.burying import BurialPolicy
from toril.protocol.settling import Policy, Raised, Settled, Take

MOST_COMMANDS = 2_600
"""Inside one call; at three microseconds each this is below eight milliseconds."""
BIG = "x" * 100_000


class Call(NamedTuple):
    """One call of a plan: which, what it answered, what it did inside the server."""

    name: str
    answer: Any
    commands: list[str]

    @property
    def cost(self) -> int:
        return len(self.commands)

    @property
    def bytes(self) -> int:
        return sum(map(len, self.commands))

    def said(self, verb: str) -> int:
        return sum(verb_of(command) == verb for command in self.commands)


@pytest.fixture
async def server(start_server):
    return start_server()


@pytest.fixture
async def world(server):
    async with open_world(server.unix_url, "p", None) as world:
        yield world


async def walk(world, server, plan, **args) -> list[Call]:
    """Follow a plan call by call, with other arguments if some are given."""
    calls = []
    command = next(plan)
    while True:
        if command.script is not None and args:
            command = msgspec.structs.replace(command, args={**command.args, **args})
        with inside(server) as commands:
            answer = await world.connection.run(command)
        calls.append(Call(command.script.name if command.script else "", answer, commands))
        try:
            command = plan.send(answer)
        except StopIteration:
            return calls


async def run_silently(world, server, count: int, in_lanes: bool) -> None:
    """So many jobs are active, and nobody holds their locks."""
    queue, hand = world.queue("q"), world.hand("q")
    lane = (lambda n: f"lane-{n}") if in_lanes else (lambda n: None)
    await queue.add_bulk([NewJob("x", BIG, lane=lane(n)) for n in range(count)])
    taken = 0
    while taken < count:
        jobs = await hand.take(count)
        taken += len(jobs)
        with server.client() as raw:
            raw.delete(*[f"{queue.keys.job(job.id)}:lock" for job in jobs])


async def sweep(world, server, **options) -> list[Call]:
    keys = world.queue("q").keys
    with server.client() as raw:
        raw.delete(keys.stalled_check)
    plan = leasing.sweep(keys, interval_ms=60_000, max_stalled=1, **options)
    return await walk(world, server, plan)


@pytest.mark.parametrize(("in_lanes", "each"), [(False, 9), (True, 17)])
async def test_a_sweep_brings_back_a_slice_a_call(in_lanes, each, world, server):
    """I10: whatever the payloads, and however many are left."""
    await run_silently(world, server, 35, in_lanes)

    marking = [call for call in await sweep(world, server, slice_size=10) if call.name == "sweep"]
    bringing = [call for call in await sweep(world, server, slice_size=10) if call.name == "sweep"]

    assert [call.said("SADD") for call in marking] == [1, 1, 1, 1]
    assert [call.cost for call in marking[1:3]] == [3, 3]
    assert [len(call.answer[2]) for call in bringing] == [10, 10, 10, 5]
    second, third = bringing[1:3]
    assert second.cost == third.cost
    # What is read once a call: the gate, the flights, the rules and times of lanes.
    assert second.cost - 10 * each <= 10
    assert max(call.bytes for call in marking + bringing) < 100_000


@pytest.mark.parametrize("in_lanes", [False, True])
async def test_a_sweep_as_workers_do_it_is_a_short_call(in_lanes, world, server):
    """I10: many workers died at once; each call of the sweep is short, and all jobs come back."""
    await run_silently(world, server, 250, in_lanes)
    await sweep(world, server)

    calls = [call for call in await sweep(world, server) if call.name == "sweep"]

    assert [len(call.answer[2]) for call in calls] == [100, 100, 50]
    assert max(call.cost for call in calls) <= MOST_COMMANDS


async def test_jobs_left_in_paused_come_back_a_slice_a_sweep(world, server):
    """An interrupted resume left them there."""
    queue = world.queue("q")
    with server.client() as raw:
        raw.lpush(queue.keys.paused, *range(25))
        raw.lpush(queue.keys.wait, *range(100, 103))
        left = []
        for _ in range(3):
            await sweep(world, server, slice_size=10)
            left.append(raw.llen(queue.keys.paused))
            assert raw.delete(queue.keys.marker) == 1, "a worker that waits is woken"

        assert left == [15, 5, 0]
        assert raw.lrange(queue.keys.wait, 0, -1) == [
            *("102", "101", "100"),
            *(str(n) for n in range(24, -1, -1)),
        ]


async def test_if_nothing_else_waits_they_come_back_at_once(world, server):
    """A list is renamed, however long it is."""
    keys = world.queue("q").keys
    with server.client() as raw:
        raw.lpush(keys.paused, *range(25))

        (call,) = await sweep(world, server, slice_size=10)

        assert (call.said("RENAME"), call.said("RPUSH")) == (1, 0)
        assert raw.lrange(keys.wait, 0, -1) == [str(n) for n in range(24, -1, -1)]
        assert raw.delete(keys.marker) == 1


async def test_lanes_are_recovered_a_slice_a_call(world, server):
    """I10: however many are held. (The server gives a small hash or set whole.)"""
    with server.client() as raw:
        raw.config_set("hash-max-listpack-entries", 0)
        raw.config_set("zset-max-listpack-entries", 0)
    await run_silently(world, server, 300, in_lanes=True)
    keys = world.queue("q").keys
    await world.queue("q").add_bulk([NewJob("x", BIG, lane=f"lane-{n}") for n in range(300)])

    for part, each in (("held", 9), ("index", 9), ("kept", 2)):
        with server.client() as raw:
            raw.delete(f"{keys.base}:de")
            raw.sadd(f"{keys.base}:de", "gone")
        calls = await walk(world, server, lanes.recover(keys, parts=(part,)), slice=30)

        # The scan of the server gives at least as many as it is asked for, and few more.
        assert len(calls) >= 300 / 45
        assert max(call.cost for call in calls) <= 45 * each + 12
        assert max(call.bytes for call in calls) < 100_000
        if part == "kept":
            with server.client() as raw:
                kept = raw.smembers(f"{keys.base}:de") - {"groups", "compensation"}
                assert (len(kept), "gone" in kept) == (300, False)


async def fail_a_lane(world, sizes: list[int]) -> None:
    """The first of a lane failed for good, and the others are to follow it."""
    queue = world.queue("q")
    await queue.add_bulk(
        [
            NewJob("x", "x" * size, lane="a", order_ms=n, attempts=1, on_exhausted="divert")
            for n, size in enumerate([1, *sizes])
        ]
    )
    hand = Hand(world.connection, queue.keys, "hand")
    (job,) = await hand.take(1)
    policy = Policy(dead_letters=BurialPolicy())
    outcome = settling.decide(job, Raised(ValueError("no")), policy, dice=0.5)
    settled = Settled(job.id, hand.held[job.id][1], outcome, job)
    take = Take(count=0, token="", lock_ms=30_000)
    dead = queue.keys.sibling("q-dlq")
    await world.connection.run(
        settling.settle(queue.keys, [settled], take, flight="f", request=1, dead_letters=dead)
    )


async def test_a_lane_is_diverted_a_slice_a_call(world, server):
    """I10: a call sends so many jobs, and each costs the same."""
    await fail_a_lane(world, [10] * 35)
    keys = world.queue("q").keys
    newer = await world.queue("q").add("x", lane="a")
    with server.client() as raw:
        raw.delete(keys.marker)

    calls = [
        call for call in await walk(world, server, lanes.divert(keys), slice=10) if call.commands
    ]

    assert [call.answer[1:] for call in calls] == [(10, 0)] * 3 + [(5, 1)]
    first, second, third, _ = (call.cost for call in calls)
    assert second == third <= first
    assert await world.queue("q-dlq").get_dead_letter_count() == 36
    with server.client() as raw:
        assert raw.exists(f"{keys.base}:lanes:diverting") == 0
        assert raw.exists(keys.marker) == 1, "the lane goes on, and a worker is told"
    assert [job.id for job in await world.hand("q").take(1)] == [newer.id]


async def test_a_diverted_lane_of_the_size_that_workers_choose_is_a_short_call(world, server):
    await fail_a_lane(world, [10] * 150)

    calls = await walk(world, server, lanes.divert(world.queue("q").keys))

    assert [call.answer[1] for call in calls[1:]] == [100, 50]
    assert max(call.cost for call in calls) <= MOST_COMMANDS


async def test_a_diverted_lane_is_bounded_in_bytes(world, server):
    """I10: large jobs go one by one."""
    await fail_a_lane(world, [100, 90_000, 90_000, 300_000, 100])

    calls = await walk(world, server, lanes.divert(world.queue("q").keys), bytes=200_000)

    assert [call.answer[1] for call in calls[1:]] == [3, 1, 1]


@pytest.mark.parametrize(
    ("verb", "held", "waiting", "each", "last"),
    [
        ("pause", 35, 35, 8, 9),
        ("pause", 65, 25, 8, 9),
        ("resume", 35, 35, 4, 12),
        ("resume", 65, 35, 4, 12),
        ("resume", 35, 65, 4, 10),
    ],
)
async def test_two_lists_become_one_a_slice_a_call(verb, held, waiting, each, last, world, server):
    """I10: jobs are moved by their ids, a slice by two commands, in their order."""
    keys = world.queue("q").keys
    with server.client() as raw:
        known = {"opts.maxLenEvents": 10_000, "x.seen5": 1}
        raw.hset(keys.meta, mapping={"version": "bullmq:5.81.5", "paused": 1, **known})
        raw.lpush(keys.paused, *(f"p{n}" for n in range(held)))
        raw.lpush(keys.wait, *(f"w{n}" for n in range(waiting)))

        calls = await walk(world, server, getattr(pausing, verb)(keys), slice=10)

        ids = [f"p{n}" for n in range(held)] + [f"w{n}" for n in range(waiting)]
        full, empty = (keys.paused, keys.wait) if verb == "pause" else (keys.wait, keys.paused)
        assert raw.lrange(full, 0, -1) == ids[::-1]
        assert raw.exists(empty) == 0
    moved = waiting if verb == "pause" else min(held, waiting)
    assert len(calls) == moved // 10 + 1
    assert [call.said("RPOP") + call.said("LPOP") for call in calls] == [1] * len(calls)
    assert [call.cost for call in calls] == [each] * (len(calls) - 1) + [last]
    assert max(call.bytes for call in calls) < 2_000
