"""Schedulers: every iteration is made once, whoever takes the one before."""

from __future__ import annotations

from typing import Any

from tests.model.actors import keys_of
from tests.model.machine import START_MS
from tests.model.slots import Q
from tests.model.world import World
from tests.model.worlds.common import add, two
from toril import NewJob
from toril.options import Schedule
from toril.protocol import scheduling


def schedule() -> Any:
    plan = scheduling.upsert(
        keys_of(Q), "tick", Schedule(every=1000), NewJob("tick", {"n": "tick"})
    )
    next(plan)
    return plan.send(START_MS)


SCHEDULER = World("a scheduler and two workers", (Q,), two(), (add("w"), schedule()))

WORLDS = (SCHEDULER,)
