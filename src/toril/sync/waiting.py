# Written by tools/unasync.py from src/toril/client/waiting.py: change that file instead.
"""Waiting for the results of jobs."""

from __future__ import annotations

import math
import time
from typing import Any

import msgspec

from toril.errors import JobFailedError, JobRemovedError, WaitTimeoutError
from toril.options import Duration, milliseconds
from toril.protocol import codec, events, reading
from toril.protocol.command import Command
from toril.protocol.events import Event
from toril.protocol.job import StoredJob
from toril.protocol.keys import Keys, check_known_id
from toril.protocol.reading import UNFINISHED, Whereabouts
from toril.sync.connection import Connection
from toril.sync.listening import Listening, Waiter
from toril.sync.places import PerPlace

LOOK_AGAIN_S = 5.0
"""How often to ask the server although no event came: some outcomes leave no event."""
LONGEST_LOOK_S = 60.0
"""A job that does not exist yet is looked up less and less often: its end is an event."""
SHORTEST_LOOK_S = 0.05
"""How often, at most, to check whether a busy queue is empty."""


class QueueWaiting:
    """The part of a queue that waits.  All waiting callers share one reader of events."""

    keys: Keys
    _connection: Connection
    _listenings: PerPlace[Listening]

    def wait_for(
        self, job_id: str | StoredJob, timeout: Duration | None = None, *, may_come: bool = False
    ) -> Any:
        """The return value of a job, as soon as it has one; pass the job or its id.

        Raises ``JobFailedError`` if it failed for good, ``JobRemovedError`` if it is gone and its
        outcome is unknown, ``WaitTimeoutError`` after ``timeout`` ms.  With ``may_come`` it also
        waits for a job that does not exist yet, such as an outbox row not yet sent.
        """
        if isinstance(job_id, StoredJob):
            job_id = job_id.id
        check_known_id(job_id)
        deadline = _deadline(timeout)
        listening = self._listen()
        if not listening.is_reading:
            result = self._result(job_id, may_come=may_come)
            if result.is_known:
                return result.value
            may_come = may_come and not result.is_there
        waiter = listening.add(job_id)
        look_s = LOOK_AGAIN_S
        try:
            while True:
                result = self._result(job_id, may_come=may_come, waiter=waiter)
                if result.is_known:
                    return result.value
                may_come = may_come and not result.is_there
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise WaitTimeoutError(_too_late(job_id, self.keys.name, timeout, may_come))
                event = waiter.wait(min(left_s, look_s))
                if event is not None:
                    return _outcome(job_id, event)
                listening.refuse_if_closed()
                look_s = min(2 * look_s, LONGEST_LOOK_S) if may_come else LOOK_AGAIN_S
        finally:
            listening.remove(waiter)

    def wait_until_empty(self, timeout: Duration | None = None) -> bool:
        """Wait until no job is waiting, active, prioritized or delayed; False after ``timeout``."""
        deadline = _deadline(timeout)
        if self._is_empty():
            return True
        listening = self._listen()
        waiter = listening.add(None)
        try:
            while not self._is_empty():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                event = waiter.wait(min(left_s, LOOK_AGAIN_S))
                listening.refuse_if_closed()
                if event is not None and event.name != "drained":
                    time.sleep(max(0, min(SHORTEST_LOOK_S, deadline - time.monotonic())))
        finally:
            listening.remove(waiter)
        return True

    def _close_listening(self) -> None:
        for listening in self._listenings.values():
            listening.close()

    def _listen(self) -> Listening:
        return self._listenings.here()

    def _is_empty(self) -> bool:
        counts = self._connection.run(reading.counts(self.keys, UNFINISHED))
        return not any(counts.values())

    def _result(self, job_id: str, *, may_come: bool, waiter: Waiter | None = None) -> Result:
        """Whether the job has finished, and with what; raises its failure.

        If it has not, the ``waiter`` is told which events come too early to be its end.
        """
        look: Command[Any] = reading.locate(self.keys, job_id)
        if waiter is None:
            found = self._connection.run(look)
        else:
            seen, found = self._connection.run_all([events.last_id(self.keys), look])
            if found is not None:
                waiter.seen = seen
        if found is None:
            # It may have been removed when it finished: then only the event log knows.
            end = self._connection.follow(events.find_end(self.keys, job_id))
            if end is not None:
                return Result(is_known=True, value=_outcome(job_id, end))
            if may_come:
                return Result(is_there=False)
            raise JobRemovedError(job_id)
        return _finished(job_id, found)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a job that somebody waits for."""

    is_known: bool = False
    is_there: bool = True
    value: Any = None


def _finished(job_id: str, found: Whereabouts) -> Result:
    if found.state == "completed":
        return Result(is_known=True, value=codec.decode_or_text(found.outcome))
    if found.state == "failed":
        raise JobFailedError(job_id, codec.reason(codec.text(found.outcome)))
    return Result()


def _too_late(job_id: str, queue: str, timeout: Duration | None, may_come: bool) -> str:
    job = f"job {job_id!r} of queue {queue!r}"
    if may_come:
        return f"{job} has not come within {timeout!r} ms; is there a relay that sends it?"
    return f"{job} has not finished within {timeout!r} ms; it is still there, and may finish later"


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
