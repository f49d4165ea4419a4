"""The explorer finds planted bugs: a server call left out, or exchanged for its opposite.

A mutant counts when its line is run in some world at all. `make prove` tries all of them; those
that it does not find are in the table `SURVIVORS`, and nowhere else.
"""

from __future__ import annotations

import pytest

from tests.helpers import not_run
from tests.model.mutants import all_mutants
from tests.model.planting import Coverage, coverage, find
from tests.model.survivors import EQUIVALENT, SURVIVORS
from tests.proving import PROVES_ALL
from tests.servers import Server

PARTS = 16
BAR = 0.95


@pytest.fixture(scope="module")
def model_server():
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def where(model_server) -> Coverage:
    if not PROVES_ALL:
        not_run("mutants take long: `make prove` plants them all")
    return coverage(model_server)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_planted_bugs_are_found(model_server, where, part):
    """reliability 3.2: each mutant whose line is run, but for those known to survive."""
    missed = []
    for number, mutant in enumerate(all_mutants()):
        if number % PARTS != part or number not in where or mutant.name in EQUIVALENT:
            continue
        if find(mutant, where[number], model_server) is None:
            missed.append(mutant.name)
        elif mutant.name in SURVIVORS:
            print(f"{mutant.name} is found now: take it off the table")

    new = [name for name in missed if name not in SURVIVORS]
    assert not new, "\n".join(new)


def test_few_survive(where):
    """reliability 3.2 asks for 95 % of those whose line is run."""
    run = {mutant.name for number, mutant in enumerate(all_mutants()) if number in where}
    counted = run - EQUIVALENT.keys()
    print(f"{len(all_mutants())} planted, {len(counted)} counted, {len(SURVIVORS)} survive")

    assert counted >= SURVIVORS
    assert len(counted) - len(SURVIVORS) >= BAR * len(counted)


def test_the_survivors_are_mutants():
    """A line that moved has another name: the tables follow."""
    names = {mutant.name for mutant in all_mutants()}

    assert names >= SURVIVORS | EQUIVALENT.keys()
