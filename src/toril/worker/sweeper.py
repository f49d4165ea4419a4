"""The sweeper: brings back the jobs of workers that died."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from toril.client.connection import Connection
from toril.errors import TorilError
from toril.logs import get_logger
from toril.protocol import lanes, leasing
from toril.protocol.keys import Keys

logger = get_logger("toril.worker")


class Sweeper:
    """Sweeps at the start and then every ``interval_ms``; the workers of a queue take turns."""

    def __init__(
        self,
        connection: Connection,
        keys: Keys,
        *,
        interval_ms: int,
        max_stalled: int,
        on_stalled: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._interval_ms = interval_ms
        self._max_stalled = max_stalled
        self._on_stalled = on_stalled
        self._has_to_divert = asyncio.Event()

    async def run(self) -> None:
        while True:
            try:
                await self.sweep()
            except TorilError as error:
                logger.warning("cannot search for stalled jobs: %s", error)
            except Exception:
                # This may be the only worker that brings jobs back: one bad job must not end it.
                logger.exception("cannot search for stalled jobs")
            await asyncio.sleep(self._interval_ms / 1000 * random.uniform(1.0, 1.05))

    async def sweep(self) -> list[str]:
        """Bring stalled jobs back now, unless another worker has just done so."""
        plan = leasing.sweep(
            self._keys, interval_ms=self._interval_ms, max_stalled=self._max_stalled
        )
        brought_back = await self._connection.follow(plan)
        for job_id in brought_back:
            self._on_stalled(job_id)
        return brought_back

    def divert_soon(self) -> None:
        """Move a lane to the dead letters soon; if this worker dies first, a sweep continues."""
        self._has_to_divert.set()

    async def run_diversions(self) -> None:
        while True:
            await self._has_to_divert.wait()
            self._has_to_divert.clear()
            try:
                await self._connection.follow(lanes.divert(self._keys))
            except TorilError as error:
                logger.warning("a lane could not be sent to the dead letters yet: %s", error)
            except Exception:
                logger.exception("a lane could not be sent to the dead letters yet")
