"""A retention of dead letters, and letters that somebody damaged."""

from __future__ import annotations

import pytest

from tests.features.dead_letters.conftest import DLQ
from tests.features.dead_letters.test_keeping import bury, numbers
from toril import Keep


@pytest.mark.parametrize("keep", [1, Keep(age=60_000), Keep(count=3, age=60_000)])
async def test_a_damaged_letter_neither_fails_what_is_buried_nor_ends_the_retention(side, keep):
    """Its key holds no hash; it is as old as can be."""
    await bury(side, 1, 10)
    (letter,) = await side.client.lrange(f"{side.prefix}:{DLQ}:wait", 0, -1)
    await side.client.delete(f"{side.prefix}:{DLQ}:{letter}")
    await side.client.set(f"{side.prefix}:{DLQ}:{letter}", "oops")

    await bury(side, 3, keep)

    assert await numbers(side) == ([1002] if keep == 1 else [1000, 1001, 1002])
    assert await side.client.exists(f"{side.prefix}:{DLQ}:{letter}") == 0
    assert (await side.orders.get_job_counts())["active"] == 0
