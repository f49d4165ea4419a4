"""Commands that write: what they send, and how they read the answer."""

from __future__ import annotations

import pytest

from toril.errors import (
    InvalidNameError,
    InvalidOptionError,
    JobNotFoundError,
    LockLostError,
    ParentConflictError,
    ParentNotFoundError,
    PayloadError,
)
from toril.options import Deduplication, NewJob, RateLimit
from toril.protocol import adding, codec, deduplicating, editing, leasing, limiting
from toril.protocol.adding import Added
from toril.protocol.keys import Keys
from toril.protocol.replies import Trouble, classify

KEYS = Keys("bull", "q")


def prepare(**options) -> adding.Prepared:
    return adding.prepare(NewJob("x", **options), "j-generated")


@pytest.mark.parametrize(
    ("options", "entry"),
    [
        ({}, {"id": "j-generated"}),
        ({"job_id": "mine"}, {"id": "mine", "custom": True}),
        ({"delay": 5}, {"id": "j-generated", "delay": 5}),
        ({"run_at": 4_000_000_000_000}, {"id": "j-generated", "run_at": 4_000_000_000_000}),
        ({"priority": 5, "lifo": True}, {"id": "j-generated", "priority": 5, "lifo": True}),
        ({"timestamp": 5}, {"id": "j-generated", "timestamp": 5}),
        ({"deduplication": Deduplication("d", ttl=5, replace=True)},
         {"id": "j-generated", "de": {"id": "d", "ttl": 5, "replace": True}}),
    ],
    ids=repr,
)  # fmt: skip
def test_a_new_job_is_prepared(options, entry):
    prepared = prepare(**options)

    assert prepared.entry == {"name": "x", **entry}
    assert prepared.opts == codec.encode_options(NewJob("x", **options))


def test_a_new_job_is_checked():
    with pytest.raises(InvalidNameError):
        prepare(job_id="wait")
    with pytest.raises(PayloadError):
        adding.prepare(NewJob("x", object()), "j")
    with pytest.raises(InvalidOptionError, match="fail_parent_on_failure and no parent"):
        prepare(fail_parent_on_failure=True)


def test_every_job_of_an_add_has_its_own_answer():
    jobs = [prepare(job_id=f"job-{n}") for n in range(4)]
    child = adding.prepare(NewJob("x", job_id="child"), "j", ("1", "bull:p"))
    command = adding.add(KEYS, [*jobs, child, child])

    answers = command.parse([1000, 0, 1, b"owner", 0, -5, -7])

    assert answers[:4] == [
        Added("job-0", 1000),
        Added("job-1", 1000, is_duplicate=True),
        Added("owner", 1000, is_duplicate=True),
        Added("job-3", 1000),
    ]
    assert isinstance(answers[4], ParentNotFoundError)
    assert isinstance(answers[5], ParentConflictError)
    assert len(command.payloads) == 12


def test_an_add_names_what_must_have_gone_before_it_in_its_lanes():
    last = adding.prepare(NewJob("x", lane="a", idempotency_key="k"), "j1", once_ms=1000)
    following = adding.prepare(NewJob("x", lane="a"), "j2", once_ms=1000)

    command = adding.add(KEYS, [following], keeps_order=True, behind=[last])

    assert command.args["behind"] == [{"lane": "a", "id": "j1", "key": "k"}]
    assert "behind" not in adding.add(KEYS, [following], keeps_order=True).args


def test_what_was_added_is_known_without_asking():
    job = prepare(priority=2, delay=3, deduplication=Deduplication("d"))

    assert adding.fields_of(job, Added(job.id, 1000)) == {
        b"name": b"x",
        b"data": b"{}",
        b"opts": job.opts,
        b"timestamp": 1000,
        b"priority": 2,
        b"delay": 3,
        b"deid": b"d",
    }


def test_progress_and_data_carry_the_token():
    command = editing.update_progress(KEYS, "41", {"half": True}, token="w:1")

    assert command.args == {"field": "progress", "id": "41", "token": "w:1"}
    assert list(command.payloads) == [b'{"half":true}']
    assert command.parse(0) is None
    for code, error in ((-1, JobNotFoundError), (-2, LockLostError), (-6, LockLostError)):
        with pytest.raises(error):
            command.parse(code)
    assert list(editing.update_data(KEYS, "41", None).payloads) == [b"{}"]


def test_logs():
    command = editing.add_log(KEYS, "41", "row", keep=5, token="w:1")

    assert command.args == {"row": "row", "keep": 5, "token": "w:1"}
    assert command.parse(3) == 3
    with pytest.raises(JobNotFoundError, match="nothing was logged"):
        command.parse(-1)
    with pytest.raises(LockLostError):
        command.parse(-2)


def test_renewals():
    renewal = leasing.renew(KEYS, [("1", "w:1")], lock_ms=5).parse([[b"1"], [[b"2", b"why"]]])

    assert (renewal.lost, renewal.cancelled) == (["1"], [("2", "why")])
    extend = leasing.extend_lock(KEYS, "1", "w:1", lock_ms=5)
    assert extend.parse([[], []]) is None
    with pytest.raises(LockLostError):
        extend.parse([[b"1"], []])


def test_a_sweep_goes_on_until_there_is_no_more():
    plan = leasing.sweep(KEYS, interval_ms=5, max_stalled=1)
    first = next(plan)
    second = plan.send(first.parse([1, -1, [b"a"], 0]))
    third = plan.send(second.parse([1, 500, [b"b"], 0]))
    with pytest.raises(StopIteration) as end:
        plan.send(third.parse([0, 0, [], 0]))

    assert [command.args["cursor"] for command in (first, second, third)] == [0, -1, 500]
    assert end.value.value == ["a", "b"]


def test_waits():
    marker = leasing.wait_for_marker(KEYS, block_ms=1500)
    assert marker.words == ("BZPOPMIN", "bull:q:marker", 1.5)
    assert marker.block_ms == 1500
    assert marker.parse(None) is None
    assert marker.parse([b"bull:q:marker", b"0", b"17"]) == 17.0

    mail = leasing.wait_for_mail(KEYS, "w", block_ms=0)
    assert mail.words == ("BLPOP", "bull:q:toril:mail-w", 0.001)
    assert mail.parse(None) is None
    assert mail.parse([b"key", b"\x93\xa2id\xa5token\xa3why"]) == ("id", "token", "why")
    assert mail.parse([b"key", b"\x94\xa2id\xa1t\xa1r\xa6turned"]) == ("id", "t", "r", "turned")
    assert mail.parse([b"key", b"\x91\xa2id"]) is None
    assert mail.parse([b"key", b"garbage"]) is None


def test_limits():
    assert limiting.set_concurrency(KEYS, 3).args["set"] == ["concurrency", "3"]
    assert limiting.remove_concurrency(KEYS).args["remove"] == ["concurrency"]
    assert limiting.set_rate(KEYS, RateLimit(3, 5)).args["set"] == ["max", "3", "duration", "5"]
    assert limiting.remove_rate(KEYS).args["remove"] == ["max", "duration"]
    assert limiting.release(KEYS).args["starts_anew"] is True
    assert limiting.rate(KEYS).parse([b"3", b"5"]) == RateLimit(3, 5)
    assert limiting.rate(KEYS).parse([None, None]) is None
    assert limiting.concurrency(KEYS).parse(b"3") == 3
    assert limiting.hold(KEYS, 5).args == {"duration_ms": 5}
    assert limiting.hold(KEYS, 5).parse(0) is None
    assert limiting.release(KEYS).parse(0) is None
    with pytest.raises(InvalidOptionError):
        limiting.set_concurrency(KEYS, 0)


def follow(plan, *answers):
    next(plan)
    *others, last = answers
    for answer in others:
        plan.send(answer)
    with pytest.raises(StopIteration) as end:
        plan.send(last)
    return end.value.value


def test_plans_of_limits():
    assert follow(limiting.wait_ms(KEYS), 5, 3, 100) == 0
    assert follow(limiting.wait_ms(KEYS), 5, 5, 100) == 100
    assert follow(limiting.wait_ms(KEYS), None, None, -2) == 0
    assert follow(limiting.wait_ms(KEYS, 2), 2, 70) == 70
    assert follow(limiting.is_maxed(KEYS), None) is False
    assert follow(limiting.is_maxed(KEYS), 2, 2) is True


def test_deduplication_ids():
    assert deduplicating.owner(KEYS, "d").words == ("GET", "bull:q:de:d")
    assert deduplicating.owner(KEYS, "d").parse(b"41") == "41"
    assert deduplicating.owner(KEYS, "d").parse(None) is None
    assert deduplicating.free(KEYS, "d").parse(1) is True
    assert deduplicating.free(KEYS, "d", owner_id="41").args == {"owner": "41"}
    assert deduplicating.free(KEYS, "d", owner_id="41").parse(0) is False
    with pytest.raises(InvalidOptionError):
        deduplicating.owner(KEYS, "")


class NoScriptError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (Exception("NOSCRIPT no matching script"), Trouble.UNKNOWN_SCRIPT),
        (NoScriptError(), Trouble.UNKNOWN_SCRIPT),
        (Exception("OOM command not allowed"), Trouble.OUT_OF_MEMORY),
        *((Exception(f"{word} x"), Trouble.NOT_NOW) for word in (
            "LOADING", "BUSY", "MASTERDOWN", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK",
            "NOREPLICAS", "UNBLOCKED", "MISCONF")),
        (ConnectionResetError(), Trouble.LOST),
        (TimeoutError(), Trouble.LOST),
        (Exception("WRONGTYPE x"), Trouble.WRONG),
    ],
    ids=repr,
)  # fmt: skip
def test_errors_are_sorted_by_what_to_do(error, trouble):
    assert classify(error) is trouble
