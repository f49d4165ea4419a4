"""Lanes: each customer's jobs one at a time and in order, different customers side by side."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from toril import NewJob, Queue, Worker
from toril.cli.demo.stage import Stage
from toril.options import JobOptions

CUSTOMERS = ("anna", "bert", "cleo")
STEPS = 6


async def in_order(stage: Stage, url: str) -> dict[str, str]:
    stage.announce(
        "Lanes keep the order",
        "Each customer's jobs run one at a time and in order, different customers side by side."
        " Bert's third fails once, keeps its place, and is tried again.",
    )
    done: dict[str, list[int]] = {customer: [] for customer in CUSTOMERS}
    running: dict[str, int] = {}
    most_at_once = 0

    async def sync(job: Any) -> None:
        nonlocal most_at_once
        customer, step = job.data["customer"], job.data["step"]
        running[customer] = step
        most_at_once = max(most_at_once, len(running))
        try:
            await asyncio.sleep(random.uniform(0.1, 0.35))
            if (customer, step) == ("bert", 3) and job.attempts_made == 0:
                raise ConnectionError("bert's shop does not answer")
        finally:
            del running[customer]
        done[customer].append(step)

    jobs = [
        NewJob("sync", {"customer": customer, "step": step}, lane=customer, order_ms=step)
        for customer in CUSTOMERS
        for step in range(1, STEPS + 1)
    ]
    random.shuffle(jobs)
    tries: JobOptions = {"attempts": 3, "backoff": 400}
    async with Queue("imports", connection=url, default_job_options=tries) as queue:
        await queue.add_bulk(jobs)
        with stage.picture(lambda: _draw(done, running)):
            async with Worker("imports", sync, connection=url, concurrency=8):
                await queue.wait_until_empty(30_000)
    right = sum(steps == sorted(steps) for steps in done.values())
    return {
        "lanes in order": f"{right} of {len(CUSTOMERS)}",
        "customers served at once": f"up to {most_at_once}",
    }


def _draw(done: dict[str, list[int]], running: dict[str, int]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for customer, steps in done.items():
        numbers = " ".join(f"[green]{step}[/]" for step in steps)
        now = f" [cyan]{running[customer]}▶[/]" if customer in running else ""
        table.add_row(f"  {customer}", f"{numbers}{now}")
    return table
