"""The five measures of every asyncio queue: Toril and its peers run the same lines.

A queue says how it adds a job and how it starts a worker; what is timed, and from when to when, is
defined here once. The payload of a job is one number, which the handler passes to ``handle``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from clock import TASKS, WARM_UP, Stopwatch, arguments, chunks, finish, latency


class Program:
    """One queue to be measured; override ``add``, ``work`` and what the queue can do better."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.handle: Callable[[float], None] = lambda number: None

    async def open(self) -> None:
        """Connect."""

    async def add(self, number: float) -> None:
        """Add one job and wait for the server's answer."""
        raise NotImplementedError

    async def add_many(self, numbers: Iterable[float]) -> None:
        """Add jobs in the fastest way the queue offers; by default from many tasks."""
        waiting = iter(numbers)

        async def producer() -> None:
            for number in waiting:
                await self.add(number)

        await asyncio.gather(*(producer() for _ in range(TASKS)))

    async def work(self, concurrency: int) -> None:
        """Start a worker that calls ``handle`` with each job's number, and return."""
        raise NotImplementedError

    async def settled(self, jobs: int) -> None:
        """Wait until the server has recorded that all are done."""


async def add(program: Program, jobs: int, concurrency: int) -> dict[str, float]:
    await program.add_many(range(WARM_UP))
    watch = Stopwatch()
    for number in range(jobs):
        await program.add(number)
    return {"rate": watch.rate(jobs)}


async def add_bulk(program: Program, jobs: int, concurrency: int) -> dict[str, float]:
    await program.add_many(range(WARM_UP))
    watch = Stopwatch()
    for numbers in chunks(jobs):
        await program.add_many(numbers)
    return {"rate": watch.rate(jobs)}


async def add_concurrent(program: Program, jobs: int, concurrency: int) -> dict[str, float]:
    await program.add_many(range(WARM_UP))
    watch = Stopwatch()
    await Program.add_many(program, range(jobs))
    return {"rate": watch.rate(jobs)}


async def drain(program: Program, jobs: int, concurrency: int) -> dict[str, float]:
    for numbers in chunks(jobs):
        await program.add_many(numbers)
    handled = 0
    all_ran = asyncio.Event()

    def count(number: float) -> None:
        nonlocal handled
        handled += 1
        if handled == jobs:
            all_ran.set()

    program.handle = count
    watch = Stopwatch()
    await program.work(concurrency)
    await all_ran.wait()
    await program.settled(jobs)
    return {"rate": watch.rate(jobs)}


async def pick_up(program: Program, jobs: int, concurrency: int) -> dict[str, float]:
    seen: list[float] = []
    arrived = asyncio.Event()

    def arrive(sent_at: float) -> None:
        seen.append(time.time() - sent_at)
        arrived.set()

    program.handle = arrive
    await program.work(concurrency=10)
    await asyncio.sleep(1)
    for _ in range(WARM_UP // 10 + jobs):
        arrived.clear()
        await program.add(time.time())
        await arrived.wait()
        await asyncio.sleep(0.01)
    return latency(seen[WARM_UP // 10 :])


MEASURES = {
    "add": add,
    "add_bulk": add_bulk,
    "add_concurrent": add_concurrent,
    "drain": drain,
    "latency": pick_up,
}


def main(make: Callable[[str], Program]) -> None:
    """Run the measure that the command line names."""
    given = arguments(MEASURES)

    async def measure() -> None:
        program = make(given.url)
        await program.open()
        finish(**await MEASURES[given.measure](program, given.jobs, given.concurrency))

    with asyncio.Runner(loop_factory=loop_factory(given.loop)) as runner:
        runner.run(measure())


def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """asyncio's own loop, or uvloop's if the run says so."""
    if name == "asyncio":
        return None
    import uvloop

    return uvloop.new_event_loop
