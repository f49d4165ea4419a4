"""Lanes: one job at a time for each key, in order."""

from __future__ import annotations

from tests.model.actors import FAIL, PUT_OFF, keys_of
from tests.model.slots import Q
from tests.model.world import (
    DEATH,
    EXPIRY,
    FAULTS,
    GIVING_BACK,
    LEAVING,
    LOST,
    Client,
    World,
    failing,
)
from tests.model.worlds.common import (
    REMOVES_ORPHANS,
    add,
    first,
    removes,
    retried_by_bullmq,
    two,
)
from toril import Backoff
from toril.options import RateLimit
from toril.protocol import lanes, moving

LANE = World(
    "a lane of three",
    (Q,),
    two(),
    (
        add("x", "retries", lane="l", attempts=2),
        add("y", "retries", lane="l", attempts=2, backoff=Backoff.fixed(1000)),
        add("z", lane="l"),
        add("o", lane="other"),
    ),
    (removes("y"), removes("o")),
    ends=failing("retries"),
)

SHARED = World(
    "a lane for two at once",
    (Q,),
    two(),
    (
        first(lanes.set_concurrency(keys_of(Q), 2, None)),
        add("x", "retries", lane="l", attempts=2),
        add("y", lane="l"),
        add("z", lane="l"),
    ),
    (removes("y"),),
    ends=failing("retries"),
    faults=(*FAULTS, (GIVING_BACK, 1)),
)

LOWERED = World(
    "a lane that fewer may hold from now on",
    (Q,),
    two(),
    (
        first(lanes.set_concurrency(keys_of(Q), 2, None)),
        add("x", "retries", lane="l", attempts=2),
        add("y", lane="l"),
        add("z", lane="l"),
        add("o", lane="other"),
    ),
    # Its first step: nobody has looked at the lanes yet.
    (Client("lower", lambda view: first(lanes.set_concurrency(keys_of(Q), 1, None))), removes("y")),
    ends=failing("retries"),
    faults=(*FAULTS, (GIVING_BACK, 1)),
)

RATED = World(
    "a lane with a rate limit",
    (Q,),
    two(),
    (
        first(lanes.set_rate_limit(keys_of(Q), RateLimit(1, 1000), None)),
        add("x", "retries", lane="l", attempts=2),
        add("y", lane="l"),
    ),
    (removes("y"),),
    ends=failing("retries"),
    faults=((LOST, 1), (DEATH, 1), (EXPIRY, 2)),
)

BY_HAND = World(
    "a lane changed by hand",
    (Q,),
    two(),
    (
        add("x", "fails", lane="l"),
        add("y", "puts off", lane="l", delay=1000, on_retry="skip"),
        add("z", lane="l"),
        add("p"),
    ),
    (
        Client("retry x", lambda view: moving.retry(keys_of(Q), "x", call="retry x")),
        Client("promote y", lambda view: moving.promote(keys_of(Q), "y", call="promote y")),
        Client("pause l", lambda view: lanes.pause(keys_of(Q), "l")),
        Client("resume l", lambda view: lanes.resume(keys_of(Q), "l")),
    ),
    ends={"fails": (FAIL,), "puts off": (PUT_OFF,)},
    faults=((EXPIRY, 1), (GIVING_BACK, 1), (LEAVING, 1)),
)

HALTED = World(
    "a lane that halts",
    (Q,),
    two(),
    (add("x", "fails", lane="l", on_exhausted="halt"), add("y", lane="l"), add("o", lane="o")),
    (Client("resume l", lambda view: lanes.resume(keys_of(Q), "l")), removes("y")),
    ends=failing("fails"),
    faults=((LOST, 1), (EXPIRY, 1), (LEAVING, 1)),
)

BESIDE = World(
    "a lane beside BullMQ",
    (Q,),
    two(),
    (
        add("x", "fails", lane="l", attempts=1),
        add("y", "fails", lane="l", attempts=1),
        add("z", lane="l", delay=1000),
        add("o", "retries", lane="other", attempts=2, backoff=Backoff.fixed(1000)),
    ),
    (REMOVES_ORPHANS, retried_by_bullmq("y"), retried_by_bullmq("x")),
    ends=failing("fails", "retries"),
    faults=((EXPIRY, 1), (LEAVING, 1)),
)

WORLDS = (LANE, SHARED, LOWERED, RATED, BY_HAND, HALTED, BESIDE)
