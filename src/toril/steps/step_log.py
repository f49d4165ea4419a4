"""One logger for all steps; every line carries the workflow, the step and the attempt."""

from __future__ import annotations

import logging
from typing import Any

from toril.checking import checked_call
from toril.errors import PayloadMismatchError
from toril.logs import get_logger
from toril.protocol.job import StoredJob
from toril.steps.payload import JobPayload, decode

logger = get_logger("toril.steps")


class StepLog(logging.LoggerAdapter[logging.Logger]):
    """Writes to ``toril.steps``: the step starts each text, and is in the record's fields."""

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        if not self.isEnabledFor(level):
            return
        extra = dict(self.extra or {})
        kwargs["extra"] = {**extra, **(kwargs.get("extra") or {})}
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        head = " ".join(f"{name}={value}" for name, value in extra.items() if value is not None)
        text = str(msg) if args else str(msg).replace("%", "%%")
        text = f"%s {text}"
        self.logger.log(level, text, head, *args, **kwargs)


@checked_call
def log_for(payload: JobPayload[Any], job: StoredJob) -> StepLog:
    """The shared logger, bound to one attempt of one step."""
    return _bound(job, payload.workflow_id, payload.step_id, payload.attempt)


def log_for_job(job: StoredJob) -> StepLog:
    """The same for a job whose payload may be unreadable."""
    try:
        return log_for(decode(job, Any), job)
    except PayloadMismatchError:
        return _bound(job, None, None, job.attempts_made + 1)


def _bound(
    job: StoredJob, workflow_id: str | None, step_id: str | None, attempt: int | None
) -> StepLog:
    return StepLog(
        logger,
        {
            "queue": job.queue_name,
            "job_id": job.id,
            "workflow_id": workflow_id,
            "step_id": step_id,
            "attempt": attempt,
        },
    )
