"""What becomes of a job after an attempt: one pure function, tested as tables."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from toril.errors import (
    DelayedError,
    FailedChildrenError,
    JobCancelledError,
    JobNotFoundError,
    JobNotInStateError,
    LockLostError,
    NoHandlerError,
    PendingChildrenError,
    RateLimitError,
    RefusedError,
    StaleRequestError,
    UnrecoverableError,
    WaitingChildrenError,
)
from toril.options import MAX_DELAY_MS, Keep, RateLimit
from toril.protocol import codec, settling
from toril.protocol.job import StoredJob
from toril.protocol.keys import Keys
from toril.protocol.settling import Outcome, Policy, Raised, Released, Returned, Settled, Take

KEYS = Keys("bull", "q")
NO = ValueError("no")


def job(made: int = 0, started: int = 1, stacktrace: str = "[]", **opts) -> StoredJob:
    fields = {
        b"name": b"charge",
        b"data": b"{}",
        b"opts": json.dumps(opts).encode(),
        b"atm": str(made).encode(),
        b"ats": str(started).encode(),
        b"stacktrace": stacktrace.encode(),
    }
    return StoredJob("bull", "q", "41", fields)


def decide(job, attempt, policy=None, dice=0.0) -> Outcome:
    return settling.decide(job, attempt, policy or Policy(), dice=dice)


@pytest.mark.parametrize(
    ("opts", "policy", "keep"),
    [
        ({}, Policy(), None),
        ({"removeOnComplete": True}, Policy(), {"count": 0}),
        ({"removeOnComplete": False}, Policy(keep_completed=Keep(count=3)), None),
        ({"removeOnComplete": 5}, Policy(keep_completed=Keep(count=3)), {"count": 5}),
        ({}, Policy(keep_completed=Keep(count=3)), {"count": 3}),
        ({}, Policy(keep_completed=Keep(age=1500)), {"age": 2}),
    ],
)
def test_a_return_value_completes(opts, policy, keep):
    outcome = decide(job(**opts), Returned({"n": 1}), policy)

    assert (outcome.kind, outcome.payloads, outcome.return_value) == (
        "completed",
        (b'{"n":1}',),
        {"n": 1},
    )
    assert outcome.details.get("keep") == keep


@pytest.mark.parametrize("value", [object(), float("inf"), {"a": [float("nan")]}, {(1, 2): 3}])
def test_a_return_value_that_is_no_json_fails_for_good(value):
    outcome = decide(job(attempts=5), Returned(value))

    assert outcome.kind == "failed"
    assert "the return value of job '41'" in outcome.reason


def test_a_released_job_goes_back():
    assert decide(job(), Released()) == Outcome(kind="returned")


@pytest.mark.parametrize(
    ("made", "opts", "dice", "kind", "delay"),
    [
        (0, {}, 0.0, "failed", None),
        (0, {"attempts": 1}, 0.0, "failed", None),
        (0, {"attempts": 3}, 0.0, "retry", None),
        (2, {"attempts": 3}, 0.0, "failed", None),
        (0, {"attempts": 3, "backoff": 1000}, 0.9, "delayed", 1000),
        (0, {"attempts": 3, "backoff": {"type": "fixed", "delay": 0}}, 0.0, "retry", None),
        (1, {"attempts": 3, "backoff": {"type": "exponential", "delay": 100}}, 0.0, "delayed", 200),
        (2, {"attempts": 9, "backoff": {"type": "exponential", "delay": 100}}, 0.0, "delayed", 400),
        (0, {"attempts": 2, "backoff": {"type": "fixed", "delay": 100, "jitter": 0.5}}, 0.0,
         "delayed", 50),
        (0, {"attempts": 2, "backoff": {"type": "fixed", "delay": 100, "jitter": 0.5}}, 0.5,
         "delayed", 75),
        (999, {"attempts": 9999, "backoff": {"type": "exponential", "delay": 1}}, 0.0,
         "delayed", MAX_DELAY_MS),
    ],
)  # fmt: skip
def test_an_error_is_tried_again_until_the_attempts_are_used_up(made, opts, dice, kind, delay):
    outcome = decide(job(made=made, **opts), Raised(NO), dice=dice)

    assert (outcome.kind, outcome.details.get("delay")) == (kind, delay)
    assert (outcome.reason, outcome.error) == ("ValueError: no", NO)
    assert outcome.payloads[0] == "ValueError: no"
    assert outcome.details.get("counts", False) == (kind == "delayed")


def test_a_retry_of_a_lifo_job_goes_to_the_front():
    assert decide(job(attempts=2, lifo=True), Raised(NO)).details == {"lifo": True}


@pytest.mark.parametrize(
    "error",
    [
        UnrecoverableError("hopeless"),
        JobCancelledError("hopeless"),
        FailedChildrenError("hopeless"),
        NoHandlerError("hopeless"),
    ],
)
def test_some_errors_end_it_whatever_attempts_are_left(error):
    outcome = decide(job(attempts=10), Raised(error))

    assert (outcome.kind, outcome.reason) == ("failed", "hopeless")
    assert outcome.details["attempts"] == 10


def test_starts_are_limited_too():
    policy = Policy(max_started_attempts=2)

    assert decide(job(started=1, attempts=10), Raised(NO), policy).kind == "retry"
    assert decide(job(started=2, attempts=10), Raised(NO), policy).kind == "failed"


@pytest.mark.parametrize(
    ("opts", "policy", "keep"),
    [
        ({}, Policy(), None),
        ({"removeOnFail": {"age": 10, "count": 2}}, Policy(), {"age": 10, "count": 2}),
        ({}, Policy(keep_failed=Keep(count=1)), {"count": 1}),
    ],
)
def test_failed_jobs_have_a_retention_of_their_own(opts, policy, keep):
    assert decide(job(**opts), Raised(NO), policy).details.get("keep") == keep


def strategy(made, name, error, job):
    return {"quick": 0, "slow": 500, "stop": -1, "huge": 10**18}.get(name, "nonsense")


@pytest.mark.parametrize("policy_of", [lambda f: f, lambda f: {"quick": f, "slow": f, "stop": f,
                                                              "huge": f, "broken": f}])  # fmt: skip
@pytest.mark.parametrize(
    ("name", "kind", "delay"),
    [
        ("quick", "retry", None),
        ("slow", "delayed", 500),
        ("stop", "failed", None),
        ("huge", "delayed", MAX_DELAY_MS),
        ("broken", "failed", None),
    ],
)
def test_a_strategy_of_the_worker_decides(policy_of, name, kind, delay):
    policy = Policy(backoff_strategy=policy_of(strategy))

    outcome = decide(job(attempts=5, backoff={"type": name}), Raised(NO), policy)

    assert (outcome.kind, outcome.details.get("delay")) == (kind, delay)


@pytest.mark.parametrize("strategy", [None, {}, {"other": strategy}])
def test_a_strategy_nobody_knows_fails_the_job_and_says_so(strategy):
    policy = Policy(backoff_strategy=strategy)

    outcome = decide(job(attempts=5, backoff={"type": "mine"}), Raised(NO), policy)

    assert outcome.kind == "failed"
    assert "asks for the backoff 'mine' and this worker has no such strategy" in outcome.reason
    assert "ValueError: no" in json.loads(outcome.payloads[1])[-1]


@pytest.mark.parametrize(
    ("error", "kind", "details"),
    [
        (DelayedError(250), "delayed", {"delay": 250}),
        (DelayedError(timedelta(seconds=2)), "delayed", {"delay": 2000}),
        (RateLimitError(), "returned", {}),
        (RateLimitError(100), "returned", {"limit": 100}),
        (WaitingChildrenError(), "waiting-children", {}),
    ],
)
def test_signals_do_not_count(error, kind, details):
    outcome = decide(job(), Raised(error))

    assert (outcome.kind, outcome.details, outcome.error) == (kind, details, error)


@pytest.mark.parametrize("error", [DelayedError("x"), DelayedError(-5), RateLimitError(None)])
def test_a_signal_with_nonsense_fails(error):
    assert decide(job(attempts=3), Raised(error)).kind == "failed"


class Mute(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (UnrecoverableError("plain words"), "plain words"),
        (UnrecoverableError(), "UnrecoverableError"),
        (Mute(), "Mute: its message cannot be shown"),
        (ValueError("\ud800"), "ValueError: ?"),
    ],
)
def test_a_reason_is_one_line_for_people(error, reason):
    assert settling.reason_of(error, codec.words_of(error)) == reason


def test_reasons_and_traces_are_bounded():
    outcome = decide(job(), Raised(ValueError("x" * 100_000)))

    assert len(outcome.reason) == settling.LONGEST_REASON
    assert len(json.loads(outcome.payloads[1])[0]) == settling.LONGEST_TRACE


@pytest.mark.parametrize(
    ("limit", "kept"), [({}, 3), ({"stackTraceLimit": 2}, 2), ({"stackTraceLimit": 0}, 0)]
)
def test_traces_of_earlier_attempts_stay(limit, kept):
    earlier = job(stacktrace='["one","two"]', **limit)

    traces = json.loads(decide(earlier, Raised(NO)).payloads[1])

    assert len(traces) == kept
    assert not kept or "ValueError: no" in traces[-1]


def settle(settled=(), take=None, **options):
    take = take or Take(count=2, token="w:1", lock_ms=30_000)
    return settling.settle(KEYS, settled, take, flight="w-0", request=7, **options)


def test_a_settle_carries_every_outcome_and_what_is_wanted():
    done = Settled("1", "w:5", Outcome(kind="completed", payloads=(b"1",)), job())
    failed = Settled("2", "w:6", decide(job(), Raised(NO)), job())
    take = Take(
        count=2,
        token="w:7",
        lock_ms=30_000,
        worker_name="me",
        limiter=RateLimit(3, 1000),
        metrics_points=10,
    )

    command = settle([done, failed], take, confirmations=[("w-1", 6)])

    assert command.args["outcomes"] == [
        {"id": "1", "token": "w:5", "kind": "completed"},
        {"id": "2", "token": "w:6", "kind": "failed", "attempts": 0},
    ]
    assert len(command.payloads) == 3
    wanted = ("take", "token", "name", "limiter", "points", "flight", "request", "received")
    assert [command.args[name] for name in wanted] == [
        2,
        "w:7",
        "me",
        {"max": 3, "duration": 1000},
        10,
        "w-0",
        "0000000000000007",
        [("w-1", "0000000000000006")],
    ]
    assert command.keys[0] == "bull:q"


def test_a_reply_is_read_and_a_stale_request_refused():
    command = settle()

    reply = command.parse([[0, -2], [[b"name", b"x", b"41"]], 5, 6, 7])
    assert (reply.results, reply.rate_limit_ms, reply.next_due_ms, reply.now_ms) == (
        [0, -2],
        5,
        6,
        7,
    )
    with pytest.raises(StaleRequestError):
        command.parse(-101)


def test_leaving_names_the_flights():
    command = settling.leave(KEYS, ["w-0", "w-1"])

    assert command.args == {"flights": ["w-0", "w-1"]}
    assert command.parse(0) is None


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (-1, JobNotFoundError),
        (-2, LockLostError),
        (-3, JobNotInStateError),
        (-4, PendingChildrenError),
        (-6, LockLostError),
        (-9, FailedChildrenError),
        (-77, RefusedError),
    ],
)
def test_refusals_have_names(code, error):
    refusal = settling.refusal(code, "41")

    assert type(refusal) is error
    assert "'41'" in str(refusal)


@pytest.mark.parametrize(
    ("times", "kind", "delay"),
    [(1, "returned", None), (3, "returned", None), (4, "delayed", 20), (99, "delayed", 10_000)],
)
def test_who_waits_for_no_child_runs_again_but_not_in_circles(times, kind, delay):
    outcome = settling.nothing_to_wait_for(times)

    assert (outcome.kind, outcome.details.get("delay")) == (kind, delay)


@pytest.mark.parametrize(
    ("reason", "policy"),
    [
        ("cancelled", None),
        ("cancelled: it hangs", None),
        ("its group is being undone", None),
        ("child b:q:1 failed", "divert"),
        ("job stalled more than allowable limit", "divert"),
    ],
)
def test_a_job_that_was_stopped_stops_no_lane_whoever_fails_it(reason, policy):
    """The worker that was to stop it is gone, and the one that takes it next fails it."""
    opts = {"lane": "a", "onExhausted": "divert"}
    fields = {b"name": b"charge", b"opts": json.dumps(opts).encode(), b"defa": reason.encode()}
    taken = StoredJob("bull", "q", "41", fields)

    refused = settling.refusal_to_run(taken, None)

    assert refused is not None
    outcome = decide(taken, refused)
    assert (outcome.kind, outcome.reason) == ("failed", reason)
    assert outcome.details.get("on_exhausted") == policy
