"""Text that others wrote, made fit to be looked at: what a terminal would obey becomes visible.

Names, ids, reasons and data of jobs may hold escape sequences, line breaks and characters that turn
the reading direction.  Whoever shows such a text, on a terminal or in a log, passes it through.
"""

from __future__ import annotations

import json
from collections.abc import Callable


class _Table(dict[int, str]):
    """For ``str.translate``: what is not printable is escaped, except what is kept."""

    def __init__(self, escape: Callable[[str], str], kept: dict[str, str]) -> None:
        self._escape = escape
        # Most text is made of these; the others are not remembered, for there are a million.
        super().__init__({code: self[code] for code in range(256)})
        self.update({ord(character): instead for character, instead in kept.items()})

    def __missing__(self, code: int) -> str:
        character = chr(code)
        return character if character.isprintable() else self._escape(character)


def _as_in_python(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _as_in_json(character: str) -> str:
    return json.dumps(character)[1:-1]


_LINE = _Table(_as_in_python, {})
_LINES = _Table(_as_in_python, {"\n": "\n", "\t": "    "})
_JSON = _Table(_as_in_json, {"\n": "\n"})


def visible(text: str) -> str:
    """``text`` on one line, with everything that is not printable as Python would escape it."""
    return text if text.isprintable() else text.translate(_LINE)


def visible_lines(text: str) -> str:
    """The same for a text of several lines, such as a stack trace: it keeps its line breaks."""
    return text if text.isprintable() else text.translate(_LINES)


def visible_json(document: str) -> str:
    """The same JSON, with what is not printable in its strings as ``\\u`` escapes."""
    return document if document.isprintable() else document.translate(_JSON)
