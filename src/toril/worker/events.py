"""Local events of a worker: callbacks by name, plain or async."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from toril.errors import InvalidOptionError
from toril.logs import get_logger

logger = get_logger("toril.worker")

Callback = Callable[..., Any]

EVENTS = frozenset(
    {
        "active",
        "completed",
        "failed",
        "retrying",
        "progress",
        "stalled",
        "lost",
        "error",
        "drained",
        "closing",
        "closed",
        "ready",
        "deadLettered",
    }
)


ALIASES = {"dead_lettered": "deadLettered"}
TELL_ERRORS = frozenset({"failed", "retrying", "deadLettered"})


class Emitter:
    """Calls the registered callbacks; if one fails, that is logged and affects nothing else."""

    tells_errors = False
    """Does anybody listen for failed attempts?"""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callback]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def on(self, event: str, callback: Callback) -> None:
        event = ALIASES.get(event, event)
        if event not in EVENTS:
            raise InvalidOptionError(
                f"a worker has no event {event!r}; it has {', '.join(sorted(EVENTS))}"
            )
        self._callbacks.setdefault(event, []).append(callback)
        self.tells_errors = self.tells_errors or event in TELL_ERRORS

    def has(self, event: str) -> bool:
        return event in self._callbacks

    def emit(self, event: str, *args: Any) -> None:
        for callback in self._callbacks.get(event, ()):
            self.call(event, callback, *args)

    def call(self, event: str, callback: Callback, *args: Any) -> None:
        """Call one callback; what it raises is logged."""
        try:
            result = callback(*args)
        except Exception:
            logger.exception("a callback for %r failed", event)
            return
        if inspect.iscoroutine(result):
            self._follow(event, result)

    async def drain(self) -> None:
        """Wait for the async callbacks that are still running."""
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _follow(self, event: str, coroutine: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)

        def done(task: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and task.exception() is not None:
                logger.error("a callback for %r failed", event, exc_info=task.exception())

        task.add_done_callback(done)
