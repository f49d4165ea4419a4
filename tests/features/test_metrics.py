"""Per-minute metrics as BullMQ stores them."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.helpers import wait_until
from toril import Worker
from toril.errors import InvalidOptionError
from toril.sync import Queue as BlockingQueue


async def handler(job):
    if job.name == "bad":
        raise ValueError("no")


async def turn_back(client, queue, kind, minutes):
    """As if the last finish had been so many minutes ago."""
    key = f"{queue.keys.base}:metrics:{kind}"
    await client.hincrby(key, "prevTS", -minutes * 60_000)


async def test_finishes_are_counted_by_the_minute(queue, client, url, prefix):
    async def finish(*names):
        before = await client.xlen(queue.keys.events)
        jobs = [await queue.add(name) for name in names]
        async with Worker("q", handler, connection=url, prefix=prefix, metrics_points=4):
            await wait_until(lambda: _all_finished(queue, jobs))
        assert await client.xlen(queue.keys.events) > before
        stored = [await queue.get_job(job.id) for job in jobs if job.name == "good"]
        return [job.finished_on // 60_000 for job in stored]

    minutes = await finish("good", "good", "bad")
    await turn_back(client, queue, "completed", 1)
    minutes += [minute + 1 for minute in await finish("good")]
    await turn_back(client, queue, "completed", 3)
    minutes += [minute + 4 for minute in await finish("good", "good")]

    completed = await queue.get_metrics("completed")
    # Two in the first minute; then one, two minutes of nothing; the last two are under way:
    # [0, 0, 1, 2], unless a minute of the clock has passed meanwhile.
    finished = Counter(minutes)
    data = [finished[minute] for minute in reversed(range(min(minutes), max(minutes)))][:4]
    assert (completed.count, completed.data, completed.points) == (5, data, 4)
    assert completed.last_at is not None
    failed = await queue.get_metrics("failed")
    assert (failed.count, failed.data) == (1, [])
    assert (await queue.get_metrics("completed", 2, 3)).data == data[2:]


async def _all_finished(queue, jobs):
    return all([await queue.get_state(job.id) in ("completed", "failed") for job in jobs])


async def test_a_long_silence_is_written_down_in_one_go(queue, client, url, prefix):
    async def finish():
        job = await queue.add("good")
        async with Worker("q", handler, connection=url, prefix=prefix, metrics_points=20_160):
            await wait_until(lambda: _all_finished(queue, [job]))

    await finish()
    await turn_back(client, queue, "completed", 30_000)
    await finish()

    assert (await queue.get_metrics("completed", 0, 0)).points == 20_160


async def test_without_points_nothing_is_kept(queue, client, url, prefix):
    job = await queue.add("good")
    async with Worker("q", handler, connection=url, prefix=prefix):
        await wait_until(lambda: _all_finished(queue, [job]))

    assert (await queue.get_metrics("completed")).count == 0
    with pytest.raises(InvalidOptionError):
        await queue.get_metrics("delayed")


def test_the_blocking_client_has_them_too(url, prefix):
    with BlockingQueue("q", connection=url, prefix=prefix) as queue:
        assert queue.get_metrics("failed").data == []
