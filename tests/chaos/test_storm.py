"""A storm over real processes (reliability 3.5): 5,000 jobs here, 100,000 in `make chaos`."""

from __future__ import annotations

import os
import random
import shutil

import pytest

from tests.chaos.report import problems_of, table_of
from tests.chaos.storm import Storm, rage

JOBS = int(os.environ.get("TORIL_CHAOS_JOBS", "5000"))
KILLS = int(os.environ.get("TORIL_CHAOS_KILLS", "20"))
SEED = int(os.environ.get("TORIL_CHAOS_SEED", random.randrange(2**31)))


@pytest.mark.first
@pytest.mark.timeout(4 * 3600)
async def test_nothing_is_lost_in_a_storm():
    """Nothing lost, every extra run has its fault, lanes in order, groups whole, no orphans."""
    storm = Storm(JOBS, KILLS, seed=SEED, calm_s=300 + JOBS / 100)
    if KILLS >= 1000:
        storm.processes, storm.kills_at_once = 4, 2
    server, client = await rage(storm)
    try:
        problems = await problems_of(storm, client)
    finally:
        await client.aclose()
        server.close()

    print(table_of(storm))
    assert not problems, f"TORIL_CHAOS_SEED={SEED}\n" + "\n".join(problems[:20])
    shutil.rmtree(storm.directory)
