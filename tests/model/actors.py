"""Workers as the explorer knows them: what each holds, what it waits for, what it may do next.

A worker here does what `toril.worker` does, one job at a time: it takes, runs, settles and takes in
one call, sends a call again whose reply was lost, and waits for the marker when there is nothing.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

from tests.model.machine import Request, request_of
from tests.model.slots import OF_MEMBERS
from tests.model.view import PREFIX
from toril.errors import DelayedError, RateLimitError, WaitingChildrenError
from toril.options import Keep, RateLimit
from toril.protocol import scheduling, settling
from toril.protocol.burying import BurialPolicy
from toril.protocol.job import StoredJob, fields_of
from toril.protocol.keys import Keys
from toril.protocol.settling import Policy, Raised, Released, Returned, Settled, Take
from toril.worker.burial import Burial

LOCK_MS = 1_000_000_000

FRESH, IDLE, POPPED, GONE = "fresh", "idle", "popped", "gone"
DONE, FAIL, GIVE_BACK = "done", "fail", "give back"
PUT_OFF, LIMIT, WAIT = "put off", "limit", "wait for children"
HOLD_LANE = "hold its lane"


class Habits(NamedTuple):
    """What a worker was told when it was made."""

    dead_letters: str | None = None
    keeps: Keep | None = None
    limiter: RateLimit | None = None
    points: int | None = None
    is_named: bool = False
    is_spread: bool = False
    """Is its server a cluster?"""
    carries: bool = False
    """Do replies bring it parcels? Those of a worker of the version before have to be fetched."""
    takes: int = 1
    """How many jobs it runs at once; they end together."""


class Told:
    """What a worker was told of a job; equal ones are one object."""

    def __init__(self, words: tuple[Any, ...]) -> None:
        self.fields = fields_of(list(words))
        self.name = self.fields[b"name"].decode()


@lru_cache(maxsize=100_000)
def told(words: tuple[Any, ...]) -> Told:
    return Told(words)


class Held(NamedTuple):
    """A job that a worker runs: what it was told of it, and whether its schedule is advanced."""

    job_id: str
    token: str
    told: Told
    is_advanced: bool = True


class Call(NamedTuple):
    """A call of settle: what ends how, and how many are asked for."""

    request: int
    ended: tuple[tuple[Held, str], ...]
    take: int


class Worker(NamedTuple):
    name: str
    queue: str
    habits: Habits = Habits()
    life: int = 0
    request: int = 0
    held: tuple[Held, ...] = ()
    pending: Call | None = None
    last: Call | None = None
    phase: str = FRESH
    due_ms: int = 0
    """When it looks again by itself, as the server said when there was nothing to take."""

    @property
    def flight(self) -> str:
        return f"{self.name}{self.life}-0"

    @property
    def is_waiting(self) -> bool:
        """Does it wait at the server for the marker?"""
        return self.phase == IDLE and not self.held and self.pending is None

    def token_of(self, call: Call) -> str:
        return f"{self.name}{self.life}:{call.request}"

    def reborn(self) -> Worker:
        return Worker(self.name, self.queue, self.habits, self.life + 1)


@cache
def keys_of(queue: str) -> Keys:
    return Keys(PREFIX, queue)


@lru_cache(maxsize=100_000)
def stored(queue: str, held: Held) -> StoredJob:
    return StoredJob(PREFIX, queue, held.job_id, held.told.fields)


_ERRORS = {
    FAIL: ValueError("no"),
    PUT_OFF: DelayedError(1000),
    LIMIT: RateLimitError(1000),
    HOLD_LANE: RateLimitError(1000, lane=True),
    WAIT: WaitingChildrenError(),
}


@lru_cache(maxsize=100_000)
def outcome_of(queue: str, held: Held, how: str, habits: Habits) -> settling.Outcome:
    attempt: Any = Released()
    if how == DONE:
        attempt = Returned(f"result of {held.job_id}")
    elif how in _ERRORS:
        attempt = Raised(_ERRORS[how])
    policy = Policy(
        dead_letters=_burial(queue, habits.dead_letters),
        keep_completed=habits.keeps,
        keep_failed=habits.keeps,
    )
    job = stored(queue, held)
    if job.deferred_failure:
        attempt = Raised(settling.UnrecoverableError(job.deferred_failure))
    return settling.decide(job, attempt, policy, dice=0.0)


@cache
def _burial(queue: str, dead_letters: str | None) -> BurialPolicy | None:
    return Burial(dead_letters, keys_of(queue)).policy if dead_letters else None


@lru_cache(maxsize=100_000)
def settle_request(worker: Worker, call: Call) -> Request:
    """The request that this call of this worker makes."""
    habits = worker.habits
    settled = [
        Settled(
            held.job_id,
            held.token,
            outcome_of(worker.queue, held, how, habits),
            stored(worker.queue, held),
        )
        for held, how in call.ended
    ]
    take = Take(
        count=call.take,
        token=worker.token_of(call),
        lock_ms=LOCK_MS,
        worker_name=worker.name if habits.is_named else None,
        limiter=habits.limiter,
        metrics_points=habits.points,
    )
    return request_of(
        settling.settle(
            keys_of(worker.queue),
            settled,
            take,
            flight=worker.flight,
            request=call.request,
            dead_letters=keys_of(habits.dead_letters) if habits.dead_letters else None,
        ),
        is_spread=habits.is_spread,
        carries=habits.carries,
    )


def advance_request(worker: Worker, held: Held, now_ms: int) -> Request | None:
    """How a worker that took an iteration makes the next one, if there is to be one."""
    plan = scheduling.advance(keys_of(worker.queue), stored(worker.queue, held), now_ms)
    try:
        command = next(plan)
    except StopIteration:
        return None
    return request_of(command, is_spread=worker.habits.is_spread)  # type: ignore[arg-type]


def begun_after(begun: frozenset[str], worker: Worker, call: Call, reply: Any) -> frozenset[str]:
    """Members that may have been run: handed out, and nobody has told how that ended."""
    if worker.queue not in OF_MEMBERS or isinstance(reply, int):
        return begun
    told_of = {
        held.job_id
        for (held, _), code in zip(call.ended, reply[0], strict=True)
        if code == 0 and b"defa" not in held.told.fields
    }
    taken = {words[-1].decode() for words in reply[1] if b"defa" not in words[:-1:2]}
    return (begun - told_of) | taken


def after_reply(worker: Worker, call: Call, reply: Any) -> Worker:
    """The worker when the reply of its call has arrived."""
    if isinstance(reply, int):  # overtaken
        return worker._replace(pending=None)
    _, jobs, rate_limit_ms, next_due_ms, now_ms = reply
    token = worker.token_of(call)
    taken = []
    for words in jobs:
        known = told(tuple(words[:-1]))
        job_id = words[-1].decode()
        taken.append(Held(job_id, token, known, is_advanced=b"rjk" not in known.fields))
    gone = {held for held, _ in call.ended}
    held_now = (*(held for held in worker.held if held not in gone), *taken)
    is_idle = bool(call.take) and not taken
    due_ms = now_ms + rate_limit_ms if rate_limit_ms else next_due_ms
    return worker._replace(
        held=held_now,
        pending=None,
        last=call,
        request=call.request,
        phase=IDLE if is_idle else FRESH,
        due_ms=due_ms if is_idle else 0,
    )
