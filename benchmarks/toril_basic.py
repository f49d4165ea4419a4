"""Toril through the same five measures as its peers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from asyncio_program import Program, main

from toril import NewJob, Queue, Worker

if TYPE_CHECKING:
    from toril import Job


class Toril(Program):
    async def open(self) -> None:
        self.queue = Queue("bench", connection=self.url)

    async def add(self, number: float) -> None:
        await self.queue.add("x", {"n": number})

    async def add_many(self, numbers: Iterable[float]) -> None:
        await self.queue.add_bulk([NewJob("x", {"n": number}) for number in numbers])

    async def work(self, concurrency: int) -> None:
        async def handler(job: Job) -> int:
            self.handle(job.data["n"])
            return 1

        worker = Worker("bench", handler, connection=self.url, concurrency=concurrency)
        self.running = asyncio.create_task(worker.run())

    async def settled(self, jobs: int) -> None:
        while (await self.queue.get_job_counts())["completed"] < jobs:
            await asyncio.sleep(0.002)


if __name__ == "__main__":
    main(Toril)
