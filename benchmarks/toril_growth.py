"""Does an operation cost more when a million jobs wait than when a thousand do?

Two servers, one with few jobs and one with many, are measured in turns of a few hundred operations,
so that whatever else the machine does meanwhile falls on both. Take and finish travel in one call
of the worker: their figure is the time from one handler's start to the next, one job at a time.
"""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from itertools import pairwise

from clock import quantile
from toril_program import fill, main

from toril import Job, Queue, Worker

FEW = 1000
TURNS = 10
OPERATIONS = 200


class Side:
    """One of the two queues and what was seen of it, in seconds."""

    def __init__(self, url: str, waiting: int) -> None:
        self.url = url
        self.waiting = waiting
        self.name = f"bench-{waiting}"
        self.queue = Queue(self.name, connection=url)
        self.adds: list[float] = []
        self.cycles: list[float] = []

    async def turn(self) -> None:
        """Add some jobs one by one, then work off as many."""
        await self.queue.add("x", {"n": 0})
        for number in range(OPERATIONS):
            started = time.perf_counter()
            await self.queue.add("x", {"n": number})
            self.adds.append(time.perf_counter() - started)
        await self._work_off(OPERATIONS + 1)

    async def _work_off(self, count: int) -> None:
        starts: list[float] = []
        enough = asyncio.Event()

        async def handler(job: Job) -> int:
            starts.append(time.perf_counter())
            if len(starts) == count:
                enough.set()
            return 1

        worker = Worker(self.name, handler, connection=self.url, concurrency=1)
        running = asyncio.create_task(worker.run())
        await enough.wait()
        await worker.close()
        await running
        self.cycles += [after - before for before, after in pairwise(starts)]


async def growth(given: Namespace) -> dict[str, float]:
    few = Side(given.url, FEW)
    many = Side(given.other_url or given.url, given.jobs)
    for side in (few, many):
        await fill(side.queue, side.waiting)
        await side.turn()
        side.adds.clear()
        side.cycles.clear()
    for _ in range(TURNS):
        await few.turn()
        await many.turn()
    figures = {}
    for name, side in (("few", few), ("many", many)):
        figures[f"add_{name}_us"] = quantile(side.adds, 0.5) * 1e6
        figures[f"cycle_{name}_us"] = quantile(side.cycles, 0.5) * 1e6
    return {
        **figures,
        "add_ratio": figures["add_many_us"] / figures["add_few_us"],
        "cycle_ratio": figures["cycle_many_us"] / figures["cycle_few_us"],
    }


if __name__ == "__main__":
    main(growth=growth)
