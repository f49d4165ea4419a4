"""Answers that everybody who asks within a moment shares: a hundred pages cost as much as one."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")

FRESH_S = 1.1
"""Longer than the pulse takes from look to look: what changes meanwhile is asked for once."""
MOST_ANSWERS = 500


class Shared:
    """Remembers answers for a short time, and asks once when many want to know at once."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Hashable, tuple[float, asyncio.Task[Any]]] = OrderedDict()
        self._brief: set[Hashable] = set()
        """Which answers are about what pages follow."""

    async def get(
        self, key: Hashable, ask: Callable[[], Awaitable[T]], *, fresh_s: float = FRESH_S
    ) -> T:
        """The answer to ``ask``, at most ``fresh_s`` old; a failure is not remembered."""
        until, task = self._answers.get(key, (0.0, None))
        if task is None or until < time.monotonic():
            task = asyncio.ensure_future(_answer(ask))
            self._answers[key] = (time.monotonic() + fresh_s, task)
            self._answers.move_to_end(key)
            if fresh_s <= FRESH_S:
                self._brief.add(key)
            if len(self._answers) > MOST_ANSWERS:
                self._brief.discard(self._answers.popitem(last=False)[0])
        try:
            answer: T = await asyncio.shield(task)
        except BaseException:
            if task.done() and self._answers.get(key, (0.0, None))[1] is task:
                del self._answers[key]
            raise
        return answer

    def forget(self) -> None:
        """Something was changed: the next who ask are told what is there now."""
        self._answers.clear()
        self._brief.clear()

    def outdate(self) -> None:
        """Pages are about to be told of a change: none is shown what was asked for before it."""
        for key in self._brief:
            self._answers.pop(key, None)
        self._brief.clear()

    async def close(self) -> None:
        tasks = [task for _, task in self._answers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.forget()


async def _answer(ask: Callable[[], Awaitable[T]]) -> T:
    return await ask()
