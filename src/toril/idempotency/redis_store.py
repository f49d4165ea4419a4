"""Records on the queue's own server, for work that has no database.

A record cannot commit with work that happens elsewhere: if a worker dies between the work and the
record, the work is done again.  Pass ``job.idempotency_key`` to the service that does the work: it
can detect the repetition.  What the store does guarantee: finished work is not done again, and two
jobs with one key do not run at the same time.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from toril.checking import checked
from toril.client.connection import Connection
from toril.errors import ClaimRefusedError
from toril.idempotency.record import fitting, scope_of
from toril.options import Duration, milliseconds
from toril.protocol import codec, remembering
from toril.protocol.command import Command
from toril.protocol.keys import Keys
from toril.protocol.remembering import Begun
from toril.sync.connection import Connection as BlockingConnection

WEEK_MS = 7 * 24 * 3600 * 1000
_LONGEST_DELAY_MS = 5000


@checked
class RedisStore:
    """Remembers the result of work for ``ttl``; ``lease`` is how long a run may take at most.

    ``prefix`` is where the records of views are kept; the records of jobs are with their queues.
    """

    gives_session = False

    def __init__(
        self,
        connection: str | None = None,
        *,
        ttl: Duration = WEEK_MS,
        lease: Duration = 900_000,
        scope: str | None = None,
        prefix: str = "bull",
    ) -> None:
        self.prefix = prefix
        self.ttl_ms = milliseconds(ttl, "ttl", least=1)
        self._lease_ms = milliseconds(lease, "lease", least=1)
        self._scope = scope
        self._target = connection
        self._connection: Connection | None = None
        self._blocking: BlockingConnection | None = None

    async def close(self) -> None:
        """Close the connections that were opened."""
        if self._connection is not None:
            await self._connection.close()
        if self._blocking is not None:
            self._blocking.close()

    def wrap(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """``function(job)`` as a handler that asks the store first."""
        if inspect.iscoroutinefunction(function):
            return self._wrap_async(function)
        return self._wrap_blocking(function)

    def _wrap_async(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(function)
        async def handler(job: Any) -> Any:
            if self._connection is None:
                self._connection = Connection(self._target)
            connection = self._connection
            begun = await connection.run(self._begin(job))
            if begun.is_done:
                return begun.result
            _refuse_busy(begun)
            try:
                result = await function(job)
                end = self._end(job, result)
            except BaseException:
                await connection.run(self._abandon(job))
                raise
            await connection.run(end)
            return result

        return handler

    def _wrap_blocking(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(function)
        def handler(job: Any) -> Any:
            if self._blocking is None:
                self._blocking = BlockingConnection(self._target)
            connection = self._blocking
            begun = connection.run(self._begin(job))
            if begun.is_done:
                return begun.result
            _refuse_busy(begun)
            try:
                result = function(job)
                end = self._end(job, result)
            except BaseException:
                connection.run(self._abandon(job))
                raise
            connection.run(end)
            return result

        return handler

    def _begin(self, job: Any) -> Command[Begun]:
        return remembering.begin(
            *self._where(job), job_id=job.id, fence=job.fence, lease_ms=self._lease_ms
        )

    def _end(self, job: Any, result: Any) -> Command[bool]:
        text = codec.encode(result, f"the result of job {job.id!r}")
        return remembering.end(
            *self._where(job), job_id=job.id, fence=job.fence, result=text, ttl_ms=self.ttl_ms
        )

    def _abandon(self, job: Any) -> Command[bool]:
        return remembering.abandon(*self._where(job), job_id=job.id, fence=job.fence)

    def _where(self, job: Any) -> tuple[Keys, str, str]:
        keys = Keys(job.prefix, job.queue_name)
        return keys, scope_of(job, self._scope), fitting(job.idempotency_key)


def _refuse_busy(begun: Begun) -> None:
    if begun.busy_ms:
        delay = min(begun.busy_ms, _LONGEST_DELAY_MS)
        raise ClaimRefusedError("another job with the same idempotency key is running", delay)
