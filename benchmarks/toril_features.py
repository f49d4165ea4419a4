"""Drain rates of Toril's own features: lanes, groups with compensation maps, dead letters.

Each is measured as a plain drain is: one worker, no-op handlers, the clock from its start to the
last job recorded on the server. Rates are jobs per second.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace

from clock import TASKS, chunks
from toril_program import all_buried, all_completed, fill, main

from toril import NewJob, Queue

LANES = 100
MANY_LANES = 10_000
MEMBERS = 3


async def lanes(given: Namespace) -> dict[str, float]:
    """Jobs spread over 100 lanes, as GroupMQ's over 100 groups."""
    return await _drain_lanes(given, LANES)


async def many_lanes(given: Namespace) -> dict[str, float]:
    """Jobs spread over 10,000 lanes, as GroupMQ's over 10,000 groups."""
    return await _drain_lanes(given, MANY_LANES)


async def _drain_lanes(given: Namespace, count: int) -> dict[str, float]:
    queue = Queue("bench", connection=given.url)
    for numbers in chunks(given.jobs):
        await queue.add_bulk([NewJob("x", {"n": n}, lane=f"lane-{n % count}") for n in numbers])
    return {"rate": given.jobs / await all_completed(given.url, given.jobs, given.concurrency)}


async def groups(given: Namespace) -> dict[str, float]:
    """Groups of three, each with a compensation for every member, all succeed."""
    from toril import Compensation, FlowProducer, GroupJob

    flow = FlowProducer(connection=given.url)
    names = [f"step-{number}" for number in range(MEMBERS)]
    undo = {name: Compensation(f"undo-{name}", data={"n": 1}) for name in names}
    left = iter(range(given.jobs // MEMBERS))

    async def producer() -> None:
        for number in left:
            jobs = [GroupJob(name, queue_name="bench", data={"n": number}) for name in names]
            await flow.add_group(name="order", jobs=jobs, compensation=undo)

    await asyncio.gather(*(producer() for _ in range(TASKS)))
    jobs = given.jobs // MEMBERS * MEMBERS
    seconds = await all_completed(given.url, jobs, given.concurrency)
    return {"rate": jobs / seconds, "whole_groups": jobs / MEMBERS / seconds}


async def dead_letters(given: Namespace) -> dict[str, float]:
    """Every job fails at once and for good."""
    await fill(Queue("bench", connection=given.url), given.jobs)
    return {"rate": given.jobs / await all_buried(given.url, given.jobs, given.concurrency)}


if __name__ == "__main__":
    main(lanes=lanes, many_lanes=many_lanes, groups=groups, dead_letters=dead_letters)
