"""How answers look: tables for people, JSON for programs, times that one can read.

Everything that a command prints goes through this module, because much of it was written by others:
what a terminal would obey is made visible here, and ``ruff`` refuses other ways to print.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import click

from toril.protocol.visible_text import visible, visible_json, visible_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from toril.cli.server import Server

EVENT_COLOURS = {
    "completed": "green",
    "failed": "red",
    "deadLettered": "red",
    "stalled": "red",
    "active": "cyan",
    "delayed": "yellow",
}
_WIDE = 240
_GAP = 2
_LONG, _LEAST_TEXT, _LEAST_NAME, _LEAST_COLUMNS = 12, 6, 36, 3
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))


class Styled(NamedTuple):
    """A part of a line that stands out where colours are wanted."""

    text: str
    colour: str | None = None
    is_bold: bool = False


def echo(*parts: str | Styled, err: bool = False) -> bool:
    """Print one line, on stderr if ``err``; a line break inside it is visible, too.

    Returns whether there is somebody who reads.
    """
    is_plain = not _wants_colours(sys.stderr if err else sys.stdout)
    line = "".join(_drawn(part, is_plain) for part in parts)
    return _write(line, err=err, color=not is_plain)


def echo_lines(text: str, *, err: bool = False) -> None:
    """Print a text of several lines."""
    _write(visible_lines(text), err=err, color=False)


def print_json(value: Any, *, indent: int | None = 2) -> bool:
    """One JSON document; what JSON does not know is written as text.

    Returns whether there is somebody who reads.
    """
    document = json.dumps(value, indent=indent, ensure_ascii=False, default=_plain)
    return _write(visible_json(document))


def say(server: Server, sentence: str, **facts: Any) -> None:
    """What was done: a sentence for people, the facts for programs."""
    if server.as_json:
        print_json(facts)
        return
    echo(sentence)


def log_to_terminal(*, verbose: bool) -> None:
    """Write what is logged to stderr, that of the user's own code as well."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_VisibleFormatter("%(asctime)s %(levelname)-7s %(message)s"))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])


def make_logs_visible() -> None:
    """What libraries log without being asked, as asyncio does, is written as visibly."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_VisibleFormatter())


class _VisibleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        # Indented, so that a name with a line break cannot pose as another record.
        return visible_lines(super().format(record)).replace("\n", "\n    ")


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str, title: str | None = None
) -> None:
    """A table; columns whose names begin with ``#`` hold numbers.  ``empty`` when it has no row.

    On a terminal each row is one line: where there is no room long texts are cut, then short ones,
    and then the last columns are left out; the first one is what people copy.  What programs read
    is never cut.
    """
    from rich import box
    from rich.table import Table

    from toril.cli.shown import Shown

    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        echo(empty)
        return
    if sys.stdout.isatty():
        columns, cells = fitted(columns, cells, console().width)
    table = Table(
        box=box.SIMPLE_HEAD,
        title=None if title is None else Shown(title),
        title_justify="left",
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for column in columns:
        is_number = column.startswith("#")
        table.add_column(
            Shown(column.removeprefix("#")),
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=is_number,
        )
    for row in cells:
        table.add_row(*(Shown(text) for text in row))
    screen = console()
    with screen.capture() as drawn:
        screen.print(table)
    _write(drawn.get().removesuffix("\n"), color=True)


def fitted(
    columns: Sequence[str], cells: list[list[str]], width: int
) -> tuple[list[str], list[list[str]]]:
    """The table without columns that say nothing, and with texts cut to the room there is."""
    from rich.cells import cell_len, set_cell_size

    kept = [at for at, _ in enumerate(columns) if not at or any(row[at] for row in cells)]
    columns = [columns[at] for at in kept]
    cells = [[row[at] for at in kept] for row in cells]
    widths = [
        max(cell_len(column.removeprefix("#")), *(cell_len(row[at]) for row in cells))
        for at, column in enumerate(columns)
    ]
    texts = [at for at, column in enumerate(columns) if at and not column.startswith("#")]
    long_ones = [at for at in texts if widths[at] > _LONG]
    excess = sum(widths) + _GAP * (len(columns) - 1) - width
    for group, least in ((long_ones, _LEAST_TEXT), (texts, _LEAST_TEXT), ([0], _LEAST_NAME)):
        while excess > 0 and any(widths[at] > least for at in group):
            widest = max(group, key=widths.__getitem__)
            widths[widest] -= 1
            excess -= 1
    while excess > 0 and len(columns) > _LEAST_COLUMNS:
        excess -= widths.pop() + _GAP
        columns = columns[:-1]
    cells = [row[: len(columns)] for row in cells]

    def cut(text: str, most: int) -> str:
        return text if cell_len(text) <= most else f"{set_cell_size(text, most - 1)}…"

    for row in cells:
        row[:] = [cut(text, most) for text, most in zip(row, widths, strict=True)]
    return columns, cells


def print_facts(facts: Iterable[tuple[str, Any]]) -> None:
    """Names and values, one pair a line; values that are None are left out."""
    known = [(name, text_of(value)) for name, value in facts if value is not None]
    width = max((len(name) for name, _ in known), default=0)
    for name, text in known:
        head, *rest = text.split("\n")
        echo(Styled(name.ljust(width), is_bold=True), "  ", head)
        for line in rest:
            echo(" " * width, "  ", line)


def heading(text: str) -> None:
    """A line over a part of the answer."""
    echo()
    echo(Styled(text, is_bold=True))


def console() -> Console:
    """Where tables are drawn: as wide as the terminal, and wide enough for a pipe."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)


def when(ms: int | None) -> str | None:
    """A moment in the reader's time zone, and how long ago it was."""
    if not ms:
        return None
    moment = local(ms)
    if moment is None:
        return f"{ms} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S.%f}"[:-3] + f"  ({age(ms)})"


def local(ms: int) -> datetime | None:
    """A moment in the reader's time zone; None if it is of a year that no calendar has."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return None


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


def _write(text: str, *, err: bool = False, color: bool | None = None) -> bool:
    """Write to whoever reads.  When nobody does any more, what was begun is still finished."""
    try:
        click.echo(text, err=err, color=color)
    except BrokenPipeError:
        let_go(sys.stderr if err else sys.stdout)
        return False
    return True


def let_go(stream: IO[str]) -> None:
    """Nobody reads what is written here: it goes nowhere, and Python has nothing to complain of."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _wants_colours(stream: IO[str]) -> bool:
    """Only a terminal gets colours, and not where ``NO_COLOR`` is set (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def _drawn(part: str | Styled, is_plain: bool) -> str:
    if isinstance(part, str):
        return visible(part)
    if is_plain:
        return visible(part.text)
    return click.style(visible(part.text), fg=part.colour, bold=part.is_bold or None)


def _cell(value: Any) -> str:
    return visible(text_of(value))


def text_of(value: Any) -> str:
    """A value as people read it."""
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
