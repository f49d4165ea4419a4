"""arq: polls a sorted set, here every 10 ms; its default of 500 ms would be all we measured."""

import asyncio
import logging

from arq import Worker, create_pool, func
from arq.connections import RedisSettings
from asyncio_program import Program, main


class Arq(Program):
    async def open(self):
        logging.disable(logging.WARNING)
        self.settings = RedisSettings.from_dsn(self.url)
        self.pool = await create_pool(self.settings)

    async def add(self, number):
        await self.pool.enqueue_job("x", number)

    async def work(self, concurrency):
        async def handler(context, number):
            self.handle(number)
            return 1

        self.worker = Worker(
            functions=[func(handler, name="x")],
            redis_settings=self.settings,
            max_jobs=concurrency,
            poll_delay=0.01,
            queue_read_limit=concurrency * 5,
            handle_signals=False,
        )
        self.task = asyncio.create_task(self.worker.async_run())


if __name__ == "__main__":
    main(Arq)
