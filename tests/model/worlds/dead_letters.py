"""Dead letters: buried, replayed, purged."""

from __future__ import annotations

from typing import Any

from tests.model.actors import Habits, Worker, keys_of
from tests.model.slots import LETTERS, Q
from tests.model.view import View
from tests.model.world import DEATH, EXPIRY, GHOST, LEAVING, LOST, Client, World, failing
from tests.model.worlds.common import add, first, two
from toril.protocol import dead_letters, removing, replaying

BURIES = Habits(dead_letters=LETTERS)


def _replay(view: View) -> Any:
    letters = view.queues[LETTERS].order.get("wait")
    if not letters:
        return None
    return replaying.replay(keys_of(LETTERS), letters[0], "again", Q)


def _drain(view: View) -> Any:
    return first(removing.drain(keys_of(LETTERS)))


def _purge(view: View) -> Any:
    keys, every = keys_of(LETTERS), dead_letters.Filter()
    run = dead_letters.Run("purge", "r", every)
    return dead_letters.purge_slice(keys, dead_letters.Walk(), every, run=run)


REPLAY = Client("replay", _replay, may_remove=True)
DRAIN = Client("drain the letters", _drain, may_remove=True, is_silent=True)
PURGE_THEM = Client("purge the letters", _purge, may_remove=True, is_silent=True)
CLIENTS = (REPLAY, DRAIN)


LETTER = World(
    "one letter",
    (Q, LETTERS),
    (Worker("a", Q, BURIES), Worker("c", LETTERS)),
    (add("x", "fails"),),
    (REPLAY, PURGE_THEM),
    ends=failing("fails"),
    faults=((LOST, 2), (GHOST, 1), (DEATH, 1), (EXPIRY, 1)),
    may_remove=True,
    starts_idle=True,
)

SEVERAL = World(
    "dead letters",
    (Q, LETTERS),
    two(BURIES),
    (add("x", "fails"), add("y", "fails", attempts=2)),
    CLIENTS,
    ends=failing("fails"),
    may_remove=True,
)

PURGE = World(
    "letters, counted and purged",
    (Q, LETTERS),
    (Worker("a", Q, BURIES._replace(points=2)),),
    (add("x", "fails", priority=1), add("y", "fails", lane="l"), add("z", "fails", delay=1000)),
    (REPLAY, DRAIN, PURGE_THEM),
    ends=failing("fails"),
    faults=((LOST, 1), (EXPIRY, 1), (LEAVING, 1)),
    may_remove=True,
)

WORLDS = (LETTER, SEVERAL, PURGE)
