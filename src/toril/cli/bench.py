"""``toril bench``: how fast this machine and that server do jobs together."""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from typing import Any

import click

from toril import NewJob, Queue, Worker
from toril.cli.printing import print_json, print_table, progress_bar
from toril.cli.server import Server, with_server

_PAYLOAD = {"order": 123, "text": "a small payload, as most are"}
_ONE_BY_ONE = 500
_PICK_UPS = 100


@click.command("bench")
@click.option("-n", "--jobs", type=click.IntRange(100), default=10_000, show_default=True)
@click.option("-c", "--concurrency", type=click.IntRange(1), default=100, show_default=True)
@with_server
def bench(server: Server, jobs: int, concurrency: int) -> None:
    """Measure how many jobs per second a server can do.

    Adds jobs that do nothing to a queue of its own and runs them in this process; the queue is
    removed afterwards.  Other programs on that server will notice it.

    \b
    Examples:
      toril bench --url embedded:
      toril bench -n 50000 --url redis://staging:6379
    """
    results = asyncio.run(_measure(server, jobs, concurrency))
    if server.as_json:
        print_json({"server": server.label, "jobs": jobs, "concurrency": concurrency, **results})
        return
    rows = [
        ("add, one by one", f"{results['add_per_s']:,.0f} jobs/s"),
        ("add_bulk", f"{results['add_bulk_per_s']:,.0f} jobs/s"),
        (f"run, {concurrency} at a time", f"{results['drain_per_s']:,.0f} jobs/s"),
        ("from add to handler, idle", f"{results['pick_up_p50_ms']:.2f} ms (median)"),
        ("", f"{results['pick_up_p99_ms']:.2f} ms (99 of 100)"),
    ]
    print_table(["what", "#how fast"], rows, empty="", title=f"{jobs:,} jobs on {server.label}")


async def _measure(server: Server, jobs: int, concurrency: int) -> dict[str, Any]:
    name = f"toril-bench-{secrets.token_hex(4)}"
    async with Queue(name, connection=server.url, prefix=server.prefix) as queue:
        try:
            with progress_bar(server, "measuring", 2 * jobs) as move:
                add_per_s = await _add_one_by_one(queue)
                add_bulk_per_s = await _add_bulk(queue, jobs, move)
                drain_per_s = await _drain(server, queue, jobs, concurrency, move)
            pick_ups = await _pick_up(server, queue)
        finally:
            await queue.obliterate(force=True)
    return {
        "add_per_s": add_per_s,
        "add_bulk_per_s": add_bulk_per_s,
        "drain_per_s": drain_per_s,
        "pick_up_p50_ms": statistics.median(pick_ups),
        "pick_up_p99_ms": statistics.quantiles(pick_ups, n=100)[98],
    }


async def _add_one_by_one(queue: Queue) -> float:
    began = time.perf_counter()
    for _ in range(_ONE_BY_ONE):
        await queue.add("nothing", _PAYLOAD)
    rate = _ONE_BY_ONE / (time.perf_counter() - began)
    await queue.drain()
    return rate


async def _add_bulk(queue: Queue, jobs: int, move: Any) -> float:
    began = time.perf_counter()
    for start in range(0, jobs, 5000):
        count = min(5000, jobs - start)
        await queue.add_bulk([NewJob("nothing", _PAYLOAD) for _ in range(count)])
        move(start + count)
    return jobs / (time.perf_counter() - began)


async def _drain(server: Server, queue: Queue, jobs: int, concurrency: int, move: Any) -> float:
    done = 0
    all_done = asyncio.Event()

    async def nothing(job: Any) -> None:
        nonlocal done
        done += 1
        if done % 500 == 0:
            move(jobs + done)
        if done == jobs:
            all_done.set()

    began = time.perf_counter()
    worker = Worker(
        queue.name, nothing, connection=server.url, prefix=server.prefix, concurrency=concurrency
    )
    async with worker:
        await all_done.wait()
        await queue.wait_until_empty()
        return jobs / (time.perf_counter() - began)


async def _pick_up(server: Server, queue: Queue) -> list[float]:
    """How long jobs wait, in ms, that are added one at a time while the worker is idle."""
    waits: list[float] = []
    began = 0.0
    ran = asyncio.Event()

    async def note(job: Any) -> None:
        waits.append((time.perf_counter() - began) * 1000)
        ran.set()

    async with Worker(queue.name, note, connection=server.url, prefix=server.prefix):
        for _ in range(_PICK_UPS):
            await queue.wait_until_empty()
            await asyncio.sleep(0.002)
            ran.clear()
            began = time.perf_counter()
            await queue.add("nothing")
            await ran.wait()
    return waits
