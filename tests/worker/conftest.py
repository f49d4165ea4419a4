"""Fixtures for tests of workers: a queue, workers that are closed after the test, a look inside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis.asyncio

from tests.helpers import PATIENCE_S, wait_until
from tests.worker.programs import Program, programs
from toril import Worker
from toril.worker import life

StartWorker = Callable[..., Awaitable[Worker]]


@pytest.fixture
def patient_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that has to end at once gives its server a second to take its jobs back, and then
    leaves them to others: a busy machine may take longer."""
    monkeypatch.setattr(life, "GRACE_S", PATIENCE_S)


@pytest.fixture
async def start_worker(url: str, prefix: str, patient_end: None) -> AsyncIterator[StartWorker]:
    """Starts a worker of queue "q"; it hands its jobs back when the test is over.

    An idle one looks again in ten minutes: what it is to do before, it has to be woken for.
    """
    workers: list[Worker] = []
    defaults = {"connection": url, "prefix": prefix, "drain_delay": 600_000}

    async def start(handler: Any, **options: Any) -> Worker:
        worker = Worker("q", handler, **{**defaults, **options})
        workers.append(worker)
        await worker.start()
        return worker

    yield start
    for worker in workers:
        await worker.close(timeout=0)


class Inside:
    """What the server holds of the queue "q", asked without Toril."""

    def __init__(self, client: redis.asyncio.Redis, prefix: str) -> None:
        self.client = client
        self.base = f"{prefix}:q"

    async def job(self, job_id: str) -> dict[str, str]:
        return await self.client.hgetall(f"{self.base}:{job_id}")

    async def ids(self, container: str) -> list[str]:
        key = f"{self.base}:{container}"
        if container in ("wait", "paused", "active"):
            return await self.client.lrange(key, 0, -1)
        return await self.client.zrange(key, 0, -1)

    async def lock(self, job_id: str) -> str | None:
        return await self.client.get(f"{self.base}:{job_id}:lock")

    async def logs(self, job_id: str) -> list[str]:
        return await self.client.lrange(f"{self.base}:{job_id}:logs", 0, -1)

    async def events(self, *names: str) -> list[tuple[str, str]]:
        """(name, job id) of every event, oldest first."""
        rows = [row for _, row in await self.client.xrange(f"{self.base}:events")]
        return [
            (row["event"], row.get("jobId", ""))
            for row in rows
            if not names or row["event"] in names
        ]

    async def until_finished(self, count: int, timeout: float = PATIENCE_S) -> None:
        """Wait until this many jobs have completed or failed for good."""

        async def finished() -> bool:
            completed, failed = await self.ids("completed"), await self.ids("failed")
            return len(completed) + len(failed) >= count

        await wait_until(finished, timeout, message=f"{count} jobs finished")

    async def until_active(self, count: int = 1, timeout: float = PATIENCE_S) -> list[str]:
        async def active() -> list[str]:
            ids = await self.ids("active")
            return ids if len(ids) >= count else []

        return await wait_until(active, timeout, message=f"{count} jobs active")


@pytest.fixture
def inside(client: redis.asyncio.Redis, prefix: str) -> Inside:
    return Inside(client, prefix)


@pytest.fixture
def start_program(url: str, prefix: str) -> Iterator[Callable[..., Program]]:
    """Starts a worker in a process of its own; the arguments are those of ``programs.main``."""
    with programs() as start:
        yield partial(start, url=url, prefix=prefix)
