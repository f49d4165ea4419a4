"""Dead letters whose queue is in another slot of a cluster."""

from __future__ import annotations

import pytest

from tests.helpers import wait_until
from toril import DeadLetterOptions, ManualWorker, Queue, Worker, sync
from toril.errors import DeadLetterNotFoundError, UnrecoverableError


async def refuse(job):
    await job.log("a row")
    raise UnrecoverableError("no")


async def test_a_job_that_fails_for_good_reaches_a_queue_in_another_slot(slots):
    orders, dlq = slots.name(0), slots.name(1)
    told = []
    target = DeadLetterOptions(dlq, on_dead_letter=lambda job, letter: told.append(letter))
    async with Queue(orders, **slots.options) as queue, Queue(dlq, **slots.options) as letters:
        for number in range(30):
            await queue.add("charge", {"n": number})

        async with Worker(
            orders, refuse, dead_letter_queue=target, concurrency=10, **slots.options
        ):
            await wait_until(lambda: _has(letters, 30))
        found = await letters.get_dead_letter_jobs(0, -1)

        assert sorted(job.data["n"] for job in found) == list(range(30))
        assert {job.dead_letter.source_queue for job in found} == {orders}
        assert {job.id for job in found} == {letter.dead_letter_job_id for letter in told}
        assert await letters.get_job_logs(found[0].id) == ["a row"]
        assert sum((await queue.get_job_counts()).values()) == 0
        assert await slots.leftovers(orders) == {}
        received = slots.key(dlq, "toril:received")
        assert await slots.client.zcard(received) == 30
        assert 0 < await slots.client.pttl(received) <= 86_400_000


async def test_letters_come_back_across_slots(slots):
    orders, dlq = slots.name(0), slots.name(1)
    async with Queue(orders, **slots.options) as queue, Queue(dlq, **slots.options) as letters:
        first = [(await queue.add("charge", {"n": n})).id for n in range(12)]
        async with Worker(orders, refuse, dead_letter_queue=dlq, **slots.options):
            await wait_until(lambda: _has(letters, 12))

        letter = (await letters.get_dead_letter_jobs(0, 0))[0]
        new_id = await letters.replay_dead_letter(letter.id)
        assert await letters.replay_all_dead_letters() == 11

        waiting = await queue.get_waiting(0, -1)
        assert sorted(job.data["n"] for job in waiting) == list(range(12))
        assert new_id in {job.id for job in waiting}
        assert not set(first) & {job.id for job in waiting}
        assert await letters.get_dead_letter_count() == 0
        assert await slots.leftovers(dlq) == {}
        with pytest.raises(DeadLetterNotFoundError):
            await letters.replay_dead_letter(letter.id)


async def test_a_kept_source_stays_and_its_letter_goes(slots):
    orders, dlq = slots.name(0), slots.name(2)
    target = DeadLetterOptions(dlq, keep_source=True, keep=3)
    async with Queue(orders, **slots.options) as queue, Queue(dlq, **slots.options) as letters:
        for number in range(5):
            await queue.add("charge", {"n": number})
        async with Worker(orders, refuse, dead_letter_queue=target, **slots.options):
            await wait_until(lambda: _failed(queue, 5))
            await wait_until(lambda: _settled(slots, orders))

        assert await letters.get_dead_letter_count() == 3
        assert (await queue.get_job_counts())["failed"] == 5


async def test_a_manual_worker_carries_its_letters_itself(slots):
    orders, dlq = slots.name(0), slots.name(1)
    async with (
        Queue(orders, **slots.options) as queue,
        Queue(dlq, **slots.options) as letters,
        ManualWorker(orders, dead_letter_queue=dlq, **slots.options) as worker,
    ):
        await queue.add("charge", {"n": 1}, attempts=1)
        job = await worker.get_next_job(20_000)
        await job.fail(ValueError("no"))

        assert await letters.get_dead_letter_count() == 1
        assert await slots.leftovers(orders) == {}


def test_a_blocking_client_carries_what_it_replays(slots):
    orders, dlq = slots.name(0), slots.name(1)
    with (
        sync.Queue(orders, **slots.options) as queue,
        sync.Queue(dlq, **slots.options) as letters,
        sync.ManualWorker(orders, dead_letter_queue=dlq, **slots.options) as worker,
    ):
        queue.add("charge", {"n": 1}, attempts=1)
        worker.get_next_job(20_000).fail(ValueError("no"))
        assert letters.get_dead_letter_count() == 1

        letters.replay_all_dead_letters()

        assert [job.data for job in queue.get_waiting()] == [{"n": 1}]


async def test_a_diverted_lane_goes_to_another_slot_in_order(slots):
    orders, dlq = slots.name(0), slots.name(1)
    async with Queue(orders, **slots.options) as queue, Queue(dlq, **slots.options) as letters:
        for number in range(8):
            await queue.add(
                "charge", {"n": number}, lane="user-1", on_exhausted="divert", attempts=1
            )
        async with Worker(orders, refuse, dead_letter_queue=dlq, **slots.options):
            await wait_until(lambda: _has(letters, 8))

        found = await letters.get_dead_letter_jobs(0, -1)
        assert [job.data["n"] for job in found][::-1] == list(range(8))
        assert [job.dead_letter.cause for job in found].count("diverted") == 7
        assert await slots.leftovers(orders) == {}


async def _has(letters, count: int) -> bool:
    return await letters.get_dead_letter_count() == count


async def _failed(queue, count: int) -> bool:
    return (await queue.get_job_counts())["failed"] == count


async def _settled(slots, name: str) -> bool:
    return not await slots.leftovers(name)
