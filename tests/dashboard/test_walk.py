"""The table of what shows each promise of the dashboard: it names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PAGE = ROOT / "docs" / "internals" / "dashboard.md"
IMAGES = ROOT / "docs" / "images"


def defined_in(path: Path) -> set[str]:
    return set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))


def named() -> set[tuple[str, str]]:
    """The tests of the table, each with its file, which is empty for one of this folder."""
    return set(re.findall(r"`(?:(tests/[\w/]+\.py)::)?(test_\w+)`", PAGE.read_text()))


def test_each_test_that_the_table_names_exists():
    here = set().union(*(defined_in(path) for path in HERE.glob("test_*.py")))
    missing = [
        name
        for file, name in sorted(named())
        if name not in (defined_in(ROOT / file) if file else here)
    ]

    assert len(named()) > 80
    assert missing == []


def test_each_row_of_the_table_names_something():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]

    assert [row for row in rows if "`" not in row.split(" | ")[1] and "shown by" not in row] == []


def test_the_pictures_are_there_in_light_and_dark():
    pages = {
        "README.md": ("dashboard", "monitor"),
        "docs/guides/dashboard.md": ("dashboard", "dashboard-job"),
        "docs/guides/monitor.md": ("monitor",),
    }
    for page, pictures in pages.items():
        text = (ROOT / page).read_text()
        for picture in pictures:
            kind = "png" if picture.startswith("dashboard") else "svg"
            files = [f"{picture}-{scheme}.{kind}" for scheme in ("light", "dark")]
            assert all(f"images/{file}" in text for file in files), (page, picture)
            light, dark = [(IMAGES / file).read_bytes() for file in files]
            assert light != dark
            beginning = b"\x89PNG" if kind == "png" else b"<svg"
            assert light.startswith(beginning)
            assert dark.startswith(beginning)
