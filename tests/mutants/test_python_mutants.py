"""The quick tests of the modules that move jobs find planted bugs.

`make prove` tries all of them, each in a process of its own; an ordinary run tries one, so that the
machinery itself is tested.  Those that are known to survive are in the table `SURVIVORS`.
"""

from __future__ import annotations

import ast

import pytest

from tests.helpers import not_run
from tests.mutants.planting import TESTS, all_mutants
from tests.mutants.survivors import SURVIVORS
from tests.mutants.trying import ROOT, Tree
from tests.proving import PROVES_ALL

CANARY = "client/batching Batcher.add_all: (not (start < len(jobs)))"
"""One that is found within a second."""
PARTS = 32


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree(tmp_path_factory.mktemp("planted"))


def test_every_bug_is_a_program_and_has_a_name_of_its_own():
    names = [mutant.name for mutant in all_mutants()]

    assert len(names) == len(set(names)) > 150
    assert set(names) >= SURVIVORS.keys(), "a line that changed has another name"
    for mutant in all_mutants():
        ast.parse(mutant.planted())
    for tests in TESTS.values():
        assert all((ROOT / test.partition("::")[0]).exists() for test in tests)


def test_a_planted_bug_is_found_and_its_absence_too(tree):
    (bug,) = (m for m in all_mutants() if m.name.startswith(CANARY))

    assert tree.passes(TESTS["protocol/failovers"])
    assert tree.try_out(bug) == "caught"


@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("part", range(PARTS))
def test_planted_bugs_in_python_are_found(tree, part):
    if not PROVES_ALL:
        not_run("mutants take long: `make prove` plants them all")
    tried = [m for m in all_mutants()[part::PARTS] if m.name not in SURVIVORS]
    missed = [mutant.name for mutant in tried if tree.try_out(mutant) == "survived"]

    assert not missed, "\n".join(missed)
