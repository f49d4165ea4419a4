"""Does an operation cost more when a million jobs wait than when a thousand do?

Two servers, one with few jobs and one with many, are measured in turns of a few hundred operations,
so that whatever else the machine does meanwhile falls on both. Take and finish travel in one call
of the worker: their figure is the time from one handler's start to the next, one job at a time.
"""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import TYPE_CHECKING

from clock import chunks, quantile
from toril_program import all_buried, fail, fill, main

from toril import NewJob, Queue, Worker

if TYPE_CHECKING:
    from toril import Job

FEW = 1000
TURNS = 10
OPERATIONS = 200


class Side:
    """One of the two queues and what was seen of it, in seconds."""

    def __init__(self, url: str, size: int) -> None:
        self.url = url
        self.size = size
        self.name = f"bench-{size}"
        self.queue = Queue(self.name, connection=url)
        self.adds: list[float] = []
        self.cycles: list[float] = []

    async def prepare(self) -> None:
        await fill(self.queue, self.size)

    async def add(self, number: int) -> None:
        await self.queue.add("x", {"n": number})

    async def perform(self, job: Job) -> object:
        return 1

    def worker(self, handler: Callable[[Job], Awaitable[object]]) -> Worker:
        return Worker(self.name, handler, connection=self.url, concurrency=1)

    async def turn(self) -> None:
        """Add some jobs one by one, then work off as many."""
        await self.add(0)
        for number in range(OPERATIONS):
            started = time.perf_counter()
            await self.add(number)
            self.adds.append(time.perf_counter() - started)
        await self._work_off(OPERATIONS + 1)

    async def _work_off(self, count: int) -> None:
        starts: list[float] = []
        enough = asyncio.Event()

        async def handler(job: Job) -> object:
            starts.append(time.perf_counter())
            if len(starts) == count:
                enough.set()
            return await self.perform(job)

        worker = self.worker(handler)
        running = asyncio.create_task(worker.run())
        await enough.wait()
        await worker.close()
        await running
        self.cycles += [after - before for before, after in pairwise(starts)]


class Lanes(Side):
    """As many lanes as the size says, one job waiting in each."""

    async def prepare(self) -> None:
        for numbers in chunks(self.size):
            jobs = [NewJob("x", {"n": n}, lane=f"lane-{n}") for n in numbers]
            await self.queue.add_bulk(jobs)

    async def add(self, number: int) -> None:
        await self.queue.add("x", {"n": number}, lane=f"lane-{number}")


class DeadLetters(Side):
    """As many dead letters as the size says, and every further job becomes one."""

    async def prepare(self) -> None:
        await fill(self.queue, self.size)
        await all_buried(self.url, self.size, 200, self.name)

    async def perform(self, job: Job) -> object:
        return await fail(job)

    def worker(self, handler: Callable[[Job], Awaitable[object]]) -> Worker:
        letters = f"{self.name}-dlq"
        return Worker(
            self.name, handler, connection=self.url, concurrency=1, dead_letter_queue=letters
        )


def growth(kind: type[Side]) -> Callable[[Namespace], Awaitable[dict[str, float]]]:
    """The measure of one kind of queue."""

    async def measure(given: Namespace) -> dict[str, float]:
        few = kind(given.url, FEW)
        many = kind(given.other_url or given.url, given.jobs)
        for side in (few, many):
            await side.prepare()
            await side.turn()
            side.adds.clear()
            side.cycles.clear()
        for _ in range(TURNS):
            await few.turn()
            await many.turn()
        return _figures(few, many)

    return measure


def _figures(few: Side, many: Side) -> dict[str, float]:
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
    main(growth=growth(Side), growth_lanes=growth(Lanes), growth_dead_letters=growth(DeadLetters))
