"""A job as Django's ``TaskResult``, and a task with its arguments as a job.

The job's name is the path of the task's function, and its data are the arguments.  Each failed
attempt leaves a record in the job's progress: which error, where, when and on which worker.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from toril import errors
from toril.contrib.django.names import (
    TASK_MIN_PRIORITY,
    Task,
    TaskError,
    TaskResult,
    TaskResultStatus,
    task_backends,
)
from toril.contrib.django.records import records_of
from toril.errors import NoHandlerError, PayloadMismatchError
from toril.options import NewJob
from toril.protocol import codec
from toril.protocol.job import Job, StoredJob
from toril.protocol.partitioning import whole_of

STATUSES = {
    "active": TaskResultStatus.RUNNING,
    "completed": TaskResultStatus.SUCCESSFUL,
    "failed": TaskResultStatus.FAILED,
}
_UNKNOWN_WORKER = "unknown"
_MOST_ATTEMPTS = 100_000  # Django counts the workers' names; a damaged job may say anything
_OWN_ERROR = re.compile(r"^toril\.errors\.(\w+)", re.MULTILINE)


def new_result(task: Any, job_id: str, args: Any, kwargs: Any, backend: str) -> Any:
    """What ``enqueue`` returns."""
    return TaskResult(
        task=task,
        id=job_id,
        status=TaskResultStatus.READY,
        enqueued_at=None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(args),
        kwargs=dict(kwargs),
        backend=backend,
        errors=[],
        worker_ids=[],
    )


def job_of(result: Any, options: dict[str, Any]) -> NewJob:
    """The job that runs the task of ``result``.

    Its data is written now, so that what cannot be sent is refused before the transaction ends,
    and what is changed later is not sent.
    """
    task = result.task
    data: dict[str, Any] = {"args": result.args, "kwargs": result.kwargs}
    if task.run_after is not None:
        run_after = task.run_after
        if timezone.is_naive(run_after):
            run_after = timezone.make_aware(run_after)
        data["run_after"] = run_after.isoformat()
        options = {**options, "run_at": run_after}
    job = NewJob(
        task.module_path,
        data,
        **{**options, "job_id": result.id, "priority": to_job_priority(task.priority)},
    )
    text = codec.encode_limited(data, job.size_limit, f"the data of job {job.name!r}")
    return msgspec.structs.replace(job, data=msgspec.Raw(text))


def to_job_priority(priority: int) -> int:
    """Django runs the highest first, and -100 is the lowest; a queue runs 1 first."""
    return 101 - priority


class Arguments(msgspec.Struct, frozen=True):
    """The data of a task's job."""

    args: list[Any]
    kwargs: dict[str, Any]
    run_after: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


def find_task(path: str) -> Any:
    """The task whose function has this path."""
    try:
        task = import_string(path)
    except (ImportError, ValueError, TypeError) as error:
        raise NoHandlerError(f"there is no task {path!r}: {error}") from error
    if not isinstance(task, Task):
        raise NoHandlerError(f"{path!r} is not a Django task but {task!r}")
    return task


def arguments_of(job: StoredJob) -> Arguments:
    """The arguments of a task; raises ``PayloadMismatchError`` if the job is not a task."""
    try:
        return msgspec.convert(job.data, Arguments)
    except msgspec.ValidationError as error:
        raise PayloadMismatchError(
            f"job {job.id!r} ({job.name!r}) is not a Django task: its data must have args and"
            f" kwargs; {error}"
        ) from error


def task_of(job: StoredJob, run_after: datetime | None, backend: str) -> Any:
    """The task of a job, with the priority, queue and time that it was enqueued with."""
    if run_after is not None and not settings.USE_TZ:
        run_after = timezone.make_naive(run_after)
    # The priority may have been changed in the queue to a value that Django does not allow.
    priority = max(TASK_MIN_PRIORITY, 101 - job.priority) if job.priority else None
    return find_task(job.name).using(
        priority=priority,
        queue_name=_queue_of(job, backend),
        run_after=run_after,
        backend=backend,
    )


def _queue_of(job: StoredJob, backend: str) -> str:
    """The queue's name in Django, also for a job in one of its partitions."""
    queues = task_backends[backend].queues
    found = whole_of(job.queue_name)
    if job.queue_name in queues or found is None or found[0] not in queues:
        return job.queue_name
    return found[0]


def result_of(
    job: StoredJob, status: Any, backend: str, *, attempts: int, worker_id: str | None
) -> Any:
    """A job as Django's result; ``attempts`` are the attempts so far, the last made by a worker."""
    arguments = arguments_of(job)
    records = records_of(job).of
    found = [TaskError(exception_class_path=one.name, traceback=one.trace) for one in records]
    is_told = bool(records) and records[-1].started == job.processed_on
    if status == TaskResultStatus.FAILED and not is_told:
        found.append(_outside_error(job))
    workers = [_UNKNOWN_WORKER] * min(attempts, _MOST_ATTEMPTS)
    for one in records:
        if 0 < one.attempt <= len(workers):
            workers[one.attempt - 1] = one.worker
    if workers and worker_id:
        workers[-1] = worker_id
    last = moment_of(job.processed_on)
    result = TaskResult(
        task=task_of(job, arguments.run_after, backend),
        id=job.id,
        status=status,
        enqueued_at=moment_of(job.timestamp),
        started_at=moment_of(records[0].started) if records else last,
        finished_at=moment_of(job.finished_on) if isinstance(job, Job) else None,
        last_attempted_at=last,
        args=arguments.args,
        kwargs=arguments.kwargs,
        backend=backend,
        errors=found,
        worker_ids=workers,
    )
    if status == TaskResultStatus.SUCCESSFUL and isinstance(job, Job):
        object.__setattr__(result, "_return_value", job.return_value)
    return result


def _outside_error(job: Any) -> Any:
    """Why a job failed without an error from its handler: a timeout, or a worker that died."""
    trace = job.stacktrace[-1] if job.stacktrace else job.failed_reason or "the job failed"
    named = _OWN_ERROR.findall(trace)
    known = named and hasattr(errors, named[-1])
    name = named[-1] if known else "JobFailedError"
    return TaskError(exception_class_path=f"toril.errors.{name}", traceback=trace)


def moment_of(ms: int | None) -> datetime | None:
    """A time of the server, naive or aware as Django's settings require."""
    if not ms:
        return None
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment if settings.USE_TZ else timezone.make_naive(moment)
