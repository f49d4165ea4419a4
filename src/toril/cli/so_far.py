"""How far changes to many jobs had come, if they end early."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from toril.cli.printing import echo, progress_bar
from toril.cli.server import Server
from toril.cli.values import counted


@contextmanager
def told_so_far(
    server: Server,
    doing: str,
    total: int,
    *,
    done: str,
    noun: str = "job",
    again: str = "run it again",
) -> Iterator[Callable[[int], None]]:
    """A progress bar for one bulk operation.

    If it is interrupted or refused half-way, what was ``done`` by then is told, and how to go on.
    """
    so_far = 0

    def note(number: int) -> None:
        nonlocal so_far
        so_far = number
        move(number)

    try:
        with progress_bar(server, doing, total) as move:
            yield note
    except BaseException:
        if so_far:
            # The reply to one more slice may have been lost, or not been waited for.
            what = f"at least {counted(so_far, noun)} {'was' if so_far == 1 else 'were'} {done}"
            echo(f"toril: {what} before it ended; {again} to go on", err=True)
        raise
