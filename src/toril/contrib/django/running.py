"""The worker's side: runs the task of a job, and leaves a record of what it raised."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.utils import timezone

from toril.client.ids import new_job_id
from toril.contrib.django.names import (
    TaskContext,
    TaskError,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from toril.contrib.django.records import Record, records_of
from toril.contrib.django.results import find_task, result_of
from toril.errors import Signal, TorilError, UnrecoverableError
from toril.logs import get_logger
from toril.worker.handlers import Handler, Router

if TYPE_CHECKING:
    from toril.contrib.django.backend import TorilBackend

logger = get_logger("toril.django")

_HOST_LENGTH = 30


def new_worker_name() -> str:
    """A name that is unique among the workers of all hosts, shorter than 64 characters."""
    return f"{socket.gethostname()[:_HOST_LENGTH]}-{os.getpid()}-{new_job_id()[-6:]}"


class TaskRouter(Router):
    """Finds tasks by the paths of their functions; blocking ones run in threads."""

    def __init__(self, backend: TorilBackend, worker_id: str) -> None:
        super().__init__()
        self._backend = backend
        self._worker_id = worker_id

    def find(self, name: str) -> Handler:
        """The handler of the task with this path."""
        task = find_task(name)
        return self._run_async if iscoroutinefunction(task.func) else self._run_blocking

    def _run_blocking(self, job: Any) -> Any:
        close_old_connections()
        try:
            attempt = _Attempt(self._backend, job, self._worker_id)
            task_started.send(type(self._backend), task_result=attempt.result)
            try:
                value = normalize_json(attempt.task.func(*attempt.args, **attempt.kwargs))
            except BaseException as error:
                # SystemExit and KeyboardInterrupt too: in a thread they end only the task.
                if _is_failure(error):
                    record = attempt.fail(error)
                    with _as_far_as_possible(job):
                        job.report(record)
                    self._tell_end(attempt)
                raise
            attempt.succeed(value)
            self._tell_end(attempt)
            return value
        finally:
            close_old_connections()

    async def _run_async(self, job: Any) -> Any:
        await sync_to_async(close_old_connections)()
        try:
            return await self._await(job)
        finally:
            await sync_to_async(close_old_connections)()

    async def _await(self, job: Any) -> Any:
        attempt = _Attempt(self._backend, job, self._worker_id)
        await task_started.asend(type(self._backend), task_result=attempt.result)
        try:
            value = normalize_json(await attempt.task.func(*attempt.args, **attempt.kwargs))
        except (Exception, SystemExit) as error:
            if _is_failure(error):
                record = attempt.fail(error)
                with _as_far_as_possible(job):
                    await job.report(record)
                await sync_to_async(self._tell_end)(attempt)
            raise
        attempt.succeed(value)
        await sync_to_async(self._tell_end)(attempt)
        return value

    def _tell_end(self, attempt: _Attempt) -> None:
        if attempt.result.is_finished:
            # What a receiver raises is logged by Django: it is no error of the task.
            task_finished.send_robust(type(self._backend), task_result=attempt.result)


@contextmanager
def _as_far_as_possible(job: Any) -> Iterator[None]:
    """The task's own error decides what becomes of its job, also if it cannot be recorded."""
    try:
        yield
    except TorilError as error:
        logger.warning(
            "the error of task %s (%s) could not be recorded: %s", job.name, job.id, error
        )


def _is_failure(error: BaseException) -> bool:
    """Whether the error is a failure; control errors only say what to do with the job."""
    return not isinstance(error, Signal) or isinstance(error, UnrecoverableError)


class _Attempt:
    """One run of a task."""

    def __init__(self, backend: TorilBackend, job: Any, worker_id: str) -> None:
        self._job = job
        self._worker_id = worker_id
        self.result = result_of(
            job,
            TaskResultStatus.RUNNING,
            backend.alias,
            attempts=job.attempts_started,
            worker_id=worker_id,
        )
        self.task = self.result.task
        context = [TaskContext(task_result=self.result)] if self.task.takes_context else []
        self.args = [*context, *self.result.args]
        self.kwargs = self.result.kwargs

    def succeed(self, value: Any) -> None:
        self._end(TaskResultStatus.SUCCESSFUL)
        object.__setattr__(self.result, "_return_value", value)

    def fail(self, error: BaseException) -> dict[str, Any]:
        """Note the error; returns the records of all attempts for the job's progress."""
        record = Record(
            name=f"{type(error).__module__}.{type(error).__qualname__}",
            trace="".join(traceback.format_exception(error)),
            worker=self._worker_id,
            attempt=self._job.attempts_started,
            started=self._job.processed_on,
        )
        self.result.errors.append(
            TaskError(exception_class_path=record.name, traceback=record.trace)
        )
        allowed = self._job.opts.attempts or 1
        if isinstance(error, UnrecoverableError) or self._job.attempts_made + 1 >= allowed:
            self._end(TaskResultStatus.FAILED)
        return records_of(self._job).with_one(record)

    def _end(self, status: Any) -> None:
        object.__setattr__(self.result, "status", status)
        object.__setattr__(self.result, "finished_at", timezone.now())
