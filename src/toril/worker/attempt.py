"""One attempt: run the handler and say what came of it. Nothing is written here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from toril.errors import HandlerTimeoutError, JobCancelledError, UnrecoverableError
from toril.protocol.settling import Attempt, Raised, Released, Returned
from toril.worker.active_job import ActiveJob

AsyncHandler = Callable[[ActiveJob], Awaitable[Any]]


async def perform(
    handler: AsyncHandler, job: ActiveJob, *, max_started_attempts: int | None = None
) -> Attempt:
    """Run ``handler`` for ``job``, within the job's ``timeout`` if it has one."""
    if job.deferred_failure is not None:
        return Raised(UnrecoverableError(job.deferred_failure))
    if max_started_attempts is not None and job.attempts_started > max_started_attempts:
        return Raised(UnrecoverableError("job started more than allowable limit"))
    timeout_ms = job.opts.timeout
    try:
        if timeout_ms is None:
            return Returned(await handler(job))
        return await _perform_in_time(handler, job, timeout_ms)
    except asyncio.CancelledError as cancellation:
        return _cancelled(job, cancellation)
    except Exception as error:  # noqa: BLE001 (whatever a handler raises is its outcome)
        return Raised(error)
    except SystemExit as error:
        return Raised(RuntimeError(f"the handler called sys.exit({error.code!r})"))


async def _perform_in_time(handler: AsyncHandler, job: ActiveJob, timeout_ms: int) -> Attempt:
    limit = asyncio.timeout(timeout_ms / 1000)
    try:
        async with limit:
            return Returned(await handler(job))
    except TimeoutError as error:
        if not limit.expired():
            raise
        failure = HandlerTimeoutError(
            f"job {job.id!r} ({job.name!r}) ran longer than its timeout of {timeout_ms} ms"
        )
        failure.__cause__ = error.__cause__
        return Raised(failure)


def _cancelled(job: ActiveJob, cancellation: asyncio.CancelledError) -> Attempt:
    if job.is_released:
        return Released()
    if job.is_cancelled:
        return Raised(JobCancelledError(job.cancel_reason))
    return Raised(JobCancelledError(f"the handler of job {job.id!r} was cancelled from within"))
