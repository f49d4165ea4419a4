"""Small helpers that any test may use."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import pytest

T = TypeVar("T")

NOT_RUN = "NOT RUN: "
PATIENCE_S = 60.0
"""A wait that ends well costs nothing, however long it might have been."""
LESS_OFTEN = 6


def not_run(reason: str) -> NoReturn:
    """Leave the test out because something it needs is missing; the end of the run says so."""
    pytest.skip(NOT_RUN + reason, allow_module_level=True)


async def wait_until(
    predicate: Callable[[], T | Awaitable[T]],
    timeout: float = PATIENCE_S,
    *,
    every: float = 0.005,
    message: str = "",
) -> T:
    """Ask ``predicate`` (plain or async) until its answer is true; return that answer.

    Fails the test after ``timeout`` seconds, with the last answer. Who waits long asks less often.
    """
    deadline = time.monotonic() + timeout
    slowest = LESS_OFTEN * every
    while True:
        answer = predicate()
        value: T = await answer if inspect.isawaitable(answer) else answer  # type: ignore[assignment]
        if value:
            return value
        if time.monotonic() > deadline:
            what = message or getattr(predicate, "__name__", repr(predicate))
            pytest.fail(f"not true within {timeout} s: {what} (last answer: {value!r})")
        await asyncio.sleep(every)
        every = min(1.2 * every, slowest)


async def let_pass(seconds: float, why: str) -> None:
    """Wait where only time can tell: that nothing happens in it, or that it is over.

    What can be seen is waited for with ``wait_until``.
    """
    assert why
    await asyncio.sleep(seconds)


async def until_blocked(client: Any, count: int = 1) -> None:
    """Wait until so many connections wait at the server: an idle worker has two of them."""

    async def are_blocked() -> bool:
        return (await client.info("clients"))["blocked_clients"] >= count

    await wait_until(are_blocked, message=f"{count} connections wait at the server")


async def until_renewed(client: Any, lock: str, timeout: float = PATIENCE_S) -> None:
    """Wait until the key ``lock`` lives longer than it did a moment ago: its holder renewed it."""
    left_ms: list[int] = [await client.pttl(lock)]

    async def is_renewed() -> bool:
        left_ms.append(await client.pttl(lock))
        return left_ms[-1] > left_ms[-2] > 0

    await wait_until(is_renewed, timeout, every=0.02, message=f"{lock} is renewed")


async def assert_no_gap(client: Any, base: str, every: int, scheduler: str = "s") -> None:
    """Each slot follows on the one before, unless it had passed when the schedule went on."""
    added = [
        (int(fields["jobId"].rsplit(":", 1)[1]), int(at.split("-")[0]))
        for at, fields in await client.xrange(f"{base}:events")
        if fields["event"] == "added" and f":{scheduler}:" in fields["jobId"]
    ]
    for (earlier, _), (slot, went_on) in itertools.pairwise(added):
        assert (slot - earlier) % every == 0
        assert slot == earlier + every or earlier + every <= went_on
        assert slot - every <= max(went_on, earlier)


def wait_until_sync(
    predicate: Callable[[], T],
    timeout: float = PATIENCE_S,
    *,
    every: float = 0.005,
    message: str = "",
) -> T:
    """`wait_until` for tests without an event loop."""
    deadline = time.monotonic() + timeout
    slowest = LESS_OFTEN * every
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            what = message or getattr(predicate, "__name__", repr(predicate))
            pytest.fail(f"not true within {timeout} s: {what} (last answer: {value!r})")
        time.sleep(every)
        every = min(1.2 * every, slowest)


def name_of(value: object) -> str:
    """A name for a parameter of a test that is the same in every process.

    A set of several members has no such name: its order differs from process to process.
    """
    return re.sub(r"( object)? at 0x\w+", "", ascii(value))
