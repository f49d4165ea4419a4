"""Where a handler runs: on the loop, in a thread, or in a process that can be killed."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from typing import Any, Protocol

from toril.logs import get_logger
from toril.worker.active_job import ActiveJob
from toril.worker.handlers import Handler, Router, is_async, wrap
from toril.worker.thread_job import ThreadJob
from toril.worker.threads import Threads

logger = get_logger("toril.worker")

ABANDON_AFTER_S = 1.0
"""How long a plain function may run past its timeout before it is given up."""


class Executor(Protocol):
    """Runs one job's handler; cancelling the call stops the handler as far as it can be stopped."""

    @property
    def abandoned(self) -> int:
        """How many handlers are still running although their jobs have been given up."""

    def run(self, job: ActiveJob) -> Coroutine[Any, Any, Any]: ...

    async def close(self) -> None: ...


class LocalExecutor:
    """``async def`` handlers on the loop, plain ones in a pool of threads."""

    def __init__(self, handler: Handler | Router, *, threads: int) -> None:
        self._router = handler if isinstance(handler, Router) else None
        self._handler = None if isinstance(handler, Router) else handler
        self._kinds: dict[str, tuple[Handler, bool]] = {}
        self._threads = Threads(threads)

    def run(self, job: ActiveJob) -> Coroutine[Any, Any, Any]:
        handler, runs_on_loop = self._kinds.get(job.name) or self._find(job.name)
        if runs_on_loop:
            running: Coroutine[Any, Any, Any] = handler(job)
            return running
        return self._run_in_thread(handler, job)

    @property
    def abandoned(self) -> int:
        return self._threads.abandoned

    async def close(self) -> None:
        self._threads.close()

    def _find(self, name: str) -> tuple[Handler, bool]:
        handler = self._handler
        if handler is None:
            assert self._router is not None
            handler = self._router.find(name)
            if self._router.middleware:
                handler = wrap(self._as_async(handler), self._router.middleware)
        kind = (handler, is_async(handler))
        if len(self._kinds) < 1000:
            self._kinds[name] = kind
        return kind

    def _as_async(self, handler: Handler) -> Handler:
        """The handler as middleware sees it: always awaitable."""
        if is_async(handler):
            return handler

        async def run_in_thread(job: Any) -> Any:
            return await self._run_in_thread(handler, job)

        return run_in_thread

    async def _run_in_thread(self, handler: Handler, job: ActiveJob) -> Any:
        """A thread cannot be killed: when the job should stop, its flag is set.

        A cancelled job is held until the function ends, because it would run twice otherwise.
        A job past its ``timeout`` is not held: the timeout is there to free its slot.
        """
        running = self._threads.run(handler, ThreadJob(job, asyncio.get_running_loop()))
        try:
            result = await self._outcome_of(running, job)
        except asyncio.CancelledError:
            # Middleware may have its own time limit, and a job that is held may be lost as well.
            if self._threads.leave(running) and not job.is_released:
                self._tell_of_left(job)
            raise
        if inspect.isawaitable(result):
            # A lambda or a wrapper around an async function: the thread only made the call.
            return await result
        return result

    async def _outcome_of(self, running: asyncio.Future[Any], job: ActiveJob) -> Any:
        """What the function returns; if the job is to stop, the function is told and waited for."""
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            is_late = job.limit is not None and job.limit.expired()
            # Not cancelled by the worker: the loop is ending, and nothing may prevent that.
            if job.is_released or running.done() or not (is_late or job.is_cancelled):
                raise
            job.is_stopping = True
            job.set_signals()
            if is_late and await self._has_abandoned(running, job):
                raise
            await asyncio.wait([running])
            if running.exception() is None:
                raise
            return running.result()

    async def _has_abandoned(self, running: asyncio.Future[Any], job: ActiveJob) -> bool:
        """Give up a function that does not end soon, unless too many given-up ones still run."""
        await asyncio.wait([running], timeout=ABANDON_AFTER_S)
        if running.done():
            return False
        if self._threads.abandon(running):
            logger.warning(
                "job %r (%r) of queue %r is past its timeout and its function does not return; the"
                " attempt has failed, the thread keeps running (%d such threads). Check"
                " job.is_cancelled in it, or use executor='process', which can kill it",
                job.id,
                job.name,
                job.queue_name,
                self._threads.abandoned,
            )
            return True
        logger.error(
            "job %r (%r) of queue %r is past its timeout and holds its slot until its function"
            " returns: %d threads of this worker are already stuck",
            job.id,
            job.name,
            job.queue_name,
            self._threads.abandoned,
        )
        return False

    def _tell_of_left(self, job: ActiveJob) -> None:
        logger.warning(
            "nobody waits any more for job %r (%r) of queue %r, and its function does not return:"
            " the thread keeps running (%d such threads). Give the function a time limit of its"
            " own, or use executor='process', which can kill it",
            job.id,
            job.name,
            job.queue_name,
            self._threads.abandoned,
        )
