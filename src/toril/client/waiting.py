"""Waiting for what becomes of jobs."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

from toril.client.connection import Connection
from toril.client.listening import Listening
from toril.client.places import PerPlace
from toril.errors import JobFailedError, JobRemovedError, WaitTimeoutError
from toril.options import Duration, milliseconds
from toril.protocol import codec, events, reading
from toril.protocol.events import Event
from toril.protocol.keys import Keys, check_known_id
from toril.protocol.reading import UNFINISHED, Whereabouts

LOOK_AGAIN_S = 5.0
"""How often the server is asked although no event came: some ends leave no event."""
SHORTEST_LOOK_S = 0.05
"""On a busy queue emptiness is looked for no more often than this."""


class QueueWaiting:
    """The half of a queue that waits.  All who wait share one reader of events."""

    keys: Keys
    _connection: Connection
    _listenings: PerPlace[Listening]

    async def wait_for(self, job_id: str, timeout: Duration | None = None) -> Any:
        """The return value of a job, as soon as it has one.

        Raises ``JobFailedError`` when it failed for good, ``JobRemovedError`` when it is gone and
        nobody knows how it ended, ``WaitTimeoutError`` after ``timeout`` ms.
        """
        check_known_id(job_id)
        deadline = _deadline(timeout)
        listening = self._listen()
        if not listening.is_reading:
            found, value = await self._result(job_id)
            if found:
                return value
        waiter = await listening.add(job_id)
        try:
            while True:
                found, value = await self._result(job_id)
                if found:
                    return value
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise WaitTimeoutError(
                        f"job {job_id!r} of queue {self.keys.name!r} has not finished within"
                        f" {timeout!r} ms; it is still there, and may finish later"
                    )
                event = await waiter.wait(min(left_s, LOOK_AGAIN_S))
                if event is not None:
                    return _outcome(job_id, event)
                listening.refuse_if_closed()
        finally:
            listening.remove(waiter)

    async def wait_until_empty(self, timeout: Duration | None = None) -> bool:
        """Wait until no job is waiting, active, prioritized or delayed; False after ``timeout``."""
        deadline = _deadline(timeout)
        if await self._is_empty():
            return True
        listening = self._listen()
        waiter = await listening.add(None)
        try:
            while not await self._is_empty():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                event = await waiter.wait(min(left_s, LOOK_AGAIN_S))
                listening.refuse_if_closed()
                if event is not None and event.name != "drained":
                    await asyncio.sleep(max(0, min(SHORTEST_LOOK_S, deadline - time.monotonic())))
        finally:
            listening.remove(waiter)
        return True

    async def _close_listening(self) -> None:
        for listening in self._listenings.values():
            await listening.close()

    def _listen(self) -> Listening:
        return self._listenings.here()

    async def _is_empty(self) -> bool:
        counts = await self._connection.run(reading.counts(self.keys, UNFINISHED))
        return not any(counts.values())

    async def _result(self, job_id: str) -> tuple[bool, Any]:
        """Whether the job has finished, and with what; raises its failure."""
        found = await self._connection.run(reading.locate(self.keys, job_id))
        if found is None:
            # Removed when it finished, perhaps: then the log of events alone tells.
            end = await self._connection.follow(events.find_end(self.keys, job_id))
            if end is None:
                raise JobRemovedError(job_id)
            return True, _outcome(job_id, end)
        return _finished(job_id, found)


def _finished(job_id: str, found: Whereabouts) -> tuple[bool, Any]:
    if found.state == "completed":
        return True, codec.decode_or_text(found.outcome)
    if found.state == "failed":
        raise JobFailedError(job_id, codec.reason(codec.text(found.outcome)))
    return False, None


def _outcome(job_id: str, event: Event) -> Any:
    if event.name == "completed":
        return event.data.get("return_value")
    if event.name == "failed":
        raise JobFailedError(job_id, event.data.get("failed_reason", ""))
    raise JobRemovedError(job_id)


def _deadline(timeout: Duration | None) -> float:
    if timeout is None:
        return math.inf
    return time.monotonic() + milliseconds(timeout, "timeout") / 1000
