"""A table whose lines are as wide as its columns."""

from __future__ import annotations

from textual.geometry import Size
from textual.widgets import DataTable


class Table(DataTable[object]):
    """A DataTable that is redrawn when its columns have grown.

    Columns get the width of new rows only when there is nothing else to do. Textual keeps the lines
    that it drew before that, as it does on a busy machine: each cell was cut to the title's width,
    for good.
    """

    def watch_virtual_size(self, before: Size, now: Size) -> None:
        if before != now:
            self.notify_style_update()
