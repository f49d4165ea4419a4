"""Plans that change many jobs, driven without a server: each step is answered with a value."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from toril.errors import (
    InvalidNameError,
    InvalidOptionError,
    JobLockedError,
    JobNotFoundError,
    JobNotInStateError,
    NotDeliveredError,
    NotPausedError,
    SchedulerOwnsJobError,
    ServerUnusableError,
)
from toril.protocol import cancelling, editing, moving, pausing, removing
from toril.protocol.cancelling import Cancelled
from toril.protocol.command import Command, Resend
from toril.protocol.keys import Keys

KEYS = Keys("bull", "q")
SLICE = removing.SLICE


def drive(plan: Any, replies: Sequence[Any]) -> tuple[Any, list[Command[Any]]]:
    """Answer a plan's commands with raw replies; returns its result and what it asked for."""
    asked = []
    command = next(plan)
    for reply in replies:
        asked.append(command)
        try:
            command = plan.send(command.parse(reply))
        except StopIteration as end:
            return end.value, asked
    pytest.fail(f"the plan asks for more: {command}")


def names(asked: list[Command[Any]]) -> list[str]:
    return [command.script.name if command.script else str(command.words[0]) for command in asked]


def test_pausing_goes_on_until_nothing_is_left_to_move():
    assert len(drive(pausing.pause(KEYS), [1, 1, 0])[1]) == 3
    assert len(drive(pausing.resume(KEYS), [1, 0])[1]) == 2
    assert pausing.is_paused(KEYS).parse(1) is True


def test_draining_looks_at_each_place_until_it_is_seen():
    replies = [[SLICE, 0, 30], [29, 1, 1], [0, 0, 0], [SLICE, 0, 5], [5, 0, 0], [0, 0, 0]]

    removed, asked = drive(removing.drain(KEYS), replies)

    assert removed == 2 * SLICE + 34
    assert [command.args["place"] for command in asked] == [
        "wait", "wait", "paused", "prioritized", "prioritized", "lanes:waiting",
    ]  # fmt: skip


def test_draining_skips_what_it_must_keep_and_ends_when_that_is_all():
    places = [[0, SLICE, SLICE], [0, 0, 0], [0, SLICE, SLICE + 10], [4, 6, SLICE + 6], [0, 0, 0]]

    removed, asked = drive(removing.drain(KEYS), places)

    assert removed == 4
    assert [command.args["skip"] for command in asked] == [0, 0, 0, SLICE, 0]


def test_draining_does_not_chase_what_is_added_meanwhile():
    replies = [[SLICE, 0, 100], [SLICE, 0, 10_000], [0, 0, 0], [0, 0, 0], [0, 0, 0]]

    removed, asked = drive(removing.drain(KEYS), replies)

    assert removed == 2 * SLICE
    assert len(asked) == 5


def test_cleaning_keeps_to_the_time_of_its_first_call_and_to_its_limit():
    ids = [str(n).encode() for n in range(SLICE)]
    told: list[int] = []
    plan = removing.clean(KEYS, "failed", grace_ms=5, limit=SLICE + 2, on_progress=told.append)

    removed, asked = drive(plan, [[777, SLICE, 0, ids], [777, 2, 0, [b"a", b"b"]]])

    assert removed == [*map(bytes.decode, ids), "a", "b"]
    assert told == [SLICE, SLICE + 2]
    assert "cutoff_ms" not in asked[0].args
    assert asked[1].args["cutoff_ms"] == 777
    assert asked[1].args["slice"] == 2


def test_cleaning_what_waits_looks_into_every_place():
    _, asked = drive(
        removing.clean(KEYS, "waiting"), [[1, 3, 2, [b"a"]], [1, 0, 0, []], [1, 0, 0, []]]
    )

    assert [(c.args["place"], c.args["is_last"]) for c in asked] == [
        ("wait", False),
        ("paused", False),
        ("lanes:waiting", True),
    ]


def test_retrying_all_keeps_to_the_time_of_its_first_call():
    count, asked = drive(moving.retry_all(KEYS), [[9, SLICE, SLICE - 1, 0], [9, 3, 3, 0]])

    assert count == SLICE + 2
    assert asked[1].args["until_ms"] == 9


def test_promoting_all_ends_although_jobs_are_put_off_again():
    count, asked = drive(moving.promote_all(KEYS), [[SLICE, 10], [SLICE, 5000]])

    assert count == 2 * SLICE
    assert len(asked) == 2


def test_obliterating_by_force_pauses_first_and_erases_last():
    replies = [0, [SLICE, 1], [3, 0], [[], 0], [b"17", 5], [b"0", 1]]

    removed, asked = drive(removing.obliterate(KEYS, force=True), replies)

    assert removed == SLICE + 3
    assert names(asked) == [
        "pause", "obliterate", "obliterate", "fetchParcels", "eraseKeys", "eraseKeys",
    ]  # fmt: skip
    assert [command.args.get("cursor") for command in asked[4:]] == ["0", "17"]


NOTHING_DUE = [[], 0]


def test_obliterating_goes_on_once_parcels_are_delivered():
    replies = [-116, NOTHING_DUE, [3, 0], -116, NOTHING_DUE, [b"0", 1]]

    removed, asked = drive(removing.obliterate(KEYS), replies)

    assert removed == 3
    assert names(asked) == [
        "obliterate", "fetchParcels", "obliterate", "eraseKeys", "fetchParcels", "eraseKeys",
    ]  # fmt: skip


def test_parcels_that_are_left_keep_a_queue():
    with pytest.raises(NotDeliveredError, match=r"'q' holds .* 4 not delivered yet, 1 refused"):
        drive(removing.obliterate(KEYS), [-116, NOTHING_DUE, -116, 4, 1])


def test_who_may_not_deliver_may_not_erase_what_is_left():
    plan = removing.obliterate(KEYS)
    next(plan)
    plan.send(-116)
    reason = ServerUnusableError("no permission")

    assert plan.throw(reason).script.name == "obliterate"
    plan.send(-116)
    plan.send(1)
    with pytest.raises(NotDeliveredError) as refused:
        plan.send(0)

    assert refused.value.__cause__ is reason


@pytest.mark.parametrize(("code", "error"), [(-114, NotPausedError), (-112, JobLockedError)])
def test_obliterating_says_what_to_do_first(code, error):
    with pytest.raises(error, match=r"queue 'q' .* obliterate"):
        drive(removing.obliterate(KEYS), [code])


def test_removing_goes_on_while_there_is_more():
    assert drive(removing.remove(KEYS, "a"), [[1, 1], [0, 1]])[0] is True
    assert drive(removing.remove(KEYS, "a"), [[0, 0]])[0] is False


@pytest.mark.parametrize(("code", "error"), [(-8, SchedulerOwnsJobError), (-112, JobLockedError)])
def test_removing_says_why_not(code, error):
    with pytest.raises(error, match="job 'a'"):
        drive(removing.remove(KEYS, "a"), [code])


@pytest.mark.parametrize(
    ("code", "result"), [(1, Cancelled.ENDED), (2, Cancelled.MARKED), (3, Cancelled.STOPPING)]
)
def test_cancelling_says_what_it_came_to(code, result):
    opts = b'{"removeOnFail":{"count":7}}'

    plan = cancelling.cancel(KEYS, "a", call="c", reason="x" * 5000)
    cancelled, asked = drive(plan, [opts, code])

    assert cancelled is result
    assert asked[1].args["keep"] == {"count": 7}
    assert len(asked[1].args["reason"]) == cancelling.LONGEST_REASON
    assert (asked[1].args["call"], asked[1].resend) == ("c", Resend.SAME)


@pytest.mark.parametrize("opts", [None, b"{}", b'{"removeOnFail":false}'])
def test_a_cancelled_job_is_kept_unless_it_says_otherwise(opts):
    _, asked = drive(cancelling.cancel(KEYS, "a", call="c"), [opts, 1])

    assert "keep" not in asked[1].args
    assert asked[1].args["reason"] == "cancelled"


@pytest.mark.parametrize(
    ("code", "error"),
    [(-1, JobNotFoundError), (-3, JobNotInStateError), (-8, SchedulerOwnsJobError)],
)
def test_cancelling_says_why_not(code, error):
    with pytest.raises(error, match="job 'a'"):
        drive(cancelling.cancel(KEYS, "a", call="c"), [None, code])


@pytest.mark.parametrize(
    "command",
    [
        moving.retry(KEYS, "a", call="c"),
        moving.promote(KEYS, "a", call="c"),
        moving.change_delay(KEYS, "a", 1, call="c"),
        moving.change_priority(KEYS, "a", 1, call="c"),
        editing.clear_logs(KEYS, "a"),
    ],
)
def test_a_missing_job_is_named(command):
    assert command.parse(0) is None
    with pytest.raises(JobNotFoundError, match="job 'a' does not exist"):
        command.parse(-1)


def test_a_job_in_the_wrong_state_is_named():
    with pytest.raises(JobNotInStateError, match="job 'a' is not delayed"):
        moving.promote(KEYS, "a", call="c").parse(-3)


@pytest.mark.parametrize(
    "change",
    [partial(moving.retry, call="c"), partial(moving.promote, call="c"), editing.clear_logs],
    ids=["retry", "promote", "clear logs"],
)
def test_what_cannot_be_an_id_is_refused_before_anything_is_sent(change):
    for wrong in ("", "wait", "groups:b"):
        with pytest.raises(InvalidNameError):
            change(KEYS, wrong)


def test_unknown_states_are_refused():
    with pytest.raises(InvalidOptionError):
        next(removing.clean(KEYS, "waiting-children"))
    with pytest.raises(InvalidOptionError):
        next(moving.retry_all(KEYS, "active"))
    with pytest.raises(InvalidOptionError):
        moving.change_priority(KEYS, "a", 2**21, call="c")
