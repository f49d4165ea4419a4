"""One attempt: run the handler and return how it ended. Nothing is written here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from toril.errors import HandlerTimeoutError, JobCancelledError, Signal
from toril.protocol.settling import Attempt, Raised, Released, Returned, refusal_to_run
from toril.worker.active_job import ActiveJob
from toril.worker.advancer import Advancer

AsyncHandler = Callable[[ActiveJob], Awaitable[Any]]


class Performer:
    """Runs jobs with ``handler``; a scheduler's job only runs once its successor exists."""

    def __init__(
        self, handler: AsyncHandler, advancer: Advancer, max_started_attempts: int | None
    ) -> None:
        self._handler = handler
        self._advancer = advancer
        self._max_started_attempts = max_started_attempts

    def __call__(self, job: ActiveJob) -> Awaitable[Attempt]:
        if job.scheduler_id is not None:
            return self._perform_after_advancing(job)
        return perform(self._handler, job, max_started_attempts=self._max_started_attempts)

    async def _perform_after_advancing(self, job: ActiveJob) -> Attempt:
        failure = await self._advancer.advance(job)
        if failure is not None:
            return failure
        return await perform(self._handler, job, max_started_attempts=self._max_started_attempts)


async def perform(
    handler: AsyncHandler, job: ActiveJob, *, max_started_attempts: int | None = None
) -> Attempt:
    """Run ``handler`` for ``job``, within the job's ``timeout`` if it has one."""
    job.is_running = True
    if job.is_released or job.is_cancelled:
        return _stopped(job, None)
    refusal = refusal_to_run(job, max_started_attempts)
    if refusal is not None:
        return refusal
    timeout_ms = job.opts.timeout
    try:
        if timeout_ms is None:
            return Returned(await handler(job))
        return await _perform_in_time(handler, job, timeout_ms)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except SystemExit as error:
        return Raised(RuntimeError(f"the handler called sys.exit({error.code!r})"))
    except BaseException as error:  # noqa: BLE001 (without an outcome it would hold its slot)
        return _stopped(job, error)


async def _perform_in_time(handler: AsyncHandler, job: ActiveJob, timeout_ms: int) -> Attempt:
    limit = asyncio.timeout(timeout_ms / 1000)
    try:
        async with limit:
            job.limit = limit
            return Returned(await handler(job))
    except Exception as error:
        if not limit.expired():
            raise
        failure = HandlerTimeoutError(
            f"job {job.id!r} ({job.name!r}) ran longer than its timeout of {timeout_ms} ms"
        )
        failure.__cause__ = error if not isinstance(error, TimeoutError) else error.__cause__
        return Raised(failure)
    finally:
        job.limit = None


def _stopped(job: ActiveJob, error: BaseException | None) -> Attempt:
    """The outcome of a handler that was stopped, or that raised ``error``.

    What a handler raises while it is being stopped does not count as a failure.
    """
    if job.is_released and not isinstance(error, Signal):
        return Released(is_begun=error is not None)
    if job.is_cancelled:
        cancelled = JobCancelledError(job.cancel_reason)
        cancelled.__cause__ = error
        return Raised(cancelled)
    if isinstance(error, asyncio.CancelledError):
        return Raised(RuntimeError("the handler raised CancelledError without being cancelled"))
    assert error is not None
    return Raised(_as_raised(error))


def _as_raised(error: BaseException) -> BaseException:
    """``error`` without the frames of the code that called the handler."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__package__") == __package__:
        trace = trace.tb_next
    return error if trace is None else error.with_traceback(trace)
