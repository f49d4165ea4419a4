"""Deduplication: one job at a time for each id."""

from __future__ import annotations

from tests.model.slots import Q
from tests.model.world import DEATH, EXPIRY, FAULTS, LEAVING, LOST, World, failing
from tests.model.worlds.common import add, adds, removes, two
from toril import Deduplication

PLAIN = Deduplication("d")
NEWEST = Deduplication("d", ttl=5000, replace=True)
EXTENDED = Deduplication("d", ttl=5000, replace=True, extend=True)
OFF = Deduplication("d", reschedule=True)
OFF_FOR_A_TIME = Deduplication("d", ttl=5000, reschedule=True)
LAST = Deduplication("d", keep_last_if_active=True)

DEDUPLICATION = World(
    "deduplication",
    (Q,),
    two(),
    (add("x", "fails", deduplication=PLAIN),),
    (adds("y", deduplication=PLAIN), adds("z", deduplication=PLAIN), removes("x")),
    ends=failing("fails"),
)

KEEP_LAST = World(
    "keep the last one",
    (Q,),
    two(),
    (add("x", "fails", attempts=2, deduplication=LAST), add("w"), add("v")),
    (adds("y", deduplication=LAST), adds("z", lifo=True, deduplication=LAST)),
    ends=failing("fails"),
    faults=(*FAULTS, (LEAVING, 1)),
)

KEEP_LAST_LATER = World(
    "keep the last one for later",
    (Q,),
    two(),
    (add("x", deduplication=Deduplication("d", ttl=5000)),),
    (
        adds("y", delay=1000, deduplication=LAST),
        adds("z", lane="l", deduplication=LAST),
        adds("u", lane="l", delay=1000, deduplication=LAST),
    ),
    faults=((LOST, 1), (EXPIRY, 1), (LEAVING, 1)),
    starts_idle=True,
)

FOR_A_TIME = World(
    "one in five seconds",
    (Q,),
    two(),
    (add("x", "fails", deduplication=Deduplication("d", ttl=5000)),),
    (
        adds("y", deduplication=Deduplication("d", ttl=5000)),
        adds("z", deduplication=Deduplication("d", ttl=5000, extend=True)),
        removes("x"),
    ),
    ends=failing("fails"),
    faults=((LOST, 1), (DEATH, 1), (EXPIRY, 1)),
)

DEBOUNCE = World(
    "the newest replaces the delayed one",
    (Q,),
    two(),
    (add("x", delay=1000, deduplication=NEWEST),),
    (
        adds("y", delay=1000, deduplication=NEWEST)._replace(may_remove=True),
        adds("z", delay=2000, deduplication=EXTENDED)._replace(may_remove=True),
        removes("y"),
    ),
    faults=((LOST, 1), (DEATH, 1), (EXPIRY, 1)),
    starts_idle=True,
)

DEBOUNCE_IN_LANE = World(
    "the newest replaces the delayed one of a lane",
    (Q,),
    two(),
    (add("x", lane="l", delay=2000, deduplication=NEWEST), add("w", lane="w")),
    (
        adds("y", lane="m", delay=1000, deduplication=NEWEST)._replace(may_remove=True),
        adds("z", lane="l", delay=1000, deduplication=OFF_FOR_A_TIME),
    ),
    faults=((LOST, 1), (DEATH, 1), (EXPIRY, 1)),
    starts_idle=True,
)

PUT_OFF = World(
    "a duplicate puts the delayed one off",
    (Q,),
    two(),
    (add("x", delay=2000, deduplication=OFF),),
    (adds("y", delay=1000, deduplication=OFF), adds("z", deduplication=OFF), removes("x")),
    faults=((LOST, 1), (DEATH, 1), (EXPIRY, 1)),
    starts_idle=True,
)

WORLDS = (
    *(DEDUPLICATION, KEEP_LAST, KEEP_LAST_LATER, FOR_A_TIME),
    *(DEBOUNCE, DEBOUNCE_IN_LANE, PUT_OFF),
)
