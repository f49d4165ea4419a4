"""Phrases that were calques and came back once are kept out of what users read."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
    *sorted((ROOT / "deploy").rglob("*.yaml")),
    *sorted((ROOT / "deploy").rglob("*.service")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.py")),
    *sorted((ROOT / "src" / "toril").rglob("*.py")),
    *sorted((ROOT / "src" / "toril" / "dashboard").rglob("*.html")),
    *sorted((ROOT / "tools").glob("*.py")),
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
    r"a worker that dies in between is not possible": "there is no point at which a crash …",
    r"[Gg]iven up after": "abandoned after",
    r"[Tt]old in the first line": "the first line says so",
    r"[Oo]f every queue .{0,20} tells": "for every queue, … reports",
    r"for how many seconds the server has not": "seconds since the server last …",
    r"[Ll]et what undoes find out": "write compensations so that they check",
    r"[Ss]aying it otherwise": "other outcomes",
    r"[Ww]hat can be said\b": "options",
    r"\bless up to a quarter\b": "with up to 25 % jitter",
    r"\bis no (?:Worker|App|Relay|Queue|number|member|string|list|integer)\b": "is not a …",
    r"\bgo(?:es)? neither with\b": "cannot be combined with",
    r"\bas soon as all have\b": "when all …",
    r"\bhow far the job is\b": "the job's progress",
    r"\b(?:that|which) name none\b": "that name no …",
    r"\bwhat is no secret\b": "settings that are not secret",
    r"\bdoes not get better by\b": "retrying does not help",
    r"\ball the same\b": "anyway",
    r"\bno way back\b": "can no longer be undone",
    r"\bone at least\b": "at least one",
    r"\bbeside its beat\b": "its schedule stays as it is",
    r"\bfor what comes in\b": "to read stdin",
    r"\bshared? out among\b": "divided among",
    r"\b(?:takes?|took) the way over\b": "goes through",
    r"\bhears so\b": "is told",
    r"\bis away\b(?! for longer)": "does not answer",
    r"\ba server of your own\b": "your own server",
    r"\bhas a limit of its own\b": "has its own limit",
    r"(?:^|\. )(?:Are|Is|Has|Have|Was|Were|Does) [^.?\n]+, ": "If …,",
}


@functools.cache
def prose(path: Path) -> str:
    """What a page says, without its code."""
    return CODE.sub("", path.read_text())


@pytest.mark.parametrize("phrase", INSTEAD)
def test_a_phrase_that_puzzles_readers_is_not_used(phrase: str):
    found = [
        f"{path.relative_to(ROOT)}: {match[0]!r}; write {INSTEAD[phrase]!r}"
        for path in PAGES
        for match in re.finditer(phrase, prose(path), re.MULTILINE)
        if "?" not in match.string[match.start() : match.end() + 120].split("\n")[0]
    ]

    assert found == []
