"""Text in tables and on the monitor's screen."""

from __future__ import annotations

from typing import Any

from rich.text import Text  # noqa: TID251 (here it is made safe)

from toril.protocol.visible_text import visible, visible_lines


class Shown(Text):
    """A ``Text`` in which nothing is obeyed: no markup, and escape sequences are visible."""

    def __init__(self, text: str = "", style: str = "", **options: Any) -> None:
        super().__init__(visible(text), style, **options)

    def append(self, text: Any, style: Any = None) -> Shown:
        super().append(visible(text) if isinstance(text, str) else text, style)
        return self

    def append_lines(self, text: str, style: Any = None) -> Shown:
        """The same for a text of several lines, such as a stack trace."""
        super().append(visible_lines(text), style)
        return self
