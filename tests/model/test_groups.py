"""Every interleaving of a group of three and two workers, with faults at any moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.model.explorer import Exploration, explore, planted, scripts_as_explored
from tests.model.group_universe import GroupUniverse
from tests.proving import PROVES_ALL
from tests.servers import Server


@pytest.fixture(scope="module")
def machine() -> Iterator[Server]:
    with Server() as server:
        yield server


def explored(machine: Server, **faults: Any) -> Exploration:
    with scripts_as_explored():
        return explore(machine, GroupUniverse(**faults))


UNIVERSES = {
    "cancel": {"cancels": 1},
    "crash": {"crashes": 1},
    "lost reply": {"losses": 1},
    "lost cancel": {"cancels": 1, "losses": 1},
    "retry by hand": {"retries": 1},
    "reverse": {"cancels": 1, "order": "reverse"},
}
LARGE = {
    "expiry": {"expiries": 1},
    "crash and cancel": {"crashes": 1, "cancels": 1},
    "two crashes": {"crashes": 2},
    "everything once": {"crashes": 1, "cancels": 1, "losses": 1, "expiries": 1},
    "three workers": {"workers": 3, "crashes": 1, "cancels": 1},
    "reverse, everything": {"order": "reverse", "crashes": 1, "cancels": 1, "losses": 1},
}


@pytest.mark.parametrize("name", [*UNIVERSES, *(LARGE if PROVES_ALL else ())])
def test_nothing_can_go_wrong(machine: Server, name: str):
    """SAGA-15, SAGA-16, SAGA-39, SAGA-42, SAGA-44: in every state, and at every end."""
    found = explored(machine, **(UNIVERSES | LARGE)[name])

    assert found.violations == []
    assert found.ends > 10
    assert {"take", "complete", "fail"} <= found.names


MUTANTS = {
    "a late completer is ignored": (
        {},
        'is_undone = kind ~= "u" and (group.state == "ACTIVE" or group.undoes_late)',
        'is_undone = kind ~= "u" and group.state == "ACTIVE"',
    ),
    "who died half-way is not undone": (
        {"crashes": 1},
        'if state == "completed" or ended.is_open then',
        'if state == "completed" then',
    ),
    "a group ends while a member runs": (
        {},
        "  if group.undoes_late and liveMembers(group) > 0 then return end\n  endGroup",
        "  endGroup",
    ),
    "an end counts twice": (
        {"retries": 1},
        '  if redis.call("HGET", key .. ":jobs", job) ~= "pending" then return end\n',
        "",
    ),
    "every failure turns the group": (
        {},
        '  if group.state ~= "ACTIVE" then\n    settleGroup(group, now)\n  elseif',
        "  if false then\n    settleGroup(group, now)\n  elseif",
    ),
    "a failed undoing is hidden": (
        {},
        'group.broken > 0 and "FAILED_COMPENSATION" or "FAILED"',
        '"FAILED"',
    ),
    "cancelled members are not counted": (
        {"cancels": 1},
        'group.cancelled = redis.call("HINCRBY", group.key, "cancelledCount", #cancelled)',
        "group.cancelled = group.cancelled + #cancelled",
    ),
    "an undoing is forgotten": (
        {},
        'redis.call("RPUSH", key .. ":undo", number)',
        'redis.call("LPUSHX", key .. ":undo", number)',
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bugs_are_found(machine: Server, name: str):
    """SAGA-42: an explorer that finds nothing must have been able to."""
    faults, old, new = MUTANTS[name]

    with scripts_as_explored(planted("groups", old, new)):
        found = explore(machine, GroupUniverse(**faults))

    assert found.violations, f"{found.states} states, and nothing was wrong"


def test_a_cancel_that_waits_for_nobody_is_found(machine: Server):
    """SAGA-22: members that are running vanish under their worker."""
    bug = planted("cancelWaiting", "if not holders[i] or released[locks[i]] then", "if true then")
    vanish = planted(
        "cancelWaiting",
        'if not (started[id] and redis.call("LPOS", queue.active, id)) then',
        'if redis.call("LREM", queue.active, 1, id) == 1 then places[id] = "active"\n    else',
    )

    with scripts_as_explored(lambda name, source: vanish(name, bug(name, source))):
        found = explore(machine, GroupUniverse(cancels=1))

    assert found.violations
