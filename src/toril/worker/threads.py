"""Threads for plain ``def`` handlers.

They are daemons: a process that ends does not wait for a function that is stuck.  Python cannot
kill a thread, so a function that is given up (``abandon``) keeps running, and a new thread takes
its place; at most as many may be given up at a time as the pool has threads.  A call that nobody
waits for any more and that no thread has begun is never begun (``leave``).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any, NamedTuple


class _Call(NamedTuple):
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    context: Context
    function: Callable[[Any], Any]
    argument: Any


class Threads:
    """A pool that grows to ``most`` threads, for one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._pending = 0
        self._threads = 0
        self._abandoned: set[asyncio.Future[Any]] = set()
        self._not_begun: set[asyncio.Future[Any]] = set()
        """Whoever takes a call out of it decides what becomes of it: a thread, or who leaves it."""

    @property
    def abandoned(self) -> int:
        """How many functions that nobody waits for are still running."""
        return len(self._abandoned)

    def abandon(self, call: asyncio.Future[Any]) -> bool:
        """Let a call keep running without waiting for it; False if too many already do."""
        if len(self._abandoned) >= self._most:
            return False
        self._abandoned.add(call)
        return True

    def leave(self, call: asyncio.Future[Any]) -> bool:
        """Nobody waits for this call any more; True if it keeps running in its thread."""
        if call.done() or call in self._abandoned:
            return False
        try:
            self._not_begun.remove(call)
        except KeyError:
            self.abandon(call)
            return True
        self._pending -= 1
        call.cancel()
        return False

    def run(self, function: Callable[[Any], Any], argument: Any) -> asyncio.Future[Any]:
        """Call ``function(argument)`` in a thread, in a copy of the caller's context."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self._threads < min(self._pending + 1, self._most + len(self._abandoned)):
            # First, since the system may refuse it: then this call must not be left in the queue.
            name = f"toril-handler-{self._threads + 1}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
            self._threads += 1
        self._pending += 1
        self._not_begun.add(future)
        self._calls.put(_Call(future, loop, copy_context(), function, argument))
        return future

    def close(self) -> None:
        """Let every thread end after its current call."""
        for _ in range(self._threads):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                self._not_begun.remove(call.future)
            except KeyError:
                del call
                continue
            result: Any = None
            error: BaseException | None = None
            try:
                result = call.context.run(call.function, call.argument)
            except (StopIteration, KeyboardInterrupt, GeneratorExit) as raised:
                # A future cannot carry them: they would end the coroutine that awaits it, or the
                # loop. None of them is meant for the worker: Ctrl-C only reaches the main thread.
                error = RuntimeError(f"the handler raised {type(raised).__name__}")
                error.__cause__ = raised
            except BaseException as raised:  # noqa: BLE001 (whatever it was, the job's attempt is over)
                error = raised
            # On a closed loop nobody is left waiting.
            with contextlib.suppress(RuntimeError):
                call.loop.call_soon_threadsafe(self._done, call.future, result, error)
            del call, result, error

    def _done(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._pending -= 1
        if future in self._abandoned:
            self._abandoned.remove(future)
            future.cancel()  # nobody reads its result
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
