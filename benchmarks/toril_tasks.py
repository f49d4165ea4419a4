"""What tasks cost compared to plain jobs: the client's CPU for ``enqueue``, and a no-op drain.

Both sides are measured in one process, in turns, so that a busy machine slows both: what counts is
the ratio. The CPU is that of the process, without the server's.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable

from clock import Stopwatch
from toril_program import main

from toril import App, Context, Queue, Worker

TURNS = 10
DRAINS = 5
AT_ONCE = 100

Make = Callable[[int], Awaitable[object]]


async def task_enqueue(given: Namespace) -> dict[str, float]:
    """CPU of ``enqueue`` against ``add`` with the same payload, from 100 tasks at once."""
    app = App(connection=given.url, queue="tasks")

    @app.task
    async def pay(order: int, amount: int) -> int:
        return order

    async with Queue("plain", connection=given.url) as queue:

        async def add(number: int) -> object:
            return await queue.add("pay", {"order": number, "amount": 5})

        async def enqueue(number: int) -> object:
            return await pay.enqueue(number, 5)

        ratios = []
        for turn in range(TURNS):
            used_s = {}
            for make in (add, enqueue) if turn % 2 else (enqueue, add):
                used_s[make] = await _cpu_s(make, given.jobs // TURNS)
            ratios.append(used_s[enqueue] / used_s[add])
    await app.close()
    return {"extra_percent": 100 * (statistics.median(ratios) - 1)}


async def _cpu_s(make: Make, count: int) -> float:
    async def make_some(first: int) -> None:
        for number in range(first, count, AT_ONCE):
            await make(number)

    began = time.process_time()
    await asyncio.gather(*(make_some(first) for first in range(AT_ONCE)))
    return time.process_time() - began


async def task_drain(given: Namespace) -> dict[str, float]:
    """Jobs per second through a no-op task, and its share of a plain handler's rate.

    ``cpu_share_percent`` is the same of the worker's CPU, which other programs hardly change.
    """
    rates: dict[str, list[float]] = {"plain": [], "task": []}
    cpu_s: dict[str, list[float]] = {"plain": [], "task": []}
    for turn in range(DRAINS):
        for kind in ("plain", "task") if turn % 2 else ("task", "plain"):
            rate, used_s = await _drained(given, kind, given.jobs // DRAINS)
            rates[kind].append(rate)
            cpu_s[kind].append(used_s)
    shares = [task / plain for plain, task in zip(rates["plain"], rates["task"], strict=True)]
    by_cpu = [plain / task for plain, task in zip(cpu_s["plain"], cpu_s["task"], strict=True)]
    return {
        "rate": statistics.median(rates["task"]),
        "share_percent": 100 * statistics.median(shares),
        "cpu_share_percent": 100 * statistics.median(by_cpu),
    }


async def _drained(given: Namespace, kind: str, jobs: int) -> tuple[float, float]:
    app = App(connection=given.url, queue=kind)
    ran, all_ran = 0, asyncio.Event()

    def count() -> None:
        nonlocal ran
        ran += 1
        if ran == jobs:
            all_ran.set()

    @app.task
    async def pay(order: int, amount: int) -> int:
        count()
        return order + amount

    async def plain(job: Context) -> int:
        order, amount = job.data["order"], job.data["amount"]  # the same arguments, by hand
        count()
        return order + amount

    await app.enqueue_many([pay.call(number, 5) for number in range(jobs)])
    options = {"concurrency": given.concurrency}
    (worker,) = app.make_workers([kind], **options)
    if kind == "plain":
        worker = Worker(kind, plain, connection=given.url, **options)
    watch, began = Stopwatch(), time.process_time()
    running = asyncio.create_task(worker.run())
    await all_ran.wait()
    async with Queue(kind, connection=given.url) as queue:
        while await queue.get_active_count():
            await asyncio.sleep(0.002)
        seen = watch.rate(jobs), time.process_time() - began
        await worker.close()
        await running
        await queue.obliterate(force=True)
    await app.close()
    return seen


if __name__ == "__main__":
    main(task_enqueue=task_enqueue, task_drain=task_drain)
