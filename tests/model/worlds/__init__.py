"""The worlds that are explored: small, and each around one promise."""

from __future__ import annotations

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

WORLDS: dict[str, World] = {
    world.name: world
    for module in (plain, dead_letters, deduplication, schedulers, lanes, groups, flows)
    for world in module.WORLDS
}
CORNERS: dict[str, World] = {world.name: world for world in corners.WORLDS}
"""Small ones: explored wide, most of them to their end."""
