"""The explorer finds planted bugs: a server call left out, or exchanged for its opposite.

A mutant counts when its line is run in some universe at all. `make prove` tries all of them and
lists those that it does not find.
"""

from __future__ import annotations

import pytest

from tests.helpers import not_run
from tests.model.interleaving import Violation, explore
from tests.model.machine import EndlessScriptError, Machine
from tests.model.mutants import Mutant, all_mutants, marked
from tests.model.universes import UNIVERSES
from tests.proving import PROVES_ALL
from tests.servers import Server

MOST = 20_000
SECONDS = 30.0
MOST_TO_COVER = 20_000
BAR = 0.75


@pytest.fixture(scope="module")
def model_server():
    with Server() as server:
        yield server


def coverage(server: Server) -> dict[int, list[str]]:
    """In which universes the line of each mutant is run, by its number."""
    where: dict[int, list[str]] = {}
    for name, universe in UNIVERSES.items():
        machine = Machine(server, marked)
        explore(universe, machine, most=MOST_TO_COVER, is_deep=True, drain_share=0.0)
        machine.close()
        for number in machine.covered:
            where.setdefault(number, []).append(name)
    return where


def is_found(mutant: Mutant, universes: list[str], server: Server) -> bool:
    """Does some universe show that something is wrong?"""
    for name in universes:
        machine = Machine(server, mutant)
        try:
            explore(
                UNIVERSES[name],
                machine,
                most=MOST,
                seconds=SECONDS,
                is_deep=True,
                drain_share=0.05,
            )
        except Violation as violation:
            if isinstance(violation.__cause__, EndlessScriptError):
                server.kill()
                server.start()
            return True
        finally:
            machine.close()
    return False


@pytest.mark.timeout(4 * 3600)
def test_planted_bugs_are_found(model_server):
    """reliability 3.2 asks for 95 % of those whose line is run; the bar rises to it."""
    if not PROVES_ALL:
        not_run("mutants take long: `make prove` plants them all")
    where = coverage(model_server)
    mutants = [(mutant, where[n]) for n, mutant in enumerate(all_mutants()) if n in where]
    found, missed = [], []
    for mutant, universes in mutants:
        (found if is_found(mutant, universes, model_server) else missed).append(mutant.name)

    print(f"{len(found)} found, {len(missed)} not found, {len(all_mutants())} planted")
    text = "not found:\n" + "\n".join(missed)
    print(text)
    assert len(found) >= BAR * len(mutants), text
