"""What the programs that measure only Toril share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from asyncio_program import loop_factory
from clock import Stopwatch, arguments, chunks, finish

from toril import NewJob, Queue, Worker

if TYPE_CHECKING:
    from toril import Job

Measure = Callable[[Any], Awaitable[dict[str, float]]]
Count = Callable[[], None]
Handler = Callable[["Job"], Awaitable[object]]


# The peers do not log failures; a log line for each would measure the terminal.
logging.getLogger("toril.jobs").setLevel(logging.CRITICAL)


def main(**measures: Measure) -> None:
    """Run the measure that the command line names and print its figures."""
    given = arguments(measures)

    async def measure() -> None:
        finish(**await measures[given.measure](given))

    with asyncio.Runner(loop_factory=loop_factory(given.loop)) as runner:
        runner.run(measure())


async def fill(queue: Queue, count: int, data: Any = None, **options: Any) -> None:
    """Add ``count`` waiting jobs with the same payload."""
    for numbers in chunks(count):
        await queue.add_bulk([NewJob("x", data or {"n": n}, **options) for n in numbers])


async def drain(
    url: str,
    jobs: int,
    make_handler: Callable[[Count], Handler],
    is_done: Callable[[], Awaitable[bool]],
    name: str = "bench",
    **options: Any,
) -> float:
    """Seconds from the start of one worker until ``is_done``.

    The server is asked only after that many handlers ran, so that asking slows nothing.
    """
    handled = 0
    all_ran = asyncio.Event()

    def count() -> None:
        nonlocal handled
        handled += 1
        if handled == jobs:
            all_ran.set()

    watch = Stopwatch()
    worker = Worker(name, make_handler(count), connection=url, **options)
    running = asyncio.create_task(worker.run())
    ran = asyncio.create_task(all_ran.wait())
    await asyncio.wait((running, ran), return_when=asyncio.FIRST_COMPLETED)
    while not await is_done():
        if running.done():
            raise RuntimeError("the worker stopped too early") from running.exception()
        await asyncio.sleep(0.002)
    seconds = watch.seconds()
    await worker.close()
    return seconds


async def all_completed(url: str, jobs: int, concurrency: int) -> float:
    """Seconds in which one worker completes that many jobs of the queue ``bench``."""
    queue = Queue("bench", connection=url)

    async def is_done() -> bool:
        return (await queue.get_job_counts())["completed"] >= jobs

    return await drain(url, jobs, completing, is_done, concurrency=concurrency)


async def all_buried(url: str, jobs: int, concurrency: int, name: str = "bench") -> float:
    """Seconds in which one worker fails that many jobs into the queue's dead letters."""
    letters_name = f"{name}-dlq"
    letters = Queue(letters_name, connection=url)

    async def is_done() -> bool:
        return await letters.get_dead_letter_count() >= jobs

    options = {"concurrency": concurrency, "dead_letter_queue": letters_name}
    return await drain(url, jobs, failing, is_done, name, **options)


async def no_op(job: Job) -> int:
    """The handler of a worker that is not measured itself."""
    return 1


def completing(count: Count) -> Handler:
    """The handler of every drain: no more work than in the measures for all queues."""

    async def handler(job: Job) -> int:
        count()
        return 1

    return handler


def failing(count: Count) -> Handler:
    """The same, for everything that becomes a dead letter."""

    async def handler(job: Job) -> int:
        count()
        raise ValueError("no")

    return handler
