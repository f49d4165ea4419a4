"""All orders in which clients can act, faults included, on a real server (reliability 3.2).

Every world is explored deep and wide, each time by a fixed number of steps: ordinary runs take
200,000 in all, `make prove` more than ten million, elsewhere every day.
"""

from __future__ import annotations

import datetime as dt

import pytest

from tests.model.explorer import explore
from tests.model.machine import Machine
from tests.model.world import (
    CONFIRMATION,
    DEATH,
    EXPIRY,
    GHOST,
    GIVING_BACK,
    LEAVING,
    LOST,
    RENEWAL,
    World,
)
from tests.model.worlds import CORNERS, WORLDS
from tests.proving import PROVES_ALL, amount
from tests.servers import Server

TOTAL = amount(200_000, 10_000_000)
DEEP_SHARE = 0.75
CORNER_STEPS = amount(1_500, 40_000)
MOST_FAULTS = 4
MOST_TRIES = 5
"""How often a world over several slots is explored until couriers have done what is dangerous."""
NEEDED = {
    LOST: "reply lost",
    GHOST: "arrives again",
    DEATH: "dies",
    EXPIRY: "expires",
    GIVING_BACK: "give back",
    RENEWAL: "renews",
    CONFIRMATION: "confirms",
    LEAVING: "leaves",
}


def share_of(way: str) -> int:
    """How many steps are taken in each world."""
    share = DEEP_SHARE if way == "deep" else 1 - DEEP_SHARE
    return int(TOTAL * share / len(WORLDS)) + 1


@pytest.fixture(scope="module")
def model_server():
    with Server() as server:
        yield server


@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("way", ["deep", "wide"])
@pytest.mark.parametrize("name", WORLDS)
def test_nothing_goes_wrong_in_any_order(name, way, model_server, record_testsuite_property):
    """Every invariant in every state, and from every state it comes to an end."""
    seed = amount(1, dt.datetime.now(dt.UTC).toordinal())
    taken, seen, told = 0, set(), []

    # A world that is exhausted goes on with more faults.
    for more in range(MOST_FAULTS):
        world = WORLDS[name].with_more_faults(more)
        machine = Machine(model_server)
        findings = explore(
            world, machine, most=share_of(way) - taken, seed=seed, is_deep=way == "deep"
        )
        machine.close()
        taken += findings.expansions
        seen.update(findings.steps)
        extent = "all there are" if findings.is_exhausted else "of more"
        told.append(f"{findings.expansions} steps, {extent}")
        if taken >= share_of(way):
            break

    record_testsuite_property(f"{name} ({way})", "; with more faults ".join(told))
    print(f"{name} ({way}): {'; with more faults '.join(told)}")
    assert taken >= share_of(way), f"{name} has no more: enlarge it"
    for more in range(1, MOST_TRIES):
        if way == "deep" and _unseen(WORLDS[name], seen):
            machine = Machine(model_server)
            again = explore(
                WORLDS[name], machine, most=share_of(way), seed=seed + more, is_deep=True
            )
            machine.close()
            seen.update(again.steps)
    missing = _unseen(WORLDS[name], seen) if way == "deep" else set()
    assert not missing, f"a branch that never happened proves nothing: {missing}"
    if way == "deep" and PROVES_ALL:
        wanted = {NEEDED[fault] for fault, _ in WORLDS[name].faults if fault in NEEDED}
        missing = {
            word
            for word in wanted | {"takes", "done", "sweep"}
            if not any(word in step for step in seen)
        }
        assert not missing, f"a branch that never happened proves nothing: {missing}"


def _unseen(world: World, seen: set[str]) -> set[str]:
    """What couriers must have done, or have been prevented from, and did not."""
    if not world.is_spread:
        return set()
    wanted = {"collects", "dies with its parcels", "dies before it collects", ", unheard", " again"}
    wanted |= {f"{verb} again" if PROVES_ALL else verb for verb in world.needs}
    by_couriers = [step for step in seen if "a courier" in step]
    return {word for word in wanted if not any(word in step for step in by_couriers)}


@pytest.mark.parametrize("name", CORNERS)
def test_nothing_goes_wrong_in_a_corner(name, model_server):
    """reliability 3.2: moments that the large worlds reach late or never."""
    machine = Machine(model_server)
    world = CORNERS[name]
    findings = explore(world, machine, most=CORNER_STEPS, drain_share=0.05, is_deep=world.is_spread)
    machine.close()

    assert findings.is_exhausted or findings.expansions >= CORNER_STEPS
    assert findings.drained > 0


def test_the_shares_are_what_is_claimed():
    """reliability 3.2: at least 200,000 steps in `make test`, ten million in `make prove`."""
    assert len(WORLDS) * (share_of("deep") + share_of("wide")) >= TOTAL
