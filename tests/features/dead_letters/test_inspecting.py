"""Looking at dead letters (DLQ-17 to DLQ-20, DLQ-26, DLQ-28)."""

from __future__ import annotations

import json

import pytest

from tests.features.dead_letters.conftest import DLQ
from tests.helpers import wait_until
from toril import Worker
from toril.errors import NotDeadLettersError


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
    oldest = await side.dlq.get_dead_letter_jobs(0, 3, newest_first=False)
    assert [job.id for job in oldest] == ids[:4]
    assert [job.id for job in await side.dlq.get_dead_letter_jobs(0, -1)] == newest_first
    assert await side.dlq.get_dead_letter_jobs(15, 20) == []
    after_four = await side.dlq.get_dead_letter_jobs(4, -1, newest_first=False)
    assert [job.id for job in after_four] == ids[4:]


async def test_peeking_gives_the_job_with_its_metadata_or_none(side):
    """DLQ-19."""
    (letter_id,) = await side.bury("charge")

    letter = await side.dlq.peek_dead_letter(letter_id)

    assert letter.data["_dlqMeta"]["sourceQueue"] == "orders"
    assert letter.dead_letter.source_queue == "orders"
    assert await side.dlq.peek_dead_letter("nonexistent") is None


async def test_without_payloads_the_metadata_are_the_same(side):
    """Also those of letters that another program wrote, wherever it put them."""
    await side.bury("charge", "refund")
    meta = {"sourceQueue": "orders", "failedReason": "No", "fingerprint": "x"}
    for data in ({"n": 1, "_dlqMeta": meta}, {"_dlqMeta": meta, "text": "y" * 200_000}, {"n": 2}):
        await side.dlq.add("lost", data)

    whole = await side.dlq.get_dead_letter_jobs(0, -1)
    heads = await side.dlq.get_dead_letter_jobs(0, -1, payloads=False)

    assert [(one.id, one.name, one.timestamp, one.dead_letter) for one in heads] == [
        (one.id, one.name, one.timestamp, one.dead_letter) for one in whole
    ]
    assert all("n" not in one.data for one in heads)
    examples = await side.dlq.get_dead_letter_summary(payloads=False)
    assert [(one.fingerprint, one.count, one.example.dead_letter) for one in examples] == [
        (one.fingerprint, one.count, one.example.dead_letter)
        for one in await side.dlq.get_dead_letter_summary()
    ]


@pytest.mark.parametrize("size", [-1000, -11, 0, 10.5, 1e300, "nan", "many"])
async def test_a_note_that_another_program_damaged_hides_no_metadata(side, client, prefix, size):
    (letter_id,) = await side.bury("charge")
    note = json.dumps({"size": size, "source": "orders", "why": "", "fp": "x"})
    await client.hset(f"{prefix}:{DLQ}:{letter_id}", "x.letter", note)

    (whole,) = await side.dlq.get_dead_letter_jobs(0, 0)
    (head,) = await side.dlq.get_dead_letter_jobs(0, 0, payloads=False)

    assert head.dead_letter is not None
    assert head.dead_letter == whole.dead_letter


async def test_the_methods_work_on_any_queue_by_force(side):
    """DLQ-20: a queue that never took a dead letter."""
    job = await side.orders.add("charge", {"n": 1})

    assert await side.orders.get_dead_letter_count() == 1
    found = await side.orders.get_dead_letter_jobs(0, 9, force=True)
    assert [job.id for job in found] == [job.id]
    assert (await side.orders.peek_dead_letter(job.id)).dead_letter is None
    assert await side.orders.replay_all_dead_letters(force=True) == 0
    assert await side.orders.get_dead_letter_summary(force=True) == []
    assert await side.orders.purge_dead_letters(failed_reason="x", force=True) == 0
    assert await side.orders.purge_dead_letters(name="charge", force=True) == 1
    assert await side.orders.get_dead_letter_count() == 0


async def test_a_queue_that_holds_other_jobs_is_refused(side):
    """A forgotten "-dlq" must not empty production."""
    await side.orders.add("charge", {"n": 1})
    orders = side.orders

    for act in (
        orders.get_dead_letter_jobs,
        orders.get_dead_letter_summary,
        orders.replay_all_dead_letters,
        orders.purge_dead_letters,
        lambda: orders.purge_dead_letters(dry_run=True),
        lambda: orders.purge_dead_letters(name="charge"),
        lambda: orders.purge_dead_letters(resume=True),
    ):
        with pytest.raises(NotDeadLettersError, match="'orders' is no dead letter queue"):
            await act()

    assert await orders.get_waiting_count() == 1


async def test_burying_the_first_letter_marks_its_queue(side):
    await side.bury("charge")

    assert await side.client.hget(f"{side.prefix}:{DLQ}:meta", "toril.deadLetters") == "1"
    assert await side.client.hget(f"{side.prefix}:orders:meta", "toril.deadLetters") is None
    await side.dlq.purge_dead_letters()
    await side.dlq.add("stranger", {})
    assert [job.name for job in await side.dlq.get_dead_letter_jobs()] == ["stranger"]
    assert await side.dlq.purge_dead_letters() == 1


async def test_letters_in_a_queue_without_a_mark_are_known_by_what_they_are(side):
    """Those of the version before, and those of another program."""
    await side.bury("charge", "charge")
    meta = f"{side.prefix}:{DLQ}:meta"
    await side.client.hdel(meta, "toril.deadLetters")

    assert await side.dlq.purge_dead_letters() == 2
    await side.dlq.add("theirs", {"_dlqMeta": {"sourceQueue": "orders"}})
    await side.dlq.add("stranger", {})
    assert len(await side.dlq.get_dead_letter_jobs()) == 2
    assert await side.dlq.purge_dead_letters() == 2


async def test_what_comes_into_an_empty_queue_while_a_purge_begins_is_left(side):
    """Nothing tells what the queue is for, so only letters go."""
    run = side.orders._connection.run

    async def late(command):
        if command.script is not None and command.script.name == "purgeDeadLetters":
            await side.client.hset(
                f"{side.prefix}:orders:1", mapping={"name": "work", "data": "{}"}
            )
            await side.client.lpush(f"{side.prefix}:orders:wait", "1")
        return await run(command)

    side.orders._connection.run = late
    assert await side.orders.purge_dead_letters() == 0
    assert await side.orders.get_waiting_count() == 1


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
        await wait_until(lambda: len(seen) == 2)

    assert seen == ids
    assert await side.client.zrange(f"{side.prefix}:{DLQ}:completed", 0, -1) == ids[1:]
