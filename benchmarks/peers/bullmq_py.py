"""bullmq, the Python port: BullMQ's own scripts driven from asyncio."""

import asyncio

from asyncio_program import Program, main
from bullmq import Queue, Worker


class Bullmq(Program):
    async def open(self):
        self.queue = Queue("bench", {"connection": self.url})

    async def add(self, number):
        await self.queue.add("x", {"n": number})

    async def add_many(self, numbers):
        await self.queue.addBulk([{"name": "x", "data": {"n": number}} for number in numbers])

    async def work(self, concurrency):
        async def handler(job, token):
            self.handle(job.data["n"])
            return 1

        options = {"connection": self.url, "concurrency": concurrency}
        self.worker = Worker("bench", handler, options)

    async def settled(self, jobs):
        while (await self.queue.getJobCounts("completed"))["completed"] < jobs:
            await asyncio.sleep(0.005)


if __name__ == "__main__":
    main(Bullmq)
