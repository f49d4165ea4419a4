"""Jobs whose time has come are let in a slice a call, whatever they are: no script is long."""

from __future__ import annotations

from typing import Any

import pytest

from tests.features.group_support import open_world
from tests.servers import Server
from toril import NewJob, RateLimit
from toril.protocol.settling import Raised

MANY = 1000
MOST_COMMANDS = 1600
"""Inside one script; at three microseconds each this is below five milliseconds."""


@pytest.fixture
async def server_of_its_own(start_server):
    return start_server()


@pytest.fixture
async def world(server_of_its_own):
    async with open_world(server_of_its_own.unix_url, "p", None) as world:
        yield world


def commands_so_far(server: Server) -> int:
    """How many commands the server has run, those inside scripts included."""
    with server.client() as client:
        return sum(row["calls"] for row in client.info("commandstats").values())


def lane_of(kind: str, number: int) -> dict[str, Any]:
    return {"plain": {}, "one lane": {"lane": "a"}}.get(kind, {"lane": f"lane-{number}"})


@pytest.mark.parametrize("kind", ["plain", "lanes", "one lane", "limited lanes"])
async def test_a_thousand_due_jobs_are_let_in_by_many_short_calls(kind, world, server_of_its_own):
    """I10: and all of them run."""
    queue, hand = world.queue("q"), world.hand("q")
    if kind == "limited lanes":
        await queue.set_lane_rate_limit(None, RateLimit(max=1, duration=60_000))
    await queue.add_bulk([NewJob("x", delay=1, **lane_of(kind, n)) for n in range(MANY)])
    await let_a_millisecond_pass(server_of_its_own)

    run, dearest = 0, 0
    while run < MANY:
        before = commands_so_far(server_of_its_own)
        jobs = await hand.take(50)
        dearest = max(dearest, commands_so_far(server_of_its_own) - before)
        await hand.complete(*jobs)
        run += len(jobs)
        if kind == "one lane" and run == 30:
            break  # the rest one by one would only take time

    assert dearest <= MOST_COMMANDS


async def test_many_retries_in_a_call_let_in_no_more_than_one(world, server_of_its_own):
    """I10: each of them lets due jobs go before it."""
    queue, hand = world.queue("q"), world.hand("q")
    await queue.add_bulk([NewJob("x", attempts=2) for _ in range(50)])
    failing = await hand.take(50)
    await queue.add_bulk([NewJob("x", delay=1) for _ in range(MANY)])
    await let_a_millisecond_pass(server_of_its_own)

    before = commands_so_far(server_of_its_own)
    await hand.settle([(job, Raised(ValueError("no"))) for job in failing])

    assert commands_so_far(server_of_its_own) - before <= MOST_COMMANDS


async def let_a_millisecond_pass(server: Server) -> None:
    """By the server's clock."""
    with server.client() as client:
        began = client.time()
        while client.time() <= (began[0], began[1] + 2000):
            pass
