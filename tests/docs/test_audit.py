"""The page about the audit names a test for every line."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "internals" / "audit.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))
LINES = range(1, 28)
ABOUT_RUNS = {25}
"""How long the tests take is no test."""


def test_every_line_of_the_audit_is_there():
    told = {int(number) for number in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}

    assert told == set(LINES) - ABOUT_RUNS


def test_every_line_names_a_test_or_what_the_storm_does():
    rows = [row for row in PAGE.splitlines() if row.startswith("| ") and "`tests/" not in row]

    assert len(NAMED) > 100
    assert rows == ["| | what must hold | shown by |"] * 8 + ["| what | where |"]
