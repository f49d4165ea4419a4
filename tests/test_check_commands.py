"""The checker of the commands compares Python with the header of the script."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

LUA = """--[[
  renew: hold locks longer.

  Keys      base, active, unacked
  Args      locks list of {id, token}, lock_ms int, slow bool?, resend bool?
  Returns   0
  Cost      O(locks)
]]
function calls.renew(KEYS, a, ARGV)
  local base, active, unacked = unpack(KEYS)
"""
SOUND = """
def renew(keys, slow):
    args = {"locks": [], "lock_ms": 1}
    if slow:
        args["slow"] = True
    return script("renew", keys, args, parse, extra={"unacked": "u"}, resend=Resend.MARKED)
"""


@pytest.fixture(scope="module")
def check_commands() -> ModuleType:
    sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
    try:
        return importlib.import_module("check_commands")
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("", "", None),
        ('"lock_ms": 1', "", "needs 'lock_ms', which may be missing"),
        ('"lock_ms": 1', '"lock_ms": 1, "lok": 2', "gives 'lok', which the header"),
        ('args["slow"]', 'args["slw"]', "gives 'slw', which the header"),
        ('{"unacked": "u"}', '{"unacked": "u", "other": "o"}', "gives the key 'other'"),
        ('extra={"unacked": "u"}, ', "", "needs the key 'unacked'"),
        (", resend=Resend.MARKED", "", "asks for 'resend'"),
    ],
)
def test_a_command_is_compared_with_its_script(
    check_commands: ModuleType, tmp_path: Path, before: str, after: str, told: str | None
) -> None:
    source = tmp_path / "leasing.py"
    source.write_text(SOUND.replace(before, after) if before else SOUND)

    (use,) = check_commands.find_uses(source)
    problems = list(check_commands.check_use(use, LUA))

    assert len(problems) == (1 if told else 0)
    assert all(str(told) in problem for problem in problems), problems
