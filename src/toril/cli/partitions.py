"""``toril partitions``: queues that are made of several plain ones."""

from __future__ import annotations

import click

from toril.cli.catalogue import CommandGroup
from toril.cli.printing import echo, print_json, print_table, say
from toril.cli.server import Server, queue_argument, with_server
from toril.cli.values import DURATION, confirm, yes_option
from toril.errors import RefusedError
from toril.protocol import partitioning, reading
from toril.protocol.keys import Keys


@click.group("partitions", cls=CommandGroup)
def partitions() -> None:
    """Show the partitions of a queue, and add more.

    \b
    Examples:
      toril partitions list mail
      toril partitions grow mail 32
    """


@partitions.command("list")
@queue_argument
@with_server
def list_partitions(server: Server, queue_name: str) -> None:
    """List the partitions of a queue and their counts."""
    with server.queue(queue_name, may_be_missing=True) as queue:
        parts = queue.partitions
        commands = [reading.counts(part.keys, reading.STATES) for part in parts]
        counts = server.connection.run_all(commands)
    rows = [{"queue": part.name, **jobs} for part, jobs in zip(parts, counts, strict=True)]
    if server.as_json:
        print_json(rows)
        return
    shown = ("waiting", "active", "delayed", "completed", "failed")
    print_table(
        ["queue", *(f"#{state}" for state in shown)],
        [[row["queue"], *(row[state] for state in shown)] for row in rows],
        empty="",
    )


@partitions.command("grow")
@queue_argument
@click.argument("number", type=click.IntRange(2, partitioning.MOST_PARTITIONS), required=False)
@click.option(
    "--wait",
    type=DURATION,
    default="60s",
    show_default=True,
    help="How long to wait for empty lanes.",
)
@click.option("--stop", is_flag=True, help="Stop growing, and keep the current number.")
@yes_option
@with_server
def grow(
    server: Server, queue_name: str, number: int | None, wait: int, stop: bool, yes: bool
) -> None:
    """Give a queue NUMBER partitions.

    It takes no jobs until all producers know, about 15 seconds, and until its lanes are empty.
    Then start producers and workers again with the new number.
    """
    from toril.sync import growing

    keys = Keys(server.prefix, queue_name)
    if not server.partitions_of(queue_name):
        with server.queue(queue_name):
            raise RefusedError(f"queue {queue_name!r} has no partitions")
    if stop:
        numbers = growing.stop_growing(server.connection, keys)
    elif number is None:
        raise click.UsageError("give the new number of partitions, or --stop")
    else:
        question = f"Queue {queue_name!r} takes no jobs while it grows to {number} partitions."
        confirm(f"{question} Go on?", yes=yes)
        tell = (lambda words: None) if server.as_json else echo
        numbers = growing.grow(server.connection, keys, number, patience_s=wait / 1000, tell=tell)
    words = f"Queue {queue_name!r} has {numbers.now} partitions."
    say(server, words, queue=queue_name, partitions=numbers.now)
