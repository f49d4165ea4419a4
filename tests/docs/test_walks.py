"""Pages that name tests: each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
PAGES = {
    str(page.relative_to(ROOT)): named
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if (named := sorted(set(NAMED.findall(page.read_text()))))
}


def test_the_pages_are_found():
    walks = ("audit", "dashboard", "documentation", "sagas-walk", "scale-walk", "server-walk")

    assert {f"docs/internals/{walk}.md" for walk in walks} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_exists(page: str):
    missing = [
        f"{file}::{name}"
        for file, name in PAGES[page]
        if not (ROOT / file).is_file()
        or (name and not re.search(rf"\b(?:def|class) {name}\b", (ROOT / file).read_text()))
    ]

    assert missing == []


@pytest.mark.parametrize(("walk", "least"), [("scale-walk", 30), ("server-walk", 25)])
def test_every_promise_names_a_test(walk: str, least: int):
    text = (ROOT / "docs" / "internals" / f"{walk}.md").read_text()
    rows = [
        line for line in text.splitlines() if line.startswith("| ") and "| shown by" not in line
    ]

    assert len(rows) > least
    assert [row for row in rows if "::test_" not in row] == []
