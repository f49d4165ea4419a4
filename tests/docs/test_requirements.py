"""The numbered requirements: each is cited by a test, and each that is cited is written down."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "internals" / "requirements.md"
CODE = r"\b(?:SAGA|DLQ|FIFO|RULES|STEP|C)-\d{2}\b"
FAMILIES = {"SAGA": 45, "DLQ": 32, "FIFO": 32, "RULES": 17, "STEP": 13, "C": 33}


def defined() -> list[str]:
    return re.findall(rf"^\| ({CODE}) \|", PAGE.read_text(), re.MULTILINE)


def cited(*folders: str) -> dict[str, Path]:
    here = Path(__file__)
    return {
        code: path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".md", ".lua", ".mjs", ".js")
        and path not in (PAGE, here)
        and "node_modules" not in path.parts
        for code in re.findall(CODE, path.read_text())
    }


def test_the_codes_are_numbered_without_a_gap():
    expected = [f"{family}-{n:02}" for family, most in FAMILIES.items() for n in range(1, most + 1)]

    assert defined() == expected


def test_every_code_that_is_cited_is_written_down():
    everywhere = cited("src", "tests", "docs", "tools", "examples", "benchmarks")

    assert {code: path for code, path in everywhere.items() if code not in defined()} == {}


def test_every_requirement_is_cited_by_a_test():
    assert set(defined()) - set(cited("tests")) == set()
