"""``toril worker``: runs workers as a program, in one process or several."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import click

from toril import Queue, Worker, run
from toril.cli.loading import MakesWorkers, Wishes, services_of
from toril.cli.logs import log_options, notice, set_up_logging
from toril.cli.processes import number_of_this, run_many
from toril.cli.reloading import run_and_reload
from toril.cli.server import Server, complete_queue, with_server
from toril.cli.values import DURATION, refuse_given
from toril.client.connection import Connection
from toril.protocol import parceling
from toril.protocol.events import last_id
from toril.worker.health import HealthServer, Metrics

_LOOK_S = 0.1
_AFTER_TIMEOUT_S = 5.0


@click.command("worker")
@click.argument("targets", metavar="MODULE:OBJECT...", nargs=-1, required=True)
@click.option(
    "-q",
    "--queue",
    "queues",
    metavar="QUEUE[:N]",
    multiple=True,
    shell_complete=complete_queue,
    help="For an app, a router or a function; N jobs at a time.  May be repeated.",
)
@click.option("-c", "--concurrency", type=click.IntRange(1), help="Jobs at a time.  [default: 10]")
@click.option("--name", "worker_name", help="The worker's name in lists and jobs.")
@click.option(
    "--executor",
    type=click.Choice(["local", "process"]),
    help="Run handlers in this process, or in processes that can be killed.  [default: local]",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Run this many processes, each with this concurrency; restart those that die.",
)
@click.option("--burst", is_flag=True, help="Exit when the queues are empty.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve /metrics, /healthz and /readyz here; with --processes also on the next ports.",
)
@click.option(
    "--metrics-host", default="127.0.0.1", show_default=True, help="The address to serve them on."
)
@click.option("--reload", is_flag=True, help="Restart when a .py file changes; not for production.")
@click.option(
    "--reload-dir", "directories", multiple=True, help="The directory to watch.  [default: .]"
)
@click.option(
    "--timeout",
    type=DURATION,
    default="8s",
    show_default=True,
    help="Time for running jobs after SIGTERM; Docker kills after 10 s, Kubernetes after 30.",
)
@click.option("--uvloop", is_flag=True, help="Run on uvloop.")
@log_options
@with_server
def worker(
    server: Server,
    targets: tuple[str, ...],
    queues: tuple[str, ...],
    concurrency: int | None,
    worker_name: str | None,
    executor: str | None,
    processes: int,
    burst: bool,
    metrics_port: int | None,
    metrics_host: str,
    reload: bool,
    directories: tuple[str, ...],
    timeout: int,
    uvloop: bool,
    log_format: str,
    verbose: bool,
) -> int:
    """Run workers until SIGTERM or Ctrl-C.

    OBJECT is an App, a Worker, a list of Workers, a ConsumerRegistrar, a function without
    parameters that returns one of these, or a Router or a function of a job, which need --queue.
    Modules are searched for in the current directory first.  The first SIGTERM or Ctrl-C lets
    running jobs finish within --timeout, a second one hands them back at once.

    \b
    Examples:
      toril worker shop.tasks:app
      toril worker shop.tasks:app --queue payments:50 --queue mail:10 --processes 4
      toril worker shop.workers:payments
      toril worker shop.jobs:router --queue payments --concurrency 50 --reload
    """
    refuse_given("as_json", because="a worker prints no result")
    if directories and not reload:
        raise click.UsageError("--reload-dir needs --reload")
    if metrics_port is None:
        refuse_given("metrics_host", because="it goes with --metrics-port")
    if reload:
        if processes > 1 or burst:
            raise click.UsageError("--reload cannot be combined with --processes or --burst")
        return run_and_reload(directories or (".",), timeout_s=timeout / 1000 + _AFTER_TIMEOUT_S)
    set_up_logging(log_format, verbose=verbose)
    if processes > 1:
        return run_many(processes, timeout_s=timeout / 1000 + _AFTER_TIMEOUT_S, until_done=burst)
    wishes = Wishes(
        queues=dict(map(_parse_queue, queues)),
        concurrency=concurrency,
        worker_name=worker_name,
        executor=executor,
    )
    services = [one for target in targets for one in services_of(server, target, wishes)]
    for service in services:
        notice(
            f"running {service!r}; Ctrl-C or SIGTERM stops it, and running jobs then have"
            f" {timeout / 1000:g} s"
        )
    beside = _companions(services, metrics_host, metrics_port, burst=burst)
    run(*services, *beside, timeout=timeout, uvloop=uvloop)
    return 0


def _companions(
    services: Sequence[Any], metrics_host: str, metrics_port: int | None, *, burst: bool
) -> list[Any]:
    """What runs beside the workers of this process."""
    found: list[Any] = []
    if metrics_port is not None:
        port = metrics_port + number_of_this() if metrics_port else 0
        found.append(Serving(services, metrics_host, port))
    if burst:
        found.append(Burst(services, found))
    return found


def _parse_queue(text: str) -> tuple[str, int | None]:
    """``payments`` or ``payments:50``; the name of a compensation queue has a colon of its own."""
    name, colon, size = text.rpartition(":")
    if not colon or not (size.isascii() and size.isdecimal() and len(size) < 10):
        return text, None
    if int(size) < 1:
        raise click.UsageError(f"--queue {text}: {size} is not a number of jobs; give at least 1")
    return name, int(size)


def workers_of(services: Sequence[Any]) -> list[Any]:
    """The workers that run now, and what has none yet or is none."""
    found: list[Any] = []
    for service in services:
        found += (isinstance(service, MakesWorkers) and service.workers) or [service]
    return found


class Serving:
    """Health and metrics over HTTP, as a service beside workers or relays."""

    def __init__(self, services: Sequence[Any], host: str, port: int) -> None:
        self._services = services
        self._address = (host, port)
        self._closing = asyncio.Event()
        self._text = self._metrics()

    async def run(self) -> None:
        server = HealthServer(lambda: workers_of(self._services), self._text)
        port = await server.start(*self._address)
        notice(f"health and metrics on http://{self._address[0]}:{port}")
        try:
            await self._closing.wait()
        finally:
            await server.close()

    async def close(self, timeout: Any = None) -> None:
        self._closing.set()

    def _metrics(self) -> Metrics | None:
        try:
            from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

            from toril.contrib.prometheus import RelayCollector, WorkerMetrics
        except ImportError:
            notice('toril: /metrics needs prometheus_client: pip install "toril[prometheus]"')
            return None
        for service in self._services:
            if isinstance(service, MakesWorkers):
                service.on_worker(WorkerMetrics)
            elif isinstance(service, Worker):
                WorkerMetrics(service)
            elif hasattr(service, "outbox"):
                RelayCollector(service)
        return lambda: (generate_latest(REGISTRY), CONTENT_TYPE_LATEST)


class Burst:
    """Ends everything when there is nothing left to do."""

    def __init__(self, services: Sequence[Any], beside: Sequence[Any]) -> None:
        self._services = services
        self._beside = beside
        self._closing = asyncio.Event()

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            queues: dict[Worker, _Watched] = {}
            while not self._closing.is_set():
                if not any(map(_is_starting, self._services)):
                    for one in workers_of(self._services):
                        if isinstance(one, Worker) and one not in queues:
                            queues[one] = _Watched(one)
                            stack.push_async_callback(queues[one].close)
                    if queues and await _are_empty(queues.values()):
                        break
                await asyncio.sleep(_LOOK_S)
        for service in [*self._services, *self._beside]:
            if service is not self:
                await service.close()

    async def close(self, timeout: Any = None) -> None:
        self._closing.set()


def _is_starting(service: Any) -> bool:
    """Its queues are not known yet, or its workers have not begun and must not be closed."""
    return isinstance(service, MakesWorkers) and service.is_starting


class _Watched:
    """A queue that has to be empty before a burst ends."""

    def __init__(self, worker: Worker) -> None:
        self._connection = Connection(worker.target)
        self._queue = Queue(
            worker.name,
            connection=self._connection,
            prefix=worker.keys.prefix,
            partitions=worker.partitions,
        )

    async def has_jobs(self) -> bool:
        """Is something left that could run now? What is delayed is not waited for."""
        counts = await self._queue.get_job_counts("waiting", "prioritized", "active")
        if any(counts.values()):
            return True
        if not self._connection.is_cluster:
            return False
        # What its jobs left for other slots may let a job in there.
        looks = [parceling.waiting(part.keys) for part in self._queue.partitions]
        parcels = await self._connection.run_all(looks)
        return any(parcels)

    async def newest_events(self) -> list[str]:
        """The last event of each partition."""
        looks = [last_id(part.keys) for part in self._queue.partitions]
        return await self._connection.run_all(looks)

    async def close(self) -> None:
        await self._queue.close()
        await self._connection.close()


async def _are_empty(queues: Collection[_Watched]) -> bool:
    """Were all of them empty at one moment?

    They are asked one after another, and a job may add the next one to a queue that was asked
    before it.  What comes to a queue leaves an event there: so a look at all of them counts if none
    has an event since before the look.
    """
    if await _has_jobs(queues):
        return False
    before = [await queue.newest_events() for queue in queues]
    if await _has_jobs(queues):
        return False
    return before == [await queue.newest_events() for queue in queues]


async def _has_jobs(queues: Iterable[_Watched]) -> bool:
    for queue in queues:
        if await queue.has_jobs():
            return True
    return False
