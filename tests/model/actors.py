"""Workers as the explorer knows them: what each holds, what it waits for, what it may do next.

A worker here does what `toril.worker` does, one job at a time: it takes, runs, settles and takes in
one call, sends a call again whose reply was lost, and waits for the marker when there is nothing.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

from tests.model.machine import Request, request_of
from toril.protocol import scheduling, settling
from toril.protocol.burying import BurialPolicy
from toril.protocol.job import StoredJob, fields_of
from toril.protocol.keys import Keys
from toril.protocol.settling import Policy, Raised, Released, Returned, Settled, Take

PREFIX = "p"
LOCK_MS = 1_000_000_000

FRESH, IDLE, POPPED = "fresh", "idle", "popped"
DONE, FAIL, GIVE_BACK = "done", "fail", "give back"


class Held(NamedTuple):
    """A job that a worker runs: how it was told of it, and whether its schedule is advanced."""

    job_id: str
    token: str
    words: tuple[Any, ...]
    is_advanced: bool = True


class Call(NamedTuple):
    """A call of settle: what ends how, and how many are asked for."""

    request: int
    ended: tuple[tuple[Held, str], ...]
    take: int


class Worker(NamedTuple):
    name: str
    queue: str
    dead_letters: str | None = None
    life: int = 0
    request: int = 0
    held: tuple[Held, ...] = ()
    pending: Call | None = None
    last: Call | None = None
    phase: str = FRESH

    @property
    def flight(self) -> str:
        return f"{self.name}{self.life}-0"

    def token_of(self, call: Call) -> str:
        return f"{self.name}{self.life}:{call.request}"


@cache
def keys_of(queue: str) -> Keys:
    return Keys(PREFIX, queue)


@lru_cache(maxsize=100_000)
def stored(queue: str, held: Held) -> StoredJob:
    words = list(held.words)
    return StoredJob(PREFIX, queue, held.job_id, fields_of(words))


@lru_cache(maxsize=100_000)
def outcome_of(queue: str, held: Held, how: str, dead_letters: str | None) -> settling.Outcome:
    attempt: Any = {
        DONE: Returned(f"result of {held.job_id}"),
        FAIL: Raised(ValueError("no")),
        GIVE_BACK: Released(),
    }[how]
    policy = Policy(dead_letters=_burial(queue, dead_letters))
    job = stored(queue, held)
    if job.deferred_failure:
        attempt = Raised(settling.UnrecoverableError(job.deferred_failure))
    return settling.decide(job, attempt, policy, dice=0.0)


@cache
def _burial(queue: str, dead_letters: str | None) -> BurialPolicy | None:
    if dead_letters is None:
        return None
    from toril.worker.burial import Burial

    return Burial(dead_letters, keys_of(queue)).policy


@lru_cache(maxsize=100_000)
def settle_request(worker: Worker, call: Call) -> Request:
    """The request that this call of this worker makes."""
    settled = [
        Settled(
            held.job_id,
            held.token,
            outcome_of(worker.queue, held, how, worker.dead_letters),
            stored(worker.queue, held),
        )
        for held, how in call.ended
    ]
    take = Take(count=call.take, token=worker.token_of(call), lock_ms=LOCK_MS)
    dead_letters = keys_of(worker.dead_letters) if worker.dead_letters else None
    return request_of(
        settling.settle(
            keys_of(worker.queue),
            settled,
            take,
            flight=worker.flight,
            request=call.request,
            dead_letters=dead_letters,
        )
    )


def advance_request(worker: Worker, held: Held, now_ms: int) -> Request | None:
    """How a worker that took an iteration makes the next one, if there is to be one."""
    plan = scheduling.advance(keys_of(worker.queue), stored(worker.queue, held), now_ms)
    try:
        command = next(plan)
    except StopIteration:
        return None
    return request_of(command)  # type: ignore[arg-type]


def after_reply(worker: Worker, call: Call, reply: Any) -> Worker:
    """The worker when the reply of its call has arrived."""
    if isinstance(reply, int):  # overtaken
        return worker._replace(pending=None)
    _, jobs, _, _, _ = reply
    token = worker.token_of(call)
    taken = []
    for words in jobs:
        job_id = words[-1].decode()
        held = Held(job_id, token, tuple(words[:-1]))
        is_scheduled = b"rjk" in words[:-1:2]
        taken.append(held._replace(is_advanced=not is_scheduled))
    gone = {held for held, _ in call.ended}
    held_now = (*(held for held in worker.held if held not in gone), *taken)
    phase = IDLE if call.take and not taken else FRESH
    return worker._replace(
        held=held_now, pending=None, last=call, request=call.request, phase=phase
    )
