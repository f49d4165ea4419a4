"""``toril pause`` and ``toril resume``."""

from __future__ import annotations

import click

from toril.cli.printing import say
from toril.cli.server import Server, create_option, queue_argument, with_server


@click.command("pause")
@queue_argument
@create_option
@with_server
def pause(server: Server, queue_name: str, create: bool) -> None:
    """Pause a queue: workers take no more jobs from it.

    Running jobs continue, and jobs can be added; they wait until 'toril resume QUEUE'.
    """
    with server.queue(queue_name, may_be_missing=create) as queue:
        queue.pause()
    say(server, f"Queue {queue_name!r} is paused.", queue=queue_name, is_paused=True)


@click.command("resume")
@queue_argument
@with_server
def resume(server: Server, queue_name: str) -> None:
    """Resume a paused queue."""
    with server.queue(queue_name) as queue:
        queue.resume()
    say(server, f"Queue {queue_name!r} is resumed.", queue=queue_name, is_paused=False)
