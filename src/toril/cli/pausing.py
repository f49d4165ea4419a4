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
    """Let no worker take from a queue.

    Jobs that run go on, and jobs can be added; they wait until 'toril resume QUEUE'.
    """
    with server.queue(queue_name, may_be_missing=create) as queue:
        queue.pause()
    say(server, f"Queue {queue_name!r} is paused.", queue=queue_name, is_paused=True)


@click.command("resume")
@queue_argument
@with_server
def resume(server: Server, queue_name: str) -> None:
    """Let workers take from a queue again."""
    with server.queue(queue_name) as queue:
        queue.resume()
    say(server, f"Queue {queue_name!r} goes on.", queue=queue_name, is_paused=False)
