"""What most calls do not need is defined when it is first called."""

from __future__ import annotations

import pytest

from toril.protocol import scripts

FILES = {
    "plain": "local function plain(x)\n  return x\nend\n",
    "rare": (
        "--- @lazily\n"
        '--- @include "includes/plain"\n'
        '--- @include "includes/inner"\n'
        "local MOST = 3\n"
        "local function rare(x)\n  return plain(inner(x)) + MOST\nend\n"
    ),
    "inner": "local function inner(x)\n  return x * 2\nend\n",
    "apart": (
        "--- @lazily for letters\n"
        '--- @include "includes/rare"\n'
        "local function apart(x)\n  return rare(x) + 100\nend\n"
    ),
    "leaky": "--- @lazily\nlocal kept = {}\nlocal function leak()\n  return kept\nend\n",
}
SCRIPT = """#!lua
--[[
  header
]]
local base = unpack(KEYS)
--- @include "includes/rare"
--- @include "includes/plain"

if #ARGV > 0 then return rare(tonumber(ARGV[1])) end
return plain(7)
"""


def test_a_lazy_include_is_wrapped_with_what_only_it_needs():
    source = scripts.put_together(SCRIPT, FILES.__getitem__)

    late = source[
        source.index("local function defineLate()") : source.index("rare = function(...)")
    ]
    assert "rare = function(x)" in late
    assert "local function inner(x)" in late
    assert "local function plain(x)" not in late
    assert "header" not in source
    assert source.startswith("#!lua\n")


async def test_it_is_defined_when_it_is_called(client):
    source = scripts.put_together(SCRIPT, FILES.__getitem__)

    assert await client.eval(source, 1, "any") == 7
    assert await client.eval(source, 1, "any", 5) == 13


async def test_what_is_needed_for_one_purpose_is_defined_apart(client):
    script = SCRIPT.replace("includes/plain", "includes/apart") + "return apart(1)\n"
    script = script.replace("return plain(7)", "if ARGV[2] then return 0 end")

    source = scripts.put_together(script, FILES.__getitem__)

    late = source[source.index("local function defineLate()") : source.index("rare = function(...")]
    assert "apart" not in late
    apart = source[source.index("local function defineLateLetters()") :]
    assert "apart = function(x)" in apart
    assert "rare = function(x)" not in apart
    assert await client.eval(source, 1, "any") == 105


def test_what_a_lazy_include_keeps_to_itself_must_not_be_used_outside():
    script = (
        '#!lua\nlocal base = unpack(KEYS)\n--- @include "includes/leaky"\nreturn #kept + leak()\n'
    )

    with pytest.raises(ValueError, match="keeps 'kept'"):
        scripts.put_together(script, FILES.__getitem__)
