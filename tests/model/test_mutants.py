"""Planted bugs are found: a server call left out, or exchanged for its opposite.

The explorer looks for them; those that no world finds are found by an ordinary test, which `TESTED`
names.  `make prove` tries all of them (`T="-k planted"` nothing else, `T="-k 'planted and stages'"`
those of one file); those that are not found are in the tables of `survivors`, and nowhere else.
"""

from __future__ import annotations

import itertools

import pytest

from tests.helpers import not_run
from tests.model.mutants import Mutant, all_mutants
from tests.model.ordinary import fails
from tests.model.planting import Coverage, find, shared_coverage
from tests.model.survivors import EQUIVALENT, SURVIVORS
from tests.model.tested import TESTED
from tests.proving import PROVES_ALL
from tests.servers import Server

BAR = 0.95
AT_ONCE = 12
"""How many bugs of one file are tried by one test: few enough to share them out evenly."""
CANARY = 'resolveGroup: without redis.call("HSET", group, "x.note", a.note)'
"""One that an ordinary test finds within a second."""


@pytest.fixture(scope="module")
def model_server():
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def where(model_server, tmp_path_factory, worker_id) -> Coverage:
    if not PROVES_ALL:
        not_run("mutants take long: `make prove` plants them all")
    of_process = tmp_path_factory.getbasetemp()
    return shared_coverage(model_server, of_process if worker_id == "master" else of_process.parent)


def dozens() -> dict[str, list[tuple[int, Mutant]]]:
    """The bugs that count, by file and a dozen at a time, with their numbers."""
    counted = [
        (number, mutant)
        for number, mutant in enumerate(all_mutants())
        if mutant.name not in EQUIVALENT
    ]
    return {
        f"{file} {part // AT_ONCE}": some[part : part + AT_ONCE]
        for file, group in itertools.groupby(counted, key=lambda one: one[1].file)
        for some in [list(group)]
        for part in range(0, len(some), AT_ONCE)
    }


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("dozen", dozens())
def test_planted_bugs_are_found(model_server, where, dozen):
    """reliability 3.2: each mutant is found, but for those known to survive."""
    missed = []
    for number, mutant in dozens()[dozen]:
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


def test_every_file_that_writes_has_its_dozens():
    tried = [mutant for some in dozens().values() for _, mutant in some]

    assert len(tried) == len(set(tried)) == len(all_mutants()) - len(EQUIVALENT)
    assert {mutant.file for mutant in all_mutants()} == {mutant.file for mutant in tried}


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
