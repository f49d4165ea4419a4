"""The template of a worker for steps: claim, handle, report, release."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin

from toril.checking import checked_call
from toril.client.connection import Target
from toril.errors import (
    ClaimRefusedError,
    DelayedError,
    HandlerTimeoutError,
    InvalidOptionError,
    JobCancelledError,
    RateLimitError,
    WaitingChildrenError,
)
from toril.options import Duration
from toril.steps import history
from toril.steps.history import Observer, StepEvent
from toril.steps.payload import JobPayload, decode
from toril.steps.step_log import log_for, log_for_job
from toril.worker.active_job import ActiveJob
from toril.worker.worker import Worker

T = TypeVar("T")

HOOKS = ("claim", "handle", "on_success", "on_error", "release")


class BaseConsumer(ABC, Generic[T]):
    """Runs the steps of one queue, each through the same pipeline.

    ``claim`` → ``handle`` → ``on_success``, or ``on_error`` with the error raised again for the
    queue to retry, and in every case ``release`` at the end.  ``class Fetch(BaseConsumer[Page])``
    gets its payloads with ``data`` as a ``Page``: a dataclass, a Struct or a pydantic model.

    With ``swallow``, a failing ``on_success`` is logged instead of failing the attempt.
    ``observers`` are told about every attempt.  The other options are those of ``Worker``.
    """

    data_type: ClassVar[Any] = Any

    @checked_call
    def __init__(
        self,
        queue_name: str,
        *,
        connection: Target = None,
        prefix: str = "bull",
        concurrency: int = 1,
        lock_duration: Duration = 30_000,
        swallow: bool = False,
        observers: Iterable[Observer] = (),
        **worker_options: Any,
    ) -> None:
        self.queue_name = queue_name
        self.swallow = swallow
        self.observers = tuple(observers)
        self._claimed: set[tuple[str, str]] = set()
        self.worker = Worker(
            queue_name,
            self.process,
            connection=connection,
            prefix=prefix,
            concurrency=concurrency,
            lock_duration=lock_duration,
            **worker_options,
        )
        self.worker.on("failed", self._log_failed)
        self.worker.on("retrying", self._log_retrying)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in HOOKS:
            if not inspect.iscoroutinefunction(getattr(cls, name)):
                raise InvalidOptionError(
                    f"{cls.__name__}.{name} must be an async def; move blocking work into"
                    f" await asyncio.to_thread(…)"
                )
        for base in cls.__dict__.get("__orig_bases__", ()):
            origin, parameters = get_origin(base), get_args(base)
            is_ours = isinstance(origin, type) and issubclass(origin, BaseConsumer)
            if is_ours and parameters and not isinstance(parameters[0], TypeVar):
                cls.data_type = parameters[0]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of queue {self.queue_name!r}>"

    # ------------------------------------------------------------------ what a subclass writes

    async def claim(self, payload: JobPayload[T], job: ActiveJob) -> None:
        """Make sure that nobody else does this step, mark it as in progress, …

        Raise ``ClaimRefusedError`` if somebody else has it: the job runs again later, and the
        attempt does not count.
        """

    @abstractmethod
    async def handle(self, payload: JobPayload[T], job: ActiveJob) -> Any:
        """Do the work. What it returns is the job's return value."""

    async def on_success(self, payload: JobPayload[T], job: ActiveJob, result: Any) -> None:
        """``handle`` returned ``result``."""

    async def on_error(self, payload: JobPayload[T], job: ActiveJob, error: BaseException) -> None:
        """The attempt failed with ``error``, which is raised again afterwards.

        For a cancelled job it is a ``JobCancelledError``, and for a worker that is closing and
        hands the job back an ``asyncio.CancelledError``.
        """

    async def release(self, payload: JobPayload[T], job: ActiveJob) -> None:
        """Clean up: always called last, whatever happened, even if ``claim`` failed.

        ``self.has_claimed(job)`` says whether this attempt's claim succeeded, so that nobody
        releases what somebody else holds.
        """

    # ------------------------------------------------------------------ running

    async def start(self) -> None:
        """Start taking steps, and return."""
        await self.worker.start()

    async def run(self) -> None:
        """Take steps until ``close`` is called."""
        await self.worker.run()

    async def close(self, timeout: Duration | None = None) -> None:
        """Take no more steps, let running ones finish within ``timeout``, hand back the rest."""
        await self.worker.close(timeout)

    def has_claimed(self, job: ActiveJob) -> bool:
        """Whether the claim of this attempt succeeded."""
        return (job.id, job.token) in self._claimed

    async def process(self, job: Any) -> Any:
        """The pipeline of one attempt."""
        payload: JobPayload[T] = decode(job, self.data_type)
        clock = time.perf_counter()
        await self._tell(history.STARTED, payload, job)
        kind, cause = history.SUCCEEDED, None
        try:
            return await self._work(payload, job)
        except BaseException as error:
            kind, cause = _what_it_means(job, error)
            if kind in (history.FAILED, history.INTERRUPTED):
                await self._report(payload, job, cause)
            raise
        finally:
            await self._release(payload, job)
            duration_ms = (time.perf_counter() - clock) * 1000
            await self._tell(kind, payload, job, duration_ms=duration_ms, error=cause)

    async def _work(self, payload: JobPayload[T], job: ActiveJob) -> Any:
        await self.claim(payload, job)
        self._claimed.add((job.id, job.token))
        result = await self.handle(payload, job)
        try:
            await self.on_success(payload, job, result)
        except Exception:
            if not self.swallow:
                raise
            log_for(payload, job).exception("on_success failed; the step counts as done")
        return result

    async def _report(self, payload: JobPayload[T], job: ActiveJob, error: BaseException) -> None:
        try:
            await self.on_error(payload, job, error)
        except Exception:  # noqa: BLE001 (the error passed to it is the one that counts)
            log_for(payload, job).exception("on_error failed")

    async def _release(self, payload: JobPayload[T], job: ActiveJob) -> None:
        """Finish ``release``: a cancellation now is too late to change the outcome."""
        releasing = asyncio.ensure_future(self.release(payload, job))
        while not releasing.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([releasing])
        self._claimed.discard((job.id, job.token))
        if not releasing.cancelled() and (error := releasing.exception()) is not None:
            log_for(payload, job).error("release failed", exc_info=error)

    async def _tell(
        self,
        kind: str,
        payload: JobPayload[T],
        job: ActiveJob,
        *,
        duration_ms: float = 0.0,
        error: BaseException | None = None,
    ) -> None:
        if not self.observers:
            return
        event = StepEvent(
            kind=kind,
            queue=self.queue_name,
            job_id=job.id,
            workflow_id=payload.workflow_id,
            step_id=payload.step_id,
            attempt=payload.attempt or 1,
            at_ms=time.time_ns() // 1_000_000,
            duration_ms=duration_ms,
            error=error,
        )
        await history.tell(self.observers, event)

    # ------------------------------------------------------------------ the shared log

    def _log_failed(self, job: ActiveJob, error: BaseException | None) -> None:
        log_for_job(job).error("failed for good: %s", error, exc_info=error)

    def _log_retrying(self, job: ActiveJob, error: BaseException) -> None:
        if isinstance(error, (DelayedError, RateLimitError, WaitingChildrenError)):
            log_for_job(job).info("postponed: %s", error)
        else:
            log_for_job(job).warning("failed and will be retried: %s", error, exc_info=error)


def _what_it_means(job: ActiveJob, error: BaseException) -> tuple[str, BaseException]:
    """How the attempt ended, and the error as the queue will see it."""
    if isinstance(error, ClaimRefusedError):
        return history.REFUSED, error
    if isinstance(error, (DelayedError, RateLimitError, WaitingChildrenError)):
        return history.DEFERRED, error
    if not isinstance(error, asyncio.CancelledError):
        return history.FAILED, error
    if job.is_released:
        return history.INTERRUPTED, error
    if job.is_cancelled:
        return history.FAILED, JobCancelledError(job.cancel_reason)
    if job.opts.timeout is not None:
        return history.FAILED, HandlerTimeoutError(
            f"job {job.id!r} ran longer than its timeout of {job.opts.timeout} ms"
        )
    return history.FAILED, error
