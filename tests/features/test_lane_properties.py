"""Order, limits and fairness of lanes for any course of events: a plain model runs beside them."""

from __future__ import annotations

import asyncio
import itertools
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.features.lanes import Hand
from toril import NewJob, Queue
from toril.client.connection import Connection
from toril.protocol.job import StoredJob

LANES = ("a", "b")
ATTEMPTS = 3
COMPLETE, FAIL, GIVE_BACK = "complete", "fail", "give back"

lane_names = st.sampled_from(LANES)
places = st.integers(0, 5)
steps = st.one_of(
    st.tuples(st.just("add"), lane_names, st.integers(0, 4)),
    st.tuples(st.just("add"), lane_names, st.integers(0, 4)),
    st.tuples(st.just("take"), st.integers(1, 6)),
    st.tuples(st.just("settle"), st.sampled_from((COMPLETE, COMPLETE, FAIL, GIVE_BACK)), places),
    st.tuples(st.just("settle"), st.sampled_from((COMPLETE, COMPLETE, FAIL, GIVE_BACK)), places),
    st.tuples(st.just("remove"), lane_names),
    st.tuples(st.just("pause"), lane_names),
    st.tuples(st.just("resume"), lane_names),
    st.tuples(st.just("limit"), st.none() | lane_names, st.none() | st.integers(1, 3)),
)

quickly = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class Model:
    """What lanes are, without any thought of speed."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[tuple[int, int, int, str]]] = defaultdict(list)
        self.holders: dict[str, set[str]] = defaultdict(set)
        self.paused: set[str] = set()
        self.limits: dict[str | None, int] = {}
        self.place: dict[str, tuple[int, int]] = {}
        self.failures: Counter[str] = Counter()
        self._arrivals = itertools.count()

    def add(self, lane: str, job_id: str, order_ms: int) -> None:
        self.place[job_id] = (order_ms, next(self._arrivals))
        self.wait(lane, job_id, has_started=False)

    def wait(self, lane: str, job_id: str, *, has_started: bool) -> None:
        insort(self.waiting[lane], (0 if has_started else 1, *self.place[job_id], job_id))

    def capacity(self, lane: str) -> int:
        return self.limits.get(lane) or self.limits.get(None) or 1

    def may_start(self, lane: str) -> bool:
        is_free = len(self.holders[lane]) < self.capacity(lane)
        return bool(self.waiting[lane]) and is_free and lane not in self.paused

    def start(self, job: StoredJob) -> None:
        lane = job.lane
        assert lane is not None
        assert self.may_start(lane), f"{lane} was held by {self.holders[lane]} or paused"
        *_, head = self.waiting[lane].pop(0)
        assert job.id == head, f"{job.id} ran and {head} was the head of {lane}"
        self.holders[lane].add(job.id)


class World:
    """A queue, a worker moved by hand, and the model that must agree."""

    def __init__(self, queue: Queue, hand: Hand) -> None:
        self.queue = queue
        self.hand = hand
        self.model = Model()
        self.running: list[StoredJob] = []

    async def take(self, count: int) -> None:
        jobs = await self.hand.take(count)
        for job in jobs:
            self.model.start(job)
        self.running += jobs
        if len(jobs) < count:
            idle = [lane for lane in LANES if self.model.may_start(lane)]
            assert not idle, f"{count} were asked for, {len(jobs)} came, and {idle} could run"

    async def add(self, lane: str, order_ms: int) -> None:
        job = await self.queue.add(
            "x", lane=lane, order_ms=order_ms, attempts=ATTEMPTS, backoff=0, remove_on_fail=True
        )
        self.model.add(lane, job.id, order_ms)

    async def settle(self, how: str, number: int) -> None:
        if not self.running:
            return
        job = self.running.pop(number % len(self.running))
        lane = job.lane
        assert lane is not None
        self.model.holders[lane].discard(job.id)
        if how == COMPLETE:
            await self.hand.complete(job)
        elif how == GIVE_BACK:
            await self.hand.give_back(job)
            self.model.wait(lane, job.id, has_started=True)
        else:
            await self.hand.fail(job)
            self.model.failures[job.id] += 1
            if self.model.failures[job.id] < ATTEMPTS:
                self.model.wait(lane, job.id, has_started=True)

    async def remove(self, lane: str) -> None:
        if self.model.waiting[lane]:
            *_, job_id = self.model.waiting[lane].pop()
            assert await self.queue.remove(job_id)

    async def pause(self, lane: str) -> None:
        await self.queue.pause_lane(lane)
        self.model.paused.add(lane)

    async def resume(self, lane: str) -> None:
        await self.queue.resume_lane(lane)
        self.model.paused.discard(lane)

    async def limit(self, lane: str | None, most: int | None) -> None:
        await self.queue.set_lane_concurrency(lane, most)
        self.model.limits.pop(lane, None)
        if most is not None:
            self.model.limits[lane] = most

    async def finish(self) -> None:
        for lane in LANES:
            await self.resume(lane)
            await self.limit(lane, None)
        await self.limit(None, None)
        while self.running or any(self.model.waiting.values()):
            await self.take(9)
            await self.settle(COMPLETE, 0)
        assert await self.queue.get_lanes() == []


@pytest.fixture
def play(url: str, prefix: str) -> Callable[..., None]:
    """Plays an example against a queue of its own."""
    numbers = itertools.count(1)

    def play(course: Callable[[Queue, Hand], Awaitable[None]]) -> None:
        async def run() -> None:
            connection = Connection(url)
            async with Queue(f"q{next(numbers)}", connection=url, prefix=prefix) as queue:
                await course(queue, Hand(connection, queue.keys, "one"))
                await queue.obliterate(force=True)
            await connection.close()

        asyncio.run(run())

    return play


@settings(quickly, max_examples=100)
@given(course=st.lists(steps, min_size=25, max_size=80))
def test_whatever_happens_a_lane_starts_its_head_and_no_lane_waits_for_nothing(
    course: list[tuple[Any, ...]], play
):
    """FIFO-02, FIFO-04, FIFO-07, FIFO-26: order, lane_concurrency, pauses; and work conserving."""

    async def follow(queue: Queue, hand: Hand) -> None:
        world = World(queue, hand)
        for name, *arguments in course:
            await getattr(world, name)(*arguments)
        await world.finish()

    play(follow)


@quickly
@given(
    weights=st.lists(st.integers(1, 5), min_size=2, max_size=5),
    turns=st.integers(10, 40),
    newcomer=st.integers(0, 30),
)
def test_turns_are_given_by_weight(weights: list[int], turns: int, newcomer: int, play):
    """Fairness: of lanes that all have work, none is more than two turns ahead by its weight.

    A lane that comes later, with one job, gets its turn before any other has had two rounds.
    """

    async def follow(queue: Queue, hand: Hand) -> None:
        for number, weight in enumerate(weights):
            await queue.set_lane_weight(f"l{number}", weight)
            await queue.add_bulk([NewJob("x", lane=f"l{number}") for _ in range(turns + 3)])
        given_to: Counter[str] = Counter()
        came_at = gone_at = None
        for turn in range(turns):
            if turn == newcomer:
                came_at = turn
                await queue.add("x", lane="new")
            (job,) = await hand.take(1)
            await hand.complete(job)
            if job.lane == "new":
                gone_at = turn
                continue
            given_to[job.lane] += 1
            shares = [given_to[f"l{n}"] / weight for n, weight in enumerate(weights)]
            assert max(shares) - min(shares) <= 2, (weights, given_to)
        if came_at is not None and came_at + 2 * sum(weights) < turns:
            assert gone_at is not None
            assert gone_at - came_at <= 2 * sum(weights)

    play(follow)


@quickly
@given(calls=st.lists(st.integers(1, 7), min_size=4, max_size=15), lanes=st.integers(8, 20))
def test_plain_jobs_and_lanes_get_half_each(calls: list[int], lanes: int, play):
    """Fairness: while both have work, neither side is more than one job ahead, call after call."""

    async def follow(queue: Queue, hand: Hand) -> None:
        most = sum(calls)
        await queue.add_bulk([NewJob("x", "plain") for _ in range(most)])
        await queue.add_bulk(
            [NewJob("x", "lane", lane=str(n % lanes)) for n in range(most + lanes)]
        )
        seen: Counter[str] = Counter()
        for count in calls:
            jobs = await hand.take(count)
            assert len(jobs) == count
            seen.update(job.data for job in jobs)
            assert abs(seen["plain"] - seen["lane"]) <= 1, (calls, seen)
            for job in jobs:
                await hand.complete(job)

    play(follow)
