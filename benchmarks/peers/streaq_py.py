"""streaq: streams and consumer groups on anyio; the worker is created with its concurrency."""

import asyncio

from asyncio_program import Program, main
from streaq import Worker


class Streaq(Program):
    async def open(self):
        self.worker = Worker(redis_url=self.url, concurrency=100)

        async def x(number: float) -> int:
            self.handle(number)
            return 1

        self.task = self.worker.task()(x)
        await self.worker.__aenter__()

    async def add(self, number):
        await self.task.enqueue(number)

    async def add_many(self, numbers):
        await self.worker.enqueue_many([self.task.enqueue(number) for number in numbers])

    async def work(self, concurrency):
        await self.worker.__aexit__(None, None, None)
        self.running = asyncio.create_task(self.worker.run_async())


if __name__ == "__main__":
    main(Streaq)
