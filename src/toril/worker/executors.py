"""Where a handler runs: on the loop, in a thread, or in a process that can be killed."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from toril.worker.active_job import ActiveJob
from toril.worker.handlers import Handler, Router, is_async
from toril.worker.thread_job import ThreadJob


class Executor(Protocol):
    """Runs one job's handler; cancelling the call stops the handler as far as it can be stopped."""

    async def run(self, job: ActiveJob) -> Any: ...

    async def close(self) -> None: ...


class LocalExecutor:
    """``async def`` handlers on the loop, plain ones in a pool of threads."""

    def __init__(self, handler: Handler | Router, *, threads: int) -> None:
        self._router = handler if isinstance(handler, Router) else None
        self._handler = None if isinstance(handler, Router) else handler
        self._kinds: dict[str, tuple[Handler, bool]] = {}
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    async def run(self, job: ActiveJob) -> Any:
        handler, runs_on_loop = self._kinds.get(job.name) or self._find(job.name)
        if runs_on_loop:
            return await handler(job)
        return await self._run_in_thread(handler, job)

    async def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _find(self, name: str) -> tuple[Handler, bool]:
        handler = self._handler
        if handler is None:
            assert self._router is not None
            handler = self._router.find(name)
        kind = (handler, is_async(handler))
        if self._router is None or len(self._kinds) < 1000:
            self._kinds[name] = kind
        return kind

    async def _run_in_thread(self, handler: Handler, job: ActiveJob) -> Any:
        """A thread cannot be killed: when the job is cancelled its flag is set, and the call ends
        when the function does, because letting go of a job that still runs would run it twice."""
        loop = asyncio.get_running_loop()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="toril-handler")
        running = loop.run_in_executor(self._pool, handler, ThreadJob(job, loop))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if job.is_released:
                raise
            job.is_cancelled = True
            await asyncio.wait([running])
            if running.cancelled() or running.exception() is None:
                raise
            return running.result()
