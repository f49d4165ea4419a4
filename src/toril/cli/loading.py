"""What ``toril worker`` is given: an app, workers, a router, a function, or what makes them."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import click
import msgspec

from toril import App, Router, Worker
from toril.cli.server import Server
from toril.cli.values import counted
from toril.client.connection import Connection
from toril.errors import ServerError, ServerUnusableError
from toril.logs import get_logger
from toril.protocol import partitioning

CONCURRENCY = 10
_ASK_AGAIN_S = 1.0
logger = get_logger("toril.worker")


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says about the workers that it makes."""

    queues: Mapping[str, int | None] = {}
    concurrency: int | None = None
    worker_name: str | None = None
    executor: str | None = None

    def given(self) -> dict[str, Any]:
        """The options that somebody typed, by their names on the command line."""
        told = {
            "--queue": self.queues,
            "--concurrency": self.concurrency,
            "--name": self.worker_name,
            "--executor": self.executor,
        }
        return {option: value for option, value in told.items() if value}

    def worker_options(self) -> dict[str, Any]:
        options = {"worker_name": self.worker_name, "executor": self.executor}
        return {name: value for name, value in options.items() if value is not None}


class MakesWorkers(ABC):
    """A service that makes its workers when it runs, and tells its own health until then."""

    is_running = False
    has_ended = False

    @property
    def is_starting(self) -> bool:
        """Has it run no worker yet?"""
        return not self.has_ended and not any(worker.is_running for worker in self.workers)

    @property
    @abstractmethod
    def workers(self) -> list[Worker]:
        """Those that it has made."""

    @property
    def last_reply_age(self) -> float | None:
        """Unknown: its workers hear from the server."""
        return None

    @abstractmethod
    def on_worker(self, callback: Callable[[Worker], object]) -> None:
        """Call ``callback`` with each worker that it makes."""


class RunningApp(MakesWorkers):
    """An app with what the command line says about it: a service like a worker."""

    def __init__(self, app: App, wishes: Wishes) -> None:
        self._app = app
        self._wishes = wishes
        queues = {
            name: size or wishes.concurrency or CONCURRENCY for name, size in wishes.queues.items()
        }
        self._queues = queues or None
        # What is wrong with the wishes is told before anything runs.
        app.make_workers(self._queues, **wishes.worker_options())

    def __repr__(self) -> str:
        queues = ", ".join(self._queues or self._app.queue_names)
        return f"<App of {counted(len(self._app.tasks), 'task')} on queues {queues}>"

    @property
    def workers(self) -> list[Worker]:
        return self._app.workers

    @property
    def queue_names(self) -> list[str]:
        return list(self._queues or self._app.queue_names)

    def on_worker(self, callback: Callable[[Worker], object]) -> None:
        self._app.on_worker(callback)

    async def run(self) -> None:
        self.is_running = True
        try:
            await self._app.run(
                self._queues, concurrency=self._wishes.concurrency, **self._wishes.worker_options()
            )
        finally:
            self.is_running, self.has_ended = False, True

    async def close(self, timeout: Any = None) -> None:
        await self._app.close(timeout)


class RunningQueue(MakesWorkers):
    """The worker of a queue: made when the server has told how many partitions the queue has."""

    def __init__(self, name: str, handler: Any, **options: Any) -> None:
        self._make = partial(Worker, name, handler, **options)
        # What is wrong with the options is told before anything runs.
        self._plain = self._make()
        self._found: Worker | None = None
        self._on_worker: list[Callable[[Worker], object]] = []
        self._closing = asyncio.Event()
        self.server_error: Exception | None = None
        """Why the server has not told yet."""

    def __repr__(self) -> str:
        return repr(self._found or self._plain)

    @property
    def workers(self) -> list[Worker]:
        return [] if self._found is None else [self._found]

    def on_worker(self, callback: Callable[[Worker], object]) -> None:
        self._on_worker.append(callback)

    async def run(self) -> None:
        self.is_running = True
        try:
            count = await self._partitions()
            if self._closing.is_set():
                return
            self._found = self._make(partitions=count) if count > 1 else self._plain
            for callback in self._on_worker:
                callback(self._found)
            await self._found.run()
        finally:
            self.is_running, self.has_ended = False, True

    async def close(self, timeout: Any = None) -> None:
        self._closing.set()
        await (self._found or self._plain).close(timeout)

    async def _partitions(self) -> int:
        """How many partitions the queue has; waits for an unreachable server, as a worker does."""
        connection = Connection(self._plain.target, patience_s=_ASK_AGAIN_S)
        try:
            while not self._closing.is_set():
                try:
                    return (await connection.run(partitioning.read(self._plain.keys))).now
                except ServerUnusableError:
                    break  # the worker tells what is wrong
                except ServerError as error:
                    if self.server_error is None:
                        logger.warning(
                            "the worker of queue %r waits for its server: %s",
                            self._plain.name,
                            error,
                        )
                    self.server_error = error
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_ASK_AGAIN_S):
                        await self._closing.wait()
            return 1
        finally:
            await connection.close()


def load(target: str) -> Any:
    """The object that ``module:object`` names."""
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise click.UsageError(f"{target!r} does not name an object; write module:object")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise click.UsageError(
            f"there is no module {error.name!r}; run this where it can be imported"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise click.UsageError(f"module {module_name!r} has no {attribute!r}")
        found = getattr(found, part)
    return found


def services_of(server: Server, target: str, wishes: Wishes) -> list[Any]:
    """What is to run for ``module:object``."""
    found = load(target)
    if _is_factory(found):
        found = found()
    if isinstance(found, App):
        server.move(found)
        return [RunningApp(found, wishes)]
    found = getattr(found, "consumers", found)
    if is_service(found):
        _refuse_wishes(server, target, wishes)
        return [found]
    if isinstance(found, Iterable) and not isinstance(found, str):
        services = list(found)
        if services and all(map(is_service, services)):
            _refuse_wishes(server, target, wishes)
            return services
    if not isinstance(found, Router) and not callable(found):
        raise click.UsageError(
            f"{target!r} is neither an App, a Worker, a list of them, a Router nor a function:"
            f" {found!r}"
        )
    if not wishes.queues:
        raise click.UsageError(
            f"{target!r} is not a Worker, so choose the queue it serves: --queue QUEUE"
        )
    return [
        RunningQueue(
            name,
            found,
            connection=server.url,
            prefix=server.prefix,
            concurrency=size or wishes.concurrency or CONCURRENCY,
            **wishes.worker_options(),
        )
        for name, size in wishes.queues.items()
    ]


def is_service(found: Any) -> bool:
    """Can it be run and closed, like a worker?"""
    if isinstance(found, type):
        return False
    run_it, close = getattr(found, "run", None), getattr(found, "close", None)
    return inspect.iscoroutinefunction(run_it) and inspect.iscoroutinefunction(close)


def _is_factory(found: Any) -> bool:
    """A plain function without parameters makes what is to run; a handler takes a job."""
    if not inspect.isfunction(found) or inspect.iscoroutinefunction(found):
        return False
    return not inspect.signature(found).parameters


def _refuse_wishes(server: Server, target: str, wishes: Wishes) -> None:
    for option in wishes.given():
        raise click.UsageError(
            f"{target!r} already has its own options; {option} is for apps, routers and functions"
        )
    if server.is_explicit:
        raise click.UsageError(
            f"{target!r} already has its own server; --url and --prefix are for apps,"
            f" routers and functions"
        )
