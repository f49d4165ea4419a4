"""The backend: Django's side of enqueueing tasks and reading their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.utils import timezone

from toril.client.agreeing import check_told
from toril.client.connection import Connection
from toril.client.ids import new_job_id
from toril.client.queue import Queue
from toril.contrib.django.names import (
    BaseTaskBackend,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from toril.contrib.django.outbox import VENDORS, find_unsent, open_engine, outbox
from toril.contrib.django.results import STATUSES, job_of, moment_of, new_result, result_of
from toril.errors import InvalidInputError, NoHandlerError, PayloadMismatchError
from toril.options import OPTION_NAMES, Keep, new_job, refuse_unknown
from toril.protocol import address
from toril.protocol.job import Job
from toril.protocol.keys import check_prefix, check_queue_name
from toril.protocol.placing import told_of
from toril.sync.connection import Connection as BlockingConnection
from toril.sync.queue import Queue as BlockingQueue
from toril.worker.handlers import Router
from toril.worker.worker import Worker

if TYPE_CHECKING:
    from toril.outbox import Relay

SETTINGS = frozenset(
    {
        *("URL", "PREFIX", "ENQUEUE", "DATABASE", "JOB_OPTIONS", "WORKER_OPTIONS"),
        *("RELAY_OPTIONS", "PARTITIONS"),
    }
)
MOMENTS = ("commit", "outbox", "now")
WEEK_MS = 7 * 24 * 3600 * 1000
_TYPES = {
    "URL": (str, type(None)),
    "PREFIX": str,
    "ENQUEUE": str,
    "DATABASE": str,
    "JOB_OPTIONS": dict,
    "WORKER_OPTIONS": dict,
    "RELAY_OPTIONS": dict,
    "PARTITIONS": dict,
}
_SHOWN = 200
"""So many characters of an id stand in an error."""
_OWN_OPTIONS = frozenset({"job_id", "priority", "delay", "run_at"})
_OWN_RELAY_OPTIONS = frozenset({"engine", "outbox", "connection", "prefix", "partitions"})
_OWN_WORKER_OPTIONS = frozenset(
    {"self", "name", "handler", "connection", "prefix", "worker_name", "partitions"}
)


class TorilBackend(BaseTaskBackend):
    """Enqueues tasks as jobs, with ``OPTIONS`` in upper case.

    ``URL`` and ``PREFIX`` say where the queues are.  ``ENQUEUE`` is ``"commit"``, after the
    transaction of ``DATABASE``; ``"outbox"``, in that transaction, for ``manage.py toril_relay`` to
    send; or ``"now"``.  ``PARTITIONS`` names the queues that have any, and how many.
    ``JOB_OPTIONS`` are the options of every job (``attempts``, ``backoff``,
    ``timeout``, …), ``WORKER_OPTIONS`` and ``RELAY_OPTIONS`` those of workers and relays.  Results
    are kept for a week unless ``JOB_OPTIONS`` say otherwise.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        self._misfits: list[str] = []
        params = self._fitting(params, {"QUEUES": (list, tuple, set, frozenset), "OPTIONS": dict})
        super().__init__(alias, params)
        options = self._fitting(self.options, _TYPES)
        self.url = options.get("URL")
        self.prefix = options.get("PREFIX", "bull")
        self._enqueue_at = options.get("ENQUEUE", "commit")
        self.partitions = dict(options.get("PARTITIONS", {}))
        self.database = options.get("DATABASE", "default")
        self.worker_options = dict(options.get("WORKER_OPTIONS", {}))
        self.relay_options = dict(options.get("RELAY_OPTIONS", {}))
        self._given_job_options = dict(options.get("JOB_OPTIONS", {}))
        self.job_options = {
            "remove_on_complete": Keep(age=WEEK_MS),
            "remove_on_fail": Keep(age=WEEK_MS),
            **self._given_job_options,
        }

    def _fitting(self, given: dict[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that have the right type; `check` and the first use report the others."""
        fitting = dict(given)
        for name, wanted in types.items():
            if name in given and not isinstance(given[name], wanted):
                kinds = wanted if isinstance(wanted, tuple) else (wanted,)
                found, right = type(given[name]).__name__, kinds[0].__name__
                self._misfits.append(f"{name} is of type {found}; it takes a {right}.")
                del fitting[name]
        return fitting

    def _refuse_misfits(self) -> None:
        """Not every program runs the checks before it enqueues."""
        if self._misfits:
            raise ImproperlyConfigured(f"TASKS[{self.alias!r}]: {' '.join(self._misfits)}")

    @property
    def known_queues(self) -> list[str]:
        """The queues that may hold tasks: workers run them, and results are looked up in them."""
        return sorted(self.queues)

    # ------------------------------------------------------------------ enqueueing

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Add the job now, or when the transaction is committed."""
        result = self._prepare(task, args, kwargs)
        job = job_of(result, self.job_options)

        def tell() -> None:
            task_enqueued.send(type(self), task_result=result)

        def send() -> None:
            (added,) = self._blocking_queue(task.queue_name).add_bulk([job])
            _note_time(result, added)
            tell()

        match self._enqueue_at:
            case "outbox":
                outbox.add_bulk(connections[self.database], task.queue_name, [job])
                transaction.on_commit(tell, using=self.database)
            case "commit":
                transaction.on_commit(send, using=self.database)
            case _:
                send()
        return result

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """The same from a coroutine; transactions belong to the thread of blocking code."""
        if self._enqueue_at != "now":
            return await super().aenqueue(task, args, kwargs)
        result = self._prepare(task, args, kwargs)
        (added,) = await self._queue(task.queue_name).add_bulk([job_of(result, self.job_options)])
        _note_time(result, added)
        await task_enqueued.asend(type(self), task_result=result)
        return result

    def _prepare(self, task: Any, args: Any, kwargs: Any) -> Any:
        self._refuse_misfits()
        self.validate_task(task)
        result = new_result(task, new_job_id(), args, kwargs, self.alias)
        object.__setattr__(result, "enqueued_at", timezone.now())
        return result

    # ------------------------------------------------------------------ results

    def get_result(self, result_id: str) -> Any:
        """The task's result; raises ``TaskResultDoesNotExist`` if it has been removed.

        Also raised if the id cannot be the id of a task, or if the job is not a task.
        """
        with _no_result(result_id):
            return self._get_result(result_id)

    def _get_result(self, result_id: str) -> Any:
        if (found := self._find(result_id)) is not None:
            return found
        if self._enqueue_at == "outbox":
            if (unsent := self._find_unsent(result_id)) is not None:
                return unsent
            # A relay may have sent it in the meantime.
            if (found := self._find(result_id)) is not None:
                return found
        raise TaskResultDoesNotExist(result_id[:_SHOWN])

    async def aget_result(self, result_id: str) -> Any:
        """The same from a coroutine."""
        with _no_result(result_id):
            return await self._aget_result(result_id)

    async def _aget_result(self, result_id: str) -> Any:
        if (found := await self._afind(result_id)) is not None:
            return found
        if self._enqueue_at == "outbox":
            if (unsent := await sync_to_async(self._find_unsent)(result_id)) is not None:
                return unsent
            if (found := await self._afind(result_id)) is not None:
                return found
        raise TaskResultDoesNotExist(result_id[:_SHOWN])

    def _find(self, result_id: str) -> Any:
        for name in self.known_queues:
            queue = self._blocking_queue(name)
            state = queue.get_state(result_id)
            job = None if state is None else queue.get_job(result_id)
            if job is not None:
                return self._result(job, state)
        return None

    async def _afind(self, result_id: str) -> Any:
        for name in self.known_queues:
            queue = self._queue(name)
            state = await queue.get_state(result_id)
            job = None if state is None else await queue.get_job(result_id)
            if job is not None:
                return self._result(job, state)
        return None

    def _find_unsent(self, result_id: str) -> Any:
        job = find_unsent(self.database, result_id, self.prefix)
        return None if job is None else self._result(job, None)

    def _result(self, job: Job, state: str | None) -> Any:
        if job.finished_on is not None and state not in ("completed", "failed"):
            state = "completed" if job.raw(b"returnvalue") is not None else "failed"
        status = STATUSES.get(state or "", TaskResultStatus.READY)
        return result_of(
            job,
            status,
            self.alias,
            attempts=job.attempts_started,
            worker_id=job.processed_by,
        )

    # ------------------------------------------------------------------ running

    def make_worker(self, queue_name: str, **options: Any) -> Worker:
        """A worker for the tasks of one queue, not yet started."""
        from toril.contrib.django.running import TaskRouter, new_worker_name

        self._refuse_misfits()
        name = new_worker_name()
        return Worker(
            queue_name,
            TaskRouter(self, name),
            connection=self.url,
            prefix=self.prefix,
            worker_name=name,
            partitions=told_of(queue_name, self.partitions),
            **{**self.worker_options, **options},
        )

    def make_relay(self, **options: Any) -> Relay:
        """A relay of the outbox in ``DATABASE``, not yet started."""
        from toril.outbox import Relay

        self._refuse_misfits()
        return Relay(
            open_engine(self.database),
            outbox,
            connection=self.url,
            prefix=self.prefix,
            partitions=self.partitions,
            **{**self.relay_options, **options},
        )

    def _blocking_queue(self, name: str) -> BlockingQueue:
        return _open_blocking(self.url, self.prefix, name, told_of(name, self.partitions))

    def _queue(self, name: str) -> Queue:
        count = told_of(name, self.partitions)
        return Queue(name, connection=_connection(self.url), prefix=self.prefix, partitions=count)

    # ------------------------------------------------------------------ checks

    def check(self, **kwargs: Any) -> Iterator[checks.CheckMessage]:
        """What is wrong with the settings, for ``manage.py check``."""
        yield from super().check(**kwargs)
        for misfit in self._misfits:
            yield self._error(misfit, None, "toril.E011")
        yield from self._check_names()
        if self._enqueue_at not in MOMENTS:
            yield self._error(
                f"ENQUEUE is {self._enqueue_at!r}.",
                "Use 'commit', 'outbox' or 'now'.",
                "toril.E002",
            )
        if self.database not in connections:
            yield self._error(
                f"DATABASE is {self.database!r}, which is not in DATABASES.", None, "toril.E003"
            )
        elif self._enqueue_at == "outbox":
            yield from self._check_outbox()
        if not self.queues and not self._misfits:
            yield self._error(
                "QUEUES is empty.",
                "Name the queues: the worker and get_result() have to know them.",
                "toril.E004",
            )
        tries = {
            "toril.E005": self._try_queues,
            "toril.E006": self._try_job_options,
            "toril.E007": self._try_worker_options,
            "toril.E010": self._try_relay_options,
        }
        for number, attempt in tries.items():
            try:
                attempt()
            except (InvalidInputError, TypeError, ImportError) as error:
                yield self._error(str(error), None, number)

    def _check_names(self) -> Iterator[checks.CheckMessage]:
        for name in sorted(set(self.options) - SETTINGS, key=str):
            yield self._error(
                f"OPTIONS has {name!r}, which is not known.",
                f"It may have {', '.join(sorted(SETTINGS))}.",
                "toril.E001",
            )

    def _check_outbox(self) -> Iterator[checks.CheckMessage]:
        if not apps.is_installed("toril.contrib.django"):
            yield self._error(
                "ENQUEUE is 'outbox', and the app that creates its table is not installed.",
                "Add 'toril.contrib.django' to INSTALLED_APPS and run manage.py migrate.",
                "toril.E008",
            )
        vendor = connections[self.database].vendor
        if vendor not in VENDORS:
            yield self._error(
                f"ENQUEUE is 'outbox', and DATABASES[{self.database!r}] is of {vendor}.",
                "Use a database of PostgreSQL, MySQL, MariaDB or SQLite, or 'commit'.",
                "toril.E009",
            )

    def _try_queues(self) -> None:
        if self.url is not None:
            address.parse(self.url)
        check_prefix(self.prefix)
        for name in self.queues:
            check_queue_name(name)
        check_told(self.partitions, self.prefix)

    def _try_job_options(self) -> None:
        refuse_unknown(self._given_job_options, OPTION_NAMES - _OWN_OPTIONS, "JOB_OPTIONS")
        new_job("check", None, {}, self.job_options)

    def _try_worker_options(self) -> None:
        known = frozenset(signature(Worker.__init__).parameters) - _OWN_WORKER_OPTIONS
        refuse_unknown(self.worker_options, known, "WORKER_OPTIONS")
        Worker("check", Router(), **self.worker_options)

    def _try_relay_options(self) -> None:
        if self.relay_options:
            from toril.outbox import Relay

            known = frozenset(signature(Relay).parameters) - _OWN_RELAY_OPTIONS
            refuse_unknown(self.relay_options, known, "RELAY_OPTIONS")
            if self.database in connections and connections[self.database].vendor in VENDORS:
                Relay(open_engine(self.database), outbox, **self.relay_options)

    def _error(self, what: str, hint: str | None, number: str) -> Any:
        return checks.Error(f"TASKS[{self.alias!r}]: {what}", hint=hint, id=number)


@contextmanager
def _no_result(result_id: object) -> Iterator[None]:
    try:
        yield
    except (InvalidInputError, NoHandlerError, PayloadMismatchError) as error:
        raise TaskResultDoesNotExist(repr(result_id)[:_SHOWN]) from error


def _note_time(result: Any, added: Job) -> None:
    """Record the server's time, because that is what everybody reads later."""
    object.__setattr__(result, "enqueued_at", moment_of(added.timestamp))


# Django makes a backend for each thread; they share the connections, which serve every thread.


@cache
def _blocking_connection(url: str | None) -> BlockingConnection:
    return BlockingConnection(url)


@cache
def _open_blocking(url: str | None, prefix: str, name: str, partitions: int) -> BlockingQueue:
    return BlockingQueue(
        name, connection=_blocking_connection(url), prefix=prefix, partitions=partitions
    )


@cache
def _connection(url: str | None) -> Connection:
    return Connection(url)
