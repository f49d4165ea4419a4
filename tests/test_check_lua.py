"""The checker of the Lua scripts sees each kind of defect."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from toril.protocol.scripts import Library

SOUND = """--[[
  release: let a job go.

  Keys      base, wait list
  Args      id str, jobs list of {a, b (or not)}, name str?
            After the map, raw: its data.
  Returns   0
  Refuses   LOCK_EXPIRED  its lock has expired        LockLostError
  Flags     allow-oom
  Cost      O(1)
]]
local MOST = 10

local function count(list)
  local sum = 0
  for _, one in ipairs(list) do
    sum = sum + one.a + one.b
  end
  return sum
end

function calls.release(KEYS, a, ARGV)
  local base, wait = unpack(KEYS)
  if count(a.jobs) == 0 or a.name then return refusals.LOCK_EXPIRED end
  memory.released = locks.release(a.id, ARGV[2 * 1])
  return redis.call("LRANGE", wait, 0, MOST)
end
"""
LOCKS = "function locks.release(id, data)\n  return 0\nend\n"


def library(locks: str = LOCKS) -> Library:
    return Library({"locks": locks}, {"release": SOUND}, "")


@pytest.fixture(scope="module")
def check_lua() -> ModuleType:
    tools = Path(__file__).parent.parent / "tools"
    path = tools / "check_lua.py"
    sys.path.insert(0, str(tools))
    spec = importlib.util.spec_from_file_location("check_lua", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_lua"] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


def test_a_sound_script_has_no_problems(check_lua: ModuleType) -> None:
    assert list(check_lua.check_call("release", SOUND, library())) == []


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("--[[\n", "-- [\n", "no header comment"),
        ("  Cost      O(1)\n", "", "has no Cost"),
        ("release: let", "let: let", "does not begin with 'release:"),
        ("Keys      base, wait list", "Keys      base", "the key line has"),
        ("Keys      base, wait list", "Keys      wait, base", "the key line has"),
        ("local base, wait = unpack(KEYS)", "local base = KEYS[1]", "first line of the call"),
        ("calls.release(KEYS, a, ARGV)", "calls.release(KEYS, ARGV)", "has no 'function calls"),
        ("allow-oom", "allow-all", "the flag 'allow-all'"),
        ("or a.name", "or a.other", "a.other is used and not listed"),
        ("or a.name", "", "name is listed under Args and never used"),
        ("refusals.LOCK", "refusals.LOCKS", "which is none of protocol/refusals.py"),
        ("refusals.LOCK_EXPIRED", "refusals.MISSING", "refuses with MISSING, which is not listed"),
        ("refusals.LOCK_EXPIRED", "1", "lists the refusal LOCK_EXPIRED, which nothing gives"),
        ("LockLostError", "NoSuchError", "names no class"),
        ("ARGV[2 * 1]", "ARGV[2]", "ARGV by number"),
        ("wait, 0, MOST", "KEYS[2], 0, MOST", "KEYS by number"),
        *(
            ("  memory.", f"  {line}\n  memory.", "hashes.values of")
            for line in (
                'local x = hashes.values(base, "name")',
                'local name = hashes.values(base, "name", "atm")',
                'local atm, name = hashes.values(base, "name", "atm")',
                'local parent = hashes.values(base, "parentKey")',
                'local group = hashes.values(base, "x.lane")',
                "local field = hashes.values(base, field)",
                'a.count(hashes.values(base, "name"))',
            )
        ),
        ("wait, 0, MOST", "wait, 0, -1", "LRANGE up to the end"),
        ('"LRANGE", wait, 0, MOST', '"SMEMBERS", wait', "SMEMBERS reads everything"),
        ('"LRANGE", wait, 0, MOST', '"HGETALL", wait', "HGETALL of something"),
        ('"LRANGE", wait, 0, MOST', '"ZRANGEBYSCORE", wait, 0, 1', "without LIMIT"),
        ("one.b", "1", "b is listed under jobs and never read"),
        ("locks.release", "locks.open", "uses locks.open, which that room does not have"),
        ("locks.release", "lanes.release", "uses lanes, which is neither a room"),
        ("memory.released", "released", "assigns to released, which outlives the call"),
        ("memory.released", "MOST", "assigns to MOST, which outlives the call"),
        ("local MOST = 10", "locks.MOST = 10", "assigns to locks, which is not its own"),
        ("  local sum = 0\n", "  local sum = 0\n" + "  sum = 1\n" * 60, "60 are enough"),
    ],
)
def test_a_defect_is_told(check_lua: ModuleType, before: str, after: str, told: str) -> None:
    assert before in SOUND

    problems = list(check_lua.check_call("release", SOUND.replace(before, after, 1), library()))

    assert any(told in problem for problem in problems), problems


def test_a_refusal_counts_only_where_its_function_is_called(check_lua: ModuleType) -> None:
    more = library(LOCKS + "\nfunction locks.leave()\n  return refusals.MISSING\nend\n")
    script = SOUND.replace("locks.release(a.id", "locks.leave(locks.release, a.id")

    assert list(check_lua.check_call("release", SOUND, more)) == []
    problems = list(check_lua.check_call("release", script, more))
    assert any("refuses with MISSING" in told for told in problems)


def test_an_item_of_a_list_is_read_by_the_names_in_the_header(check_lua: ModuleType) -> None:
    script = SOUND.replace("count(a.jobs)", "#a.jobs").replace(
        "  memory.",
        "  for _, job in ipairs(a.jobs) do count({ job.a, job.b, job.c }) end\n  memory.",
    )

    problems = list(check_lua.check_call("release", script, library()))

    assert problems == ["calls/release.lua: job.c is read and not listed under jobs"]


@pytest.mark.parametrize(
    "text",
    [
        "function locks.take(id)\n  id.x, id.y = 1, 2\n  local held = {}\n  held[id] = true\nend\n",
        "local KINDS = {}\nKINDS.a = 1\nfunction KINDS.b(x)\n  x = 2\n  return x\nend\n",
        "local take\ntake = function(n)\n  for i = 1, n do i = i + 1 end\n  return take(n)\nend\n",
        "function locks.both()\n  local a, b\n  a, b = 1, { c = 2, d = 3 }\n  return a, b\nend\n",
    ],
)
def test_what_belongs_to_a_function_may_be_changed(check_lua: ModuleType, text: str) -> None:
    assert list(check_lua.check_names("rooms/locks.lua", text, "locks", library(text))) == []


@pytest.mark.parametrize(
    "line",
    [
        "cache[id] = true",
        "cache.last = id",
        "seen = id",
        "locks.last = id",
        "local x = 1\n  x, seen = 2, 3",
        "local function note()\n    cache[id] = 1\n  end",
    ],
)
def test_what_outlives_a_call_may_not(check_lua: ModuleType, line: str) -> None:
    text = f"local cache, seen = {{}}, nil\nfunction locks.take(id)\n  {line}\nend\n"

    problems = list(check_lua.check_names("rooms/locks.lua", text, "locks", library(text)))

    assert any("which outlives the call" in problem for problem in problems), problems


@pytest.mark.parametrize(
    "call",
    [
        'redis.call("SMEMBERS", wait) -- bounded: one per worker',
        '-- bounded: one per worker\nredis.call("SMEMBERS", wait)',
        'redis.call("HGETALL", job)',
        "local value = ARGV[2]",
        'redis.call("ZRANGEBYSCORE", wait, 0, 1,\n  "LIMIT", 0, 10)',
        'redis.call("ZRANGE", wait, 0, 0, "WITHSCORES")',
        'local name, parent_key = hashes.values(job, "name", "parentKey")',
        'local group, prev_ts =\n  hashes.values(job, "x.group",\n    "prevTS")',
    ],
)
def test_what_is_bounded_or_named_is_fine(check_lua: ModuleType, call: str) -> None:
    assert list(check_lua.check_body("x.lua", call)) == []
