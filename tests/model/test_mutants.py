"""The explorer finds planted bugs: a server call left out, or exchanged for its opposite.

A mutant counts when the explorer gets to the changed line at all. An ordinary run tries a few,
others each day; `make prove` tries all, and needs 95 %.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import random

import pytest

from tests.helpers import not_run
from tests.model.interleaving import Violation, explore
from tests.model.machine import Machine, ScriptError
from tests.model.mutants import Mutant, all_mutants
from tests.model.survivors import SURVIVORS
from tests.model.universes import UNIVERSES
from tests.proving import PROVES_ALL, amount
from tests.servers import Server

TRIED = amount(6, 10_000)
MOST = amount(5_000, 20_000)
SECONDS = amount(5.0, 60.0)
BAR = 0.95


@pytest.fixture(scope="module")
def model_server():
    with Server() as server:
        yield server


def is_found(mutant: Mutant, server: Server) -> bool:
    """Does some universe show that something is wrong?"""
    for name in mutant.universes:
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
        except (Violation, ScriptError):
            return True
        finally:
            machine.close()
    return False


def is_reached(mutant: Mutant, server: Server) -> bool:
    """Does the explorer come to this line? A script that fails there tells."""
    loud = dataclasses.replace(mutant, after=f"error('reached') {mutant.after}")
    if mutant.before.startswith('"'):
        loud = dataclasses.replace(mutant, after="error('reached')")
    return is_found(loud, server)


@pytest.mark.timeout(4 * 3600)
def test_planted_bugs_are_found(model_server):
    """reliability 3.2: at least 95 % of those that the explorer reaches."""
    if not PROVES_ALL:
        not_run("mutants take hours: `make prove` plants them all")
    mutants = all_mutants()
    random.Random(dt.datetime.now(dt.UTC).toordinal()).shuffle(mutants)
    found, missed, unreached = [], [], []
    for mutant in mutants:
        if len(found) + len(missed) >= TRIED:
            break
        if mutant.name in SURVIVORS:
            missed.append(mutant.name)
        elif is_found(mutant, model_server):
            found.append(mutant.name)
        elif is_reached(mutant, model_server):
            missed.append(mutant.name)
        else:
            unreached.append(mutant.name)

    print(f"{len(found)} found, {len(missed)} not found, {len(unreached)} not reached")
    unexplained = [name for name in missed if name not in SURVIVORS]
    allowed = amount(1, int((1 - BAR) * (len(found) + len(missed))))
    assert len(unexplained) <= allowed, "not found:\n" + "\n".join(unexplained)
