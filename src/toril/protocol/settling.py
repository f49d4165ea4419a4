"""How an attempt ends: decided by one pure function, written by one script.

``decide`` looks at what came of the handler and at the job's options and says what is to become of
the job.  ``settle`` writes any number of such outcomes and takes new jobs in the same call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from toril.errors import (
    DamagedJobError,
    DelayedError,
    ExpiredError,
    FailedChildrenError,
    InvalidInputError,
    InvalidOptionError,
    JobCancelledError,
    JobNotFoundError,
    JobNotInStateError,
    LockLostError,
    NoHandlerError,
    PendingChildrenError,
    RateLimitError,
    RefusedError,
    StaleRequestError,
    TorilError,
    UnrecoverableError,
    WaitingChildrenError,
)
from toril.options import MAX_DELAY_MS, BackoffStrategy, Keep, RateLimit, milliseconds
from toril.protocol import cancelling, codec
from toril.protocol.burying import BurialPolicy, Letter, SharedTrouble, letter_of
from toril.protocol.codec import UNSET
from toril.protocol.command import Command, Resend, pack, script
from toril.protocol.job import StoredJob
from toril.protocol.keys import Keys, is_away
from toril.protocol.refusals import Refusal
from toril.protocol.replies import is_too_large
from toril.protocol.traces import formatted_json, quoted

LONGEST_TRACE = 16 * 1024
LONGEST_REASON = 8 * 1024


class Returned(msgspec.Struct, frozen=True):
    """The handler returned ``value``."""

    value: Any


class Raised(msgspec.Struct, frozen=True):
    """The handler raised ``error``."""

    error: BaseException


class Released(msgspec.Struct, frozen=True):
    """The worker gives the job back unfinished, for another worker to take.

    ``is_begun`` when its handler was stopped in the middle: nobody knows how far it got.
    """

    is_begun: bool = False


Attempt = Returned | Raised | Released


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker adds to a job's own options."""

    keep_completed: Keep | None = None
    keep_failed: Keep | None = None
    max_started_attempts: int | None = None
    backoff_strategy: BackoffStrategy | Mapping[str, BackoffStrategy] | None = None
    is_final: Callable[[StoredJob, BaseException], bool] | None = None
    dead_letters: BurialPolicy | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What is to become of a job. ``kind`` is the name of the branch in ``settle.lua``."""

    kind: str
    details: dict[str, Any] = {}
    payloads: tuple[bytes | str, ...] = ()
    error: BaseException | None = None
    return_value: Any = None
    reason: str = ""
    letter: Letter | None = None


_RETURNED_NOTHING = Outcome(kind="completed", payloads=(b"null",))
_RETURNED_TO_QUEUE = Outcome(kind="returned")
_STOPPED_HALF_WAY = Outcome(kind="returned", details={"begun": True})
_PATIENCE = 3
GROUP_TURNED = "its group is being undone"
"""Why a member fails that was stopped half-way when its group turned; scripts write it."""
LEAST_TOO_LARGE = 500_000
"""In bytes. Every server reads so much: of a smaller result it is not said that it is too large."""


def decide(job: StoredJob, attempt: Attempt, policy: Policy, *, dice: float) -> Outcome:
    """What becomes of ``job`` after ``attempt``; ``dice`` in [0, 1) draws the jitter.

    Never raises: a job whose fields trip this fails, and nobody else.
    """
    try:
        if isinstance(attempt, Returned):
            return _completed(job, attempt.value, policy)
        if isinstance(attempt, Raised):
            return _after_error(job, attempt.error, policy, dice)
    except Exception as error:  # noqa: BLE001 (a job without an outcome holds its slot for ever)
        return given_up(job, error)
    return _STOPPED_HALF_WAY if attempt.is_begun else _RETURNED_TO_QUEUE


def refusal_to_run(job: StoredJob, max_started_attempts: int | None) -> Raised | None:
    """Why a job that was just taken must fail without being run; None if it may run."""
    if job.deferred_failure is not None:
        return Raised(_deferred(job.deferred_failure))
    if job.opts.trouble is not None:
        return Raised(
            DamagedJobError(f"the options of job {job.id!r} cannot be read: {job.opts.trouble}")
        )
    if max_started_attempts is not None and job.attempts_started > max_started_attempts:
        return Raised(UnrecoverableError("job started more than allowable limit"))
    if job.is_expired:
        return Raised(
            ExpiredError(
                f"job {job.id!r} ({job.name!r}) was not started within {job.opts.expires} ms, its"
                f" expires; it was not run"
            )
        )
    return None


def _deferred(reason: str) -> TorilError:
    """The error of a job that was to fail before it was taken.

    If somebody stopped it, or its group has turned, that is no failure of its own: its lane goes
    on, whoever runs it last.
    """
    if reason == GROUP_TURNED or cancelling.is_told_by(reason):
        return JobCancelledError(reason)
    return UnrecoverableError(reason)


def _completed(job: StoredJob, value: Any, policy: Policy) -> Outcome:
    keep = job.opts.keep_completed
    if keep is UNSET:
        keep = codec.keep_args(policy.keep_completed)
    if value is None and keep is None:
        return _RETURNED_NOTHING
    try:
        text = codec.encode(value, f"the return value of job {job.id!r}")
    except Exception as error:  # noqa: BLE001 (a value that cannot be looked at is the user's code)
        return _failed(job, error, policy)
    details = {} if keep is None else {"keep": keep}
    return Outcome(kind="completed", details=details, payloads=(text,), return_value=value)


def _after_error(job: StoredJob, error: BaseException, policy: Policy, dice: float) -> Outcome:
    if isinstance(error, TorilError):
        outcome = _after_word(job, error, policy)
        if outcome is not None:
            return outcome
    made = job.attempts_made + 1
    started_too_often = (
        policy.max_started_attempts is not None
        and job.attempts_started >= policy.max_started_attempts
    )
    if made >= job.opts.attempts or started_too_often:
        return _failed(job, error, policy)
    try:
        if policy.is_final is not None and policy.is_final(job, error):
            return _failed(job, error, policy)
        wait_ms = _wait_before_retry(job, made, error, policy, dice)
    except Exception as failure:  # noqa: BLE001 (a strategy is the user's code)
        return _failed(job, failure, policy)
    if wait_ms < 0:
        return _failed(job, error, policy)
    reason = reason_of(error, codec.words_of(error))
    payloads = (reason, _stacktraces(job, error))
    if wait_ms == 0:
        details = {"lifo": True} if job.opts.lifo else {}
        return Outcome(kind="retry", details=details, payloads=payloads, error=error, reason=reason)
    return Outcome(
        kind="delayed",
        details={"delay": wait_ms, "counts": True, **_lane_while_waiting(job)},
        payloads=payloads,
        error=error,
        reason=reason,
    )


def _after_word(job: StoredJob, error: TorilError, policy: Policy) -> Outcome | None:
    """The outcome of an error by which a handler says what is to happen; None for any other."""
    match error:
        case DelayedError():
            return _put_off(job, error, policy)
        case RateLimitError():
            return _rate_limited(job, error, policy)
        case WaitingChildrenError():
            return Outcome(kind="waiting-children", error=error)
        case UnrecoverableError() | JobCancelledError() | FailedChildrenError() | NoHandlerError():
            return _failed(job, error, policy)
    return None


def _lane_while_waiting(job: StoredJob) -> dict[str, bool]:
    """Whether others of its lane may overtake the job while it waits for its next attempt."""
    return {"skip": True} if job.lane is not None and job.opts.on_retry == "skip" else {}


def _wait_before_retry(
    job: StoredJob, made: int, error: BaseException, policy: Policy, dice: float
) -> int:
    backoff = job.opts.backoff
    if backoff is None:
        return 0
    if backoff.type in ("fixed", "exponential"):
        return backoff.wait_ms(made, dice)
    strategy = policy.backoff_strategy
    if isinstance(strategy, Mapping):
        strategy = strategy.get(backoff.type)
    if strategy is None:
        raise UnrecoverableError(
            f"job {job.id!r} asks for the backoff {backoff.type!r} and this worker has no such"
            f" strategy; pass Worker(…, backoff_strategy=…)"
        ) from error
    return min(int(strategy(made, backoff.type, error, job)), MAX_DELAY_MS)


def _put_off(job: StoredJob, error: DelayedError, policy: Policy) -> Outcome:
    try:
        delay_ms = milliseconds(error.delay, "delay")
    except InvalidOptionError as refusal:
        return _failed(job, refusal, policy)
    details = {"delay": delay_ms, **_lane_while_waiting(job)}
    return Outcome(kind="delayed", details=details, payloads=("", ""), error=error)


def _rate_limited(job: StoredJob, error: RateLimitError, policy: Policy) -> Outcome:
    try:
        limit_ms = milliseconds(error.duration, "duration")
    except InvalidOptionError as refusal:
        return _failed(job, refusal, policy)
    if not limit_ms:
        return Outcome(kind="returned", error=error)
    if error.lane and job.lane is None:
        details = {"delay": limit_ms}
        return Outcome(kind="delayed", details=details, payloads=("", ""), error=error)
    details = {"lane_limit" if error.lane else "limit": limit_ms}
    return Outcome(kind="returned", details=details, error=error)


def _failed(job: StoredJob, error: BaseException, policy: Policy) -> Outcome:
    details: dict[str, Any] = {"attempts": job.opts.attempts}
    keep = job.opts.keep_failed
    if keep is UNSET:
        keep = codec.keep_args(policy.keep_failed)
    if keep is not None:
        details["keep"] = keep
    if job.opts.lane is not None and not isinstance(error, JobCancelledError):
        details["on_exhausted"] = job.opts.on_exhausted
    message = codec.words_of(error)
    reason = reason_of(error, message)
    traces = _stacktraces(job, error)
    letter = None
    if policy.dead_letters is not None:
        letter = letter_of(job, error, message, reason, traces, policy.dead_letters)
        if letter is not None and policy.dead_letters.keep_source:
            details["stacktrace"] = traces
    return Outcome(
        kind="failed",
        details=details,
        payloads=(reason, traces) if letter is None else (),
        error=error,
        reason=reason,
        letter=letter,
    )


def given_up(job: StoredJob, error: BaseException) -> Outcome:
    """A final failure that looks at nothing of the job: what it holds cannot be dealt with."""
    refusal = DamagedJobError(f"job {job.id!r} cannot be dealt with: {codec.words_of(error)}")
    refusal.__cause__ = error
    reason = reason_of(refusal, codec.words_of(refusal))
    payloads = (reason, f"[{formatted_json(refusal, LONGEST_TRACE)}]")
    return Outcome(kind="failed", payloads=payloads, error=refusal, reason=reason)


def reason_of(error: BaseException, message: str) -> str:
    """One line for people: the type and the message; Toril's own errors need no type."""
    if not isinstance(error, TorilError) or not message:
        name = type(error).__name__
        message = f"{name}: {message}" if message else name
    return message[:LONGEST_REASON]


def _stacktraces(job: StoredJob, error: BaseException) -> str:
    """The traces of all failed attempts as JSON, this one's the last."""
    limit = job.opts.stack_trace_limit
    last = formatted_json(error, LONGEST_TRACE)
    if limit is None and job.raw(b"stacktrace") is None:
        return f"[{last}]"
    traces = [*map(quoted, job.stacktrace), last]
    if limit is not None:
        traces = traces[-limit:] if limit else []
    return f"[{','.join(traces)}]"


class Settled(msgspec.Struct, frozen=True):
    """One job's outcome on its way to the server."""

    job_id: str
    token: str
    outcome: Outcome
    job: StoredJob

    @property
    def size(self) -> int:
        """About how many bytes the server has to move; a dead letter takes its data along."""
        letter = self.outcome.letter
        if letter is None:
            return sum(map(len, self.outcome.payloads))
        return len(letter.trouble.metadata) + len(self.job.raw(b"data") or b"")


Confirmation = tuple[str, int]
"""A flight and the number of a call of it: the reply has arrived."""


class Take(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker asks for: how many jobs, under which token, locked for how long."""

    count: int
    token: str
    lock_ms: int
    worker_name: str | None = None
    limiter: RateLimit | None = None
    metrics_points: int | None = None


Result = int | bytes | list[Any]
"""What came of one outcome: 0, a refusal, the id that the job got among the dead letters, or a code
and the words of an error that the server met over this job."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What one call of the pump brought back."""

    results: list[Result]
    jobs: list[list[Any]]
    rate_limit_ms: int
    next_due_ms: int
    now_ms: int


def settle(
    keys: Keys,
    settled: Sequence[Settled],
    take: Take,
    *,
    flight: str,
    request: int,
    confirmations: Sequence[Confirmation] = (),
    dead_letters: Keys | None = None,
    keep_letters: Keep | None = None,
) -> Command[Reply]:
    """Write ``settled`` and take new jobs.

    ``flight`` and ``request`` name the call: sent again with the same two it returns what it
    returned, and one that a newer request has overtaken is refused. ``confirmations`` name the
    calls whose replies have arrived, when no newer call of their flights says so, and
    ``dead_letters`` the queue that takes the jobs which failed for good; ``keep_letters`` is how
    many stay there, and for how long.
    """
    load = _Load(settled)
    args: dict[str, Any] = {
        "outcomes": load.outcomes,
        "take": take.count,
        "token": take.token,
        "lock_ms": str(take.lock_ms),
        "flight": flight,
        "request": _digits(request),
    }
    if confirmations:
        args["received"] = [(flight, _digits(number)) for flight, number in confirmations]
    if take.worker_name is not None:
        args["name"] = take.worker_name
    if take.limiter is not None:
        args["limiter"] = {"max": take.limiter.max, "duration": take.limiter.duration_ms}
    if take.metrics_points is not None:
        args["points"] = take.metrics_points
    beside = dead_letters if load.troubles else None
    if beside is not None:
        args["troubles"] = load.troubles
        args["dead_letters"] = beside.name
        if is_away(keys, beside):
            args["away"] = beside.base
        args["queue"] = keys.name
        if keep_letters is not None:
            args["keep_letters"] = {"count": keep_letters.count, "age": keep_letters.age_ms}
    return script(
        "settle",
        keys,
        args,
        _parse_reply,
        beside=None if "away" in args else beside,
        payloads=load.texts + load.payloads,
        resend=Resend.SAME,
    )


def _digits(request: int) -> str:
    """The number of a call as the server compares it: as text."""
    return f"{request:016}"


class _Load:
    """What a call carries: the outcomes, their payloads, and each trouble of theirs once."""

    def __init__(self, settled: Sequence[Settled]) -> None:
        self.outcomes: list[dict[str, Any]] = []
        self.payloads: list[bytes | str] = []
        self.troubles: list[dict[str, Any]] = []
        self.texts: list[bytes | str] = []
        self._numbers: dict[SharedTrouble, int] = {}
        for item in settled:
            outcome = item.outcome
            told: dict[str, Any] = {"id": item.job_id, "token": item.token, "kind": outcome.kind}
            letter = outcome.letter
            if letter is None:
                told |= outcome.details
                self.payloads += outcome.payloads
            else:
                told["trouble"] = self._number_of(letter.trouble, outcome.details)
                told |= letter.own
            self.outcomes.append(told)

    def _number_of(self, trouble: SharedTrouble, details: dict[str, Any]) -> int:
        """Its place among them, from 1. With one worker, equal troubles have equal ``details``."""
        number = self._numbers.get(trouble)
        if number is None:
            number = self._numbers[trouble] = len(self._numbers) + 1
            self.troubles.append({"name": trouble.name, "made": trouble.attempts_made, **details})
            self.texts += (trouble.reason, trouble.metadata, trouble.note)
        return number


UNSENDABLE = (UnicodeError, OverflowError, TypeError, InvalidInputError)
"""What writing a command down raises when a value in it cannot be."""


def sendable(settled: Sequence[Settled]) -> list[Settled]:
    """``settled``, with a final failure for each outcome that cannot be written down."""
    return [_sendable(item) for item in settled]


def _sendable(item: Settled) -> Settled:
    outcome = item.outcome
    letter = outcome.letter
    try:
        pack([item.job_id, outcome.details, None if letter is None else letter.own])
        for text in (*outcome.payloads, *(() if letter is None else _texts_of(letter.trouble))):
            pack(text)
    except UNSENDABLE as error:
        return msgspec.structs.replace(item, outcome=given_up(item.job, error))
    return item


def too_large(settled: Mapping[int, Settled], error: Exception) -> int | None:
    """Which of the outcomes of a call holds a result that is larger than the server reads, if that
    is what ``error`` says."""
    if not is_too_large(error):
        return None
    results = [
        number
        for number, item in settled.items()
        if item.outcome.kind == "completed" and item.size >= LEAST_TOO_LARGE
    ]
    return max(results, key=lambda number: settled[number].size, default=None)


def refused_as_too_large(item: Settled, error: Exception) -> list[Any]:
    """The code for an outcome that the server did not even read."""
    words = f"its return value of {item.size} bytes is more than the server takes: {error}"
    return [0, words.encode()]


def _texts_of(trouble: SharedTrouble) -> tuple[str, ...]:
    return trouble.name, trouble.reason, trouble.metadata, trouble.note


def leave(keys: Keys, flights: Sequence[str]) -> Command[None]:
    """Forget the last calls of a worker that goes, and wake another one if there is work."""
    return script(
        "leave",
        keys,
        {"flights": list(flights)},
        lambda _: None,
        resend=Resend.SAME,
    )


def nothing_to_wait_for(times: int) -> Outcome:
    """A job wanted to wait for children and has none pending, ``times`` times in a row.

    It runs again, as if the last child were done just now: at once, but a handler that never stops
    asking is slowed down.
    """
    if times <= _PATIENCE:
        return _RETURNED_TO_QUEUE
    delay_ms = min(10 * 2 ** (times - _PATIENCE), 10_000)
    return Outcome(kind="delayed", details={"delay": delay_ms}, payloads=("", ""))


def _parse_reply(reply: Any) -> Reply:
    if isinstance(reply, int):
        raise StaleRequestError("a newer request of this worker was served before this one")
    results, jobs, rate_limit_ms, next_due_ms, now_ms = reply
    return Reply(
        results=results,
        jobs=jobs,
        rate_limit_ms=rate_limit_ms,
        next_due_ms=next_due_ms,
        now_ms=now_ms,
    )


def damage(job_id: str, code: list[Any]) -> DamagedJobError:
    """The error for an outcome that the server could not write, because of what it found."""
    return DamagedJobError(
        f"the outcome of job {job_id!r} cannot be written: {codec.text(code[1])}"
    )


def refusal(code: int, job_id: str) -> RefusedError:
    """The error for a code that ``settle.lua`` gave for one outcome."""
    match code:
        case Refusal.MISSING:
            return JobNotFoundError(f"job {job_id!r} does not exist any more; its result is lost")
        case Refusal.LOCK_EXPIRED:
            return LockLostError(
                f"the lock of job {job_id!r} has expired, so its result was not written;"
                f" another worker runs it again"
            )
        case Refusal.NOT_IN_STATE:
            return JobNotInStateError(f"job {job_id!r} is not active any more")
        case Refusal.CHILDREN_PENDING:
            return PendingChildrenError(
                f"job {job_id!r} cannot complete while children of it are pending;"
                f" raise WaitingChildrenError to wait for them"
            )
        case Refusal.LOCK_TAKEN:
            return LockLostError(
                f"another worker holds the lock of job {job_id!r}, so its result was not written"
            )
        case Refusal.CHILD_FAILED:
            return FailedChildrenError(f"job {job_id!r} cannot complete: a child of it failed")
    return RefusedError(f"job {job_id!r} was refused with code {code}")
