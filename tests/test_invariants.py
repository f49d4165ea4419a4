"""The invariants that scripts and tests cite are written down, and the other way round."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "internals" / "invariants.md"


def test_every_invariant_that_a_script_keeps_is_written_down():
    defined = set(re.findall(r"^\| \*\*([IG]\d+)\*\* \|", PAGE.read_text(), re.MULTILINE))
    cited = {}
    for script in (ROOT / "src" / "toril" / "lua" / "calls").glob("*.lua"):
        keeps = re.search(r"^  Keeps +(.*)$", script.read_text(), re.MULTILINE)
        cited[script.name] = set(re.findall(r"\b[IG]\d+\b", keeps[1])) if keeps else set()

    assert len(defined) >= 8
    assert {name: numbers - defined for name, numbers in cited.items() if numbers - defined} == {}
    assert {"I1", "I2", "I3", "I4", "I5", "I6", "G1", "G2", "G3"} <= set().union(*cited.values())


WRITES = re.compile(r'"(?:HSET|HDEL|SET|DEL|[LR]PUSH|[LR]POP|[LR]REM|ZADD|ZREM|SADD|XADD|LTRIM)"')


def test_scripts_that_write_further_than_their_keys_declare_the_base():
    """I8: a script that only reads cannot be stopped half-way."""
    for script in (ROOT / "src" / "toril" / "lua" / "calls").glob("*.lua"):
        text = script.read_text()
        key_line = re.search(r"^  local ([\w, ]+) = unpack\(KEYS\)$", text, re.MULTILINE)
        assert key_line is not None
        names = [name.strip() for name in key_line[1].split(",")]
        if "base" not in names and WRITES.search(text):
            derived = re.findall(r"\b(?:queues\.at|locks\.refuse|jobs\.delete)\b|\.\. *\"?:", text)
            assert derived == [], f"{script.name} derives keys and does not declare base"
