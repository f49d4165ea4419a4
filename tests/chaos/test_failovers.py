"""One failover with jobs that must survive it; ``python -m tests.chaos.failovers`` does many."""

from __future__ import annotations

from tests.chaos.failovers import SentinelWorld, run_rounds


async def test_what_waited_for_a_replica_survives_its_primary():
    world = SentinelWorld()
    try:
        tally = await run_rounds(world, 1, replicas=1, lag_s=0.05)
    finally:
        world.close()

    assert tally.lost == 0, tally
    assert tally.acknowledged > 50
