"""``toril relay``: carries jobs from a database's outbox to the queues."""

from __future__ import annotations

import inspect

import click

from toril import run
from toril.cli.loading import load
from toril.cli.printing import echo, log_to_terminal
from toril.cli.server import Server, with_server
from toril.cli.values import DURATION, refuse_given


@click.command("relay")
@click.argument("targets", metavar="MODULE:RELAY...", nargs=-1, required=True)
@click.option(
    "--timeout",
    type=DURATION,
    default="25s",
    show_default=True,
    help="For the batch under way, when it is told to stop.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
@with_server
def relay(server: Server, targets: tuple[str, ...], timeout: int, verbose: bool) -> None:
    """Carry jobs from an outbox to their queues, until it is told to stop.

    RELAY is a toril.outbox.Relay, made with its engine and its server.  Any
    number may run at the same time.

    \b
    Example:
      toril relay shop.outbox:relay
    """
    refuse_given("url", "prefix", "as_json", because="the relay was made with its own server")
    log_to_terminal(verbose=verbose)
    relays = [load(target) for target in targets]
    for target, found in zip(targets, relays, strict=True):
        if not inspect.iscoroutinefunction(getattr(found, "run", None)):
            raise click.UsageError(f"{target!r} is no Relay: {found!r}")
        echo(f"running {target}; Ctrl-C stops it", err=True)
    run(*relays, timeout=timeout)
