"""The checker of the Lua scripts sees each kind of defect."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SOUND = """#!lua
--[[
  release: let a job go.

  Keys      base, wait list
  Args      id str, jobs list of {a, b}, name str?
            After the map, raw: its data.
  Returns   0
  Refuses   -2  its lock has expired                  LockLostError
  Cost      O(1)
]]
local base, wait = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/lock"

if #a.jobs == 0 or a.name then return -2 end
release(a.id, ARGV[2 * 1])
return redis.call("LRANGE", wait, 0, 10)
"""
INCLUDES = {"lock": "local function release(id, data)\n  return 0\nend\n"}


@pytest.fixture(scope="module")
def check_lua() -> ModuleType:
    path = Path(__file__).parent.parent / "tools" / "check_lua.py"
    spec = importlib.util.spec_from_file_location("check_lua", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_lua"] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


def test_a_sound_script_has_no_problems(check_lua: ModuleType) -> None:
    assert list(check_lua.check_script("release", SOUND, INCLUDES)) == []


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("#!lua\n", "-- lua\n", "instead of '#!lua'"),
        ("  Cost      O(1)\n", "", "has no Cost"),
        ("release: let", "let: let", "does not begin with 'release:"),
        ("Keys      base, wait list", "Keys      base", "the key line has"),
        ("Keys      base, wait list", "Keys      wait, base", "the key line has"),
        ("local base, wait = unpack(KEYS)", "local base = KEYS[1]", "first line of code"),
        ("local a = cmsgpack.unpack(ARGV[1])\n", "", "second line of code"),
        ("or a.name", "or a.other", "a.other is used and not listed"),
        ("or a.name", "", "name is listed under Args and never used"),
        ("return -2 end", "return -3 end", "returns -3, which is not listed"),
        ("return -2 end", "return 1 end", "lists the refusal -2, which nothing returns"),
        ("LockLostError", "NoSuchError", "names no class"),
        ("ARGV[2 * 1]", "ARGV[2]", "ARGV by number"),
        ("wait, 0, 10", "KEYS[2], 0, 10", "KEYS by number"),
        ("wait, 0, 10", "wait, 0, -1", "LRANGE up to the end"),
        ('"LRANGE", wait, 0, 10', '"SMEMBERS", wait', "SMEMBERS reads everything"),
        ('"LRANGE", wait, 0, 10', '"HGETALL", wait', "HGETALL of something"),
        ('"LRANGE", wait, 0, 10', '"ZRANGEBYSCORE", wait, 0, 1', "without LIMIT"),
        ("includes/lock", "includes/lack", "includes/lack.lua does not exist"),
        ('--- @include "includes/lock"\n', "", "calls release() before"),
    ],
)
def test_a_defect_is_told(check_lua: ModuleType, before: str, after: str, told: str) -> None:
    assert before in SOUND

    problems = list(check_lua.check_script("release", SOUND.replace(before, after), INCLUDES))

    assert any(told in problem for problem in problems), problems


def test_a_refusal_counts_only_where_its_function_is_called(check_lua: ModuleType) -> None:
    unused = {"lock": INCLUDES["lock"] + "\nlocal function leave()\n  return -3\nend\n"}
    script = SOUND.replace("release(a.id", "leave(release, a.id")

    assert list(check_lua.check_script("release", SOUND, unused)) == []
    assert any("returns -3" in told for told in check_lua.check_script("release", script, unused))


@pytest.mark.parametrize(
    "call",
    [
        'redis.call("SMEMBERS", wait) -- bounded: one per worker',
        '-- bounded: one per worker\nredis.call("SMEMBERS", wait)',
        'redis.call("HGETALL", job)',
        "local value = ARGV[2]",
        'redis.call("ZRANGEBYSCORE", wait, 0, 1,\n  "LIMIT", 0, 10)',
        'redis.call("ZRANGE", wait, 0, 0, "WITHSCORES")',
    ],
)
def test_what_is_bounded_or_named_is_fine(check_lua: ModuleType, call: str) -> None:
    assert list(check_lua.check_body("x.lua", call, first_line=1)) == []
