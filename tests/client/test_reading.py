"""What a queue tells about its jobs."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers import wait_until
from toril import NewJob, Queue, Worker
from toril.errors import InvalidNameError, InvalidOptionError


async def ids_of(jobs) -> list[str]:
    return [job.id for job in jobs]


async def run_jobs(url: str, prefix: str, handler, until) -> None:
    async with Worker("q", handler, connection=url, prefix=prefix):
        await wait_until(until)


async def one_of_each(queue: Queue, url: str, prefix: str, client) -> dict[str, str]:
    """A job in every state."""
    good, bad = await queue.add("good"), await queue.add("bad")

    async def handle(job):
        if job.name == "bad":
            raise ValueError("no")
        return {"n": 1}

    async def both_ended() -> bool:
        return (await queue.get_job_counts("completed", "failed")) == {"completed": 1, "failed": 1}

    await run_jobs(url, prefix, handle, both_ended)
    return {
        "completed": good.id,
        "failed": bad.id,
        "delayed": (await queue.add("later", delay=60_000)).id,
        "prioritized": (await queue.add("urgent", priority=3)).id,
        "waiting": (await queue.add("next")).id,
    }


async def test_fifo_21_counts_by_state(queue, url, prefix, client):
    """FIFO-21: every state has its count."""
    await one_of_each(queue, url, prefix, client)

    counts = await queue.get_job_counts()

    assert counts == {
        "waiting": 1,
        "active": 0,
        "delayed": 1,
        "prioritized": 1,
        "waiting_children": 0,
        "completed": 1,
        "failed": 1,
    }
    assert await queue.get_job_counts("failed", "waiting") == {"failed": 1, "waiting": 1}


async def test_each_state_has_its_getter_and_its_count(queue, url, prefix, client):
    ids = await one_of_each(queue, url, prefix, client)

    for state, job_id in ids.items():
        assert await ids_of(await getattr(queue, f"get_{state}")()) == [job_id]
        assert await getattr(queue, f"get_{state}_count")() == 1
        assert await queue.get_state(job_id) == state
    assert await queue.get_active() == []
    assert await queue.get_active_count() == 0
    assert await queue.get_waiting_children() == []
    assert await queue.get_waiting_children_count() == 0


async def test_the_state_of_a_running_job_and_of_none(queue, url, prefix):
    job = await queue.add("long")
    release = asyncio.Event()

    async def handle(job) -> None:
        await release.wait()

    async with Worker("q", handle, connection=url, prefix=prefix):

        async def is_active() -> bool:
            return await queue.get_state(job.id) == "active"

        await wait_until(is_active)
        assert await ids_of(await queue.get_active()) == [job.id]
        release.set()
    assert await queue.get_state("nobody") is None
    assert await queue.get_job("nobody") is None


async def test_fifo_23_ids_by_state(queue, url, prefix, client):
    """FIFO-23: the ids of the jobs in each state."""
    ids = await one_of_each(queue, url, prefix, client)

    found = await queue.get_job_ids("active", "waiting", "delayed")

    assert found == {"active": [], "waiting": [ids["waiting"]], "delayed": [ids["delayed"]]}
    assert set(await queue.get_job_ids()) == set(await queue.get_job_counts())


async def test_a_page_begins_with_the_oldest_unless_asked_otherwise(queue):
    jobs = await ids_of(await queue.add_bulk([NewJob("x") for _ in range(10)]))

    assert await ids_of(await queue.get_waiting(2, 4)) == jobs[2:5]
    assert await ids_of(await queue.get_waiting(-3, -1)) == jobs[-3:]
    assert await ids_of(await queue.get_waiting(8, 100)) == jobs[8:]
    assert await queue.get_waiting(10) == []
    newest = await queue.get_waiting(0, 2, newest_first=True)
    assert await ids_of(newest) == jobs[:-4:-1]


async def test_a_sorted_state_is_paged_the_same_way(queue):
    new = [NewJob("x", priority=number + 1) for number in range(6)]
    jobs = await ids_of(await queue.add_bulk(new))

    assert await ids_of(await queue.get_prioritized(1, 2)) == jobs[1:3]
    newest = await queue.get_prioritized(0, 1, newest_first=True)
    assert await ids_of(newest) == [jobs[5], jobs[4]]


async def test_a_page_counts_over_the_states_it_names(queue):
    waiting = await ids_of(await queue.add_bulk([NewJob("x") for _ in range(3)]))
    delayed = await ids_of(await queue.add_bulk([NewJob("x", delay=60_000) for _ in range(3)]))

    page = await queue.get_jobs(["waiting", "delayed"], 2, 3)

    assert await ids_of(page) == [waiting[2], delayed[0]]
    assert await ids_of(await queue.get_jobs("delayed")) == delayed
    assert await ids_of(await queue.get_jobs()) == waiting + delayed


async def test_more_jobs_than_fit_one_read(queue):
    jobs = await ids_of(await queue.add_bulk([NewJob("x") for _ in range(2500)]))

    assert await ids_of(await queue.get_waiting()) == jobs
    assert await ids_of(await queue.get_waiting(newest_first=True)) == jobs[::-1]


@pytest.mark.no_audit(reason="ghosts")
async def test_ids_without_a_job_are_left_out(queue, client, prefix):
    job = await queue.add("x")
    await client.lpush(f"{prefix}:q:wait", "ghost")
    await client.rpush(f"{prefix}:q:wait", "0:0")

    assert await ids_of(await queue.get_waiting()) == [job.id]


async def test_what_a_bullmq_5_paused_is_waiting_too(queue, client, prefix):
    old, new = await queue.add("old"), await queue.add("new")
    await client.lmove(f"{prefix}:q:wait", f"{prefix}:q:paused", "RIGHT", "LEFT")

    assert await ids_of(await queue.get_waiting()) == [old.id, new.id]
    assert await ids_of(await queue.get_waiting(newest_first=True)) == [new.id, old.id]
    assert await queue.get_waiting_count() == 2
    assert await queue.get_state(old.id) == "waiting"
    assert await queue.get_counts_per_priority([0]) == {0: 2}


async def test_counts_per_priority(queue):
    await queue.add_bulk([NewJob("x", priority=p) for p in (1, 1, 2, 2**21 - 1)] + [NewJob("x")])

    counts = await queue.get_counts_per_priority([0, 1, 2, 3, 2**21 - 1])

    assert counts == {0: 1, 1: 2, 2: 1, 3: 0, 2**21 - 1: 1}


async def test_the_log_of_a_job(queue, client, prefix):
    job = await queue.add("x")
    await client.rpush(f"{prefix}:q:{job.id}:logs", *[f"row {n}" for n in range(5)])

    assert await queue.get_job_logs(job.id) == [f"row {n}" for n in range(5)]
    assert await queue.get_job_logs(job.id, 1, 2) == ["row 1", "row 2"]
    assert await queue.get_job_logs(job.id, 0, 1, newest_first=True) == ["row 4", "row 3"]
    assert await queue.get_job_log_count(job.id) == 5
    assert await queue.get_job_logs("nobody") == []


async def test_the_workers_of_a_queue_and_of_no_other(queue, make_queue, url, prefix):
    async def handle(job) -> None: ...

    named = Worker("q", handle, connection=url, prefix=prefix, worker_name="named")
    nameless = Worker("q", handle, connection=url, prefix=prefix)
    stranger = Worker("q2", handle, connection=url, prefix=prefix)
    async with named, nameless, stranger:

        async def both() -> bool:
            return len(await queue.get_workers()) == 2

        await wait_until(both)
        workers = await queue.get_workers()
    assert {worker.name for worker in workers} == {"named", ""}
    assert all(worker.address for worker in workers)


@pytest.mark.parametrize("state", ["done", "wait", ""])
async def test_a_state_that_does_not_exist_is_refused(queue, state):
    with pytest.raises(InvalidOptionError, match="not a state of a job"):
        await queue.get_jobs(state if state else [""])


async def test_a_key_of_the_queue_is_no_job(queue):
    with pytest.raises(InvalidNameError):
        await queue.get_job("meta")
    with pytest.raises(InvalidNameError):
        await queue.get_state("wait")


async def test_duplicates_in_bulk_are_the_jobs_that_exist(queue):
    """RULES-12: the caller is told, and gets the job that exists."""
    await queue.add("x", {"n": 1}, job_id="a")

    jobs = await queue.add_bulk(
        [NewJob("x", {"n": n}, job_id=job_id) for n, job_id in ((2, "a"), (3, "b"), (4, "b"))]
    )

    assert [(job.id, job.data["n"], job.duplicated) for job in jobs] == [
        ("a", 1, True),
        ("b", 3, False),
        ("b", 3, True),
    ]


@pytest.mark.no_audit
@pytest.mark.parametrize("newest_first", [False, True])
async def test_a_page_is_filled_up_past_ids_without_a_job(queue, client, newest_first):
    """BullMQ's drain leaves such ids behind."""
    jobs = await queue.add_bulk([NewJob("x") for _ in range(6)])
    for gone in (jobs[1], jobs[4]):
        await client.delete(queue.keys.job(gone.id))
    left = [jobs[n].id for n in ((5, 3, 2, 0) if newest_first else (0, 2, 3, 5))]

    async def page(start, end):
        return await ids_of(await queue.get_jobs("waiting", start, end, newest_first=newest_first))

    assert await page(0, 2) == left[:3]
    assert await page(0, 3) == left
    assert await page(0, 99) == left
    assert await page(0, -1) == left
    assert await page(5, 5) == left[3:]
