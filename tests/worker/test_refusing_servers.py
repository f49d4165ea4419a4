"""A server that answers with an error of its own: the worker says so and goes on once mended."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers import wait_until
from toril import NewJob, Queue, Worker
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


@pytest.mark.parametrize("letters", [None, "q-dlq"])
async def test_a_result_that_is_larger_than_the_server_takes_fails_its_job_alone(
    letters, start_server
):
    """Regression: the worker sent it for ever, and what had ended with it was never written."""
    server = start_server({"proto-max-bulk-len": "1mb"})
    ended: dict[str, str] = {}
    may_end = asyncio.Event()

    async def handle(job):
        await may_end.wait()
        return "x" * job.data

    worker = Worker("q", handle, connection=server.url, concurrency=3, dead_letter_queue=letters)
    worker.on("completed", lambda job, result: ended.update({job.name: "completed"}))
    worker.on("failed", lambda job, error: ended.update({job.name: str(error)}))
    names = ["small", "large", "larger", "one more"]
    sizes = [1, 1_100_000, 1_200_000, 2]
    async with Queue("q", connection=server.url) as queue:
        await worker.start()
        try:
            await queue.add_bulk([NewJob(*pair) for pair in zip(names, sizes, strict=True)])
            await wait_until(lambda: len(worker.current_jobs) == 3)
            may_end.set()
            await wait_until(lambda: len(ended) == 4)
        finally:
            await worker.close(timeout=0)

        assert (ended["small"], ended["one more"]) == ("completed", "completed")
        assert "its return value of 1100002 bytes is more than the server takes" in ended["large"]
        assert "its return value of 1200002 bytes is more than the server takes" in ended["larger"]
        counts = await queue.get_job_counts("completed", "failed", "active")
        assert counts == {"completed": 2, "failed": 0 if letters else 2, "active": 0}
        assert worker.dead_lettered == (2 if letters else 0)
