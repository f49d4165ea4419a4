"""Looking at dead letters (DLQ-17 to DLQ-20, DLQ-26, DLQ-28)."""

from __future__ import annotations

from tests.features.dead_letters.conftest import DLQ
from toril import Worker


async def test_the_count_is_that_of_the_waiting_jobs(side):
    """DLQ-17."""
    await side.bury(*["charge"] * 5)

    assert await side.dlq.get_dead_letter_count() == 5
    assert (await side.dlq.get_job_counts())["waiting"] == 5


async def test_pages_are_newest_first(side):
    """DLQ-18 (C-14)."""
    ids = await side.bury(*["charge"] * 15)
    newest_first = ids[::-1]

    first = await side.dlq.get_dead_letter_jobs(0, 9)
    second = await side.dlq.get_dead_letter_jobs(10, 14)

    assert [job.id for job in first] == newest_first[:10]
    assert [job.id for job in second] == newest_first[10:]
    oldest = await side.dlq.get_dead_letter_jobs(0, 3, oldest_first=True)
    assert [job.id for job in oldest] == ids[:4]
    assert [job.id for job in await side.dlq.get_dead_letter_jobs(0, -1)] == newest_first
    assert await side.dlq.get_dead_letter_jobs(15, 20) == []
    after_four = await side.dlq.get_dead_letter_jobs(4, -1, oldest_first=True)
    assert [job.id for job in after_four] == ids[4:]


async def test_peeking_gives_the_job_with_its_metadata_or_none(side):
    """DLQ-19."""
    (letter_id,) = await side.bury("charge")

    letter = await side.dlq.peek_dead_letter(letter_id)

    assert letter.data["_dlqMeta"]["sourceQueue"] == "orders"
    assert letter.dead_letter.source_queue == "orders"
    assert await side.dlq.peek_dead_letter("nonexistent") is None


async def test_the_methods_work_on_any_queue(side):
    """DLQ-20: a queue that never took a dead letter."""
    job = await side.orders.add("charge", {"n": 1})

    assert await side.orders.get_dead_letter_count() == 1
    assert [found.id for found in await side.orders.get_dead_letter_jobs(0, 9)] == [job.id]
    assert (await side.orders.peek_dead_letter(job.id)).dead_letter is None
    assert await side.orders.replay_all_dead_letters() == 0
    assert await side.orders.get_dead_letter_summary() == []
    assert await side.orders.purge_dead_letters(failed_reason="x") == 0
    assert await side.orders.purge_dead_letters(name="charge") == 1
    assert await side.orders.get_dead_letter_count() == 0


async def test_an_empty_queue_gives_zero_everywhere(side):
    """DLQ-26."""
    assert await side.dlq.get_dead_letter_count() == 0
    assert await side.dlq.get_dead_letter_jobs(0, 9) == []
    assert await side.dlq.replay_all_dead_letters() == 0
    assert await side.dlq.purge_dead_letters() == 0
    assert await side.dlq.replay_all_dead_letters(dry_run=True) == 0
    assert await side.dlq.get_dead_letter_summary() == []


async def test_letters_finished_by_a_worker_are_kept_as_its_retention_says(side):
    """DLQ-28: the target is a queue like any other."""
    ids = await side.bury("charge", "charge")
    seen = []

    async def handle(job):
        seen.append(job.id)

    async with Worker(DLQ, handle, connection=side.url, prefix=side.prefix, remove_on_complete=1):
        await side.letters(0)

    assert seen == ids
    assert await side.client.zrange(f"{side.prefix}:{DLQ}:completed", 0, -1) == ids[1:]
