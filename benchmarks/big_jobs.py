"""The longest script of every call that works in slices, over jobs with big payloads.

    python benchmarks/big_jobs.py                   jobs of 200 KB and of 1 MB
    python benchmarks/big_jobs.py --sizes 5000000   others

Prints a table for each server found here, and exits with 1 if a script held the server for more
than 10 ms in each of three rounds: a pause of the machine does not hit the same place three times.
Writes no files.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import redis

import servers
from toril import NewJob, Queue, Worker

LIMIT_US = 10_000
NOTED_US = 500
"""Anything shorter is not worth a line in the slow log."""
ROUNDS = 3
MEGABYTES = 200
"""Of payloads in each round, and at least this many jobs:"""
LEAST_JOBS = 200
FAR_MS = 3_600_000
CALLS = ("fcall", "fcall_ro", "evalsha", "evalsha_ro", "eval")

Step = Callable[["Big"], Awaitable[object]]


class Big:
    """Jobs of one size on one server, and what is done with them."""

    def __init__(self, url: str, size: int) -> None:
        self.url = url
        self.count = max(LEAST_JOBS, MEGABYTES * 1_000_000 // size)
        self.data = "x" * size
        self.queue = Queue("big", connection=url)
        self.letters = Queue("big-dlq", connection=url)

    def jobs(self, **options: Any) -> list[NewJob]:
        return [NewJob("big", self.data, **options) for _ in range(self.count)]

    async def add(self) -> None:
        await self.queue.add_bulk(self.jobs())

    async def add_delayed(self) -> None:
        await self.queue.add_bulk(self.jobs(delay=FAR_MS))

    async def add_due_in_lanes(self) -> None:
        new = [
            NewJob("big", self.data, delay=1, lane=f"lane-{number % 100}")
            for number in range(self.count)
        ]
        await self.queue.add_bulk(new)

    async def work(self, *, fails: bool = False, buries: bool = False) -> None:
        left, done = self.count, asyncio.Event()

        async def handle(job: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                done.set()
            if fails:
                raise ValueError("no")
            return job.data

        worker = Worker(
            "big",
            handle,
            connection=self.url,
            concurrency=200,
            dead_letter_queue="big-dlq" if buries else None,
        )
        async with worker:
            await done.wait()
            await worker.close()

    async def fail(self) -> None:
        await self.work(fails=True)

    async def bury(self) -> None:
        await self.work(buries=True, fails=True)

    async def replay(self) -> None:
        await self.letters.replay_all_dead_letters()

    async def purge(self) -> None:
        await self.letters.purge_dead_letters()

    async def retry(self) -> None:
        await self.queue.retry_all()

    async def promote(self) -> None:
        await self.queue.promote_all()

    async def drain(self) -> None:
        await self.queue.drain()

    async def clean(self) -> None:
        await self.queue.clean("completed")

    async def obliterate(self) -> None:
        await self.queue.pause()
        await self.queue.obliterate()

    async def close(self) -> None:
        await self.queue.close()
        await self.letters.close()


STORIES: tuple[tuple[tuple[str, Step], ...], ...] = (
    (("add", Big.add), ("run", Big.work), ("clean the completed", Big.clean)),
    (("add", Big.add), ("fail", Big.fail), ("retry all", Big.retry), ("drain", Big.drain)),
    (("add", Big.add), ("bury", Big.bury), ("replay all", Big.replay), ("drain", Big.drain)),
    (("add", Big.add), ("bury", Big.bury), ("purge", Big.purge)),
    (("add delayed", Big.add_delayed), ("promote all", Big.promote), ("drain", Big.drain)),
    (("add due jobs in lanes", Big.add_due_in_lanes), ("run what is due, in lanes", Big.work)),
    (("add", Big.add), ("obliterate", Big.obliterate)),
)


def longest(client: redis.Redis) -> tuple[int, str]:
    """The longest call since the log was emptied, in microseconds, and its name."""
    calls = [
        (int(row["duration"]), words[1].decode(errors="replace").partition("_")[0])
        for row in client.slowlog_get(10_000)
        if (words := row["command"].split(b" ", 2))[0].decode().lower() in CALLS
    ]
    return max(calls, default=(NOTED_US, "(all shorter)"))


async def measure(url: str, size: int) -> dict[str, tuple[int, str]]:
    """How long the longest script of each step took, in the best of the rounds."""
    best: dict[str, tuple[int, str]] = {}
    with redis.Redis.from_url(url) as client:
        client.config_set("slowlog-log-slower-than", NOTED_US)
        client.config_set("slowlog-max-len", 10_000)
        for _ in range(ROUNDS):
            worst: dict[str, tuple[int, str]] = {}
            for story in STORIES:
                client.flushall()
                big = Big(url, size)
                for name, step in story:
                    client.slowlog_reset()
                    await step(big)
                    worst[name] = max(worst.get(name, (0, "")), longest(client))
                await big.close()
            for name, took in worst.items():
                best[name] = min(best.get(name, took), took)
    return best


def main() -> int:
    given = _arguments()
    logging.disable()  # jobs fail on purpose
    is_over = False
    for place in servers.find(given.server):
        with servers.fresh(place) as url:
            for size in given.sizes:
                took = asyncio.run(measure(url, size))
                print(
                    f"\n{place.label}, jobs of {size / 1000:,.0f} KB: the longest script of each\n"
                )
                for name, (us, call) in took.items():
                    verdict = "" if us <= LIMIT_US else "  OVER 10 ms"
                    print(f"| {name:26} | {us / 1000:7.1f} ms | {call:16} |{verdict}")
                    is_over = is_over or us > LIMIT_US
    return int(is_over)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, usage="big_jobs.py [options]")
    parser.add_argument("--sizes", type=int, nargs="+", default=[200_000, 1_000_000])
    parser.add_argument("--server", help="valkey, redis, or the URL of an empty server")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
