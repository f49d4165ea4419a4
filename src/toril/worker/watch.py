"""Waiting for work: one blocking read on the queue's marker, while there is nothing else to do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from toril.errors import TorilError
from toril.logs import get_logger
from toril.worker.pulse import Pulse
from toril.worker.pump import Pump

logger = get_logger("toril.worker")

LONGEST_BLOCK_MS = 10_000


class Watch:
    """Lets the pump wait at the server whenever it is idle, at most until a delayed job is due.

    The marker is shared with every worker of the queue, in any language: whoever pops it takes a
    job, and puts it back for the next worker if there may be more to take.
    """

    def __init__(
        self,
        pump: Pump,
        pulse: Pulse,
        *,
        drain_delay_ms: int,
        introduce: Callable[[], Awaitable[None]],
    ) -> None:
        self._pump = pump
        self._pulse = pulse
        self._drain_delay_ms = drain_delay_ms
        self._introduce = introduce
        self._wait: asyncio.Task[None] | None = None

    async def run(self) -> None:
        try:
            await self._introduce()
            while True:
                await self._pump.until_idle()
                self._wait = asyncio.create_task(self._pump.wait_and_take(self._block_ms()))
                await asyncio.wait([self._wait])
                await self._look_at(self._wait)
        finally:
            await self._stop()

    async def interrupt(self) -> None:
        """End the wait at the server; any job it took has been handed to the pump."""
        wait = self._wait
        if wait is None or wait.done():
            return
        if self._pump.recall():
            wait.cancel()
        await asyncio.wait([wait])

    async def _stop(self) -> None:
        """Like ``interrupt``; if this is cancelled too, it no longer asks how the wait ended."""
        try:
            if self._wait is not None and not self._wait.done():
                self._wait.cancel()
                await asyncio.wait([self._wait])
        except asyncio.CancelledError:
            if self._wait is not None:
                self._wait.cancel()
            raise
        if self._wait is not None and not self._wait.cancelled():
            # The connection was lost as well: nobody waits for it, so nobody needs to know.
            self._wait.exception()

    async def _look_at(self, wait: asyncio.Task[None]) -> None:
        if wait.cancelled():
            return
        error = wait.exception()
        if error is None:
            return
        if not isinstance(error, TorilError):
            raise error
        logger.warning("cannot wait for jobs: %s", error)
        await asyncio.sleep(random.uniform(0.05, 0.2))

    def _block_ms(self) -> int:
        """Until something is due, but never for long: BullMQ's markers may get lost."""
        if not self._pump.next_due_ms:
            return self._drain_delay_ms
        wait_ms = self._pump.next_due_ms - self._pulse.server_ms
        return min(max(1, wait_ms), LONGEST_BLOCK_MS)
