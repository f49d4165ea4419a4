"""Planted bugs are found: a server call left out, or exchanged for its opposite.

The explorer looks for them; those that no world finds are found by an ordinary test, which `TESTED`
names.  `make prove` tries all of them (`T="-k planted"` nothing else, `T="-k 'planted and stages'"`
those of one file); those that are not found are in the tables of `survivors`, and nowhere else.
"""

from __future__ import annotations

import pytest

from tests.helpers import not_run
from tests.model.mutants import FILES, all_mutants
from tests.model.ordinary import fails
from tests.model.planting import Coverage, coverage, find
from tests.model.survivors import EQUIVALENT, SURVIVORS
from tests.model.tested import TESTED
from tests.proving import PROVES_ALL
from tests.servers import Server

BAR = 0.95
CANARY = 'resolveGroup: without redis.call("HSET", group, "x.note", a.note)'
"""One that an ordinary test finds within a second."""


@pytest.fixture(scope="module")
def model_server():
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def where(model_server) -> Coverage:
    if not PROVES_ALL:
        not_run("mutants take long: `make prove` plants them all")
    return coverage(model_server)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("file", FILES)
def test_planted_bugs_are_found(model_server, where, file):
    """reliability 3.2: each mutant is found, but for those known to survive."""
    missed = []
    for number, mutant in enumerate(all_mutants()):
        if mutant.file != file or mutant.name in EQUIVALENT:
            continue
        if mutant.name in TESTED:
            is_found = fails(TESTED[mutant.name], mutant.name)
        else:
            is_found = find(mutant, where.get(number, {}), model_server) is not None
        if not is_found:
            missed.append(mutant.name)
        elif mutant.name in SURVIVORS:
            print(f"{mutant.name} is found now: take it off the table")

    new = [name for name in missed if name not in SURVIVORS]
    assert not new, "\n".join(new)


def test_few_planted_bugs_survive(where):
    """reliability 3.2 asks for 95 %."""
    counted = {mutant.name for mutant in all_mutants()} - EQUIVALENT.keys()
    print(f"{len(all_mutants())} planted, {len(counted)} counted, {len(SURVIVORS)} survive")

    assert counted >= SURVIVORS
    assert len(counted) - len(SURVIVORS) >= BAR * len(counted)


def test_an_ordinary_test_finds_a_planted_bug_and_passes_without_it():
    assert fails(TESTED[CANARY], CANARY)
    assert not fails(TESTED[CANARY], "")


def test_the_survivors_are_mutants():
    """A line that moved has another name: the tables follow."""
    names = {mutant.name for mutant in all_mutants()}

    assert names >= SURVIVORS | EQUIVALENT.keys() | TESTED.keys()
    assert not TESTED.keys() & (SURVIVORS | EQUIVALENT.keys())
