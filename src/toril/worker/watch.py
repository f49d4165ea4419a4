"""Waiting for work: one blocking read on the queue's marker, while there is nothing else to do."""

from __future__ import annotations

import asyncio
import logging
import random
import time

from toril.client.connection import Connection
from toril.errors import TorilError
from toril.protocol import leasing
from toril.protocol.keys import Keys
from toril.worker.pump import Pump

logger = logging.getLogger("toril.worker")

LONGEST_BLOCK_MS = 10_000


class Watch:
    """Wakes the pump when there is something to take, or when a delayed job is due.

    The marker is shared with every worker of the queue, in any language: whoever pops it takes a
    job, and every take puts it back for the next one.
    """

    def __init__(
        self, connection: Connection, keys: Keys, pump: Pump, *, drain_delay_ms: int
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._pump = pump
        self._drain_delay_ms = drain_delay_ms

    async def run(self) -> None:
        while True:
            await self._pump.until_idle()
            try:
                await self._wait()
            except TorilError as error:
                logger.warning("cannot wait for jobs: %s", error)
                await asyncio.sleep(random.uniform(0.1, 0.5))
            self._pump.look_again()

    async def _wait(self) -> None:
        """Block until there may be something to take.

        Whoever pops the marker must take, or nobody is woken: when this worker was paused or filled
        up meanwhile, the marker is put back for another.
        """
        popped = await self._wait_for_marker()
        if popped is not None and not self._pump.has_room:
            await self._connection.run(leasing.put_marker_back(self._keys, popped))

    async def _wait_for_marker(self) -> float | None:
        """The marker's score if one was popped; it may name a time to wait for."""
        popped: float | None = None
        due_ms = float(self._pump.next_due_ms)
        while True:
            block_ms = self._drain_delay_ms
            if due_ms:
                block_ms = int(due_ms - self._now_ms()) + 1
                if block_ms <= 1:
                    return popped
                block_ms = min(block_ms, LONGEST_BLOCK_MS)
            score = await self._connection.run(
                leasing.wait_for_marker(self._keys, block_ms=block_ms)
            )
            if score is None:
                return popped
            if score <= self._now_ms():
                return score
            popped = score
            due_ms = min(score, due_ms) if due_ms else score

    def _now_ms(self) -> float:
        """The server's time, as far as the last reply tells."""
        loop_ms = asyncio.get_running_loop().time() * 1000
        return loop_ms + self._pump.clock_offset_ms if self._pump.clock_offset_ms else _wall_ms()


def _wall_ms() -> float:
    return time.time() * 1000
