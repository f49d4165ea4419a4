"""Waiting for a job whose id has ended before: what is read late of that run is not its result."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.client.support import working
from tests.helpers import wait_until
from toril import JobFailedError, Queue
from toril.client.event_cursor import EventCursor
from toril.client.listening import Waiter


class Lag:
    """Holds back what the reader of events has read, and notes for which jobs somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_over = asyncio.Event()
        self.sleepers: set[str | None] = set()
        read, wait = EventCursor.read, Waiter.wait

        async def read_late(cursor: EventCursor) -> Any:
            page = await read(cursor)
            await self.is_over.wait()
            return page

        def note(waiter: Waiter, timeout_s: float) -> Any:
            self.sleepers.add(waiter.job_id)
            return wait(waiter, timeout_s)

        monkeypatch.setattr(EventCursor, "read", read_late)
        monkeypatch.setattr(Waiter, "wait", note)


@pytest.fixture
async def lag(queue, monkeypatch):
    """While it lasts, the reader of this queue runs, because somebody waits for another job."""
    lag = Lag(monkeypatch)
    other = await queue.add("other", delay=3_600_000)
    waiting = asyncio.create_task(queue.wait_for(other))
    await wait_until(lambda: other.id in lag.sleepers)
    yield lag
    lag.is_over.set()
    waiting.cancel()


async def first_run(queue: Queue, url: str, state: str | None) -> None:
    async def handle(job: Any) -> Any:
        if state == "failed":
            raise ValueError("the first")
        return "the first"

    async def has_ended() -> bool:
        return await queue.get_state("report") == state

    async with working(queue, url, handle):
        await wait_until(has_ended)


async def result_of_second_run(queue: Queue, url: str, lag: Lag) -> Any:
    async def handle(job: Any) -> Any:
        return "the second"

    waiting = asyncio.create_task(queue.wait_for("report", timeout=60_000))
    await wait_until(lambda: "report" in lag.sleepers or waiting.done())
    lag.is_over.set()
    async with working(queue, url, handle):
        return await waiting


async def test_the_result_of_a_job_that_was_added_again_is_its_own(queue, url, lag):
    await queue.add("x", job_id="report", remove_on_complete=True)
    await first_run(queue, url, None)
    await queue.add("x", job_id="report")

    assert await result_of_second_run(queue, url, lag) == "the second"


async def test_the_result_of_a_job_that_was_retried_is_that_of_the_retry(queue, url, lag):
    await queue.add("x", job_id="report", attempts=1)
    await first_run(queue, url, "failed")
    await queue.retry("report")

    assert await result_of_second_run(queue, url, lag) == "the second"


async def test_an_end_that_is_read_late_is_still_the_end(queue, url, lag):
    """It came after the job was looked at."""
    await queue.add("x", job_id="report", attempts=1)
    waiting = asyncio.create_task(queue.wait_for("report", timeout=60_000))
    await wait_until(lambda: "report" in lag.sleepers)
    await first_run(queue, url, "failed")
    await queue.remove("report")

    lag.is_over.set()

    with pytest.raises(JobFailedError, match="the first"):
        await waiting
