"""Options: every form that is accepted, every value that is refused, before anything is sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from toril.errors import (
    InvalidNameError,
    InvalidOptionError,
    JobFailedError,
    JobRemovedError,
    UnknownOptionError,
)
from toril.options import (
    MAX_DELAY_MS,
    MAX_PRIORITY,
    OPTION_NAMES,
    Backoff,
    Deduplication,
    FlowJob,
    Keep,
    NewJob,
    RateLimit,
    WorkerOptions,
    epoch_ms,
    milliseconds,
    new_job,
    refuse_unknown,
)


@pytest.mark.parametrize(
    ("value", "ms"), [(0, 0), (1500, 1500), (timedelta(seconds=1.5), 1500), (MAX_DELAY_MS,) * 2]
)
def test_durations(value, ms):
    assert milliseconds(value, "delay") == ms


@pytest.mark.parametrize("value", [-1, True, 1.5, "1", None, MAX_DELAY_MS + 1, timedelta(-1)])
def test_what_is_no_duration(value):
    with pytest.raises(InvalidOptionError, match="delay="):
        milliseconds(value, "delay")


def test_a_job_is_bare_when_it_has_no_option_of_all():
    """Those with one are looked at closely, whatever its value."""
    assert NewJob("x", {"n": 1}).is_bare
    assert not FlowJob("x", queue_name="q").is_bare
    for option in OPTION_NAMES:
        job = NewJob("x")
        msgspec.structs.force_setattr(job, option, 0)
        assert not job.is_bare, option


def test_moments():
    moment = datetime(2026, 1, 2, tzinfo=UTC)

    assert epoch_ms(moment, "run_at") == 1767312000000
    assert epoch_ms(5, "run_at") == 5
    with pytest.raises(InvalidOptionError, match="has no time zone"):
        epoch_ms(datetime(2026, 1, 2), "run_at")  # noqa: DTZ001


@pytest.mark.parametrize(
    ("value", "backoff"),
    [
        (1000, Backoff("fixed", 1000)),
        (timedelta(seconds=1), Backoff("fixed", 1000)),
        ({"type": "exponential", "delay": 5, "jitter": 0.5}, Backoff("exponential", 5, 0.5)),
        ({"type": "mine"}, Backoff("mine")),
        (Backoff.exponential(timedelta(seconds=1)), Backoff("exponential", 1000)),
        (Backoff.fixed(7, jitter=1), Backoff("fixed", 7, 1)),
    ],
)
def test_backoffs(value, backoff):
    assert Backoff.of(value) == backoff
    assert NewJob("x", backoff=value).normalised("backoff") == backoff


@pytest.mark.parametrize(
    "value",
    [-1, {"delay": 5}, {"type": 5}, {"type": "fixed", "dealy": 5}, {"type": "fixed", "delay": -1},
     {"type": "fixed", "jitter": 2}],
)  # fmt: skip
def test_what_is_no_backoff(value):
    with pytest.raises(InvalidOptionError):
        NewJob("x", backoff=value)


@pytest.mark.parametrize(
    ("value", "keep"),
    [
        (True, Keep(count=0)),
        (False, Keep()),
        (7, Keep(count=7)),
        (Keep(age=timedelta(hours=1), count=3), Keep(age=3_600_000, count=3)),
    ],
)
def test_retentions(value, keep):
    job = NewJob("x", remove_on_complete=value, remove_on_fail=value)

    assert job.normalised("remove_on_complete") == job.normalised("remove_on_fail") == keep
    assert job.remove_on_fail is value


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1},
        {"delay": 1, "run_at": 5},
        {"run_at": "tomorrow"},
        {"timestamp": -1},
        {"priority": -1},
        {"priority": MAX_PRIORITY + 1},
        {"priority": True},
        {"attempts": -1},
        {"remove_on_complete": -1},
        {"remove_on_fail": -1},
        {"keep_logs": -1},
        {"stack_trace_limit": -1},
        {"size_limit": -1},
        {"timeout": 0},
        {"idempotency_key": ""},
        {"idempotency_key": 5},
    ],
    ids=repr,
)
def test_values_that_are_refused(options):
    with pytest.raises(InvalidOptionError):
        NewJob("x", **options)


@pytest.mark.parametrize("options", [{"count": -1}, {"age": -1}, {"limit": 0}])
def test_what_is_no_retention(options):
    with pytest.raises(InvalidOptionError):
        Keep(**options)


@pytest.mark.parametrize("name", ["", None, 5, "x" * 1025])
def test_names_that_are_refused(name):
    with pytest.raises(InvalidNameError):
        NewJob(name)


@pytest.mark.parametrize(
    "arguments",
    [
        {"id": ""},
        {"id": 5},
        {"id": "x", "ttl": 0},
        {"id": "x", "extend": True},
        {"id": "x", "reschedule": True, "replace": True},
    ],
)
def test_deduplications_that_are_refused(arguments):
    with pytest.raises(InvalidOptionError):
        Deduplication(**arguments)


def test_durations_of_limits_are_milliseconds():
    assert Deduplication("x", ttl=timedelta(seconds=1)).ttl_ms == 1000
    assert RateLimit(1, timedelta(seconds=1)).duration_ms == 1000
    assert Keep(age=timedelta(seconds=1)).age_ms == 1000
    for arguments in ((0, 1000), (1, 0)):
        with pytest.raises(InvalidOptionError):
            RateLimit(*arguments)


def test_defaults_of_a_queue_give_way():
    job = new_job("x", None, {"attempts": 5}, {"attempts": 3, "priority": 2})

    assert (job.attempts, job.priority) == (5, 2)


def test_misspelt_options_are_named():
    with pytest.raises(UnknownOptionError, match="'atempts' for job 'x'; did you mean 'attempts'"):
        new_job("x", None, {"atempts": 5}, {})
    with pytest.raises(UnknownOptionError, match="unknown option 'zzz' for a queue; known: a, b"):
        refuse_unknown({"zzz": 1}, frozenset("ab"), "a queue")


def test_an_option_that_is_no_name_is_unknown():
    with pytest.raises(UnknownOptionError, match="unknown option 5"):
        new_job("x", None, {5: 1}, {})


def test_worker_options_are_checked_once():
    options = WorkerOptions(
        lock_duration=timedelta(seconds=1),
        remove_on_complete=True,
        remove_on_fail=5,
        max_started_attempts=3,
        metrics_points=2,
    )

    assert (options.lock_ms, options.stalled_interval_ms, options.drain_delay_ms) == (
        1000,
        30_000,
        5000,
    )


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"lock_duration": 49},
        {"stalled_interval": 19},
        {"drain_delay": 0},
        {"max_stalled_count": -1},
        {"max_started_attempts": 0},
        {"metrics_points": 0},
    ],
    ids=repr,
)
def test_worker_options_that_are_refused(options):
    with pytest.raises(InvalidOptionError):
        WorkerOptions(**options)


def test_failures_tell_what_failed():
    failed, removed = JobFailedError("41", "no"), JobRemovedError("42")

    assert (failed.job_id, failed.reason, str(failed)) == ("41", "no", "job '41' failed: no")
    assert (removed.job_id, removed.reason) == ("42", "it does not exist any more")
