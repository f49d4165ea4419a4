"""Plain jobs: retries, delays, priorities, stalls, removals, pauses."""

from __future__ import annotations

from tests.model.actors import FAIL, LIMIT, PUT_OFF, Habits, Worker, keys_of
from tests.model.machine import Request
from tests.model.slots import Q
from tests.model.world import (
    CONFIRMATION,
    DEATH,
    EXPIRY,
    FAULTS,
    GHOST,
    GIVING_BACK,
    LEAVING,
    LOST,
    RENEWAL,
    Client,
    World,
    failing,
)
from tests.model.worlds.common import add, adds, first, removes, two
from toril import Backoff, Deduplication
from toril.options import Keep, RateLimit
from toril.protocol import limiting, moving, pausing

RETRY = Client("retry x", lambda view: moving.retry(keys_of(Q), "x", call="retry x"))
CHANGE = Client(
    "change y",
    lambda view: moving.change_priority(keys_of(Q), "y", 1, call="change y"),
    is_silent=True,
)

ONE = World(
    "one job and many faults",
    (Q,),
    two(),
    (add("x", "retries", attempts=2, backoff=Backoff.fixed(1000)),),
    (removes("x"),),
    ends=failing("retries"),
    faults=((LOST, 1), (GHOST, 1), (DEATH, 1), (EXPIRY, 2), (GIVING_BACK, 1), (RENEWAL, 1)),
)

IDLE = World(
    "idle workers are woken",
    (Q,),
    two(),
    (),
    (adds("x", "retries", attempts=2), adds("y", delay=1000), adds("z", lane="l")),
    ends=failing("retries"),
    faults=((EXPIRY, 1), (GIVING_BACK, 1)),
    starts_idle=True,
)

WORKERS = World(
    "two workers and five jobs",
    (Q,),
    two(),
    (
        add("x", "retries", attempts=2),
        add("y", "retries", attempts=2, backoff=Backoff.fixed(1000)),
        add("z", priority=2),
        add("v", priority=1),
        add("u"),
    ),
    (removes("y"),),
    ends=failing("retries"),
    faults=(*FAULTS, (GIVING_BACK, 1)),
)

THREE = World(
    "two workers and three jobs",
    (Q,),
    two(),
    (
        add("x", "retries", attempts=2),
        add("y", "retries", attempts=2, backoff=Backoff.fixed(1000)),
        add("z", delay=1000),
    ),
    (removes("x"),),
    ends=failing("retries"),
    faults=(*FAULTS, (GIVING_BACK, 1), (RENEWAL, 1), (CONFIRMATION, 1)),
)

PAUSE = World(
    "pause, promote and retry",
    (Q,),
    two(),
    (add("x", "fails"), add("y", delay=1000), add("v", lane="l", delay=1000)),
    (
        Client("pause", lambda view: first(pausing.pause(keys_of(Q))), is_silent=True),
        Client("resume", lambda view: first(pausing.resume(keys_of(Q))), is_silent=True),
        Client("promote y", lambda view: moving.promote(keys_of(Q), "y", call="promote y")),
        RETRY,
        CHANGE,
    ),
    ends=failing("fails"),
    faults=((LOST, 1), (DEATH, 1), (EXPIRY, 1), (RENEWAL, 1)),
)

RATED = World(
    "a rate limit, metrics and retention",
    (Q,),
    two(Habits(points=2, is_named=True, limiter=RateLimit(1, 1000), keeps=Keep(count=1))),
    (add("x", "retries", attempts=2, lifo=True), add("y", "limited"), add("z")),
    ends={"retries": (FAIL,), "limited": (LIMIT, PUT_OFF)},
    faults=((LOST, 1), (EXPIRY, 2), (LEAVING, 1)),
    may_remove=True,
)

CROWDED = World(
    "a limit of one at a time",
    (Q,),
    two(),
    (
        limiting.set_concurrency(keys_of(Q), 1),
        add("x", "retries", attempts=2),
        add("y"),
        add("z"),
    ),
    (Client("let two run", lambda view: limiting.set_concurrency(keys_of(Q), 2)),),
    ends=failing("retries"),
    faults=((LOST, 1), (EXPIRY, 1), (GIVING_BACK, 1), (LEAVING, 1)),
)

BESIDE_5 = World(
    "beside BullMQ 5",
    (Q,),
    two(),
    (
        Request("write", (keys_of(Q).meta,), ("version", "bullmq:5.81.0")),
        add("x", "retries", attempts=2, deduplication=Deduplication("d")),
        add("w"),
    ),
    (
        Client("pause", lambda view: first(pausing.pause(keys_of(Q))), is_silent=True),
        Client("resume", lambda view: first(pausing.resume(keys_of(Q))), is_silent=True),
        adds("y", deduplication=Deduplication("d")),
        adds("v"),
    ),
    ends=failing("retries"),
    faults=((LOST, 1), (EXPIRY, 1), (GIVING_BACK, 1)),
)

MANY = World(
    "four at once",
    (Q,),
    (Worker("a", Q, Habits(takes=4)), Worker("b", Q)),
    (add("x", "retries", attempts=2), *(add(name) for name in ("y", "z", "v", "u"))),
    (adds("t", lifo=True), adds("s", priority=1)),
    ends=failing("retries"),
    faults=((LOST, 1), (DEATH, 1), (EXPIRY, 1), (LEAVING, 1)),
)

LAST_ONES = World(
    "workers that leave",
    (Q,),
    two(),
    (add("x", "retries", attempts=2, lifo=True), add("y", "later", attempts=2, backoff=1000)),
    (adds("z", priority=1), RETRY),
    ends=failing("retries", "later"),
    faults=((GIVING_BACK, 1), (LEAVING, 1), (RENEWAL, 1), (CONFIRMATION, 1)),
    starts_idle=True,
)

WORLDS = (ONE, IDLE, WORKERS, THREE, PAUSE, RATED, CROWDED, BESIDE_5, MANY, LAST_ONES)
