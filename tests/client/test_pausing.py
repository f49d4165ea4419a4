"""Pause and resume, next to BullMQ 5 and 6 (RULES-12; wire-format 4.16, 7.2, 7.3)."""

from __future__ import annotations

import pytest

from tests.client.support import events_of, working
from tests.helpers import wait_until
from toril.protocol import pausing


async def has_two(client, queue) -> bool:
    return await client.llen(queue.keys.paused) == 2


async def test_a_paused_queue_takes_jobs_and_gives_none(queue, url, client):
    await queue.pause()
    job = await queue.add("a")

    assert await queue.is_paused()
    assert await client.exists(queue.keys.marker) == 0
    seen = []
    async with working(queue, url, lambda job: seen.append(job.id)):
        late = await queue.add("b", delay=1)
        await wait_until(lambda: has_two(client, queue))
        assert seen == []
        await queue.resume()
        await wait_until(lambda: len(seen) == 2)

    assert not await queue.is_paused()
    assert seen == [job.id, late.id]
    names = [row["event"] for row in await events_of(client, queue, "paused", "resumed")]
    assert names == ["paused", "resumed"]


async def test_resuming_wakes_for_the_first_delayed_job(queue, client):
    await queue.add("late", delay=60_000)
    await queue.pause()

    await queue.resume()

    assert [
        member for member, _ in await client.zrange(queue.keys.marker, 0, -1, withscores=True)
    ] == ["1"]


async def test_next_to_bullmq_5_the_jobs_change_lists(queue, client):
    await client.hset(queue.keys.meta, "version", "bullmq:5.81.5")
    ids = [(await queue.add("a")).id for _ in range(3)]

    await queue.pause()
    ids.append((await queue.add("while paused")).id)

    assert await client.exists(queue.keys.wait) == 0
    assert await client.lrange(queue.keys.paused, 0, -1) == ids[::-1]
    await queue.resume()
    assert await client.exists(queue.keys.paused) == 0
    assert await client.lrange(queue.keys.wait, 0, -1) == ids[::-1]


@pytest.mark.parametrize(("in_wait", "in_paused"), [(5, 12), (12, 5), (7, 7), (0, 9), (9, 0)])
async def test_resuming_puts_two_lists_together_and_loses_nothing(
    in_wait, in_paused, queue, client, monkeypatch
):
    """What was held first runs first, whichever list is the longer one."""
    monkeypatch.setattr(pausing, "SLICE", 3)
    held = [(await queue.add("held")).id for _ in range(in_paused)]
    if held:
        await client.rename(queue.keys.wait, queue.keys.paused)
    newer = [(await queue.add("newer")).id for _ in range(in_wait)]
    await client.hset(queue.keys.meta, "paused", 1)

    await queue.resume()

    assert await client.lrange(queue.keys.wait, 0, -1) == (held + newer)[::-1]
    assert await client.exists(queue.keys.paused) == 0
    assert len(await events_of(client, queue, "resumed")) == 1


async def test_a_resume_that_broke_off_is_gone_on_with(queue, client, monkeypatch):
    monkeypatch.setattr(pausing, "SLICE", 3)
    held = [(await queue.add("held")).id for _ in range(8)]
    await client.rename(queue.keys.wait, queue.keys.paused)
    newer = [(await queue.add("newer")).id for _ in range(8)]
    await client.hset(queue.keys.meta, "paused", 1)

    plan = pausing.resume(queue.keys)
    await queue._connection.run(next(plan))

    assert await queue.is_paused()
    assert await client.llen(queue.keys.wait) + await client.llen(queue.keys.paused) == 16
    await queue.resume()
    assert await client.lrange(queue.keys.wait, 0, -1) == (held + newer)[::-1]


async def test_pausing_twice_next_to_bullmq_5_never_renames_over_a_list(queue, client, monkeypatch):
    """Section 7.2: a stock client loses the held jobs here."""
    monkeypatch.setattr(pausing, "SLICE", 2)
    await client.hset(queue.keys.meta, "version", "bullmq:5.81.5")
    held = [(await queue.add("a")).id for _ in range(3)]
    await queue.pause()
    stray = [f"stray-{n}" for n in range(5)]
    for job_id in stray:
        await client.hset(queue.keys.job(job_id), "name", "added in the style of version 6")
        await client.lpush(queue.keys.wait, job_id)

    await queue.pause()

    assert await client.lrange(queue.keys.paused, 0, -1) == (held + stray)[::-1]
    assert await client.exists(queue.keys.wait) == 0
