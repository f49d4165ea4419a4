"""A burst: as many jobs as fit, to see how fast nothing can be done."""

from __future__ import annotations

import time
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from toril import NewJob, Queue, Worker
from toril.cli.demo.stage import Stage

JOBS = 20_000


async def as_fast_as_it_goes(stage: Stage, url: str) -> dict[str, str]:
    stage.announce("A burst", f"{JOBS:,} jobs that do nothing, through one worker in this process.")
    done = 0

    async def nothing(job: Any) -> None:
        nonlocal done
        done += 1

    progress = Progress(TextColumn("  "), BarColumn(), MofNCompleteColumn())
    bar = progress.add_task("", total=JOBS)

    def draw() -> Progress:
        progress.update(bar, completed=done)
        return progress

    async with Queue("burst", connection=url) as queue:
        jobs = [NewJob("tick", remove_on_complete=True) for _ in range(JOBS)]
        await queue.add_bulk(jobs)
        began = time.perf_counter()
        with stage.picture(draw):
            async with Worker("burst", nothing, connection=url, concurrency=100):
                await queue.wait_until_empty(60_000)
                taken_s = time.perf_counter() - began
    return {"jobs per second in the burst": f"{JOBS / taken_s:,.0f}"}
