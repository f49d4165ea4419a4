"""The pump by itself: what it does with replies, and whom it wakes, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest

from toril.protocol.settling import Outcome, Reply, Settled, Take
from toril.worker.outbox import Outbox
from toril.worker.pump import Pump


class Crew:
    """Notes which jobs begin."""

    def __init__(self) -> None:
        self.begun: list[Any] = []

    def read(self, words: Any, token: str) -> Any:
        return words

    def start_job(self, job: Any, received: Any) -> None:
        self.begun.append(job)

    def drained(self) -> None:
        pass


class Flight:
    """Keeps what is posted until the test lets it land."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.last_request = self.unheard = 0
        self.confirm_at = 0.0
        self.confirming: Any = None
        self.posted: list[Any] = []
        self.called: list[Any] = []
        self.has_left = False
        self.waits = 0
        self.brings: Reply | None = None
        self.meanwhile: Callable[[], None] = lambda: None

    def post(self, trip: Any, landed: Any) -> bool:
        self.posted.append(trip)
        self.landed = landed
        return True

    def land(self, reply: Reply) -> None:
        self.landed(self.posted[-1], reply)

    async def call(self, trip: Any) -> Reply:
        self.called.append(trip)
        return reply()

    async def wait_and_take(self, block_ms: int, trip: Any, landed: Any) -> None:
        self.waits += 1
        self.meanwhile()
        if self.brings is not None:
            landed(self.brings)
        raise asyncio.CancelledError

    async def leave(self) -> None:
        self.has_left = True


class Pulse:
    heard_at = 0.0

    def hear(self, now_ms: int) -> None:
        self.heard_at = asyncio.get_running_loop().time()


def reply(*jobs: str, next_due_ms: int = 0) -> Reply:
    return Reply(results=[], jobs=[*jobs], next_due_ms=next_due_ms, rate_limit_ms=0, now_ms=70)


class World:
    """A pump with room for three jobs."""

    def __init__(self, flights: int = 1, concurrency: int = 3) -> None:
        self.crew, self.outbox = Crew(), Outbox()
        self.flights = [Flight(f"w-{number}") for number in range(1, 1 + flights)]
        self.flight, self.waiting = self.flights[0], Flight("w-wait")
        self.pump = Pump(
            self.crew,
            self.outbox,
            Pulse(),
            self.flights,
            self.waiting,
            concurrency=concurrency,
            worker_id="w",
            make_take=lambda count, token: Take(count=count, token=token, lock_ms=1000),
        )

    async def __aenter__(self) -> Self:
        self.running = asyncio.create_task(self.pump.run())
        await turns()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_reply_that_cannot_be_taken_in_ends_the_pump():
    async with World() as world:
        world.crew.read = None

        world.flight.land(reply("job"))
        await turns()

        assert world.running.done()
        assert isinstance(world.running.exception(), (TypeError, ExceptionGroup))


async def test_whoever_waits_for_what_is_away_is_woken_when_it_has_landed():
    async with World() as world:
        landing = asyncio.create_task(world.pump.land())
        await turns()
        assert not landing.done()

        world.flight.land(reply())
        await turns()

        assert landing.done()
        assert world.pump._waiting_for_landing == []
        await asyncio.wait_for(world.pump.land(), 60)


async def test_nobody_waits_for_what_is_away_from_a_pump_that_was_stopped():
    async with World() as world:
        landing = asyncio.create_task(world.pump.land())
        await turns()
        assert not landing.done()

        world.running.cancel()

        await asyncio.wait_for(landing, 60)
        await asyncio.wait_for(world.pump.land(), 60)


@pytest.mark.parametrize(
    ("jobs", "told", "due", "looks_again"),
    [((), 77, 77, False), (("job",), 77, 77, False), (("big",), 70, 0, True)],
)
async def test_what_was_too_big_to_come_with_the_others_is_asked_for_at_once(
    jobs, told, due, looks_again
):
    """Something is due now although jobs came: they were not all. Else it is due later."""
    async with World() as world:
        world.flight.land(reply(*jobs, next_due_ms=told))
        await turns()

        assert world.pump.next_due_ms == due
        assert len(world.flight.posted) == 1 + looks_again


# ---------------------------------------------------------------------------- what leaves when


def sent(world: World) -> list[list[str]]:
    """The outcomes that each call has carried, flight by flight."""
    calls = [trip for flight in world.flights for trip in flight.posted]
    return [[item.job_id for item in trip.batch] for trip in calls if trip.batch]


def ended(job_id: str) -> Settled:
    return Settled(job_id, "w:1", Outcome(kind="completed", payloads=(b"1",)), None)  # type: ignore[arg-type]


@asynccontextmanager
async def full_world(concurrency: int) -> AsyncIterator[World]:
    """A pump that holds as many jobs as it may, and has no call away."""
    async with World(flights=2, concurrency=concurrency) as world:
        first, last = world.flights
        first.land(reply(*["job"] * (concurrency // 2)))
        last.land(reply(*["job"] * (concurrency // 2)))
        last.land(reply())  # a worker that is full confirms at once what has come
        assert (world.outbox.held, world.pump._away) == (concurrency, 0)
        yield world


@pytest.mark.parametrize(
    ("concurrency", "first", "share"), [(6, 3, 3), (20, 5, 10), (80, 10, 40), (200, 25, 100)]
)
async def test_what_is_worth_a_call_leaves_before_the_rest_of_the_turn(concurrency, first, share):
    """Handlers that wait for the same time end in one turn: the server need not wait for the last
    of them. While it is busy, what is collected is more."""
    async with full_world(concurrency) as world:
        ids = [str(number) for number in range(concurrency)]
        sizes = []
        for job_id in ids:
            world.outbox.finish(ended(job_id))
            sizes.append(sum(map(len, sent(world))))

    expected = [0] * (first - 1) + [first] * share + [first + share] * concurrency
    assert sizes == expected[:concurrency]
    assert sorted(sent(world)) == sorted([ids[:first], ids[first : first + share]])


async def test_what_is_less_leaves_at_the_end_of_the_turn():
    async with full_world(20) as world:
        for job_id in "abcd":
            world.outbox.finish(ended(job_id))
        assert sent(world) == []
        await turns()

        assert sent(world) == [[*"abcd"]]


# ---------------------------------------------------------------------------- confirmations


async def with_a_job() -> World:
    world = await World().__aenter__()
    world.flight.land(reply("job"))
    return world


async def test_what_runs_for_a_while_is_confirmed(monkeypatch):
    monkeypatch.setattr("toril.worker.pump.CONFIRM_AFTER_S", 0.0)
    world = await with_a_job()
    assert world.flight.confirming is not None

    await asyncio.sleep(0)
    while not world.flight.posted[1:]:
        await asyncio.sleep(0)

    assert [*world.flight.posted[1].confirmations] == [("w-1", 1)]
    await world.__aexit__()


async def test_what_a_later_call_has_told_is_not_confirmed():
    world = await with_a_job()
    world.flight.confirm_at = 0.0
    world.flight.last_request += 1

    world.pump._confirm(world.flight)

    assert len(world.flight.posted) == 1
    assert not world.outbox.to_confirm
    assert world.flight.confirming is None
    await world.__aexit__()


async def test_nothing_is_confirmed_when_nothing_is_held():
    world = await with_a_job()
    world.flight.confirm_at = 0.0
    world.outbox.held = 0

    world.pump._confirm(world.flight)

    assert len(world.flight.posted) == 1
    assert not world.outbox.to_confirm
    await world.__aexit__()


async def test_a_timer_of_an_earlier_reply_waits_for_the_later_one():
    world = await with_a_job()
    timer = world.flight.confirming
    world.flight.confirm_at += 600

    world.pump._confirm(world.flight)

    assert len(world.flight.posted) == 1
    assert not world.outbox.to_confirm
    assert world.flight.confirming is not None
    assert world.flight.confirming is not timer
    await world.__aexit__()


async def test_one_timer_does_for_many_replies():
    world = await with_a_job()
    timer = world.flight.confirming

    world.pump._confirm_later(world.flight.posted[0])

    assert world.flight.confirming is timer
    await world.__aexit__()


# ---------------------------------------------------------------------------- a wait that ends


@pytest.mark.parametrize("takes", [True, False])
async def test_a_wait_that_is_cancelled_asks_what_became_of_it_unless_the_loop_ends(takes):
    """A worker that closes has stopped taking before it cancels; a loop that ends has not."""
    async with World() as world:
        world.flight.land(reply())
        if not takes:
            world.waiting.meanwhile = world.pump.stop_taking

        with pytest.raises(asyncio.CancelledError):
            await world.pump.wait_and_take(1000)

        assert len(world.waiting.called) == (not takes)
        assert world.waiting.has_left is not takes


async def test_a_wait_that_is_cancelled_after_its_jobs_came_asks_for_nothing():
    """They run already: asking again would start them a second time."""
    async with World() as world:
        world.flight.land(reply())
        world.waiting.brings = reply("job")

        with pytest.raises(asyncio.CancelledError):
            await world.pump.wait_and_take(1000)

        assert world.crew.begun == ["job"]
        assert world.waiting.called == []
        assert world.pump._asked_for == 0


async def test_nobody_waits_while_a_call_asks_for_all_the_room():
    """It would pop the marker and take nothing, and nobody else would be woken."""
    async with World() as world:
        await asyncio.wait_for(world.pump.wait_and_take(1000), 60)
        assert world.waiting.waits == 0

        world.flight.land(reply())
        with pytest.raises(asyncio.CancelledError):
            await world.pump.wait_and_take(1000)
        assert world.waiting.waits == 1
