"""SAQ: a list and a blocking move, one JSON document per job.

Its pool is widened: at concurrency 100 redis-py's own limit makes some of its calls fail.
"""

import asyncio

from asyncio_program import Program, main
from redis.asyncio import Redis
from saq import Worker
from saq.queue.redis import RedisQueue


class Saq(Program):
    async def open(self):
        self.queue = RedisQueue(Redis.from_url(self.url, max_connections=1000))
        await self.queue.connect()

    async def add(self, number):
        await self.queue.enqueue("x", n=number)

    async def work(self, concurrency):
        async def handler(context, *, n):
            self.handle(n)
            return 1

        self.worker = Worker(
            self.queue, functions=[("x", handler)], concurrency=concurrency, dequeue_timeout=1
        )
        self.task = asyncio.create_task(self.worker.start())


if __name__ == "__main__":
    main(Saq)
