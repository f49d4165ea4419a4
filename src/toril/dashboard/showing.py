"""Templates: every text of a job is escaped, and what would turn or hide text is made visible.

``{{ text }}`` does both.  ``{{ text | exact }}`` only escapes, for values that a form sends back.
"""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from toril.protocol.visible_text import visible, visible_json, visible_lines

HERE = Path(__file__).parent
MOST_SHOWN = 64 * 1024

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))
_HALF = re.compile(r"[\ud800-\udfff]")


def make_environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        exact=exact, lines=lines, pretty=pretty, number=number, ago=ago, span=span, when=when,
        short=short, words=words,
        counted=counted,
    )  # fmt: skip
    environment.globals["link"] = link
    return environment


def _finalize(value: Any) -> Any:
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return visible(value)


def exact(value: Any) -> Markup:
    """A value that comes back as it is: hidden fields and inputs."""
    text = str(value)
    return escape(text if text.isprintable() else text.encode("utf-8", "replace").decode())


def lines(text: Any) -> Markup:
    """A text of several lines, such as a stack trace; a very long one is cut."""
    return escape(visible_lines(_cut(str(text))))


def pretty(value: Any) -> Markup:
    """A value as JSON for people."""
    return escape(visible_json(_cut(as_json(value))))


def as_json(value: Any) -> str:
    """Indented JSON of whatever was in a job."""
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    except (ValueError, RecursionError) as error:
        return f"(cannot be shown: {error})"
    # No page can be sent with half a character, and a form would send something else back.
    return _HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def _cut(text: str) -> str:
    if len(text) <= MOST_SHOWN:
        return text
    return f"{text[:MOST_SHOWN]}\n… cut here: {len(text):,} characters in all"


def number(value: float) -> str:
    """``12,345``; a small fraction keeps a digit."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def counted(count: int, noun: str) -> str:
    """``1 job``, ``2,000 jobs``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def short(value: Any, most: int = 80) -> str:
    """The beginning of a text, on one line."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = " ".join(text[: 4 * most].split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def words(name: str) -> str:
    """``waiting_children`` and ``FAILED_COMPENSATION`` as a person says it."""
    return name.replace("_", " ").lower()


def span(ms: float) -> str:
    """``1m 20s``."""
    if ms < 1000:
        return f"{max(ms, 0):.0f} ms"
    if ms < 10_000:
        return f"{ms / 1000:.1f}s"
    parts: list[str] = []
    for unit, size in _UNITS:
        count, ms = divmod(ms, size)
        if count:
            parts.append(f"{count:.0f}{unit}")
    return " ".join(parts[:2])


def ago(at_ms: int | None) -> str:
    """``5m ago`` or ``in 2h``; nothing for no time."""
    if not at_ms:
        return ""
    passed = time.time() * 1000 - at_ms
    if abs(passed) < 1000:
        return "now"
    return f"{span(passed)} ago" if passed > 0 else f"in {span(-passed)}"


def when(at_ms: int | None) -> Markup:
    """A time in UTC that the page's script turns into the reader's zone."""
    if not at_ms:
        return Markup("")
    try:
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return escape(str(at_ms))
    return Markup('<time datetime="{}" title="{}">{:%Y-%m-%d %H:%M:%S} UTC</time>').format(
        moment.isoformat(), ago(at_ms), moment
    )


def link(root: str, path: str, /, **query: Any) -> str:
    """The address of a page; names of queues, jobs and lanes may hold anything."""
    given = [(name, value) for name, value in query.items() if value not in (None, "")]
    text = urlencode(given, errors="replace")
    return f"{root}{path}?{text}" if text else f"{root}{path}"
