"""The app: the tasks of a program, the queues they go to, and the workers that run them."""

from __future__ import annotations

import asyncio
import fnmatch
import inspect
import sys
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Concatenate, Protocol, Self, TypeVar, Unpack, overload

from toril.checking import checked, shown
from toril.client.agreeing import check_told
from toril.client.connection import Connection, Target
from toril.client.flow_producer import FlowProducer
from toril.client.queue import Queue
from toril.errors import InvalidInputError, InvalidOptionError, RefusedError, ServerError
from toril.logs import get_logger
from toril.options import OPTION_NAMES, Duration, JobOptions, Replicas, Schedule, refuse_unknown
from toril.protocol.job import Job, StoredJob
from toril.protocol.keys import COMPENSATION_SUFFIX, check_queue_name, hash_tag
from toril.protocol.placing import told_of
from toril.protocol.scheduling import JobScheduler
from toril.sync.queue import Queue as BlockingQueue
from toril.tasks.calls import BlockingHandle, Call, Handle
from toril.tasks.eager import run_blocking, run_now
from toril.tasks.lifespan import Enter, Lifespan
from toril.tasks.middleware import EnqueueNext, TaskMiddleware, has_side
from toril.tasks.runners import runner_of, undo_runner_of
from toril.tasks.sagas import GroupHandle, Saga, start_chain, start_gather
from toril.tasks.schedules import PREFIX, Declared, is_same
from toril.tasks.signature import Signature
from toril.tasks.task import P, R, Task, TaskOptions
from toril.worker.context import Context
from toril.worker.handlers import Router
from toril.worker.worker import Worker

logger = get_logger("toril.tasks")

Errors = type[BaseException] | tuple[type[BaseException], ...]
AnyTask = Task[..., Any, ..., Any]
D = TypeVar("D")

CONCURRENCY = 10
_RETRY_S = 1.0


@checked
class App:
    """Tasks and the workers that run them.

    ``connection`` and ``prefix`` apply to its queues; ``queue`` is for tasks that name no queue
    and that no pattern of ``routes`` matches.  ``lifespan(app)`` is an async context manager that
    is entered once per process; what it yields is ``ctx.state``.  ``worker_options`` are those of
    ``Worker``, where ``dead_letter_queue`` may contain ``{queue}``.  Options of jobs are defaults
    for every task, and ``replicas`` is what ``Queue`` takes.  ``partitions`` names the queues that
    have any, and how many: ``{"mail": 16}``.

    An app runs like a worker: ``await app.run()``, ``toril.run(app)``, ``toril worker module:app``.
    """

    def __init__(
        self,
        *,
        connection: Target = None,
        prefix: str = "bull",
        queue: str = "default",
        routes: Mapping[str, str] | None = None,
        lifespan: Enter | None = None,
        middleware: Sequence[TaskMiddleware] = (),
        worker_options: Mapping[str, Any] | None = None,
        replicas: int = 0,
        replicas_timeout: Duration = 1000,
        partitions: Mapping[str, int] | None = None,
        **defaults: Unpack[JobOptions],
    ) -> None:
        refuse_unknown(defaults, OPTION_NAMES, "the app")
        Replicas.of(replicas, replicas_timeout)
        if "partitions" in (worker_options or {}):
            raise InvalidOptionError(
                "pass the partitions of an App by queue, not as an option of its workers:"
                " App(partitions={…})"
            )
        for name in (queue, *(routes or {}).values()):
            check_queue_name(name)
        self.partitions = check_told(partitions, prefix)
        self.connection = connection
        self.prefix = prefix
        self.default_queue = queue
        self.routes = dict(routes or {})
        self.router = Router()
        self.lifespan = Lifespan(lifespan, self)
        self.worker_options = dict(worker_options or {})
        self._defaults = defaults
        self._queue_options: dict[str, Any] = {
            "replicas": replicas,
            "replicas_timeout": replicas_timeout,
        }
        self._tasks: dict[str, AnyTask] = {}
        self._queues: dict[str, Queue] = {}
        self._shared: Connection | None = None
        self._producer: FlowProducer | None = None
        self._blocking: dict[str, BlockingQueue] = {}
        self._on_enqueued: list[Callable[[Call[Any], Job], None]] = []
        self._eager: bool | None = None
        self._on_enqueue = [one for one in middleware if has_side(one, "on_enqueue")]
        for one in middleware:
            if has_side(one, "on_run"):
                self.router.use(_on_run(one))
        self.router.lifespan = self.lifespan
        self.router.place = _Place(self)
        self._workers: list[Worker] = []
        self._on_worker: list[Callable[[Worker], object]] = []
        self._closing: asyncio.Event | None = None

    def __repr__(self) -> str:
        return f"<App of {len(self._tasks)} tasks: {', '.join(sorted(self._tasks)) or 'none'}>"

    # ------------------------------------------------------------------ declaring tasks

    @overload
    def task(
        self, function: Callable[Concatenate[Context[D], P], Awaitable[R]], /
    ) -> Task[Concatenate[Context[D], P], Awaitable[R], P, R]: ...
    @overload
    def task(self, function: Callable[P, Awaitable[R]], /) -> Task[P, Awaitable[R], P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str | None = None,
        schedule: Schedule | None = None,
        retry_on: Errors | None = None,
        give_up_on: Errors = (),
        extra: str = "refuse",
        **options: Unpack[TaskOptions],
    ) -> TaskDecorator: ...

    def task(  # type: ignore[misc]  # mypy loses the options that may be functions
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        schedule: Schedule | None = None,
        retry_on: Errors | None = None,
        give_up_on: Errors = (),
        extra: str = "refuse",
        **options: Unpack[TaskOptions],
    ) -> Any:
        """Turn a function into a task, with or without options.

        The job's name is the function's unless ``name`` says otherwise.  Only errors in
        ``retry_on`` are retried, those in ``give_up_on`` never.  ``extra="ignore"`` lets jobs
        have arguments that the function does not know, for rolling deploys.
        """
        if extra not in ("refuse", "ignore"):
            raise InvalidOptionError(f"extra={extra!r} is not known; use 'refuse' or 'ignore'")
        names = _names_in_sight()

        def declare(function: Callable[..., Any]) -> AnyTask:
            task_name = name or function.__name__
            return self._register(
                Task(
                    self,
                    function,
                    Signature(task_name, function, names=names, ignores_unknown=extra == "ignore"),
                    {**self._defaults, **options},
                    name=task_name,
                    queue=queue or self._route(task_name),
                    schedule=schedule,
                    retry_on=None if retry_on is None else _errors(retry_on, "retry_on"),
                    give_up_on=_errors(give_up_on, "give_up_on"),
                )
            )

        return declare if function is None else declare(function)

    @property
    def tasks(self) -> dict[str, AnyTask]:
        """The tasks by their names, including those that undo others."""
        return dict(self._tasks)

    @property
    def queue_names(self) -> list[str]:
        """The queues that its tasks go to, and those in which they are undone."""
        return sorted({task.queue_name for task in self._tasks.values()})

    def register_undo(self, task: AnyTask, function: Callable[..., Any]) -> AnyTask:
        """Used by ``@task.undo``; use that instead."""
        name = function.__name__
        signature = Signature(
            name,
            function,
            names=_names_in_sight(),
            without=frozenset({"result"}),
            optional=task.signature.with_defaults({}),
        )
        undo: AnyTask = Task(
            self,
            function,
            signature,
            {},
            name=name,
            queue=f"{self._stem(task.queue_name)}{COMPENSATION_SUFFIX}",
        )
        return self._register(undo, undo_runner_of(self, undo, task))

    def _register(self, task: AnyTask, runner: Callable[..., Any] | None = None) -> AnyTask:
        check_queue_name(task.queue_name)
        if task.name in self._tasks:
            raise InvalidOptionError(
                f"the app already has a task {task.name!r}; give this one another name=…"
            )
        if task.schedule is not None:
            task.call()  # a schedule has no arguments to give
        self.router.on(task.name, runner or runner_of(self, task))
        self._tasks[task.name] = task
        return task

    def _route(self, task_name: str) -> str:
        for pattern, queue in self.routes.items():
            if fnmatch.fnmatchcase(task_name, pattern):
                return queue
        return self.default_queue

    # ------------------------------------------------------------------ enqueueing

    @property
    def watches_enqueue(self) -> bool:
        """Whether middleware or a test observes what is enqueued."""
        return bool(self._on_enqueue or self._on_enqueued or self._eager is not None)

    async def enqueue(self, call: Call[R]) -> Handle[R]:
        """Add the job that ``call`` describes."""

        async def send(call: Call[Any]) -> Handle[Any]:
            if self._eager is not None:
                return await self._run_eagerly(call)
            [handle] = await self._send([call])
            return handle

        step: EnqueueNext = send
        for one in reversed(self._on_enqueue):
            step = _enqueue_step(one, step)
        return await step(call)

    async def enqueue_many(self, calls: Iterable[Call[R]]) -> list[Handle[R]]:
        """Add the jobs of many calls in a few round trips; returns their handles in the same order.

        If one of the calls is wrong, none is added.  What only the server can refuse, a job for a
        full lane, keeps no other from being added; the error is raised when they are.  With
        ``on_enqueue`` middleware each call is added for itself.
        """
        calls = list(calls)
        for call in calls:
            if not isinstance(call, Call):
                raise InvalidOptionError(
                    f"enqueue_many() got {shown(call)} among its calls; write task.call(…)"
                )
        if self._on_enqueue or self._eager is not None:
            return list(await asyncio.gather(*map(self.enqueue, calls)))
        return await self._send(calls)

    async def _send(self, calls: Sequence[Call[Any]]) -> list[Handle[Any]]:
        by_queue: dict[str, list[int]] = {}
        for number, call in enumerate(calls):
            _refuse_references(call)
            by_queue.setdefault(call.queue_name, []).append(number)
        if len(by_queue) > 1:
            # Each queue would check only its own jobs, after others were already added.
            for call in calls:
                self._queue(call.queue_name).adder.prepare(call)
        handles: dict[int, Handle[Any]] = {}
        refusal: RefusedError | None = None
        for queue_name, numbers in by_queue.items():
            queue = self._queue(queue_name)
            try:
                jobs = await queue.add_bulk([calls[number] for number in numbers])
            except RefusedError as error:
                refusal = refusal or error
                continue
            for number, job in zip(numbers, jobs, strict=True):
                self._note(calls[number], job)
                handles[number] = Handle(
                    queue, job.id, calls[number].signature, duplicated=job.duplicated
                )
        if refusal is not None:
            raise refusal
        return [handles[number] for number in range(len(calls))]

    def group(self, name: str, *, group_id: str | None = None, **options: Any) -> Saga:
        """Build a group of calls; leaving the block creates it in one step.

            async with app.group("order", group_id=f"order-{order}") as saga:
                receipt = saga.add(charge.call(order, amount))
                saga.add(ship.call(order, receipt=receipt.result))

        Each call runs after those whose results it uses, and the ``undo`` of its task undoes it.
        ``options`` are the options of ``FlowProducer.add_group``.
        """
        return Saga(self, name, group_id, options)

    @overload
    async def chain(self, first: Call[R], /) -> GroupHandle[R]: ...
    @overload
    async def chain(self, first: Call[Any], second: Call[R], /) -> GroupHandle[R]: ...
    @overload
    async def chain(self, a: Call[Any], b: Call[Any], c: Call[R], /) -> GroupHandle[R]: ...
    @overload
    async def chain(self, *calls: Call[Any]) -> GroupHandle[Any]: ...
    async def chain(self, *calls: Call[Any]) -> GroupHandle[Any]:
        """Run calls one after the other; the handle's result is the result of the last call."""
        return await start_chain(self, calls)

    async def gather(self, calls: Iterable[Call[R]]) -> GroupHandle[list[R]]:
        """Run calls concurrently; the handle's result is a list in the order given.

        If one of them fails for good, the others are undone, as in any group.
        """
        return await start_gather(self, calls)

    def enqueue_blocking(self, call: Call[R]) -> BlockingHandle[R]:
        """``enqueue`` for blocking code."""
        _refuse_references(call)
        if self._eager is not None:
            task = self._tasks[call.name]
            state = self.lifespan.state
            return run_blocking(call, task, state, raises=self._eager)
        queue = self._blocking_queue(call.queue_name)
        [job] = queue.add_bulk([call])
        self._note(call, job)
        return BlockingHandle(queue, job.id, call.signature, duplicated=job.duplicated)

    def _note(self, call: Call[Any], job: Job) -> None:
        for note in self._on_enqueued:
            note(call, job)

    @contextmanager
    def eager(self, *, raise_failures: bool = True) -> Iterator[None]:
        """Inside the block, ``enqueue`` runs the task right here, without a server.

        If a task fails, ``enqueue`` raises its error; with ``raise_failures=False``,
        ``handle.result()`` raises it, as it would with a server.
        """
        before, self._eager = self._eager, raise_failures
        try:
            yield
        finally:
            self._eager = before

    async def _run_eagerly(self, call: Call[Any]) -> Handle[Any]:
        assert self._eager is not None
        _refuse_references(call)
        state = self.lifespan.state
        return await run_now(call, self._tasks[call.name], state, raises=self._eager)

    @asynccontextmanager
    async def moved_to(
        self, connection: Target, prefix: str, note: Callable[[Call[Any], Job], None]
    ) -> AsyncIterator[None]:
        """Inside the block the app uses another server, and ``note`` gets what it enqueues.

        For tests: ``toril.testing.running`` is what you want.
        """
        home = self.connection, self.prefix
        await self._close_queues()
        self.connection, self.prefix = connection, prefix
        self._on_enqueued.append(note)
        try:
            yield
        finally:
            self._on_enqueued.remove(note)
            await self._close_queues()
            self.connection, self.prefix = home

    def queue(self, name: str) -> Queue:
        """The queue with this name, on the app's connection."""
        return self._queue(name)

    def _blocking_queue(self, name: str) -> BlockingQueue:
        """``queue`` for blocking code, on a connection of its own."""
        queue = self._blocking.get(name)
        if queue is None:
            target: Any = self.connection  # a client of either kind is understood
            queue = self._blocking.setdefault(
                name,
                BlockingQueue(
                    name,
                    connection=target,
                    prefix=self.prefix,
                    partitions=told_of(name, self.partitions),
                    **self._queue_options,
                ),
            )
        return queue

    @property
    def shared_connection(self) -> Connection:
        """The connection of its queues."""
        if self._shared is None:
            self._shared = Connection(self.connection)
        return self._shared

    def _queue(self, name: str) -> Queue:
        queue = self._queues.get(name)
        if queue is None:
            queue = Queue(
                name,
                connection=self.shared_connection,
                prefix=self.prefix,
                partitions=told_of(name, self.partitions),
                **self._queue_options,
            )
            self._queues[name] = queue
        return queue

    def _flow_producer(self) -> FlowProducer:
        """What creates its groups, on the app's connection."""
        if self._producer is None:
            self._producer = FlowProducer(
                connection=self.shared_connection,
                prefix=self.prefix,
                partitions=self.partitions,
                **self._queue_options,
            )
        return self._producer

    def _stem(self, queue_name: str) -> str:
        """The prefix that the names of this queue's partitions share."""
        if told_of(queue_name, self.partitions) == 1 or hash_tag(queue_name) is not None:
            return queue_name
        return f"{{{queue_name}}}"

    # ------------------------------------------------------------------ running

    @property
    def workers(self) -> list[Worker]:
        """The workers that are running."""
        return list(self._workers)

    def on_worker(self, callback: Callable[[Worker], object]) -> None:
        """Call ``callback`` with every new worker before it starts, to listen to its events."""
        self._on_worker.append(callback)

    async def run(
        self,
        queues: Mapping[str, int] | Iterable[str] | None = None,
        *,
        concurrency: int | None = None,
        **options: Any,
    ) -> None:
        """Run the tasks of ``queues`` (by default all) until ``close`` is called.

        ``{"payments": 50}`` sets how many jobs of a queue run at a time; ``options`` are the
        options of ``Worker``.
        """
        if self._closing is not None:
            raise InvalidOptionError("this app is already running")
        self._closing = closing = asyncio.Event()
        self._workers = self.make_workers(queues, concurrency=concurrency, **options)
        declaring = asyncio.create_task(self._declare_patiently())
        try:
            async with self.lifespan:
                running = [
                    asyncio.create_task(_run_unless(closing, worker)) for worker in self._workers
                ]
                ended = asyncio.create_task(closing.wait())
                try:
                    await asyncio.wait([*running, ended], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    ended.cancel()
                    timeout = 0 if asyncio.current_task().cancelling() else None  # type: ignore[union-attr]
                    await self._close_workers(timeout)
                    failures = await asyncio.gather(*running, return_exceptions=True)
                for failure in failures:
                    if isinstance(failure, BaseException):
                        raise failure
        finally:
            declaring.cancel()
            await asyncio.gather(declaring, return_exceptions=True)
            self._workers, self._closing = [], None
            await self._close_queues()

    async def close(self, timeout: Duration | None = None) -> None:
        """Stop taking jobs, let running ones finish within ``timeout``, and return the rest to the
        queue."""
        closing = self._closing
        if closing is not None:
            closing.set()  # first: a run that is still opening its lifespan starts no worker
        await self._close_workers(timeout)
        if closing is None:
            await self._close_queues()

    async def __aenter__(self) -> Self:
        """Open the connection for enqueueing; ``run`` does not need this block."""
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def make_workers(
        self,
        queues: Mapping[str, int] | Iterable[str] | None = None,
        *,
        concurrency: int | None = None,
        **options: Any,
    ) -> list[Worker]:
        """A worker for each queue, not yet started; ``options`` are the options of ``Worker``."""
        default = concurrency or self.worker_options.get("concurrency") or CONCURRENCY
        chosen = (
            dict(queues)
            if isinstance(queues, Mapping)
            else dict.fromkeys(self.queue_names if queues is None else queues, default)
        )
        if not chosen:
            raise InvalidOptionError("the app has no task, so there is no queue to serve")
        known = set(self.queue_names)
        for name in chosen:
            if name not in known:
                raise InvalidOptionError(
                    f"no task of the app goes to queue {name!r}; it has {', '.join(sorted(known))}"
                )
        return [self._make_worker(name, size, options) for name, size in chosen.items()]

    def _make_worker(self, name: str, concurrency: int, options: Mapping[str, Any]) -> Worker:
        given = {**self.worker_options, **options, "concurrency": concurrency}
        letters = given.get("dead_letter_queue")
        if isinstance(letters, str):
            stem = self._stem(name).replace(":", "-")
            given["dead_letter_queue"] = letters.replace("{queue}", stem)
        handler: Any = self.router
        if given.get("executor") == "process":
            handler = f"{self._reference()}.router"
        worker = Worker(
            name,
            handler,
            connection=self.connection,
            prefix=self.prefix,
            is_final=self._is_final,
            partitions=told_of(name, self.partitions),
            **given,
        )
        for callback in self._on_worker:
            callback(worker)
        return worker

    def _is_final(self, job: StoredJob, error: BaseException) -> bool:
        task = self._tasks.get(job.name)
        return task is not None and task.is_final(error)

    def _reference(self) -> str:
        """``module:name`` under which another process finds this app."""
        for module_name, module in list(sys.modules.items()):
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if value is self:
                    return f"{module_name}:{name}"
        raise InvalidOptionError(
            'executor="process" cannot find this app again in another process; put it at the top'
            " level of a module"
        )

    async def _close_workers(self, timeout: Duration | None) -> None:
        await asyncio.gather(*(worker.close(timeout) for worker in self._workers))

    async def _close_queues(self) -> None:
        queues, self._queues = self._queues, {}
        shared, self._shared, self._producer = self._shared, None, None
        for queue in queues.values():
            await queue.close()
        if shared is not None:
            await shared.close()
        blocking, self._blocking = self._blocking, {}
        for blocking_queue in blocking.values():
            await asyncio.to_thread(blocking_queue.close)

    # ------------------------------------------------------------------ schedules

    async def declare_schedules(self) -> list[Declared]:
        """Store the schedules that the code declares on the server; returns those that changed.

        One whose end has passed is left as it is.  One that is refused keeps no other away: the
        error is raised when the others are stored.
        """
        changed, refusals = [], []
        for one in await self.schedules():
            if one.schedule is None or one.is_current or one.is_over:
                continue
            task = self._tasks[one.id.removeprefix(PREFIX)]
            try:
                await self._store(one.schedule, task, one.stored)
            except (InvalidInputError, RefusedError) as error:
                error.add_note(f"in the schedule of task {task.name!r}")
                refusals.append(error)
            else:
                changed.append(one)
        if len(refusals) > 1:
            raise ExceptionGroup(f"{len(refusals)} schedules are refused", refusals)
        for refusal in refusals:
            raise refusal
        return changed

    async def schedules(self) -> list[Declared]:
        """The schedules that the code declares, and those that the server has."""
        found: list[Declared] = []
        for queue_name in self.queue_names:
            stored = {s.id: s for s in await self.queue(queue_name).get_job_schedulers()}
            for task in self._tasks.values():
                if task.schedule is not None and task.queue_name == queue_name:
                    own = stored.pop(PREFIX + task.name, None)
                    current = own is not None and is_same(task.schedule, task.call(), own)
                    found.append(
                        Declared(PREFIX + task.name, queue_name, task.schedule, own, current)
                    )
            found += [
                Declared(id, queue_name, None, scheduler)
                for id, scheduler in stored.items()  # noqa: A001
                if id.startswith(PREFIX)
            ]
        return found

    async def prune_schedules(self) -> list[Declared]:
        """Remove schedules that the code no longer declares."""
        gone = [one for one in await self.schedules() if one.schedule is None]
        for one in gone:
            await self.queue(one.queue_name).remove_job_scheduler(one.id)
        return gone

    async def _store(self, schedule: Schedule, task: AnyTask, stored: JobScheduler | None) -> None:
        """Write what the code says; what an operator has paused stays paused."""
        schedulers = self.queue(task.queue_name).schedulers
        is_paused = stored is not None and stored.is_paused
        write = schedulers.change if is_paused else schedulers.upsert
        await write(
            PREFIX + task.name,
            every=schedule.every,
            cron=schedule.cron,
            tz=schedule.tz,
            start=schedule.start,
            end=schedule.end,
            limit=schedule.limit,
            template=task.call(),
        )

    async def _declare_patiently(self) -> None:
        """Keep trying while the server is unreachable, as workers do."""
        if all(task.schedule is None for task in self._tasks.values()):
            return
        while True:
            try:
                await self.declare_schedules()
            except ServerError as error:
                logger.warning("the schedules of %r are not declared yet: %s", self, error)
                await asyncio.sleep(_RETRY_S)
            except Exception:
                logger.exception("the schedules of %r could not be declared", self)
                return
            else:
                return


class TaskDecorator(Protocol):
    """What ``@app.task(…)`` returns: it turns the function below it into a task."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context[D], P], Awaitable[R]], /
    ) -> Task[Concatenate[Context[D], P], Awaitable[R], P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, Awaitable[R], P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, P, R]: ...


def _refuse_references(call: Call[Any]) -> None:
    if call.references:
        raise InvalidOptionError(
            f"call of task {call.name!r} uses the result of"
            f" {next(iter(call.references.values())).key!r}; only a group can fill it in:"
            f" saga.add(call)"
        )


class _Place:
    """Where an app is, for the processes that run its tasks: they import it as its module says."""

    def __init__(self, app: App) -> None:
        self._app = app

    def tell(self) -> dict[str, str | None]:
        target = self._app.connection
        url = target if isinstance(target, str) else None  # a client cannot be sent
        return {"url": url, "prefix": self._app.prefix}

    def move(self, told: dict[str, str]) -> None:
        self._app.connection = told["url"] or self._app.connection
        self._app.prefix = told["prefix"]


async def _run_unless(closing: asyncio.Event, worker: Worker) -> None:
    """A worker that was closed before its run is not started."""
    if not closing.is_set():
        await worker.run()


def _on_run(middleware: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(inner: Callable[..., Any]) -> Callable[..., Any]:
        async def run(job: Any) -> Any:
            return await middleware.on_run(job, inner)

        return run

    return wrap


def _enqueue_step(middleware: Any, inner: EnqueueNext) -> EnqueueNext:
    async def step(call: Call[Any]) -> Handle[Any]:
        handle: Handle[Any] = await middleware.on_enqueue(call, inner)
        return handle

    return step


def _errors(errors: Errors, option: str) -> tuple[type[BaseException], ...]:
    found = errors if isinstance(errors, tuple) else (errors,)
    for one in found:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise InvalidOptionError(f"{option}={one!r} is not an exception class")
    return found


def _names_in_sight() -> dict[str, Any]:
    """The names visible where ``@app.task`` is used, for annotations that are strings."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("toril.tasks"):
        frame = frame.f_back
    return {} if frame is None else dict(frame.f_locals)
