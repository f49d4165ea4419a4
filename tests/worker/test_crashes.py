"""Workers that die, freeze or block: what becomes of their jobs."""

from __future__ import annotations

import asyncio
import signal

import pytest
import redis.asyncio

from tests.helpers import until_renewed, wait_until
from toril import NewJob
from toril.client.connection import Connection
from toril.protocol import leasing

DOOMED = {"lock_duration": 6000, "stalled_interval": 100}
"""For those who die: however slow the machine is, they lose nothing while they live."""
SURVIVING = {"lock_duration": 30_000, "stalled_interval": 100}
"""For those who take over: however slow the machine is, they lose nothing themselves."""


async def until_received(url: str, base: str, job_id: str) -> None:
    """Wait until the server knows that the worker has received the job."""
    async with redis.asyncio.Redis.from_url(url) as raw:

        async def received() -> bool:
            replies = await raw.hvals(f"{base}:toril:replies")
            return all(job_id.encode() not in reply for reply in replies)

        await wait_until(received)


async def end_lock(inside, job_id: str) -> None:
    """Let the time of a lock be over that nobody renews any more."""
    await inside.client.delete(f"{inside.base}:{job_id}:lock")


async def test_another_worker_finishes_what_a_killed_one_began(
    queue, start_program, start_worker, inside, url
):
    job = await queue.add("job")
    program = start_program(handler="hold", options=DOOMED)
    await program.hear("holding")
    await until_received(url, inside.base, job.id)
    program.signal(signal.SIGKILL)
    await program.wait()
    await end_lock(inside, job.id)

    ran = []

    async def handler(job):
        ran.append((job.id, job.stalled_count, job.fence))
        return "finished"

    worker = await start_worker(handler, **SURVIVING)
    stalled = []
    worker.on("stalled", stalled.append)
    await inside.until_finished(1)

    stored = await inside.job(job.id)
    assert (stored["returnvalue"], stored["stc"], stored["atm"]) == ('"finished"', "1", "1")
    assert ran == [(job.id, 1, 2)]
    assert await inside.events("stalled") == [("stalled", job.id)]
    assert stalled == [job.id]


async def test_a_job_that_kills_its_workers_fails_at_the_limit(
    queue, start_program, start_worker, inside, url
):
    """Poison pills (reliability 2.15): the limit of stalls fails them without another run."""
    job = await queue.add("poison", attempts=5)
    program = start_program(handler="hold", options=DOOMED)
    await program.hear("holding")
    await until_received(url, inside.base, job.id)
    program.signal(signal.SIGKILL)
    await program.wait()
    await end_lock(inside, job.id)

    ran = []
    await start_worker(lambda job: ran.append(job.id), **SURVIVING, max_stalled_count=0)
    await inside.until_finished(1)

    stored = await inside.job(job.id)
    assert stored["failedReason"] == "job stalled more than allowable limit"
    assert (await inside.ids("failed"), ran) == ([job.id], [])


async def test_a_job_that_kills_at_once_runs_at_most_once_more(queue, start_program, inside):
    """It may die before anybody can say that it arrived: that is forgiven once, and not again."""
    job = await queue.add("poison")
    runs = 0
    is_over = False
    while not is_over:
        options = {**DOOMED, "max_stalled_count": 1}
        program = start_program(handler="die_at_once", options=options)

        async def over(program=program) -> bool:
            return program.process.poll() is not None or job.id in await inside.ids("failed")

        await wait_until(over, 30)
        is_over = program.process.poll() is None
        runs += not is_over
        assert runs <= 3
        await end_lock(inside, job.id)
    program.signal(signal.SIGTERM)
    assert await program.wait() == 0

    stored = await inside.job(job.id)
    assert stored["failedReason"] == "job stalled more than allowable limit"
    assert stored["stc"] == "2"
    assert runs in (2, 3)
    assert not any(line.startswith("holding") for line in program.said)


async def test_a_suspect_is_confirmed_before_it_runs(queue, start_worker, inside, url):
    """And a job that was never lost is not: its handler is called without another round trip."""
    suspect = await queue.add("suspect")
    await inside.client.hset(f"{inside.base}:{suspect.id}", "x.unheard", 1)
    told: list[tuple[str, int]] = []
    is_confirmed: list[bool] = []

    async def handler(job):
        if job.id == suspect.id:
            replies = await raw.hvals(f"{inside.base}:toril:replies")
            is_confirmed.append(all(job.id.encode() not in reply for reply in replies))

    async with redis.asyncio.Redis.from_url(url) as raw:
        worker = await start_worker(handler, concurrency=2)
        confirm = worker._parts.outbox.confirm

        async def listening(received):
            told.append(received)
            await confirm(received)

        worker._parts.outbox.confirm = listening
        await inside.until_finished(1)
        await queue.add("plain")
        await inside.until_finished(2)

    assert (is_confirmed, len(told)) == ([True], 1)


async def test_a_suspect_is_handed_back_when_its_worker_closes(queue, start_worker, inside):
    job = await queue.add("suspect")
    await inside.client.hset(f"{inside.base}:{job.id}", "x.unheard", 1)
    worker = await start_worker(asyncio.sleep)
    worker._parts.outbox.confirm = lambda received: asyncio.sleep(0.3)
    await wait_until(lambda: worker.is_processing)

    await worker.close(timeout=0)

    assert await inside.ids("wait") == [job.id]


@pytest.mark.parametrize("handler", ["write_when_told", "deaf_and_writing"])
async def test_a_stopped_process_that_goes_on_writes_nothing(
    handler, queue, start_program, start_worker, inside
):
    """SIGSTOP past the lock, then SIGCONT: the zombie learns of it and is refused everything."""
    job = await queue.add("job", {"by": "the producer"})
    zombie = start_program(handler=handler, options=DOOMED)
    await zombie.hear("holding")
    zombie.signal(signal.SIGSTOP)
    await end_lock(inside, job.id)
    began = asyncio.Event()
    may_end = asyncio.Event()

    async def other(job):
        began.set()
        await may_end.wait()
        return "by the second worker"

    await start_worker(other, **SURVIVING)
    await asyncio.wait_for(began.wait(), 60)
    zombie.signal(signal.SIGCONT)
    await zombie.hear(f"lost {job.id}")
    if handler == "deaf_and_writing":
        zombie.tell()
        for name in ("progress", "log", "update_data", "extend_lock"):
            await zombie.hear(f"refused {name} LockLostError")
    may_end.set()
    await inside.until_finished(1)

    stored = await inside.job(job.id)
    assert stored["returnvalue"] == '"by the second worker"'
    assert stored["data"] == '{"by":"the producer"}'
    assert stored.get("progress", "0") == "0"
    assert (stored["ats"], stored["atm"]) == ("2", "1")
    assert await inside.logs(job.id) == []
    assert await inside.events("completed", "failed", "progress") == [("completed", job.id)]
    zombie.signal(signal.SIGTERM)
    zombie.tell()
    assert await zombie.wait() == 0
    assert not any(line.startswith(("wrote", "completed")) for line in zombie.said)


async def test_a_handler_that_blocks_the_loop_keeps_its_jobs(
    queue, start_program, start_worker, inside
):
    """The lease has a thread of its own: it renews while there is no loop."""
    job = await queue.add("job")
    program = start_program(
        handler="block_until_told", options={"lock_duration": 6000, "stalled_interval": 100}
    )
    await program.hear("holding")
    ran = []
    await start_worker(lambda job: ran.append(job.id), **SURVIVING)
    await until_renewed(inside.client, f"{inside.base}:{job.id}:lock")
    program.tell()
    await program.hear(f"completed {job.id}")

    stored = await inside.job(job.id)
    assert (stored["returnvalue"], stored.get("stc")) == ('"blocked"', None)
    assert ran == []
    program.signal(signal.SIGTERM)
    assert await program.wait() == 0


@pytest.mark.parametrize("slice_size", [1, 4, 100])
async def test_stalled_jobs_come_back_in_slices_of_any_size(slice_size, queue, inside, url):
    """reliability 2.6, 2.10: no sweep holds the server for as many jobs as there are."""
    jobs = await queue.add_bulk([NewJob(f"{n}") for n in range(11)])
    ids = [job.id for job in jobs]
    await inside.client.rename(f"{inside.base}:wait", f"{inside.base}:active")
    held = ids[3]
    await inside.client.set(f"{inside.base}:{held}:lock", "somebody's", px=60_000)
    connection = Connection(url)

    async def sweep() -> tuple[list[str], int]:
        await inside.client.delete(f"{inside.base}:stalled-check")
        plan = leasing.sweep(queue.keys, interval_ms=1000, max_stalled=1, slice_size=slice_size)
        calls = 0
        command = next(plan)
        while True:
            calls += 1
            try:
                command = plan.send(await connection.run(command))
            except StopIteration as end:
                return end.value, calls

    marked, calls = await sweep()
    assert (marked, calls) == ([], 11 // slice_size + 1)
    brought_back, calls = await sweep()

    assert sorted(brought_back) == sorted(set(ids) - {held})
    assert sorted(await inside.ids("wait")) == sorted(brought_back)
    assert await inside.ids("active") == [held]
    assert sorted(await inside.events("stalled")) == sorted(("stalled", i) for i in brought_back)
    assert calls >= 10 // slice_size
    await connection.close()
    await inside.client.lrem(f"{inside.base}:active", 1, held)
    await inside.client.rpush(f"{inside.base}:wait", held)
    await inside.client.delete(f"{inside.base}:{held}:lock", f"{inside.base}:stalled")


async def test_a_run_that_was_lost_ends_when_its_worker_gets_the_job_back(
    queue, start_worker, inside
):
    """Regression: it ran on beside the new run, for as long as it liked."""
    first_may_end, stopped = asyncio.Event(), []

    async def handler(job):
        if job.fence > 1:
            await wait_until(lambda: stopped)
            return "second run"
        try:
            await first_may_end.wait()
        except asyncio.CancelledError:
            stopped.append(job.is_lost)
            raise

    job = await queue.add("job")
    worker = await start_worker(handler, concurrency=2, lock_duration=600_000, stalled_interval=50)
    await wait_until(lambda: worker.is_processing)
    await inside.client.delete(f"{inside.base}:{job.id}:lock")
    await inside.until_finished(1)

    assert stopped == [True]
    assert (await inside.job(job.id))["returnvalue"] == '"second run"'


async def test_the_same_worker_may_get_back_what_it_lost(queue, start_worker, inside):
    """Its zombie run is refused, the new run counts, and no slot is lost over it."""
    runs = []
    first_may_end = asyncio.Event()

    async def handler(job):
        runs.append(job.fence)
        if job.fence == 1:
            while not first_may_end.is_set():
                try:
                    await first_may_end.wait()
                except asyncio.CancelledError:
                    continue
            return "zombie"
        return "second run"

    job = await queue.add("job")
    worker = await start_worker(handler, concurrency=2, lock_duration=30_000, stalled_interval=50)
    lost = []
    worker.on("lost", lambda job, error: lost.append(job.fence))
    await wait_until(lambda: runs == [1])
    await inside.client.delete(f"{inside.base}:{job.id}:lock")
    await wait_until(lambda: runs == [1, 2])
    await inside.until_finished(1)
    first_may_end.set()
    await wait_until(lambda: lost == [1])

    assert (await inside.job(job.id))["returnvalue"] == '"second run"'
    assert worker.current_jobs == []
    await asyncio.wait_for(worker.close(), 60)
