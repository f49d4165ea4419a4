"""``toril relay``: carries jobs from a database's outbox to the queues."""

from __future__ import annotations

import inspect

import click

from toril import run
from toril.cli.loading import load
from toril.cli.logs import log_options, notice, set_up_logging
from toril.cli.server import Server, with_server
from toril.cli.values import DURATION, refuse_given
from toril.cli.worker import Serving


@click.command("relay")
@click.argument("targets", metavar="MODULE:RELAY...", nargs=-1, required=True)
@click.option(
    "--timeout",
    type=DURATION,
    default="25s",
    show_default=True,
    help="How long the current batch may take after SIGTERM.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve /metrics, /healthz and /readyz on this port.",
)
@click.option(
    "--metrics-host", default="127.0.0.1", show_default=True, help="The address to serve them on."
)
@log_options
@with_server
def relay(
    server: Server,
    targets: tuple[str, ...],
    timeout: int,
    metrics_port: int | None,
    metrics_host: str,
    log_format: str,
    verbose: bool,
) -> None:
    """Send jobs from an outbox to their queues, until SIGTERM or Ctrl-C.

    RELAY is a toril.outbox.Relay, made with its engine and its server.  Any
    number may run at the same time.

    \b
    Example:
      toril relay shop.outbox:relay --metrics-port 9100
    """
    refuse_given("url", "prefix", "as_json", because="the relay was made with its own server")
    if metrics_port is None:
        refuse_given("metrics_host", because="it goes with --metrics-port")
    set_up_logging(log_format, verbose=verbose)
    relays = [load(target) for target in targets]
    for target, found in zip(targets, relays, strict=True):
        if not inspect.iscoroutinefunction(getattr(found, "run", None)):
            raise click.UsageError(f"{target!r} is not a Relay: {found!r}")
        notice(f"running {target}; Ctrl-C stops it")
    beside = [] if metrics_port is None else [Serving(relays, metrics_host, metrics_port)]
    run(*relays, *beside, timeout=timeout)
