"""What a worker logs when a job fails: a warning before a retry, an error after the last attempt.

Every record has ``extra`` fields, so that a structured log can be searched: ``queue``, ``job_id``,
``job_name``, ``attempt``, ``attempts``.
"""

from __future__ import annotations

import logging
import time

from toril.errors import JobCancelledError, Signal, UnrecoverableError
from toril.logs import get_logger
from toril.protocol.job import StoredJob
from toril.protocol.settling import Outcome

logger = get_logger("toril.jobs")

TRACES_PER_SECOND = 5
"""When many jobs fail, the lines continue but the tracebacks stop: a traceback takes ten times as
long to write, and the first few say everything."""


class FailureLog:
    """Logs failed attempts."""

    def __init__(self) -> None:
        self._second = 0
        self._traces = 0

    def tell(self, job: StoredJob, outcome: Outcome, error: BaseException) -> None:
        """Log that an attempt ended with ``error``, and what happens to the job next."""
        is_last = outcome.kind == "failed"
        level = logging.ERROR if is_last else logging.WARNING
        if not logger.isEnabledFor(level):
            return
        if isinstance(error, Signal) and not isinstance(error, UnrecoverableError):
            return  # a request, not a failure
        attempt, most = job.attempts_made + 1, max(1, job.opts.attempts)
        logger.log(
            level,
            "job %s (%s) of queue %s failed, attempt %d of %d, %s: %s",
            job.id,
            job.name,
            job.queue_name,
            attempt,
            most,
            _what_follows(outcome),
            outcome.reason or type(error).__name__,
            exc_info=error if self._may_trace(error) else None,
            extra={
                "queue": job.queue_name,
                "job_id": job.id,
                "job_name": job.name,
                "attempt": attempt,
                "attempts": most,
            },
        )

    def _may_trace(self, error: BaseException) -> bool:
        if isinstance(error, JobCancelledError):
            return False
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._traces = second, 0
        self._traces += 1
        return self._traces <= TRACES_PER_SECOND


def _what_follows(outcome: Outcome) -> str:
    if outcome.kind == "failed":
        return "the last" if outcome.letter is None else "the last; it is a dead letter now"
    if outcome.kind == "delayed":
        return f"next in {outcome.details['delay']} ms"
    return "next at once"
