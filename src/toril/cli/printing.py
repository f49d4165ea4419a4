"""How answers look: tables for people, JSON for programs, times that one can read."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from toril.cli.server import Server

_WIDE = 240
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """One JSON document; what JSON does not know is written as text."""
    click.echo(json.dumps(value, indent=indent, ensure_ascii=False, default=_plain))


def say(server: Server, sentence: str, **facts: Any) -> None:
    """What was done: a sentence for people, the facts for programs."""
    if server.as_json:
        print_json(facts)
        return
    click.echo(sentence)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str, title: str | None = None
) -> None:
    """A table; columns whose names begin with ``#`` hold numbers.  ``empty`` when it has no row."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        click.echo(empty)
        return
    table = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, show_edge=False
    )
    for column in columns:
        is_number = column.startswith("#")
        table.add_column(
            column.removeprefix("#"),
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=is_number,
        )
    for row in cells:
        table.add_row(*(Text(text) for text in row))
    console().print(table)


def print_facts(facts: Iterable[tuple[str, Any]]) -> None:
    """Names and values, one pair a line; values that are None are left out."""
    known = [(name, _cell(value)) for name, value in facts if value is not None]
    width = max((len(name) for name, _ in known), default=0)
    for name, text in known:
        head, *rest = text.splitlines() or [""]
        click.echo(f"{click.style(name.ljust(width), bold=True)}  {head}")
        for line in rest:
            click.echo(f"{' ' * width}  {line}")


def heading(text: str) -> None:
    """A line over a part of the answer."""
    click.echo(f"\n{click.style(text, bold=True)}")


def console() -> Console:
    """Where tables are drawn: as wide as the terminal, and wide enough for a pipe."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)


def when(ms: int | None) -> str | None:
    """A moment in the reader's time zone, and how long ago it was."""
    if not ms:
        return None
    moment = datetime.fromtimestamp(ms / 1000, UTC).astimezone()
    return f"{moment:%Y-%m-%d %H:%M:%S.%f}"[:-3] + f"  ({age(ms)})"


def age(ms: int | None) -> str:
    """How long ago, or in how long."""
    if not ms:
        return ""
    passed = int(datetime.now(UTC).timestamp() * 1000) - ms
    return f"{span(passed)} ago" if passed >= 0 else f"in {span(-passed)}"


def span(ms: float) -> str:
    """A duration in its two largest units: ``1h 12m``, ``3.2s``, ``40ms``."""
    if ms < 1000:
        return f"{ms:.0f}ms"
    if ms < 10_000:
        return f"{ms / 1000:.1f}s"
    parts = []
    left = int(ms)
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def shortened(value: Any, width: int = 60) -> str:
    """A value as one line of JSON, cut where it gets long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


@contextmanager
def progress_bar(
    server: Server, what: str, total: int | None = None
) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal, moved by calling what is given with the number done so far."""
    if server.as_json or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _plain(value: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(value, str_keys=True, enc_hook=str)
