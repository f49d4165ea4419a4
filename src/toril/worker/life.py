"""A worker from its start to its end.

At the end it takes no more jobs; those it holds are finished, or handed back for others to take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from toril.errors import InvalidOptionError, ServerUnusableError, TorilError
from toril.logs import get_logger
from toril.protocol import settling
from toril.worker.child import refuse_in_child
from toril.worker.crew import GRACE_S, call_for_no_job
from toril.worker.wiring import Parts

logger = get_logger("toril.worker")

SILENCE_S = 2.0


class Life:
    """Starts the services of a worker, watches over them, and shuts them down."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._fate = parts.fate
        self._closing: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._interrupting: asyncio.Task[None] | None = None
        self.is_paused = False
        self.services: list[asyncio.Task[Any]] = []
        self.loop: asyncio.AbstractEventLoop | None = None
        """The task that runs the worker, once it is started."""

    @property
    def is_closing(self) -> bool:
        return self._fate.is_closing

    async def start(self) -> None:
        if self.loop is not None:
            raise InvalidOptionError("this worker has already been started; make a new one")
        if self.is_closing:
            raise InvalidOptionError("this worker is closed; make a new one")
        refuse_in_child()
        self.loop = asyncio.get_running_loop()
        parts = self._parts
        parts.lease.start()
        for service in (
            parts.pump.run(),
            parts.watch.run(),
            parts.sweeper.run(),
            parts.sweeper.run_diversions(),
            parts.keeper.run(),
            parts.courier.run(),
        ):
            task = asyncio.create_task(service)
            task.add_done_callback(self._on_service_end)
            self.services.append(task)
        parts.emitter.emit("ready")

    async def run(self) -> None:
        """Wait until it is closed or cannot continue; raises the error that stopped it."""
        await self.start()
        try:
            await self._fate.is_over.wait()
        except asyncio.CancelledError:
            await self.close(0)
            raise
        if self._fate.cause is not None:
            await self.close(0)
            raise self._fate.cause

    def pause(self) -> None:
        """Take no jobs; the wait at the server ends as well."""
        self.is_paused = True
        self._parts.pump.stop_taking()
        if self.loop is not None:
            self._interrupting = self.loop.create_task(self._parts.watch.interrupt())

    def resume(self) -> None:
        self.is_paused = False
        if not self.is_closing:
            self._parts.pump.resume_taking()

    async def close(self, limit_s: float | None) -> None:
        """Let jobs finish within ``limit_s``; a second call can only shorten that.

        A handler only begins it: the end waits for its job, so it cannot wait for the end.
        """
        if self._closing is None:
            self._fate.is_closing = True
            self._closing = asyncio.create_task(self._close())
        if limit_s is not None:
            self.hurry_after(limit_s)
        self._parts.emitter.excuse()
        if not self._parts.crew.runs_caller():
            await asyncio.shield(self._closing)

    def hurry_after(self, limit_s: float) -> None:
        """Let the end, once it has begun, wait no longer than this."""
        asyncio.get_running_loop().call_later(limit_s, self._hurry.set)

    def _on_service_end(self, task: asyncio.Task[Any]) -> None:
        """Services end only when told to; anything else is a bug that must not go unseen.

        A worker that goes on without the service that wakes it, or the one that brings back stalled
        jobs, looks healthy.
        """
        if task.cancelled() or self.is_closing:
            return
        error = task.exception()
        if error is None:
            return
        logger.critical("the worker of queue %r stopped", self._parts.keys.name, exc_info=error)
        self._parts.emitter.emit("error", error)
        self._fate.seal(error)

    # ------------------------------------------------------------------ the end

    async def _close(self) -> None:
        call_for_no_job()
        try:
            await self._wind_down()
        finally:
            self._fate.is_over.set()

    async def _wind_down(self) -> None:
        parts = self._parts
        parts.emitter.emit("closing")
        parts.pump.stop_taking()
        if self.services:
            doubting = asyncio.create_task(self._hurry_when_nobody_answers())
            await self._end_services()
            doubting.cancel()
            await parts.lease.close()
        await parts.release()
        parts.emitter.emit("closed")
        await parts.emitter.drain(self._hurry, GRACE_S)

    async def _end_services(self) -> None:
        parts = self._parts
        # There is no point in asking a server that refuses everything.
        grace_s = 0 if isinstance(self._fate.cause, ServerUnusableError) else GRACE_S
        pump, *others = self.services
        for service in others:
            service.cancel()
        await self._unless_hurried(asyncio.wait(others), grace_s=grace_s)
        for service in others:
            service.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._unless_hurried(self._finish_jobs())
        await parts.crew.release()
        parts.pump.close()
        has_settled = await self._unless_hurried(asyncio.wait([pump]), grace_s=grace_s)
        if not has_settled:
            logger.warning(
                "the worker of queue %r stops while its server does not answer; it holds %d"
                " jobs, which others take over when their locks expire",
                parts.keys.name,
                parts.pump.running,
            )
            pump.cancel()
        await asyncio.gather(pump, return_exceptions=True)
        if has_settled:
            await self._unless_hurried(self._say_goodbye(), grace_s=grace_s)

    async def _finish_jobs(self) -> None:
        """A call in flight may still bring jobs; then let them all finish."""
        await self._parts.pump.land()
        await self._parts.crew.finish()

    async def _hurry_when_nobody_answers(self) -> None:
        """The time limit of ``close`` is for jobs: without any, a silent server gets little of it.

        A call in flight may have taken jobs that nobody will run; a sweep brings them back.
        """
        pump, pulse = self._parts.pump, self._parts.pulse
        while not self._hurry.is_set():
            heard_at = pulse.heard_at
            await asyncio.sleep(SILENCE_S if heard_at else 0)
            if not pump.running and pulse.heard_at == heard_at:
                self._hurry.set()
            await asyncio.sleep(0.05)

    async def _unless_hurried(self, work: Coroutine[Any, Any, Any], grace_s: float = 0) -> bool:
        """Wait for ``work``, at most until ``grace_s`` after the time limit of ``close``."""
        task = asyncio.create_task(work)
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait([task, hurry], return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and grace_s:
            await asyncio.wait([task], timeout=grace_s)
        is_done = task.done()
        for one in (task, hurry):
            one.cancel()
        await asyncio.gather(task, hurry, return_exceptions=True)
        return is_done

    async def _say_goodbye(self) -> None:
        parts = self._parts
        try:
            flights = [flight.name for flight in parts.flights]
            await parts.connection.run(settling.leave(parts.keys, flights))
        except TorilError as error:
            logger.warning("keys of a worker of queue %r remain: %s", parts.keys.name, error)
        await parts.courier.finish()
