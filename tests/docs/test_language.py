"""Phrases that were calques and came back once are kept out of what users read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
    *sorted((ROOT / "src" / "toril" / "cli").rglob("*.py")),
    *sorted((ROOT / "src" / "toril" / "protocol").rglob("*.py")),
    ROOT / "src" / "toril" / "errors.py",
]
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
INSTEAD = {
    r"gives? the slot free": "frees the slot",
    r"waits? on, until": "keeps waiting until",
    r"goes before that of": "takes precedence over",
    r"counts its attempts on": "does not reset its attempts",
    r"either suffices": "either matches",
    r"the other side bears": "limit the rate",
    r"accepted and not believed": "ignored",
    r"silence restarts": "each duplicate restarts",
    r"do(?:es)? as well(?: as)?\b": "you can also pass",
    r"by chance\b": "at random",
    r"is spoken to like": "uses the same SQL as",
    r"can be used on\b": "remains usable",
    r"\bwhence\b": "where it came from",
    r"[Bb]reaking (?:one|a \w+) off": "interrupting it",
    r"\bbroken-off\b": "interrupted",
    r"\bgiv(?:e|es|ing) it free": "releasing it",
    r"\b(?:made|written|writes it|drawn|opened|begun|started|begin) anew\b": "again",
    r"can be gone on with": "can be resumed",
    r"\bgoes on where\b": "continues where",
    r"what (?:it )?came of (?:it|a change)\b": "the result",
    r"speak(?:s)? for themselves": "are clear by themselves",
    r"[Bb]eside workers of": "together with workers of",
    r"\bin the version before\b|\bof the version before\b": "of the previous version",
    r"end nobody knows": "unknown outcome",
    r"stands? beside (?:it|them)\b": "is next to it",
    r"travels? together": "are sent together",
    r"(?:^|\. )(?:Are|Is|Has|Have|Was|Were|Does) [^.?\n]+, ": "If …,",
}


@pytest.mark.parametrize("phrase", INSTEAD)
def test_a_phrase_that_puzzles_readers_is_not_used(phrase: str):
    found = [
        f"{path.relative_to(ROOT)}: {match[0]!r}; write {INSTEAD[phrase]!r}"
        for path in PAGES
        for match in re.finditer(phrase, CODE.sub("", path.read_text()), re.MULTILINE)
        if "?" not in match.string[match.start() : match.end() + 120].split("\n")[0]
    ]

    assert found == []
