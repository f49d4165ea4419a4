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
        'ended.is_open) and (group.state == "ACTIVE" or group.undoes_late) then',
        'ended.is_open) and group.state == "ACTIVE" then',
    ),
    "who died half-way is not undone": (
        groups.GROUP,
        "groups",
        'if (state == "completed" or ended.is_open) and',
        'if state == "completed" and',
    ),
    "a group ends while a member runs": (
        groups.GROUP,
        "groups",
        "if group.running > 0 or group.undoes_late and liveMembers(group) > 0 then return true end",
        "if group.running > 0 then return true end",
    ),
    "an end counts twice": (
        groups.ALONE,
        "groups",
        '  if status ~= "pending" and status ~= "awaited" then return end\n',
        "",
    ),
    "every failure turns the group": (
        groups.GROUP,
        "groups",
        '  if group.state == "ACTIVE" or group.state == "BLOCKED" then\n    goOn(',
        "  if true then\n    goOn(",
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
    "a gate opens before all have completed": (
        groups.JOINED,
        "stages",
        '    if statuses[i] ~= "completed" then return {} end\n',
        "",
        "  if group.completed < #after then return {} end\n",
        "",
    ),
    "a member becomes a job twice": (
        groups.PIVOT,
        "stages",
        'if statuses[#after + i] == "planned" then',
        "if true then",
    ),
    "nobody opens the gate": (
        groups.STAGED,
        "groups",
        "    stages.advance(group, number, now)\n",
        "",
    ),
    "a stage is undone before the next": (
        groups.UNDONE_IN_STAGES,
        "retreats",
        "if countMembers(gate) > 0 then found = found + 1 end",
        "",
    ),
    "a stage is undone while the next runs": (
        groups.JOINED,
        "retreats",
        'statuses[i + 1] == "pending" and plan.number_of[statuses[i]]',
        "false",
    ),
    "planned members outlive their group": (
        groups.STAGED,
        "stages",
        'if statuses[i + 1] == "planned" or statuses[i + 1] == "awaited" then',
        'if statuses[i + 1] == "awaited" then',
    ),
    "what came before the pivot is undone": (
        groups.PIVOT,
        "groups",
        "stages.isPastPivot(group) or is_pivot and ended.is_open or is_blocked and not is_pivot",
        "false",
    ),
    "a pivot that completes late is undone past": (
        groups.PIVOT,
        "groups",
        'and number == group.pivot and (state == "completed" or ended.is_open) then',
        "and false then",
    ),
    "a signal waits for ever": (
        groups.SIGNALLED,
        "stages",
        "if tonumber(limits[i + 1]) <= now then",
        "if false then",
    ),
    "what BullMQ failed is never noticed": (
        groups.NODE,
        "endings",
        'if redis.call("ZSCORE", queue_base .. ":failed", id) then',
        "if false then",
    ),
    "what BullMQ completed opens no gate": (
        groups.NODE_IN_STAGES,
        "endings",
        'if redis.call("ZSCORE", queue_base .. ":completed", id) then',
        "if false then",
    ),
    "nobody is asked about what BullMQ removed": (
        groups.NODE,
        "endings",
        "    ask(key, field, id, now)\n    return nil",
        "    return nil",
    ),
    "a member of a forgotten group runs": (
        groups.FORGOTTEN_IN_STAGES,
        "groups",
        'return state or "FORGOTTEN"',
        'return state or "ACTIVE"',
    ),
    "a group that is forgotten is started again": (
        groups.FORGOTTEN_IN_STAGES,
        "groups",
        'redis.call("RENAME", key, gone)',
        'redis.call("UNLINK", key)',
    ),
    "a member is cancelled that somebody runs": (
        groups.GROUP,
        "members",
        "if not holders[i] or released[lock_keys[i]] then",
        "if true then",
        'if is_leaving or not (started[id] and redis.pcall("LPOS", queue.active, id)) then',
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
