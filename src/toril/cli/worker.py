"""``toril worker``: runs workers as a program, and starts them anew when their code changes."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterable
from typing import Any

import click

from toril import Router, Worker, run
from toril.cli.printing import echo, log_to_terminal
from toril.cli.reloading import run_and_reload
from toril.cli.server import Server, complete_queue, with_server
from toril.cli.values import DURATION


@click.command("worker")
@click.argument("targets", metavar="MODULE:OBJECT...", nargs=-1, required=True)
@click.option(
    "-q",
    "--queue",
    metavar="QUEUE",
    shell_complete=complete_queue,
    help="For a router or a function.",
)
@click.option("-c", "--concurrency", type=click.IntRange(1), help="Jobs at a time.  [default: 10]")
@click.option("--name", "worker_name", help="What the worker is called in lists and jobs.")
@click.option(
    "--reload", is_flag=True, help="Start anew when a .py file changes; not for production."
)
@click.option("--reload-dir", "directories", multiple=True, help="Where to look.  [default: .]")
@click.option(
    "--timeout",
    type=DURATION,
    default="25s",
    show_default=True,
    help="For running jobs, when it is told to stop.",
)
@click.option("--uvloop", is_flag=True, help="Run on uvloop.")
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
@with_server
def worker(
    server: Server,
    targets: tuple[str, ...],
    queue: str | None,
    concurrency: int | None,
    worker_name: str | None,
    reload: bool,
    directories: tuple[str, ...],
    timeout: int,
    uvloop: bool,
    verbose: bool,
) -> int:
    """Run workers until they are told to stop.

    OBJECT is a Worker, a list of Workers, a ConsumerRegistrar, or a Router or a function of a job,
    which need --queue.
    Modules are looked for in the current directory first.  The first SIGTERM or Ctrl-C lets running
    jobs finish within --timeout, a second one hands them back at once.

    \b
    Examples:
      toril worker shop.workers:payments
      toril worker shop.jobs:router --queue payments --concurrency 50
      toril worker shop.jobs:router -q payments --reload
    """
    if reload:
        return run_and_reload(directories or (".",), timeout_s=timeout / 1000 + 5)
    log_to_terminal(verbose=verbose)
    services = [
        service
        for target in targets
        for service in _services(server, target, queue, concurrency, worker_name)
    ]
    for service in services:
        echo(f"running {service!r}; Ctrl-C stops it", err=True)
    run(*services, timeout=timeout, uvloop=uvloop)
    return 0


def load(target: str) -> Any:
    """The object that ``module:object`` names."""
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise click.UsageError(f"{target!r} names no object; write module:object")
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


def _services(
    server: Server,
    target: str,
    queue: str | None,
    concurrency: int | None,
    worker_name: str | None,
) -> list[Any]:
    found = load(target)
    found = getattr(found, "consumers", found)
    if _is_service(found):
        _refuse_options(target, queue, concurrency, worker_name)
        return [found]
    if isinstance(found, Iterable) and not isinstance(found, str):
        services = list(found)
        if services and all(map(_is_service, services)):
            _refuse_options(target, queue, concurrency, worker_name)
            return services
    if not isinstance(found, Router) and not callable(found):
        raise click.UsageError(
            f"{target!r} is neither a Worker, a list of them, a Router nor a function: {found!r}"
        )
    if queue is None:
        raise click.UsageError(f"{target!r} is no Worker, so say whose jobs it runs: --queue QUEUE")
    return [
        Worker(
            queue,
            found,
            connection=server.url,
            prefix=server.prefix,
            concurrency=concurrency or 10,
            worker_name=worker_name,
        )
    ]


def _is_service(found: Any) -> bool:
    if isinstance(found, type):
        return False
    run_it, close = getattr(found, "run", None), getattr(found, "close", None)
    return inspect.iscoroutinefunction(run_it) and inspect.iscoroutinefunction(close)


def _refuse_options(
    target: str, queue: str | None, concurrency: int | None, worker_name: str | None
) -> None:
    given = {"--queue": queue, "--concurrency": concurrency, "--name": worker_name}
    for option, value in given.items():
        if value is not None:
            raise click.UsageError(
                f"{target!r} was made with options of its own;"
                f" {option} is for routers and functions"
            )
