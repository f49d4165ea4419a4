"""Small helpers that any test may use."""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

import pytest

T = TypeVar("T")

NOT_RUN = "NOT RUN: "


def not_run(reason: str) -> NoReturn:
    """Leave the test out because something it needs is missing; the end of the run says so."""
    pytest.skip(NOT_RUN + reason, allow_module_level=True)


async def wait_until(
    predicate: Callable[[], T | Awaitable[T]],
    timeout: float = 5.0,
    *,
    every: float = 0.005,
    message: str = "",
) -> T:
    """Ask ``predicate`` (plain or async) until its answer is true; return that answer.

    Fails the test after ``timeout`` seconds, with the last answer.
    """
    deadline = time.monotonic() + timeout
    while True:
        answer = predicate()
        value: T = await answer if inspect.isawaitable(answer) else answer  # type: ignore[assignment]
        if value:
            return value
        if time.monotonic() > deadline:
            what = message or getattr(predicate, "__name__", repr(predicate))
            pytest.fail(f"not true within {timeout} s: {what} (last answer: {value!r})")
        await asyncio.sleep(every)


def wait_until_sync(
    predicate: Callable[[], T], timeout: float = 5.0, *, every: float = 0.005, message: str = ""
) -> T:
    """`wait_until` for tests without an event loop."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            what = message or getattr(predicate, "__name__", repr(predicate))
            pytest.fail(f"not true within {timeout} s: {what} (last answer: {value!r})")
        time.sleep(every)


def name_of(value: object) -> str:
    """A name for a parameter of a test that is the same in every process.

    A set of several members has no such name: its order differs from process to process.
    """
    return re.sub(r"( object)? at 0x\w+", "", ascii(value))
