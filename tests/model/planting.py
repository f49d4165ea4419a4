"""Plants bugs into the scripts, one at a time, and lets the explorer look for them."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

from tests.model.explorer import explore
from tests.model.machine import EndlessScriptError, Machine, ScriptError
from tests.model.mutants import Mutant, marked
from tests.model.violation import Violation
from tests.model.worlds import CORNERS, WORLDS
from tests.servers import Server

EVERYWHERE = CORNERS | WORLDS
MOST_TO_COVER = 1_500
LOOKS = ((600, 3), (4_000, len(EVERYWHERE)))
"""For how many steps how many worlds are explored for a bug: a few for a short time, then all."""

Coverage = dict[int, dict[str, int]]
"""Where the line of each mutant is run, by its number: the world, and after how many steps."""


def coverage(server: Server) -> Coverage:
    where: Coverage = {}
    for name, world in EVERYWHERE.items():
        for most in (400, MOST_TO_COVER):
            machine = Machine(server, marked())
            explore(world, machine, most=most, is_deep=name in WORLDS, drain_share=0.0)
            machine.close()
            for number in machine.covered:
                where.setdefault(number, {}).setdefault(name, most)
    return where


def shared_coverage(server: Server, directory: Path) -> Coverage:
    """The same for all processes of a run: the first finds it out, the others wait for it."""
    path = directory / "covered-by-worlds.json"
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if not (text := file.read()):
            text = json.dumps(list(coverage(server).items()))
            file.write(text)
    return dict(json.loads(text))


def find(mutant: Mutant, worlds: dict[str, int], server: Server) -> str | None:
    """What the explorer says about it, or nothing; first where its line is run soon."""
    for most, count in LOOKS:
        for name in sorted(worlds, key=lambda name: worlds[name])[:count]:
            found = _look(mutant, name, most, server)
            if found is not None:
                return found
    return None


def _look(mutant: Mutant, name: str, most: int, server: Server) -> str | None:
    machine = Machine(server, mutant.library())
    try:
        explore(EVERYWHERE[name], machine, most=most, is_deep=name in WORLDS, drain_share=0.03)
    except (Violation, ScriptError) as violation:
        if isinstance(violation.__cause__ or violation, EndlessScriptError):
            server.kill()
            server.start()
        return str(violation)
    finally:
        machine.close()
    return None
