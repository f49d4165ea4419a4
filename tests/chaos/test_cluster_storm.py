"""A storm over a cluster: a small one here, 50,000 jobs in ``make chaos C=cluster``."""

from __future__ import annotations

import os
import random
import shutil

import pytest

from tests.chaos.cluster_storm import ClusterStorm, problems_of, rage, table_of

JOBS = int(os.environ.get("TORIL_CLUSTER_JOBS", "500"))
MASTER_KILLS = int(os.environ.get("TORIL_CLUSTER_MASTER_KILLS", "1"))
MIGRATIONS = int(os.environ.get("TORIL_CLUSTER_MIGRATIONS", "2"))
WORKER_KILLS = int(os.environ.get("TORIL_CLUSTER_WORKER_KILLS", "2"))
SEED = int(os.environ.get("TORIL_CHAOS_SEED", random.randrange(2**31)))


@pytest.mark.timeout(3600)
async def test_nothing_is_lost_while_masters_die_and_slots_move():
    """What was acknowledged has run, every extra run has its fault, lanes and groups are right."""
    storm = ClusterStorm(
        JOBS,
        WORKER_KILLS,
        processes=2,
        seed=SEED,
        calm_s=300 + JOBS / 100,
        master_kills=MASTER_KILLS,
        migrations=MIGRATIONS,
    )
    nodes = await rage(storm)
    try:
        problems = await problems_of(storm, nodes)
    finally:
        nodes.close()

    print(table_of(storm))
    assert not problems, f"TORIL_CHAOS_SEED={SEED}\n" + "\n".join(problems[:20])
    shutil.rmtree(storm.directory)
