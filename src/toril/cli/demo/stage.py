"""Where the acts are shown: a line that tells what is to be seen, and a picture that moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.live import Live

FRAMES_PER_SECOND = 12

MARKS = {
    "pending": "[dim]·  waits[/]",
    "active": "[cyan]▶  runs[/]",
    "completed": "[green]✓  done[/]",
    "failed": "[red]✗  failed[/]",
    "cancelled": "[yellow]-  cancelled[/]",
}


class Stage:
    """The terminal, act by act."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._acts = 0

    def announce(self, title: str, words: str) -> None:
        """Say what is to be seen now."""
        self._acts += 1
        self._console.print(f"\n[bold cyan]{self._acts}. {title}[/]\n{words}", highlight=False)

    @contextmanager
    def picture(self, draw: Callable[[], RenderableType]) -> Iterator[None]:
        """Show what ``draw`` gives, again and again while the block runs."""
        with Live(
            get_renderable=draw, console=self._console, refresh_per_second=FRAMES_PER_SECOND
        ) as live:
            yield
            live.refresh()
        if not self._console.is_terminal:
            self._console.print()
