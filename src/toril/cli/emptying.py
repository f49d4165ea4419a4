"""``toril drain``, ``clean`` and ``obliterate``: what cannot be undone, so it asks first."""

from __future__ import annotations

from collections.abc import Callable

import click

from toril.cli.printing import say, span
from toril.cli.server import Server, queue_argument, with_server
from toril.cli.so_far import told_so_far
from toril.cli.values import DURATION, confirm, counted, yes_option
from toril.errors import JobLockedError, NotPausedError
from toril.sync.queue import Queue

_CLEANABLE = click.Choice(["completed", "failed", "waiting", "prioritized", "delayed", "active"])


@click.command("drain")
@queue_argument
@click.option("--delayed", is_flag=True, help="Also delayed ones.")
@yes_option
@with_server
def drain(server: Server, queue_name: str, delayed: bool, yes: bool) -> None:
    """Remove waiting jobs.

    Running and finished jobs stay, and so does the queue.

    \b
    Examples:
      toril drain payments
      toril drain payments --delayed --yes
    """
    with server.queue(queue_name) as queue:
        states = ("waiting", "prioritized", *(("delayed",) if delayed else ()))
        total = sum(queue.get_job_counts(*states).values())
        confirm(f"Remove {counted(total, 'job')} from queue {queue_name!r}?", yes=yes)
        with told_so_far(server, "removing", total, done="removed") as move:
            removed = queue.drain(delayed, on_progress=move)
    say(server, f"Removed {counted(removed, 'job')}.", queue=queue_name, removed=removed)


@click.command("clean")
@queue_argument
@click.option("-s", "--state", type=_CLEANABLE, default="completed", show_default=True)
@click.option(
    "--older-than",
    type=DURATION,
    default="0",
    help="Only jobs that finished, or were added, this long ago: 7d.",
)
@click.option(
    "-n", "--limit", type=click.IntRange(0), default=0, help="At most this many; 0 means all."
)
@yes_option
@with_server
def clean(
    server: Server, queue_name: str, state: str, older_than: int, limit: int, yes: bool
) -> None:
    """Remove old jobs in one state.

    \b
    Examples:
      toril clean payments --state completed --older-than 7d
      toril clean payments --state failed --limit 1000 --yes
    """
    with server.queue(queue_name) as queue:
        there = queue.get_job_counts(state)[state]
        age = f" that are older than {span(older_than)}" if older_than else ""
        most = f" (at most {limit:,})" if limit else ""
        confirm(
            f"Queue {queue_name!r} has {counted(there, f'{state} job')}; remove those{age}{most}?",
            yes=yes,
        )
        total = min(there, limit) if limit else there
        again = "run it again with a lower --limit" if limit else "run it again"
        with told_so_far(server, "cleaning", total, done="removed", again=again) as move:
            removed = len(queue.clean(state, older_than, limit, on_progress=move))
    say(server, f"Removed {counted(removed, f'{state} job')}.", queue=queue_name, removed=removed)


@click.command("obliterate")
@queue_argument
@click.option("--force", is_flag=True, help="Even if it is not paused, or jobs are running.")
@yes_option
@with_server
def obliterate(server: Server, queue_name: str, force: bool, yes: bool) -> None:
    """Remove a queue and everything in it.

    The queue must be paused, and no job may be running; --force removes it anyway.

    \b
    Examples:
      toril pause old-queue && toril obliterate old-queue
      toril obliterate old-queue --force --yes
    """
    with server.queue(queue_name) as queue:
        total = sum(queue.get_job_counts().values())
        confirm(
            f"Remove queue {queue_name!r} and its {counted(total, 'job')}? Nothing brings it back.",
            yes=yes,
        )
        with told_so_far(server, "obliterating", total, done="removed") as move:
            removed = _obliterate(queue, force, move)
    say(
        server,
        f"Queue {queue_name!r} and {counted(removed, 'job')} were removed.",
        queue=queue_name,
        removed=removed,
    )


def _obliterate(queue: Queue, force: bool, move: Callable[[int], None]) -> int:
    """Remove the queue; a refusal names the commands that help."""
    try:
        return queue.obliterate(force, on_progress=move)
    except NotPausedError as error:
        raise NotPausedError(
            f"queue {queue.name!r} is not paused; run 'toril pause {queue.name}' first, or --force"
        ) from error
    except JobLockedError as error:
        raise JobLockedError(
            f"jobs of queue {queue.name!r} are running; wait for them, or use --force"
        ) from error
