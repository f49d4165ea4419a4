"""Whoever waits is woken by every job that comes, at whatever moment it comes."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.helpers import let_pass, wait_until
from toril import Queue

ROUNDS = 150


@pytest.mark.parametrize("concurrency", [1, 2, 3, 8])
@pytest.mark.parametrize("others", [0, 1])
async def test_no_job_is_overlooked(queue: Queue, start_worker, concurrency, others):
    """Jobs come while others end, so that workers become idle and busy at the same moment.

    They look again by themselves in ten minutes: a marker that is lost would be noticed.
    """
    dice = random.Random(concurrency)
    ran: set[int] = set()

    async def handler(job):
        await asyncio.sleep(job.data["ms"] / 1000)
        ran.add(job.data["n"])

    for _ in range(1 + others):
        await start_worker(handler, concurrency=concurrency)
    for number in range(ROUNDS):
        await queue.add("x", {"n": number, "ms": dice.choice((0, 0, 0.5, 2))})
        if dice.random() < 0.6:
            expected = set(range(number + 1))
            await wait_until(lambda expected=expected: ran == expected, every=0.001)
            await let_pass(dice.choice((0, 0, 0.0005, 0.001)), "the next job may come at any time")
