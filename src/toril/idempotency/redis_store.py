"""Records on the queue's own server, for work that has no database.

A record cannot commit with work that happens elsewhere: if a worker dies between the work and the
record, the work is done again.  Pass ``job.idempotency_key`` to the service that does the work: it
can detect the repetition.  What the store does guarantee: finished work is not done again, and two
jobs with one key do not run at the same time.

While the server does not answer, a handler whose work is done waits to record it, as its worker
waits to report the outcome: an attempt that failed because of the record would do the work again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import time
from collections.abc import Callable
from typing import Any

from toril.checking import checked
from toril.client.connection import Connection
from toril.errors import ClaimRefusedError, ResultError, ServerError, TorilError
from toril.idempotency.record import fitting, scope_of
from toril.logs import get_logger
from toril.options import Duration, milliseconds
from toril.protocol import codec, remembering
from toril.protocol.command import Command
from toril.protocol.keys import Keys
from toril.protocol.remembering import Begun
from toril.sync.connection import Connection as BlockingConnection

logger = get_logger("toril.idempotency")

WEEK_MS = 7 * 24 * 3600 * 1000
_LONGEST_DELAY_MS = 5000
_PAUSE_S = 0.2
"""Between two calls that have failed; each call has been tried for seconds by itself."""


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
            wait = _Wait(job, self._lease_ms)
            begun = await connection.run(self._begin(job))
            if begun.is_done:
                return begun.result
            _refuse_busy(begun)
            try:
                result = await function(job)
                end = self._end(job, result)
            except BaseException:
                await _give_up(connection, self._abandon(job), job)
                raise
            await _record(connection, end, wait)
            return result

        return handler

    def _wrap_blocking(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(function)
        def handler(job: Any) -> Any:
            if self._blocking is None:
                self._blocking = BlockingConnection(self._target)
            connection = self._blocking
            wait = _Wait(job, self._lease_ms)
            begun = connection.run(self._begin(job))
            if begun.is_done:
                return begun.result
            _refuse_busy(begun)
            try:
                result = function(job)
                end = self._end(job, result)
            except BaseException:
                _give_up_blocking(connection, self._abandon(job), job)
                raise
            _record_blocking(connection, end, wait)
            return result

        return handler

    def _begin(self, job: Any) -> Command[Begun]:
        return remembering.begin(
            *self._where(job), job_id=job.id, fence=job.fence, lease_ms=self._lease_ms
        )

    def _end(self, job: Any, result: Any) -> Command[bool]:
        try:
            text = codec.encode(result, f"the result of job {job.id!r}")
        except Exception as error:
            # As without a store, the job fails for good: its work is done, and cannot be undone.
            raise ResultError(str(error)) from error
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


class _Wait:
    """The wait of finished work for a server that does not answer, until it may be begun again.

    That is when the job is stopped or has lost its lock, or when the lease has ended.  Recording
    late does no harm: the server refuses it if another attempt has taken over.
    """

    def __init__(self, job: Any, lease_ms: int) -> None:
        self._job = job
        self._ends_at = time.monotonic() + lease_ms / 1000
        self._has_told = False

    def goes_on(self, error: ServerError) -> bool:
        """Is it worth trying again after ``error``?"""
        job = self._job
        if job.is_cancelled or job.is_lost or time.monotonic() >= self._ends_at:
            return False
        if not self._has_told:
            self._has_told = True
            logger.warning("the result of job %r waits to be recorded: %s", job.id, error)
        return True


async def _record(connection: Connection, end: Command[bool], wait: _Wait) -> None:
    while True:
        try:
            await connection.run(end)
        except ServerError as error:
            if connection.is_closed or _is_stopping() or not wait.goes_on(error):
                raise
        else:
            return
        await asyncio.sleep(_PAUSE_S)


def _record_blocking(connection: BlockingConnection, end: Command[bool], wait: _Wait) -> None:
    while True:
        try:
            connection.run(end)
        except ServerError as error:
            if connection.is_closed or not wait.goes_on(error):
                raise
        else:
            return
        time.sleep(_PAUSE_S)


def _is_stopping() -> bool:
    """Was this task told to end, by a handler that has ignored it?"""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _give_up(connection: Connection, abandon: Command[bool], job: Any) -> None:
    """Let others begin; what counts is the handler's own error, whatever happens here."""
    with contextlib.suppress(asyncio.CancelledError):
        try:
            await connection.run(abandon)
        except TorilError as error:
            _tell_of_the_rest(job, error)


def _give_up_blocking(connection: BlockingConnection, abandon: Command[bool], job: Any) -> None:
    try:
        connection.run(abandon)
    except TorilError as error:
        _tell_of_the_rest(job, error)


def _tell_of_the_rest(job: Any, error: TorilError) -> None:
    logger.warning(
        "job %r failed, and others with its idempotency key wait until its lease has ended,"
        " because its record remains: %s",
        job.id,
        error,
    )
