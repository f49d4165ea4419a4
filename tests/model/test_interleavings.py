"""All orders in which clients can act, faults included, on a real server (reliability 3.2).

Ordinary runs walk deep into each universe for a while; `make prove` goes elsewhere every day and
expands more than ten million steps. How many it were is said at the end of the run.
"""

from __future__ import annotations

import datetime as dt

import pytest

from tests.model.interleaving import explore
from tests.model.machine import Machine
from tests.model.universes import UNIVERSES
from tests.proving import PROVES_ALL, amount
from tests.servers import Server

MOST = amount(60_000, 600_000)
SECONDS = amount(15.0, 3600.0)
FEWEST = amount(300, 100_000)
NEEDED = {
    "lost": "reply lost",
    "ghost": "arrives again",
    "death": "dies",
    "expiry": "expires",
    "give back": "give back",
    "renewal": "renews",
}


@pytest.fixture(scope="module")
def model_server():
    with Server() as server:
        yield server


@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("way", ["deep", "wide"])
@pytest.mark.parametrize("name", UNIVERSES)
def test_nothing_goes_wrong_in_any_order(name, way, model_server, record_testsuite_property):
    """Every invariant in every state, and from every state it comes to an end."""
    machine = Machine(model_server)
    share = 1.0 if way == "deep" else amount(0.25, 1.0)
    seed = amount(1, dt.datetime.now(dt.UTC).toordinal())

    findings = explore(
        UNIVERSES[name],
        machine,
        most=int(MOST * share),
        seconds=SECONDS * share,
        seed=seed,
        is_deep=way == "deep",
    )

    machine.close()
    record_testsuite_property(f"expansions of {name} ({way})", findings.expansions)
    print(f"{name} ({way}): {findings.expansions} expansions, {findings.states} states")
    assert findings.is_exhausted or findings.expansions >= FEWEST * share
    if way == "deep" and PROVES_ALL:
        seen = " ".join(findings.steps)
        wanted = {NEEDED[fault] for fault, times in UNIVERSES[name].budget if times}
        missing = {word for word in wanted | {"takes", "done", "sweep"} if word not in seen}
        assert not missing, f"a branch that never happened proves nothing: {missing}"
