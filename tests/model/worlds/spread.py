"""The same worlds with slots as an axis: queues, members and children are in slots of their own.

Whoever crosses slots leaves parcels; a step of a courier may happen at any time, and couriers may
die and lose replies. Everything else is as in the world itself, and so are the checks.
"""

from __future__ import annotations

from dataclasses import replace

from tests.model.actors import Worker
from tests.model.couriers import LOSS, UNHEARD
from tests.model.slots import COMPENSATION, OTHER, OTHER_COMPENSATION, Q
from tests.model.world import World

LEAST_TICKS = 2
"""A parcel that was fetched is offered again after a second."""


def spread(world: World, *elsewhere: str, needs: tuple[str, ...] = ()) -> World:
    """The same world on a cluster; the jobs with these ids are in another slot than the others.

    Of two workers of the queue one is where those jobs are. Replies bring parcels to the first; the
    others are of the version before. Couriers must have delivered ``needs``.
    """
    return replace(
        world,
        name=f"{world.name}, spread",
        queues=(*world.queues, *_more_queues(world, elsewhere)),
        workers=tuple(_workers(world, elsewhere)),
        faults=(*world.faults, (LOSS, 1), (UNHEARD, 1)),
        ticks=max(world.ticks, LEAST_TICKS),
        elsewhere=frozenset(elsewhere),
        is_spread=True,
        needs=needs,
    )


def _more_queues(world: World, elsewhere: tuple[str, ...]) -> tuple[str, ...]:
    if not elsewhere:
        return ()
    return (OTHER, OTHER_COMPENSATION) if COMPENSATION in world.queues else (OTHER,)


def _workers(world: World, elsewhere: tuple[str, ...]) -> list[Worker]:
    workers = [
        worker._replace(habits=worker.habits._replace(is_spread=True, carries=number == 0))
        for number, worker in enumerate(world.workers)
    ]
    if not elsewhere:
        return workers
    here = [worker for worker in workers if worker.queue == Q]
    habits = here[-1].habits._replace(carries=False)
    there = here[-1]._replace(name="b", queue=OTHER, habits=habits)
    rest = [worker for worker in workers if worker.queue != Q]
    undoing = [
        worker._replace(name="d", queue=OTHER_COMPENSATION)
        for worker in rest
        if worker.queue == COMPENSATION
    ]
    return [here[0], there, *rest, *undoing]
