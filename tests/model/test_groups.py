"""Bugs planted into groups are found: an explorer that finds nothing must have been able to."""

from __future__ import annotations

import pytest

from tests.model.explorer import explore
from tests.model.machine import Machine
from tests.model.violation import Violation
from tests.model.worlds import groups
from tests.servers import Server
from toril.protocol import scripts

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
        '  if group.state ~= "ACTIVE" then\n    groups.settle(group, now)\n  elseif',
        "  if false then\n    groups.settle(group, now)\n  elseif",
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
        "members",
        "if not holders[i] or released[lock_keys[i]] then",
        "if true then",
        'if is_leaving or not (started[id] and redis.call("LPOS", queue.active, id)) then',
        'if redis.call("LREM", queue.active, 1, id) == 1 then place_of[id] = "active"\n    else',
    ),
}


@pytest.fixture(scope="module")
def model_server():
    with Server() as server:
        yield server


@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_found(model_server, name):
    """SAGA-22, SAGA-42: each of these is a protocol that somebody might have written."""
    world, room, *texts = BUGS[name]
    library = scripts.library()
    text = library.rooms[room]
    for old, new in zip(texts[::2], texts[1::2], strict=True):
        assert text.count(old) == 1
        text = text.replace(old, new)

    machine = Machine(model_server, library.with_texts({f"rooms/{room}": text}))
    with pytest.raises(Violation) as found:
        explore(world, machine, most=MOST, is_deep=True)
    machine.close()
    print(found.value)
