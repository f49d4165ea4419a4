"""Whatever operation breaks, and however, the outcome is that of the undisturbed run.

Every operation of every scenario meets every fault in ``make prove``; a run of the tests takes a
tenth of them, eight of a scenario at most, always the same.
"""

from __future__ import annotations

import random

import pytest

from tests.crash.running import Point, points_of, reference_of, sweep
from tests.crash.saboteur import DEATHS, FAULTS, HARMLESS
from tests.crash.scenarios import SCENARIOS
from tests.proving import amount
from tests.servers import Server

SHARE = amount(10, 1)


@pytest.fixture(scope="module")
def crash_server():
    with Server() as server:
        yield server


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SCENARIOS)
async def test_the_outcome_does_not_depend_on_what_breaks(name, crash_server):
    """reliability 3.3: drop, lost reply, double, delay, reset and death at every operation."""
    url = crash_server.unix_url
    scenario = SCENARIOS[name]
    reference = await reference_of(scenario, url)
    assert reference.operations, "the scenario does nothing that could break"

    points = points_of(scenario, reference, (*FAULTS, *DEATHS))
    chosen = part_of(points)
    report = await sweep(chosen, {name: reference}, url)

    assert not report.failures, "\n".join(report.failures[:5])
    assert sum(report.hits.values()) >= max(1, len(chosen) // 4), "hardly anything was broken"


def part_of(points: list[Point]) -> list[Point]:
    """One in ``SHARE`` of the points, of all kinds and places."""
    if SHARE == 1:
        return points
    random.Random(points[0].scenario).shuffle(points)
    return points[: min(8, max(4, len(points) // SHARE))]


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        # A handler's log failed its job when the reply was lost: the row may be there.
        ("work and write", "addLog"),
        # The last reply of an obliterate was lost: asked again, the queue was "not paused".
        ("obliterate a queue", "eraseKeys"),
    ],
)
async def test_what_broke_once(name, operation, crash_server):
    """Regressions: every harmless fault at the operations that once did harm."""
    url, scenario = crash_server.unix_url, SCENARIOS[name]
    reference = await reference_of(scenario, url)
    points = [
        point
        for point in points_of(scenario, reference, HARMLESS)
        if reference.operations[point.at] == operation
    ]
    assert points

    report = await sweep(points, {name: reference}, url)

    assert not report.failures, "\n".join(report.failures)
