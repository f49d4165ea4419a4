"""taskiq with taskiq-redis: a list broker and a result backend."""

import asyncio

from asyncio_program import Program, main
from taskiq.api import run_receiver_task
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend


class Taskiq(Program):
    async def open(self):
        results = RedisAsyncResultBackend(self.url, result_ex_time=600)
        self.broker = ListQueueBroker(self.url).with_result_backend(results)

        async def handler(number: float) -> int:
            self.handle(number)
            return 1

        self.task = self.broker.register_task(handler, task_name="x")
        await self.broker.startup()

    async def add(self, number):
        await self.task.kiq(number)

    async def work(self, concurrency):
        receiver = run_receiver_task(self.broker, max_async_tasks=concurrency, run_startup=False)
        self.receiver = asyncio.create_task(receiver)


if __name__ == "__main__":
    main(Taskiq)
