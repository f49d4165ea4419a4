"""Bugs planted into groups are found: an explorer that finds nothing must have been able to."""

from __future__ import annotations

from importlib.resources import files

import pytest

from tests.model.explorer import explore
from tests.model.machine import Machine
from tests.model.violation import Violation
from tests.model.worlds import groups
from tests.servers import Server

MOST = 20_000
BUGS = {
    "a late completer is ignored": (
        groups.GROUP,
        "groups",
        'is_undone = kind ~= "u" and (group.state == "ACTIVE" or group.undoes_late)',
        'is_undone = kind ~= "u" and group.state == "ACTIVE"',
    ),
    "who died half-way is not undone": (
        groups.GROUP,
        "groups",
        'if state == "completed" or ended.is_open then',
        'if state == "completed" then',
    ),
    "a group ends while a member runs": (
        groups.GROUP,
        "groups",
        "  if group.undoes_late and liveMembers(group) > 0 then return end\n  endGroup",
        "  endGroup",
    ),
    "an end counts twice": (
        groups.ALONE,
        "groups",
        '  if redis.call("HGET", key .. ":jobs", job) ~= "pending" then return end\n',
        "",
    ),
    "every failure turns the group": (
        groups.GROUP,
        "groups",
        '  if group.state ~= "ACTIVE" then\n    settleGroup(group, now)\n  elseif',
        "  if false then\n    settleGroup(group, now)\n  elseif",
    ),
    "a failed undoing is hidden": (
        groups.GROUP,
        "groups",
        'group.broken > 0 and "FAILED_COMPENSATION" or "FAILED"',
        '"FAILED"',
    ),
    "cancelled members are not counted": (
        groups.GROUP,
        "groups",
        'group.cancelled = redis.call("HINCRBY", group.key, "cancelledCount", #cancelled)',
        "group.cancelled = group.cancelled + #cancelled",
    ),
    "an undoing is forgotten": (
        groups.GROUP,
        "groups",
        'redis.call("RPUSH", key .. ":undo", number)',
        'redis.call("LPUSHX", key .. ":undo", number)',
    ),
    "a member is cancelled that somebody runs": (
        groups.GROUP,
        "cancelWaiting",
        "if not holders[i] or released[locks[i]] then",
        "if true then",
        'if is_leaving or not (started[id] and redis.call("LPOS", queue.active, id)) then',
        'if redis.call("LREM", queue.active, 1, id) == 1 then places[id] = "active"\n    else',
    ),
}


@pytest.fixture(scope="module")
def model_server():
    with Server() as server:
        yield server


@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_found(model_server, name):
    """SAGA-22, SAGA-42: each of these is a protocol that somebody might have written."""
    world, include, *texts = BUGS[name]
    home = files("toril").joinpath("lua", "includes", f"{include}.lua").read_text()
    changes = dict(zip(texts[::2], texts[1::2], strict=True))
    assert all(home.count(old) == 1 for old in changes)

    def plant(script: str, source: str) -> str:
        for old, new in changes.items():
            source = source.replace(old, new)
        return source

    machine = Machine(model_server, plant)
    with pytest.raises(Violation) as found:
        explore(world, machine, most=MOST, is_deep=True)
    machine.close()
    print(found.value)
