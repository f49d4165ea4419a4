"""A system that refuses a new thread costs the attempt that needed it, and nothing else."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from tests.helpers import wait_until


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_thread_that_cannot_start_costs_one_attempt(
    concurrency, queue, start_worker, inside, monkeypatch
):
    start, refused, calls = threading.Thread.start, [], Counter()

    def start_all_but_one(thread):
        if thread.name.startswith("toril-handler-") and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    def handle(job):
        calls[job.id] += 1

    monkeypatch.setattr(threading.Thread, "start", start_all_but_one)
    added = [await queue.add("x", attempts=2) for _ in range(5)]
    await start_worker(handle, concurrency=concurrency)
    await wait_until(lambda: len(calls) == 5)
    await inside.until_finished(5)

    assert refused
    assert await inside.ids("failed") == []
    assert calls == {job.id: 1 for job in added}
