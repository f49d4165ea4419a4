"""The worlds that are explored: small, and each around one promise."""

from __future__ import annotations

from dataclasses import replace

from tests.model.world import World
from tests.model.worlds import (
    corners,
    dead_letters,
    deduplication,
    flows,
    groups,
    lanes,
    plain,
    schedulers,
)
from tests.model.worlds.spread import spread

IN_ONE_SLOT: dict[str, World] = {
    world.name: world
    for module in (plain, dead_letters, deduplication, schedulers, lanes, groups, flows)
    for world in module.WORLDS
}
_MEMBERS = ("addMember", "memberEnded")
_CANCELS = (*_MEMBERS, "cancelMembers")
_CHILDREN = ("addFlow", "childEnded")
_TWINS = (
    *(spread(world, needs=("bury", "insert")) for world in dead_letters.WORLDS),
    *(
        spread(world, "j2", needs=_CANCELS)
        for world in (groups.GROUP, groups.ALONE, groups.BACKWARDS, groups.LARGE, groups.FORGOTTEN)
    ),
    spread(groups.BESIDE, "j2", needs=_MEMBERS),
    *(
        spread(world, "j1", needs=_MEMBERS)
        for world in (groups.BROKEN, groups.OPERATORS, groups.BLOCKED)
    ),
    *(
        spread(world, "j2", needs=_MEMBERS)
        for world in (
            groups.UNDONE_IN_STAGES,
            groups.LIMITED,
            groups.JOINED,
            groups.AGAIN_BY_HAND,
        )
    ),
    *(
        spread(world, "j1", needs=_MEMBERS)
        for world in (groups.STAGED, groups.FORGOTTEN_IN_STAGES, groups.NODE)
    ),
    *(spread(world, "j1", "j2", needs=_MEMBERS) for world in (groups.PIVOT, groups.NODE_IN_STAGES)),
    spread(groups.SIGNALLED, "j1", "j3", needs=_MEMBERS),
    *(
        spread(world, "c1", needs=_CHILDREN)
        for world in (flows.FLOW, flows.GOES_ON, flows.FAILS_LATE)
    ),
    spread(flows.IGNORES, "c1", "c2", needs=_CHILDREN),
    # Its one worker here does not take everything that there is.
    spread(replace(flows.WAITS, starts_idle=False), "c", needs=_CHILDREN),
)
SPREAD: dict[str, World] = {world.name: world for world in _TWINS}
"""The twins of all worlds in which anything may cross slots."""
WORLDS = IN_ONE_SLOT | SPREAD
CORNERS: dict[str, World] = {
    world.name: world for world in (*corners.WORLDS, *corners.spread_twins())
}
"""Small ones; most of those in one slot are explored to their end."""
