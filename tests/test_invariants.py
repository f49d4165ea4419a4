"""The invariants that scripts and tests cite are written down, and the other way round."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "internals" / "invariants.md"


LUA = ROOT / "src" / "toril" / "lua"
ROW = re.compile(r"^\| \*\*([IGL]\d+)\*\* \|(.*)\|(.*)\|$", re.MULTILINE)
ROOMS = {room.stem: room.read_text() for room in (LUA / "rooms").glob("*.lua")}


def test_every_invariant_that_a_script_keeps_is_written_down():
    defined = {number for number, _, _ in ROW.findall(PAGE.read_text())}
    cited = {}
    for script in (LUA / "calls").glob("*.lua"):
        keeps = re.search(r"^  Keeps +(.*)$", script.read_text(), re.MULTILINE)
        cited[script.name] = set(re.findall(r"\b[IGL]\d+\b", keeps[1])) if keeps else set()

    assert len(defined) == 23
    assert {name: numbers - defined for name, numbers in cited.items() if numbers - defined} == {}
    assert {"I1", "I2", "I3", "I4", "I5", "I6", "G1", "G2", "G3"} <= set().union(*cited.values())


def test_what_keeps_an_invariant_exists():
    """Functions of rooms, calls, tests: what the last column names."""
    missing = []
    for number, _, kept_by in ROW.findall(PAGE.read_text()):
        assert kept_by.strip(), number
        for name in re.findall(r"`([^`]+)`", kept_by):
            room, _, function = name.partition(".")
            is_there = {
                "calls/": (LUA / f"{name}.lua").is_file(),
                "tests/": (ROOT / name).exists(),
            }.get(name[:6], True)
            if room in ROOMS and function:
                is_there = f"function {name}(" in ROOMS[room]
            if not is_there:
                missing.append((number, name))

    assert missing == []


def test_what_lanes_hold_and_put_aside_is_written_in_few_places():
    """L1 and L6: both parts of the state are changed together, or not at all."""
    writes = re.compile(r'"(?:HSET|HDEL|ZADD|ZREM|DEL)", queue\["lanes:(held|aside|delayed)"\]')
    found = set()
    for room, text in ROOMS.items():
        for function in re.finditer(r"^(?:local )?function ([\w.]+)(.|\n)*?^end$", text, re.M):
            found |= {(part, room, function[1]) for part in writes.findall(function[0])}

    assert {(room, function) for part, room, function in found if part == "held"} == {
        ("lanes", "lanes.saveHolders"),
        ("lanes", "lanes.releaseAll"),
        ("laneTakes", "takeHeads"),  # a step of laneTakes.pop
    }
    assert {(room, function) for part, room, function in found if part != "held"} == {
        ("lanes", "lanes.putAside"),
        ("lanes", "lanes.takeFromAside"),
    }


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
