"""How many finished jobs are kept: by count, by age, and never too many removed in one call."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers import wait_until
from toril import Keep, NewJob


async def finish_one_more(queue: Any, start_worker: Any, inside: Any, **options: Any) -> str:
    """Let one job complete; the rest of what is finished was there before."""
    worker = await start_worker(lambda job: None)
    job = await queue.add("last", **options)

    async def is_done() -> bool:
        return ("completed", job.id) in await inside.events("completed")

    await wait_until(is_done)
    await worker.close()
    return job.id


async def completed_long_ago(queue: Any, inside: Any, count: int, age_ms: int = 0) -> list[str]:
    """Jobs that completed one after another, the last one ``age_ms`` ago."""
    jobs = await queue.add_bulk([NewJob(f"{n}") for n in range(count)])
    seconds, _ = await inside.client.time()
    last = seconds * 1000 - age_ms
    await inside.client.delete(f"{inside.base}:wait")
    scores = {job.id: last - count + n for n, job in enumerate(jobs)}
    await inside.client.zadd(f"{inside.base}:completed", scores)
    return [job.id for job in jobs]


@pytest.mark.parametrize(("keep", "left"), [(3, 3), (1, 1), (Keep(count=3), 3), (Keep(count=1), 1)])
async def test_the_newest_are_kept(keep, left, queue, start_worker, inside):
    old = await completed_long_ago(queue, inside, 5)
    last = await finish_one_more(queue, start_worker, inside, remove_on_complete=keep)

    assert await inside.ids("completed") == [*old, last][-left:]
    for gone in old[: 6 - left]:
        assert await inside.job(gone) == {}


async def test_what_is_too_old_is_removed(queue, start_worker, inside):
    """An age is in seconds on the wire and a duration here."""
    await completed_long_ago(queue, inside, 3, age_ms=120_000)
    young = await completed_long_ago(queue, inside, 2, age_ms=10_000)

    last = await finish_one_more(
        queue, start_worker, inside, remove_on_complete=Keep(age=60_000, count=100)
    )

    assert await inside.ids("completed") == [*young, last]


async def test_a_lower_limit_is_reached_in_steps(queue, start_worker, inside):
    """reliability 2.10: from thousands to one blocks nobody; each finish removes a thousand."""
    await completed_long_ago(queue, inside, 2500)

    left = []
    for _ in range(3):
        await finish_one_more(queue, start_worker, inside, remove_on_complete=1)
        left.append(len(await inside.ids("completed")))

    assert left == [1501, 502, 1]


async def test_true_keeps_nothing_and_a_workers_rule_holds_for_jobs_without_one(
    queue, start_worker, inside
):
    await finish_one_more(queue, start_worker, inside, remove_on_complete=True)
    assert await inside.ids("completed") == []

    old = await completed_long_ago(queue, inside, 4)
    await start_worker(lambda job: None, remove_on_complete=2)
    job = await queue.add("plain")
    await wait_until(lambda: _is_completed(inside, job.id))

    assert await inside.ids("completed") == [old[-1], job.id]


async def _is_completed(inside: Any, job_id: str) -> bool:
    return job_id in await inside.ids("completed")
