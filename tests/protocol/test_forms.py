"""Options are kept as they were given; whatever the form, the server is told the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from toril.idempotency.window import retry_window
from toril.options import (
    OPTION_NAMES,
    Backoff,
    DeadLetterOptions,
    Deduplication,
    FlowJob,
    Keep,
    NewJob,
    Parent,
    RateLimit,
    Schedule,
    WorkerOptions,
)
from toril.outbox.rows import values_of
from toril.protocol import adding, codec, lanes, limiting, scheduling, settling
from toril.protocol.burying import BurialPolicy
from toril.protocol.dead_letters import Filter, latest_key
from toril.protocol.job import Job
from toril.protocol.keys import Keys
from toril.protocol.new_group import GroupSignal
from toril.protocol.replay_options import Changes
from toril.protocol.settling import Policy, Raised, Settled, Take
from toril.tasks.schedules import is_same

KEYS = Keys("bull", "q")
MOMENT = datetime(2040, 1, 1, tzinfo=UTC)
MOMENT_MS = 2_208_988_800_000
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
PARENT = Parent("1", "above")

# option: (some form, the plain form, what it needs beside it)
FORMS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "delay": (SECOND, 1000, {}),
    "run_at": (MOMENT, MOMENT_MS, {}),
    "timestamp": (MOMENT, MOMENT_MS, {}),
    "timeout": (SECOND, 1000, {}),
    "expires": (HOUR, 3_600_000, {}),
    "order_ms": (MOMENT, MOMENT_MS, {"lane": "a"}),
    "ordering_delay": (SECOND, 1000, {"lane": "a"}),
    "backoff": (SECOND, Backoff("fixed", 1000), {}),
    "remove_on_complete": (Keep(age=HOUR), Keep(age=3_600_000), {}),
    "remove_on_fail": (True, Keep(count=0), {}),
    "deduplication": ({"id": "d", "ttl": SECOND}, Deduplication("d", ttl=1000), {}),
}


def both(option: str) -> tuple[NewJob, NewJob]:
    form, plain, beside = FORMS[option]
    return NewJob("x", **{option: form}, **beside), NewJob("x", **{option: plain}, **beside)


def args_of(command: Any) -> Any:
    return msgspec.json.encode(command.args)


def test_every_option_with_several_forms_is_tried_here():
    names = {name for name in OPTION_NAMES if name not in ("parent",)}
    odd = set()
    for name in names:
        sample = {"lane": "a"} if name in ("order_ms", "lane") else {}
        for value in (SECOND, MOMENT, True, {"id": "d"}):
            try:
                job = NewJob("x", **{**sample, name: value})
            except ValueError:
                continue
            if job.normalised(name) != value or type(job.normalised(name)) is not type(value):
                odd.add(name)

    assert odd == FORMS.keys()


@pytest.mark.parametrize("option", FORMS)
def test_a_job_is_sent_and_stored_alike(option):
    job, plain = both(option)

    assert getattr(job, option) is FORMS[option][0]
    assert job.normalised(option) == plain.normalised(option) == FORMS[option][1]
    assert adding.prepare(job, "id") == adding.prepare(plain, "id")
    assert codec.wire_options(job) == codec.wire_options(plain)
    assert retry_window(job) == pytest.approx(retry_window(plain), abs=1000)


@pytest.mark.parametrize("option", FORMS)
def test_a_row_of_an_outbox_is_written_alike(option):
    form, plain, beside = FORMS[option]

    rows = [
        values_of("q", "x", None, {option: value, **beside}, generated_id="id")
        for value in (form, plain)
    ]

    assert rows[0] == rows[1]


@pytest.mark.parametrize("option", ["delay", "run_at", "order_ms", "timeout", "backoff"])
def test_a_replay_changes_alike(option):
    job, plain = both(option)

    assert Changes(job).args() == Changes(plain).args()


def test_a_parent_is_a_job_or_its_name():
    above = Job("bull", "above", "1", {})

    assert NewJob("x", parent=above).normalised("parent") == Parent("1", "above", "bull")
    keys = [adding.parent_of(NewJob("x", parent=one), "bull") for one in (above, PARENT)]
    assert [(keys.base, job_id) for keys, job_id in keys] == [("bull:above", "1")] * 2


def test_a_parent_of_a_flow_refuses_a_deduplication_in_every_form():
    for form in (Deduplication("d", ttl=SECOND, replace=True), {"id": "d", "replace": True}):
        with pytest.raises(ValueError, match="asks for replace"):
            FlowJob(
                "x", queue_name="q", deduplication=form, children=[FlowJob("y", queue_name="q")]
            )


SCHEDULES = [
    ({"every": SECOND, "offset": timedelta(milliseconds=5)}, {"every": 1000, "offset": 5}),
    (
        {"every": 1000, "start": MOMENT, "end": MOMENT},
        {"every": 1000, "start": MOMENT_MS, "end": MOMENT_MS},
    ),
    ({"cron": "0 9 * * *", "start": MOMENT}, {"cron": "0 9 * * *", "start": MOMENT_MS}),
]


@pytest.mark.parametrize(("form", "plain"), SCHEDULES)
def test_a_schedule_is_sent_alike(form, plain):
    commands = []
    for given in (form, plain):
        plan = scheduling.upsert(
            KEYS, "s", Schedule(**given), NewJob("x", ordering_delay=SECOND, lane="a")
        )
        next(plan)
        commands.append(plan.send(5))
    one, other = commands

    assert (args_of(one), one.payloads) == (args_of(other), other.payloads)
    ids = {scheduling.repeating_id("x", Schedule(**given)) for given in (form, plain)}
    assert len(ids) == 1


def test_a_cron_schedule_waits_for_its_start_in_every_form():
    for start in (MOMENT, MOMENT_MS):
        plan = scheduling.upsert(KEYS, "s", Schedule(cron="0 9 * * *", start=start), NewJob("x"))
        next(plan)

        assert plan.send(5).args["next_ms"] == MOMENT_MS + 9 * 3_600_000


@pytest.mark.parametrize(("form", "plain"), SCHEDULES)
def test_a_declared_schedule_is_known_again(form, plain):
    opts = codec.decode_options(b"{}")
    fields = {**dict.fromkeys(scheduling.JobScheduler.__struct_fields__), **plain}
    stored = scheduling.JobScheduler(**{**fields, "name": "x", "opts": opts})

    assert is_same(Schedule(**form), NewJob("x"), stored)


def test_limits_are_sent_alike():
    form, plain = RateLimit(5, SECOND), RateLimit(5, 1000)

    assert form == plain
    assert hash(form) == hash(plain)
    assert form != RateLimit(5, 999)
    assert form != 5
    assert args_of(limiting.set_rate(KEYS, form)) == args_of(limiting.set_rate(KEYS, plain))
    changes = [next(lanes.set_rate_limit(KEYS, limit, "a")) for limit in (form, plain)]
    assert args_of(changes[0]) == args_of(changes[1])
    takes = [Take(count=1, token="t", lock_ms=5, limiter=limit) for limit in (form, plain)]
    settles = [settling.settle(KEYS, [], take, flight="f", request=1) for take in takes]
    assert settles[0].args["limiter"] == settles[1].args["limiter"] == {"max": 5, "duration": 1000}


def test_letters_are_kept_alike():
    form = DeadLetterOptions("dead", keep=Keep(age=HOUR))
    job = Job("bull", "q", "1", {b"name": b"x", b"data": b"{}", b"opts": b"{}", b"timestamp": 5})
    policy = Policy(dead_letters=BurialPolicy())
    outcome = settling.decide(job, Raised(ValueError("no")), policy, dice=0.0)
    command = settling.settle(
        KEYS,
        [Settled(job.id, "t", outcome, job)],
        Take(count=1, token="t", lock_ms=5),
        flight="f",
        request=1,
        dead_letters=Keys("bull", "dead"),
        keep_letters=Keep.of(form.keep),
    )

    assert command.args["keep_letters"] == {"count": None, "age": 3_600_000}
    with pytest.raises(ValueError, match="at once"):
        DeadLetterOptions("dead", keep=Keep(age=timedelta(0)))


def test_filters_of_letters_are_sent_alike():
    form, plain = Filter.of(since=MOMENT, until=MOMENT), Filter.of(since=MOMENT_MS, until=MOMENT_MS)

    assert form.args() == plain.args() == {"since": MOMENT_MS, "before": MOMENT_MS}
    assert latest_key(KEYS, "replay", form) == latest_key(KEYS, "replay", plain)
    assert not form.is_relative
    assert form.at(5) == plain


def test_options_of_workers_are_read_in_milliseconds():
    options = WorkerOptions(lock_duration=SECOND, stalled_interval=SECOND, drain_delay=SECOND)

    assert {options.lock_ms, options.stalled_interval_ms, options.drain_delay_ms} == {1000}
    assert retry_window({"attempts": 3}, options) == retry_window(
        {"attempts": 3}, WorkerOptions(lock_duration=1000, stalled_interval=1000)
    )


def test_a_signal_keeps_its_timeout_as_it_was_given():
    form, plain = (GroupSignal("paid", timeout=timeout) for timeout in (SECOND, 1000))

    assert (form.timeout, form.timeout_ms) == (SECOND, 1000)
    assert (plain.timeout, plain.timeout_ms) == (1000, 1000)
