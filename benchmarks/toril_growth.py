"""Does an operation cost more when a million jobs wait than when a thousand do?

Two servers, one with few jobs and one with many, are measured in turns of some fifty operations,
so that whatever else the machine does affects both; each turn's medians make one ratio, and the
result is the median of those. The worker takes and finishes in one call: the figure for both is
the time from one handler's start to the next, one job at a time.
"""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from clock import chunks
from letters import forge
from toril_program import fill, main

from toril import NewJob, Queue, Worker

if TYPE_CHECKING:
    from toril import Job

FEW = 1000
TURNS = 40
OPERATIONS = 50


class Side:
    """One of the two queues, and the median of each of its turns, in seconds."""

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
        """Add some jobs one by one, then run as many."""
        await self.add(0)
        seconds = []
        for number in range(OPERATIONS):
            started = time.perf_counter()
            await self.add(number)
            seconds.append(time.perf_counter() - started)
        self.adds.append(median(seconds))
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
        self.cycles.append(median(after - before for before, after in pairwise(starts)))


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
        forge(self.url, self.size, f"{self.name}-dlq")

    async def perform(self, job: Job) -> object:
        raise ValueError("no")

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
        for number in range(TURNS):
            for side in (few, many) if number % 2 == 0 else (many, few):
                await side.turn()
        return _figures(few, many)

    return measure


def _figures(few: Side, many: Side) -> dict[str, float]:
    return {
        "add_few_us": median(few.adds) * 1e6,
        "add_many_us": median(many.adds) * 1e6,
        "add_ratio": _ratio(few.adds, many.adds),
        "cycle_few_us": median(few.cycles) * 1e6,
        "cycle_many_us": median(many.cycles) * 1e6,
        "cycle_ratio": _ratio(few.cycles, many.cycles),
    }


def _ratio(few: list[float], many: list[float]) -> float:
    return median(large / small for small, large in zip(few, many, strict=True))


if __name__ == "__main__":
    main(growth=growth(Side), growth_lanes=growth(Lanes), growth_dead_letters=growth(DeadLetters))
