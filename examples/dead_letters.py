"""An outage, and how an operator gets out of it: look, group, replay slowly, repair, purge.

    python examples/dead_letters.py            on the embedded server, with 40,000 charges
    python examples/dead_letters.py 2000       with fewer

Set TORIL_URL to run it on your own server.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from toril import DeadLetterOptions, NewJob, Queue, Worker

PREFIX = os.environ.get("EXAMPLE_PREFIX", "bull")


class Bank:
    """A provider that can be down, and that refuses what makes no sense."""

    def __init__(self) -> None:
        self.is_down = True
        self.charged = 0

    async def charge(self, order: dict) -> None:
        if self.is_down:
            raise ConnectionError("ETIMEDOUT bank.example:443")
        if not isinstance(order["amount"], (int, float)):
            raise TypeError(f"amount {order['amount']!r} is not a number")
        self.charged += 1


async def play(url: str, jobs: int) -> None:
    bank = Bank()
    alerts: list[str] = []

    async def handle(job):
        await bank.charge(job.data)

    options = DeadLetterOptions("payments-dlq", on_dead_letter=lambda job, _: alerts.append(job.id))
    payments = Queue("payments", connection=url, prefix=PREFIX)
    dlq = Queue("payments-dlq", connection=url, prefix=PREFIX)
    worker = Worker(
        "payments",
        handle,
        connection=url,
        prefix=PREFIX,
        concurrency=100,
        dead_letter_queue=options,
        remove_on_complete=True,
    )
    async with payments, dlq, worker:
        orders = [{"order": n, "amount": "12,50" if n % 1000 == 7 else 12.5} for n in range(jobs)]
        await payments.add_bulk([NewJob("charge", order, attempts=2) for order in orders])
        print(f"The bank is down while {jobs} charges come in.")
        await until(lambda: arrived(dlq, jobs))
        await until(lambda: all_told(alerts, jobs))
        print(f"{len(alerts)} alerts, {await dlq.get_dead_letter_count()} dead letters.\n")

        print("What is it?")
        await show_groups(dlq)
        bank.is_down = False

        (outage, *_) = await dlq.get_dead_letter_summary()
        found = await dlq.replay_all_dead_letters(fingerprint=outage.fingerprint, dry_run=True)
        print(f"\nThe bank is back. {found} would be replayed; at first a hundred, slowly:")
        began = time.monotonic()
        newest = await dlq.get_dead_letter_jobs(99, 99, newest_first=False)
        await dlq.replay_all_dead_letters(until=newest[0].timestamp + 1, rate=2000, by="ana")
        await until(lambda: settled(payments))
        print(f"{bank.charged} charged in {time.monotonic() - began:.1f} s. Now the rest.")

        shown = [0]

        def show(now):
            if now.done - shown[0] >= jobs / 4:
                shown[0] = now.done
                print(f"  {now.done} replayed, {now.left} left")

        replayed = await dlq.replay_all_dead_letters(
            fingerprint=outage.fingerprint, rate=jobs / 4, on_progress=show, by="ana", max_replays=1
        )
        await until(lambda: settled(payments))
        print(f"{replayed} replayed, {bank.charged} charged in all.\n")

        print("What is left is another trouble:")
        await show_groups(dlq)
        for letter in await dlq.get_dead_letter_jobs(0, 2):
            order = {name: value for name, value in letter.data.items() if name != "_dlqMeta"}
            amount = float(order["amount"].replace(",", "."))
            await dlq.replay_dead_letter(letter.id, data={**order, "amount": amount}, by="ana")
        await until(lambda: settled(payments))
        purged = await dlq.purge_dead_letters(failed_reason="is not a number")
        print(f"Some repaired by hand, {purged} purged: {bank.charged} of {jobs} charged,")
        print(f"{await dlq.get_dead_letter_count()} dead letters.")


async def show_groups(dlq: Queue) -> None:
    for group in await dlq.get_dead_letter_summary():
        reason = group.example.dead_letter.failed_reason
        print(f"  {group.count:6} x {group.fingerprint}: {reason}")


async def all_told(alerts: list[str], jobs: int) -> bool:
    """A letter reaches the server a moment before its worker learns about it."""
    return len(alerts) == jobs


async def arrived(dlq: Queue, jobs: int) -> bool:
    return await dlq.get_dead_letter_count() == jobs


async def settled(queue: Queue) -> bool:
    counts = await queue.get_job_counts("waiting", "active", "delayed")
    return not any(counts.values())


async def until(is_so) -> None:
    while not await is_so():  # noqa: ASYNC110  (it is the server that changes)
        await asyncio.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(
        play(
            os.environ.get("TORIL_URL", "embedded:"),
            int(sys.argv[1]) if len(sys.argv) > 1 else 40_000,
        )
    )
