"""When a command may be sent again, without a server."""

from __future__ import annotations

from hashlib import sha1
from itertools import count

import msgspec
import pytest
import redis

from toril.errors import (
    AmbiguousResultError,
    ServerOutOfMemoryError,
    ServerUnavailableError,
    ServerUnusableError,
)
from toril.protocol.command import Command, Resend, plain
from toril.protocol.numbering import RESEND_WITHIN_S, Flights
from toril.protocol.scripts import Library, Script
from toril.protocol.sending import MOST_LOADS, WORTH_A_MESSAGE, Dialect, Sending, messages

LOST = redis.ConnectionError("Connection closed by server.")
LOADING = redis.BusyLoadingError("LOADING the dataset")
UNKNOWN = redis.exceptions.NoScriptError("NOSCRIPT No matching script.")
NOT_LOADED = redis.ResponseError("Function not found")
NO_FUNCTIONS = redis.ResponseError("unknown command `FCALL`, with args beginning with: `add`")


NO_SCRIPTS = redis.exceptions.NoPermissionError(
    "User u has no permissions to run the 'evalsha' command"
)
EXISTS = redis.ResponseError("Library 'toril_1' already exists")
GHOST = redis.ResponseError("GHOST a newer call of this flight was made already")
FORGOTTEN = redis.ResponseError("FORGOTTEN whether this call was made")


LIBRARY = Library({}, {"test": "function calls.test(KEYS, a, ARGV)\nend\n"}, "")
TEXT = f"#!lua\n{LIBRARY.code}return serve(calls.test)(KEYS, ARGV)\n"


def sending(
    resend: Resend,
    *,
    was_sent: bool = False,
    is_reading: bool = False,
    flights: Flights | None = None,
    dialect: Dialect | None = None,
) -> Sending:
    script = Script(
        name="test",
        function="test_1",
        home=LIBRARY,
        key_names=(),
        is_reading=is_reading,
    )
    command = Command(int, script=script, keys=("bull:q",), args={}, resend=resend)
    result = Sending(command, flights, dialect)
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
    [
        (Resend.NEVER, AmbiguousResultError),
        (Resend.SAME, type(None)),
        (Resend.MARKED, type(None)),
        (Resend.NUMBERED, type(None)),
    ],
)
def test_what_may_have_run_goes_again_only_if_it_may(resend, end):
    assert isinstance(sending(resend, was_sent=True).end_after(LOST, "server"), end)


def test_a_script_sent_again_is_told_so():
    marked = sending(Resend.MARKED, was_sent=True)
    before = marked.request(0.0)

    marked.end_after(LOST, "server")

    assert b"resend" not in before[4]
    assert b"resend" in marked.request(0.0)[4]


def test_a_script_that_never_left_is_not_told_so():
    marked = sending(Resend.MARKED)

    marked.end_after(LOST, "server")

    assert b"resend" not in marked.request(0.0)[4]


def test_a_call_goes_by_its_name_in_the_library():
    assert sending(Resend.NEVER).request(0.0)[:3] == ("FCALL", "test_1", 1)
    assert sending(Resend.NEVER, is_reading=True).request(0.0)[0] == "FCALL_RO"


def test_a_library_that_is_not_there_is_loaded_and_the_call_sent_again():
    call = sending(Resend.NEVER, was_sent=True)

    assert call.lacks_library(NOT_LOADED)
    loading = call.loading()
    assert loading.request(0.0) == ("FUNCTION", "LOAD", LIBRARY.source)
    assert loading.command.near == "bull:q"
    assert call.request(0.0)[0] == "FCALL"
    assert not call.was_sent
    exists = redis.ResponseError("Library 'toril_1' already exists")
    assert call.end_of_loading(exists) is None
    assert call.request(0.0)[0] == "FCALL"


@pytest.mark.parametrize(
    "error",
    [
        NO_FUNCTIONS,
        redis.exceptions.NoPermissionError(
            "User small has no permissions to run the 'function|load' command"
        ),
    ],
)
def test_where_there_are_no_functions_this_call_and_all_others_go_as_scripts(error):
    dialect = Dialect()
    call = sending(Resend.NEVER, was_sent=True, dialect=dialect)

    assert call.end_of_loading(error) is None

    assert call.request(0.0)[:2] == ("EVALSHA", sha1(TEXT.encode()).hexdigest())
    assert sending(Resend.NEVER, dialect=dialect).request(0.0)[0] == "EVALSHA"
    assert sending(Resend.NEVER).request(0.0)[0] == "FCALL"


def test_a_full_server_that_lacks_the_library_gets_this_call_as_a_script():
    """Loading needs memory; a call that frees some does not."""
    dialect = Dialect()
    call = sending(Resend.NEVER, dialect=dialect)

    assert call.end_of_loading(redis.exceptions.OutOfMemoryError("OOM command not allowed")) is None

    assert call.request(0.0)[0] == "EVALSHA"
    assert sending(Resend.NEVER, dialect=dialect).request(0.0)[0] == "FCALL"


def test_any_other_trouble_with_loading_is_that_of_the_call():
    call = sending(Resend.NEVER)

    assert call.end_of_loading(LOST) is LOST
    assert call.request(0.0)[0] == "FCALL"


def test_a_library_that_is_flushed_again_and_again_ends_in_a_script():
    call = sending(Resend.NEVER)
    while call.lacks_library(NOT_LOADED):
        pass

    assert call.goes_again_at_once(NOT_LOADED)
    assert call.request(0.0)[0] == "EVALSHA"
    assert MOST_LOADS < 100


def test_where_scripts_are_forbidden_this_call_and_all_others_go_to_functions():
    dialect = Dialect()
    dialect.has_functions = False
    call = sending(Resend.NEVER, dialect=dialect)

    assert call.goes_again_at_once(NO_SCRIPTS)

    assert call.request(0.0)[0] == "FCALL"
    assert sending(Resend.NEVER, dialect=dialect).request(0.0)[0] == "FCALL"


def test_where_both_are_forbidden_the_user_is_told():
    call = sending(Resend.NEVER)

    assert [call.goes_again_at_once(one) for one in (NO_FUNCTIONS, NO_SCRIPTS, NO_FUNCTIONS)] == [
        True
    ] * 3
    assert not call.goes_again_at_once(NO_SCRIPTS)
    assert isinstance(call.end_after(NO_SCRIPTS, "s"), ServerUnusableError)


def test_another_library_of_our_name_ends_in_a_script():
    """Whoever loads at the same time as others meets one that is there, once."""
    call = sending(Resend.NEVER)

    assert (call.end_of_loading(EXISTS), call.request(0.0)[0]) == (None, "FCALL")
    assert (call.end_of_loading(EXISTS), call.request(0.0)[0]) == (None, "EVALSHA")


def test_an_unknown_script_goes_by_its_source_once():
    unknown = sending(Resend.NEVER, was_sent=True)
    unknown.goes_again_at_once(NO_FUNCTIONS)

    assert unknown.goes_again_at_once(UNKNOWN)
    assert unknown.request(0.0)[:2] == ("EVAL", TEXT)
    assert not unknown.goes_again_at_once(UNKNOWN)


def test_a_lost_reply_stays_open_when_nobody_answers_afterwards():
    marked = sending(Resend.MARKED, was_sent=True)
    marked.end_after(LOST, "server")

    end = marked.end_after(LOST, "server", is_last=True)

    assert isinstance(end, AmbiguousResultError)


def test_a_lost_reply_of_a_reading_command_is_no_riddle():
    read = sending(Resend.SAME, was_sent=True, is_reading=True)

    assert isinstance(read.end_after(LOST, "server", is_last=True), ServerUnavailableError)


@pytest.mark.parametrize("resend", [Resend.SAME, Resend.MARKED, Resend.NUMBERED])
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


def some_flights(clock_us=lambda: 0) -> Flights:
    names = count()
    return Flights(lambda: f"f{next(names)}", clock_us)


def number_of(numbered: Sending, now_s: float = 0.0) -> dict[str, object]:
    return msgspec.msgpack.decode(numbered.request(now_s)[4])


def test_a_numbered_call_keeps_its_number_however_often_it_is_sent():
    flights = some_flights()
    numbered = sending(Resend.NUMBERED, was_sent=True, flights=flights)
    first = number_of(numbered)
    for error in (LOST, LOADING, LOST):
        numbered.was_sent = True
        assert numbered.end_after(error, "server") is None
        assert number_of(numbered) == first

    assert first == {"flight": "f0", "request": "0000000000000001"}


def test_calls_at_the_same_time_have_flights_of_their_own_and_later_ones_use_them_again():
    flights = some_flights()
    calls = [sending(Resend.NUMBERED, flights=flights) for _ in range(3)]
    names = [number_of(call)["flight"] for call in calls]
    for call in calls:
        call.answer(1)
        call.end()  # once more: it is given back once

    again = [number_of(sending(Resend.NUMBERED, flights=flights)) for _ in range(4)]

    assert names == ["f0", "f1", "f2"]
    assert {call["flight"] for call in again} == {"f0", "f1", "f2", "f3"}
    assert {call["request"] for call in again if call["flight"] != "f3"} == {"0000000000000002"}


def test_numbers_grow_although_the_clock_is_set_back():
    times = iter((1_700_000_000_000_000, 5, 1_700_000_000_000_007))
    flights = some_flights(lambda: next(times))

    numbers = []
    for _ in range(3):
        call = sending(Resend.NUMBERED, flights=flights)
        numbers.append(number_of(call)["request"])
        call.end()

    assert numbers == ["1700000000000000", "1700000000000001", "1700000000000007"]


def test_a_call_that_never_left_takes_no_flight():
    flights = some_flights()
    sending(Resend.NUMBERED, flights=flights).end()

    assert number_of(sending(Resend.NUMBERED, flights=flights))["flight"] == "f0"


def test_a_call_sent_again_too_late_asks_only_whether_it_was_made():
    """A loop that was blocked for minutes: the server may have forgotten the call."""
    numbered = sending(Resend.NUMBERED, was_sent=True, flights=some_flights())
    number_of(numbered, 100.0)
    numbered.end_after(LOST, "server")

    in_time = number_of(numbered, 100.0 + RESEND_WITHIN_S)
    too_late = number_of(numbered, 101.0 + RESEND_WITHIN_S)

    assert "is_late" not in in_time
    assert too_late == {**in_time, "is_late": True}
    assert isinstance(numbered.end_after(FORGOTTEN, "server"), AmbiguousResultError)


def test_a_call_that_has_only_been_refused_is_never_late():
    numbered = sending(Resend.NUMBERED, was_sent=True, flights=some_flights())
    number_of(numbered, 100.0)
    numbered.end_after(LOADING, "server")

    assert "is_late" not in number_of(numbered, 1000.0)


def test_a_flight_that_somebody_else_uses_is_left_to_them():
    """Two copies of a process, made of one snapshot, have the same flights."""
    flights = some_flights()
    numbered = sending(Resend.NUMBERED, was_sent=True, flights=flights)
    number_of(numbered)

    assert numbered.end_after(GHOST, "server") is None
    assert number_of(numbered)["flight"] == "f1"
    numbered.end()
    assert number_of(sending(Resend.NUMBERED, flights=flights))["flight"] == "f1"


def test_a_ghost_that_may_have_run_before_stays_open():
    numbered = sending(Resend.NUMBERED, was_sent=True, flights=some_flights())
    number_of(numbered)
    numbered.end_after(LOST, "server")

    assert isinstance(numbered.end_after(GHOST, "server"), AmbiguousResultError)


def test_a_forked_child_has_flights_of_its_own():
    flights = some_flights()
    call = sending(Resend.NUMBERED, flights=flights)
    number_of(call)
    call.end()

    flights.forget()

    assert number_of(sending(Resend.NUMBERED, flights=flights))["flight"] == "f1"


@pytest.mark.parametrize(
    "error",
    [
        redis.AuthenticationError("Authentication required."),
        redis.ResponseError("Protocol error: unauthenticated multibulk length"),
        redis.ResponseError("unknown command 'EVALSHA'"),
        redis.ResponseError("This instance has cluster support disabled"),
    ],
)
def test_what_will_never_succeed_is_not_sent_again(error):
    end = sending(Resend.SAME, was_sent=True).end_after(error, "server", finds_primary=True)

    assert isinstance(end, ServerUnusableError)


@pytest.mark.parametrize(
    "error",
    [
        redis.ReadOnlyError("You can't write against a read only replica."),
        redis.exceptions.MovedError("3999 127.0.0.1:6381"),
    ],
)
def test_the_wrong_server_is_asked_again_and_then_told_from_a_failover(error):
    named, found = sending(Resend.SAME, was_sent=True), sending(Resend.SAME, was_sent=True)

    assert named.end_after(error, "server") is None
    assert isinstance(named.end_after(error, "server", is_last=True), ServerUnusableError)
    end = found.end_after(error, "server", is_last=True, finds_primary=True)
    assert isinstance(end, ServerUnavailableError)


def test_small_requests_leave_together_and_a_large_one_before_the_next_is_packed():
    large = "x" * WORTH_A_MESSAGE
    words = [("GET", "a"), ("GET", "b"), ("SET", "c", large), ("GET", "d")]
    sendings = [Sending(plain(*each, parse=str)) for each in words]
    leaving = messages(sendings, 0.0)

    first, replies = next(leaving)

    assert (first, replies) == (b"".join(each.packed(0.0) for each in sendings[:3]), 3)
    assert [each.was_sent for each in sendings] == [True, True, True, False]
    assert list(leaving) == [(sendings[3].packed(0.0), 1)]
    assert sendings[3].was_sent
