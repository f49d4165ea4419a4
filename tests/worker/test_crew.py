"""The crew by itself: what it stops, what it writes and whom it tells, without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from toril.errors import LockLostError
from toril.options import DeadLetterOptions
from toril.protocol.keys import Keys
from toril.protocol.settling import Policy, Raised, Refusal, Returned, Settled
from toril.worker import crew as crews
from toril.worker.active_job import ActiveJob
from toril.worker.burial import Burial
from toril.worker.crew import Crew
from toril.worker.events import EVENTS, Emitter
from toril.worker.locks import Locks

KEYS = Keys("bull", "q")


class Outbox:
    """Keeps what is to be written."""

    def __init__(self) -> None:
        self.finished: list[Settled] = []
        self.again: list[Settled] = []
        self.confirmed: list[Any] = []

    def finish(self, item: Settled) -> None:
        self.finished.append(item)

    def finish_again(self, item: Settled) -> None:
        self.again.append(item)

    async def confirm(self, received: Any) -> None:
        self.confirmed.append(received)


class Others:
    """The sweeper and the keeper of groups: how often each was called."""

    def __init__(self) -> None:
        self.diversions = 0
        self.met = 0

    def divert_soon(self) -> None:
        self.diversions += 1

    def meet(self) -> None:
        self.met += 1


class World:
    """A crew whose handlers end when they are told to, or are cancelled."""

    def __init__(self, *listened: str, burial: Burial | None = None) -> None:
        self.outbox, self.locks, self.others = Outbox(), Locks(), Others()
        self.told: list[tuple[str, Any]] = []
        self.begun: list[ActiveJob] = []
        self.may_end = asyncio.Event()
        self.ends_with: Any = Returned(1)
        emitter = Emitter()
        for event in listened:
            emitter.on(event, lambda *args, event=event: self.told.append((event, args)))
        self.crew = Crew(
            KEYS,
            self.perform,
            Policy(),
            outbox=self.outbox,
            locks=self.locks,
            sweeper=self.others,
            keeper=self.others,
            writer=None,
            emitter=emitter,
            burial=burial,
        )

    @property
    def events(self) -> list[str]:
        return [event for event, _ in self.told]

    async def perform(self, job: ActiveJob) -> Any:
        job.is_running = True
        self.begun.append(job)
        try:
            await self.may_end.wait()
        except asyncio.CancelledError as error:
            return Raised(error)
        return self.ends_with

    def job(self, job_id: str = "1", token: str = "t", *more: bytes) -> ActiveJob:
        words = [b"name", b"n", b"data", b"{}", *more, job_id.encode()]
        return self.crew.read(words, token)

    async def start(self, job_id: str = "1", token: str = "t", *more: bytes) -> ActiveJob:
        job = self.job(job_id, token, *more)
        self.crew.start_job(job, "received")
        await turns()
        return job

    async def end(self) -> None:
        self.may_end.set()
        await self.crew.finish()
        await turns()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_listens_hears_that_a_job_begins_and_completes():
    world = World("active", "completed")
    job = await world.start()
    await world.end()
    (item,) = world.outbox.finished

    world.crew.settled(item, 0)

    assert world.told == [("active", (job,)), ("completed", (job, 1))]
    assert world.locks.all() == []


@pytest.mark.parametrize(
    ("more", "event"), [((), "failed"), ((b"opts", b'{"attempts":2}'), "retrying")]
)
async def test_who_listens_hears_that_a_job_failed_or_is_tried_again(more, event):
    world = World("completed", "failed", "retrying")
    world.ends_with = Raised(ValueError("no"))
    job = await world.start("1", "t", *more)
    await world.end()
    (item,) = world.outbox.finished

    world.crew.settled(item, 0)

    ((told, (of, error)),) = world.told
    assert (told, of, str(error)) == (event, job, "no")


async def test_an_error_that_nobody_wants_is_not_kept():
    """It holds all frames and what is in them."""
    for listened, is_kept in ((), False), (("failed",), True):
        world = World(*listened)
        world.ends_with = Raised(ValueError("no"))
        await world.start()
        await world.end()

        assert (world.outbox.finished[0].outcome.error is not None) is is_kept


async def test_a_failure_is_logged_and_a_result_is_not(caplog):
    world = World()
    await world.start()
    await world.end()
    assert caplog.text == ""

    world.ends_with = Raised(ValueError("it broke"))
    await world.start("2")
    await world.end()

    assert "it broke" in caplog.text


async def test_a_job_that_may_have_killed_its_worker_is_confirmed_before_it_runs():
    world = World()

    await world.start("1")
    assert world.outbox.confirmed == []
    await world.start("2", "t", b"x.unheard", b"1")

    assert world.outbox.confirmed == ["received"]
    await world.end()


async def test_a_job_of_a_group_is_told_to_the_keeper():
    world = World()

    world.job("1")
    assert world.others.met == 0
    world.job("2", "t", b"x.group", b"g")

    assert world.others.met == 1


# ---------------------------------------------------------------------------- stopping


async def test_a_cancelled_job_stops_and_its_signal_is_set():
    world = World()
    job = await world.start()
    signal = job.signal

    world.crew.cancel("1", "t", "cancelled: enough")
    await turns()

    assert signal.is_set()
    assert (job.is_cancelled, job.cancel_reason) == (True, "cancelled: enough")
    assert len(world.outbox.finished) == 1


async def test_cancelling_an_older_run_leaves_the_newer_one_alone():
    world = World()
    job = await world.start("1", "newer")

    world.crew.cancel("1", "older", "cancelled")
    world.crew.lose("1", "older")
    world.crew.tell("1", "older")
    await turns()

    assert (job.is_cancelled, job.is_lost, job.has_turned) == (False, False, False)
    assert not job.signal.is_set()
    assert world.outbox.finished == []
    await world.end()


async def test_who_is_cancelled_twice_keeps_the_first_reason():
    world = World()
    job = await world.start()

    world.crew.cancel("1", "t", "the first")
    world.crew.cancel("1", "t", "the second")
    await turns()

    assert job.cancel_reason == "the first"


async def test_a_message_that_comes_before_its_job_stops_that_run_and_no_other():
    world = World()
    world.crew.cancel("1", "t", "cancelled: early")
    world.crew.cancel("2", "another run", "cancelled: early")

    early, other = await world.start("1"), await world.start("2")

    assert (early.is_cancelled, early.cancel_reason) == (True, "cancelled: early")
    assert not other.is_cancelled
    assert world.crew._cancelled_early == {}
    third = await world.start("3")
    assert not third.is_cancelled
    await world.end()


async def test_messages_for_jobs_that_never_come_are_forgotten(monkeypatch):
    monkeypatch.setattr(crews, "_MOST_EARLY", 3)
    world = World()

    for number in range(10):
        world.crew.cancel(f"{number}", "t", "cancelled")

    assert 1 <= len(world.crew._cancelled_early) <= 3
    assert "9" in world.crew._cancelled_early


async def test_a_job_whose_group_turned_is_told_and_goes_on():
    world = World()
    job = await world.start()
    signal = job.signal
    world.crew.tell("2", "t")

    world.crew.tell("1", "t")
    await turns()

    assert job.has_turned
    assert signal.is_set()
    assert world.outbox.finished == []
    await world.end()


async def test_a_lost_job_stops_and_is_told_once():
    world = World("lost", "error")
    job = await world.start()
    signal = job.signal
    world.crew.lose("2", "t")
    assert world.told == []

    world.crew.lose("1", "t")
    await turns()
    world.crew.settled(world.outbox.finished[0], Refusal.LOCK_TAKEN)

    assert signal.is_set()
    assert job.is_lost
    assert world.events == ["lost", "error"]


async def test_a_run_is_stopped_when_its_job_comes_back_to_its_worker():
    """The lease renews the lock of the newer run, and hears nothing of the older one."""
    world = World("lost", "error")
    older = await world.start(token="t1")
    newer = await world.start(token="t2")
    (item,) = world.outbox.finished
    world.crew.settled(item, Refusal.LOCK_TAKEN)

    assert (item.token, older.is_lost, newer.is_cancelled) == ("t1", True, False)
    assert world.events == ["lost", "error"]
    assert world.crew.jobs == [newer]
    assert world.locks.all() == [("1", "t2")]
    await world.end()
    assert [item.token for item in world.outbox.finished] == ["t1", "t2"]


async def test_what_is_deaf_is_given_to_others_when_a_worker_ends(monkeypatch):
    monkeypatch.setattr(crews, "GRACE_S", 0.01)
    world = World()

    async def deaf(job: ActiveJob) -> Any:
        job.is_running = True
        while not world.may_end.is_set():
            try:
                await world.may_end.wait()
            except asyncio.CancelledError:
                continue
        return Returned(1)

    world.crew._perform = deaf
    await world.start()

    await world.crew.release()

    (item,) = world.outbox.finished
    assert (item.outcome.kind, item.outcome.details) == ("returned", {"begun": True})
    assert world.crew.jobs == []
    world.may_end.set()
    await turns()
    assert len(world.outbox.finished) == 1, "its result comes too late"


# ---------------------------------------------------------------------------- refusals


async def ended(*listened: str) -> tuple[World, Settled]:
    world = World(*listened)
    await world.start()
    await world.end()
    return world, world.outbox.finished[0]


@pytest.mark.parametrize("code", [Refusal.CHILDREN_PENDING, Refusal.CHILD_FAILED])
async def test_a_parent_whose_children_are_not_done_fails_instead(code):
    world, item = await ended(*EVENTS - {"active"})

    world.crew.settled(item, code)

    (again,) = world.outbox.again
    assert again.outcome.kind == "failed"
    assert world.locks.holds("1", "t"), "it is still ours"
    assert world.told == []


async def test_a_job_with_nothing_to_wait_for_runs_again():
    world, item = await ended()

    world.crew.settled(item, 3)

    assert len(world.outbox.again) == 1
    assert world.locks.holds("1", "t")


async def test_a_result_that_came_too_late_is_a_loss():
    world, item = await ended("lost", "error")

    world.crew.settled(item, Refusal.LOCK_EXPIRED)

    assert world.events == ["lost", "error"]
    assert all(isinstance(args[-1], LockLostError) for _, args in world.told)
    assert world.outbox.again == []
    assert world.locks.all() == []


async def test_a_result_of_a_job_that_is_gone_is_an_error():
    world, item = await ended("lost", "error")

    world.crew.settled(item, Refusal.MISSING)

    assert world.events == ["error"]
    assert world.outbox.again == []


async def test_what_cannot_be_written_fails_alone():
    world, item = await ended("error")

    world.crew.settled(item, [b"DAMAGED", b"its parent is no JSON"])

    assert world.events == ["error"]
    assert world.outbox.again[0].outcome.kind == "failed"


# ---------------------------------------------------------------------------- dead letters


@pytest.mark.parametrize("hears", [True, False])
@pytest.mark.parametrize("has_hook", [True, False])
async def test_who_listens_hears_of_a_dead_letter(hears, has_hook):
    called: list[Any] = []
    hook = (lambda job, letter: called.append(letter)) if has_hook else None
    burial = Burial(DeadLetterOptions("q-dlq", on_dead_letter=hook), KEYS)
    world = World(*(("failed", "deadLettered") if hears else ()), burial=burial)
    world.crew._policy = Policy(dead_letters=burial.policy)
    world.ends_with = Raised(ValueError("no"))
    await world.start()
    await world.end()
    (item,) = world.outbox.finished

    world.crew.settled(item, b"letter-1")

    assert burial.count == 1
    assert world.events == (["failed", "deadLettered"] if hears else [])
    assert [letter.dead_letter_job_id for letter in called] == ["letter-1"] * has_hook
    assert world.others.diversions == 0


async def test_a_letter_whose_lane_is_diverted_wakes_who_diverts():
    burial = Burial("q-dlq", KEYS)
    world = World(burial=burial)
    world.crew._policy = Policy(dead_letters=burial.policy)
    world.ends_with = Raised(ValueError("no"))
    await world.start()
    await world.end()
    (item,) = world.outbox.finished
    item.outcome.details["on_exhausted"] = "divert"

    world.crew.settled(item, b"letter-1")

    assert world.others.diversions == 1
