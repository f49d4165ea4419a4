"""Whoever awaits may be cancelled at any await: nothing is lost, and the queue stays usable.

Every await in ``make prove``, every third in a run of the tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any

import pytest

from tests.crash.running import reference_of
from tests.crash.scenarios import SCENARIOS
from tests.crash.world import open_world
from tests.proving import amount
from tests.servers import Server
from toril.errors import RefusedError

MOST_AWAITS = 200
CALLS = [name for name, one in SCENARIOS.items() if not name.startswith(("work", "close", "leave"))]


class CancelledAt:
    """Awaits something and cancels the current task at one of its awaits."""

    def __init__(self, work: Awaitable[Any], at: int) -> None:
        self._work = work
        self._at = at
        self.awaits = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        try:
            waited_for = steps.send(None)
            while True:
                if self.awaits == self._at:
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                self.awaits += 1
                try:
                    result = yield waited_for
                except BaseException as error:
                    waited_for = steps.throw(error)
                else:
                    waited_for = steps.send(result)
        except StopIteration as end:
            return end.value


@pytest.fixture(scope="module")
def crash_server():
    with Server() as server:
        yield server


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_may_be_cancelled_at_every_await(name, crash_server):
    """reliability 2.4: a cancelled call leaves no reply behind that another would read."""
    scenario, url = SCENARIOS[name], crash_server.unix_url
    reference = await reference_of(scenario, url)
    cancelled = 0
    for at in range(0, MOST_AWAITS, amount(3, 1)):
        prefix = f"x{at}-{abs(hash(name)) % 10**6}"
        async with open_world(url, url, prefix, queues=scenario.queues) as world:
            if scenario.given is not None:
                await scenario.given(world)
            work = CancelledAt(scenario.act(world), at)
            task = asyncio.ensure_future(_run(work))
            await asyncio.wait([task])
            if task.cancelled():
                cancelled += 1
                if not scenario.either:
                    await _again(scenario, world)
            else:
                task.result()
            if scenario.runs:
                await world.recover()
            outcome = await world.outcome()
            assert outcome == reference.outcome or (
                task.cancelled() and scenario.either and outcome == reference.untouched
            ), f"cancelled at await {at}: {outcome}"
            assert await world.problems() == []
            if work.awaits <= at:
                break
    assert cancelled > 0


async def _run(work: CancelledAt) -> Any:
    return await work


async def _again(scenario, world) -> None:
    """With the same queue: what the cancelled call left on its sockets must not be read."""
    try:
        await scenario.act(world)
    except RefusedError:
        return
