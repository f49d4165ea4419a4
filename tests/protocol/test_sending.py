"""When a command may be sent again, without a server."""

from __future__ import annotations

import pytest
import redis

from toril.errors import AmbiguousResultError, ServerOutOfMemoryError, ServerUnavailableError
from toril.protocol.command import Command, Resend
from toril.protocol.scripts import Script
from toril.protocol.sending import Sending

LOST = redis.ConnectionError("Connection closed by server.")
LOADING = redis.BusyLoadingError("LOADING the dataset")
UNKNOWN = redis.exceptions.NoScriptError("NOSCRIPT No matching script.")


def sending(resend: Resend, *, was_sent: bool = False, source: str = "return 1") -> Sending:
    script = Script("test", source, "sha", ())
    result = Sending(Command(int, script=script, args={}, resend=resend))
    result.was_sent = was_sent
    return result


@pytest.mark.parametrize("resend", Resend)
def test_what_never_left_may_go_again(resend):
    assert sending(resend).end_after(LOST, "server") is None


@pytest.mark.parametrize("resend", Resend)
def test_what_was_refused_before_it_ran_may_go_again(resend):
    assert sending(resend, was_sent=True).end_after(LOADING, "server") is None


@pytest.mark.parametrize(
    ("resend", "end"),
    [(Resend.NEVER, AmbiguousResultError), (Resend.SAME, type(None)), (Resend.MARKED, type(None))],
)
def test_what_may_have_run_goes_again_only_if_it_may(resend, end):
    assert isinstance(sending(resend, was_sent=True).end_after(LOST, "server"), end)


def test_a_script_sent_again_is_told_so():
    marked = sending(Resend.MARKED, was_sent=True)
    before = marked.request()

    marked.end_after(LOST, "server")

    assert b"resend" not in before[3]
    assert b"resend" in marked.request()[3]


def test_a_script_that_never_left_is_not_told_so():
    marked = sending(Resend.MARKED)

    marked.end_after(LOST, "server")

    assert b"resend" not in marked.request()[3]


def test_an_unknown_script_goes_by_its_source_once():
    unknown = sending(Resend.NEVER, was_sent=True)

    assert unknown.goes_again_at_once(UNKNOWN)
    assert unknown.request()[:2] == ("EVAL", "return 1")
    assert not unknown.goes_again_at_once(UNKNOWN)


def test_a_lost_reply_stays_open_when_nobody_answers_afterwards():
    marked = sending(Resend.MARKED, was_sent=True)
    marked.end_after(LOST, "server")

    end = marked.end_after(LOST, "server", is_last=True)

    assert isinstance(end, AmbiguousResultError)


def test_a_lost_reply_of_a_reading_command_is_no_riddle():
    read = sending(Resend.SAME, was_sent=True, source="#!lua flags=no-writes\nreturn 1")

    assert isinstance(read.end_after(LOST, "server", is_last=True), ServerUnavailableError)


@pytest.mark.parametrize("resend", [Resend.SAME, Resend.MARKED])
def test_what_may_have_written_is_never_said_to_have_had_no_effect(resend):
    """Not even when writing twice were the same, or when the last answer was a refusal."""
    for last in (LOST, LOADING, redis.exceptions.OutOfMemoryError("OOM command not allowed")):
        write = sending(resend, was_sent=True)
        write.end_after(LOST, "server")

        assert isinstance(write.end_after(last, "server", is_last=True), AmbiguousResultError)


def test_what_never_left_had_no_effect():
    for last in (LOST, LOADING):
        end = sending(Resend.SAME).end_after(last, "server", is_last=True)

        assert isinstance(end, ServerUnavailableError)


def test_a_refusal_after_an_earlier_try_does_not_count_as_sent():
    never = sending(Resend.NEVER, was_sent=True)
    never.end_after(LOADING, "server")

    assert never.end_after(LOST, "server") is None


def test_out_of_memory_is_said_at_once():
    error = redis.exceptions.OutOfMemoryError("OOM command not allowed")

    end = sending(Resend.SAME, was_sent=True).end_after(error, "server")

    assert isinstance(end, ServerOutOfMemoryError)
