"""A server that answers with an error of its own: the worker says so and goes on once mended."""

from __future__ import annotations

from tests.helpers import wait_until
from toril import Queue, Worker
from toril.errors import ServerRefusalError


async def test_a_worker_outlives_a_key_of_the_wrong_type(url, prefix, client):
    errors: list[Exception] = []
    done: list[str] = []

    async def handle(job):
        done.append(job.id)

    worker = Worker("q", handle, connection=url, prefix=prefix)
    worker.on("error", errors.append)
    await client.set(f"{prefix}:q:wait", "not a list")
    async with Queue("q", connection=url, prefix=prefix) as queue, worker:
        await wait_until(lambda: any(isinstance(one, ServerRefusalError) for one in errors))
        assert "WRONGTYPE" in str(errors[0])

        await client.delete(f"{prefix}:q:wait")
        job = await queue.add("a")
        await wait_until(lambda: done == [job.id])
