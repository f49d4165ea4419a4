"""Answers that may take seconds, such as a count of a million dead letters: found beside the pages.

A page waits a moment for one, then shows what was known before and how far the next one is.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")

WAIT_S = 0.15
AGAIN_S = 2.0
SHARE = 20
"""What took a second is not begun again before this many."""
MOST_KEPT = 100


@dataclass
class Known(Generic[T]):
    """The last answer, and how far the next one is."""

    value: T
    is_whole: bool = False
    """Was there an answer yet? Before it ``value`` is what stands for none."""
    done: int = 0
    _task: asyncio.Task[None] | None = None
    _not_before_s: float = 0.0
    _changes: int = 0


Find = Callable[[Callable[[int], None]], Awaitable[T]]
"""Finds an answer, and says on the way how much it has looked at."""


class Beside:
    """All of them: each is looked for once at a time, however many want to know it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all: OrderedDict[Hashable, Known[Any]] = OrderedDict()

    async def known(self, key: Hashable, nothing: T, find: Find[T]) -> Known[T]:
        """What is known by now; raises what the search for it raised."""
        known: Known[T] = self._all.setdefault(key, Known(nothing))
        self._all.move_to_end(key)
        if len(self._all) > MOST_KEPT:
            _stop(self._all.popitem(last=False)[1])
        if known._task is None and self._clock() >= known._not_before_s:
            known._task = asyncio.create_task(self._find(known, find))
            known._task.add_done_callback(_heard)
        if known._task is not None:
            done, _ = await asyncio.wait([known._task], timeout=WAIT_S)
            for task in done:
                task.result()
        return known

    def forget(self) -> None:
        """Something was changed: whoever asks next has everything looked for again."""
        for known in self._all.values():
            known._changes += 1
            known._not_before_s = 0.0

    async def close(self) -> None:
        tasks = [task for known in self._all.values() if (task := _stop(known)) is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        self._all.clear()

    async def _find(self, known: Known[T], find: Find[T]) -> None:
        began, changes = self._clock(), known._changes

        def note(done: int) -> None:
            known.done = done

        try:
            known.value = await find(note)
            known.is_whole = True
            now = self._clock()
            if known._changes == changes:
                known._not_before_s = now + max(AGAIN_S, SHARE * (now - began))
        finally:
            known._task = None


def _stop(known: Known[Any]) -> asyncio.Task[None] | None:
    if known._task is not None:
        known._task.cancel()
    return known._task


def _heard(task: asyncio.Task[None]) -> None:
    """Whoever waited was told of its error; the next who asks begins anew."""
    if not task.cancelled():
        task.exception()
