"""Local events of a worker: callbacks by name, plain or async."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

from toril.errors import InvalidOptionError
from toril.logs import get_logger

logger = get_logger("toril.worker")

LONGEST_DRAIN_S = 30.0
"""How long a worker that is closed without a time limit waits for its async callbacks."""

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


_call: ContextVar[object] = ContextVar("toril-callback")
"""The async callback that runs here, also in the tasks that it starts and waits for."""


class Emitter:
    """Calls the registered callbacks; if one fails, that is logged and affects nothing else."""

    tells_errors = False
    """Does anybody listen for failed attempts?"""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callback]] = {}
        self._running: dict[object, asyncio.Task[Any] | None] = {}
        self._excused: set[object] = set()
        self._is_quiet = asyncio.Event()

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
        """Call one callback; what it raises is logged.

        It has a context of its own: the next jobs begin with the one in which it is called.
        """
        context = copy_context()
        try:
            result = context.run(callback, *args)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # of a cancelled task too: the jobs of a whole reply come behind this
            logger.exception("a callback for %r failed", event)
            return
        if inspect.iscoroutine(result):
            self._follow(event, result, context)

    def excuse(self) -> None:
        """The callback that calls this waits for the worker's end, which must not wait for it."""
        call = _call.get(None)
        if call in self._running:
            self._excused.add(call)
            self._look_if_quiet()

    async def drain(self, hurry: asyncio.Event, grace_s: float) -> None:
        """Wait for the async callbacks that are still running, at most until ``grace_s`` after
        ``hurry``; those that hang keep nobody from ending."""
        self._is_quiet.clear()
        self._look_if_quiet()
        quiet, hurried = (asyncio.create_task(one.wait()) for one in (self._is_quiet, hurry))
        first = asyncio.FIRST_COMPLETED
        await asyncio.wait([quiet, hurried], timeout=LONGEST_DRAIN_S, return_when=first)
        if hurried.done():
            await asyncio.wait([quiet], timeout=grace_s)
        if not quiet.done():
            count = len(self._running) - len(self._excused)
            logger.warning("a worker stops while %d of its callbacks still run", count)
        for one in (quiet, hurried):
            one.cancel()

    def _look_if_quiet(self) -> None:
        if len(self._running) == len(self._excused):
            self._is_quiet.set()

    def _follow(self, event: str, coroutine: Coroutine[Any, Any, Any], context: Context) -> None:
        call = object()
        context.run(_call.set, call)
        self._running[call] = None  # a loop may run it at once, and it may close its worker
        task = asyncio.get_running_loop().create_task(coroutine, context=context)
        self._running[call] = task

        def done(task: asyncio.Task[Any]) -> None:
            del self._running[call]
            self._excused.discard(call)
            self._look_if_quiet()
            if not task.cancelled() and task.exception() is not None:
                logger.error("a callback for %r failed", event, exc_info=task.exception())

        task.add_done_callback(done)
