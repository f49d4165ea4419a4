"""Traces are what Python prints, however they were made."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable

import pytest

from toril.errors import UnrecoverableError
from toril.protocol.traces import formatted, formatted_json


class OwnError(Exception):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def plain() -> None:
    raise ValueError("no")


def with_context() -> None:
    try:
        plain()
    except ValueError:
        raise KeyError("x") from None


def chained() -> None:
    try:
        plain()
    except ValueError as error:
        raise OwnError("because") from error


def in_context() -> None:
    try:
        plain()
    except ValueError:
        int("x")


def noted() -> None:
    error = ValueError("no")
    error.add_note("look here")
    raise error


def grouped() -> None:
    raise ExceptionGroup("two", [ValueError("a"), KeyError("b")])


def recursing(depth: int = 200) -> None:
    recursing(depth - 1) if depth else plain()


def misspelt() -> None:
    plainn()  # type: ignore[name-defined]  # noqa: F821


def several_lines() -> None:
    int(
        "not a number",
    )


@pytest.mark.parametrize(
    "fail",
    [plain, with_context, chained, in_context, noted, grouped, recursing, misspelt, several_lines],
)
def test_a_trace_is_what_python_prints(fail: Callable[[], None]):
    for _ in range(2):  # the second time from what was kept
        with pytest.raises(Exception) as caught:  # noqa: PT011
            fail()
        printed = "".join(traceback.format_exception(caught.value))
        assert formatted(caught.value) == printed
        assert json.loads(formatted_json(caught.value, 10**6)) == printed


@pytest.mark.parametrize(
    "error",
    [
        ValueError(),
        OwnError("own"),
        UnrecoverableError("never raised"),
        OSError(2, "gone"),
        KeyError("k"),
        Mute(),
        SystemExit(3),
    ],
)
def test_an_error_that_was_never_raised_has_its_last_line(error: BaseException):
    printed = "".join(traceback.format_exception(error))
    assert formatted(error) == printed
    assert json.loads(formatted_json(error, 10**6)) == printed


@pytest.mark.parametrize("fail", [plain, chained, recursing])
@pytest.mark.parametrize("longest", [10, 100, 250])
def test_of_a_long_trace_the_end_is_kept(fail: Callable[[], None], longest: int):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        fail()

    text = json.loads(formatted_json(caught.value, longest))

    assert len(text) <= longest
    assert formatted(caught.value).endswith(text)


def test_words_that_no_utf_8_can_carry_are_replaced():
    text = json.loads(formatted_json(ValueError('half \ud800 "pair"\n'), 100))

    assert text == 'ValueError: half ? "pair"\n\n'
