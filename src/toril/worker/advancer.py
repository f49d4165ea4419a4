"""The advancer: a worker that takes a scheduler's job first creates the job after it.

A schedule has one pending job.  If that job ended without a successor, the schedule would end with
it.  So the job does not run until the next one exists, however long the server is unavailable.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from toril.client.connection import Connection
from toril.errors import ServerError, TorilError
from toril.protocol import scheduling
from toril.protocol.keys import Keys
from toril.protocol.settling import Attempt, Raised, Released
from toril.worker.active_job import ActiveJob
from toril.worker.pulse import Pulse

LONGEST_PAUSE_S = 2.0


class Advancer:
    """Advances the schedulers of one queue."""

    def __init__(
        self,
        connection: Connection,
        keys: Keys,
        *,
        pulse: Pulse,
        on_error: Callable[[Exception], None],
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._pulse = pulse
        self._on_error = on_error

    async def advance(self, job: ActiveJob) -> Attempt | None:
        """Create the job after this one; if this job cannot run, return its attempt's result."""
        pause_s = 0.05
        while not (job.is_lost or job.is_released):
            try:
                await self._connection.follow(
                    scheduling.advance(self._keys, job, self._pulse.server_ms)
                )
            except ServerError as error:
                self._on_error(error)
            except TorilError as error:
                # A pattern that only Node understands: the job fails and says so.
                return Raised(error)
            else:
                return None
            await asyncio.sleep(pause_s * random.uniform(0.5, 1))
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        return Released()
