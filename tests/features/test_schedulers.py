"""Schedulers: one job a tick whoever takes it, none lost, none made twice."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from tests.helpers import assert_no_gap, let_pass, wait_until
from toril import Deduplication, NewJob, Queue, Worker
from toril.errors import (
    InvalidInputError,
    InvalidOptionError,
    SchedulerConflictError,
    SchedulerOwnsJobError,
)
from toril.sync import Queue as BlockingQueue

FAR = 3_600_000


async def nothing(job):
    return None


async def iterations(client, queue, scheduler_id="s"):
    """The times of all iterations that were ever added, in order."""
    rows = await client.xrange(queue.keys.events)
    ids = [fields["jobId"] for _, fields in rows if fields["event"] == "added"]
    return [int(job_id.rsplit(":", 1)[1]) for job_id in ids if f":{scheduler_id}:" in job_id]


async def server_ms(client) -> int:
    seconds, micros = await client.time()
    return seconds * 1000 + micros // 1000


async def test_a_scheduler_makes_job_after_job(queue, work, client):
    """RULES-10: recurring work through upsert_job_scheduler."""
    seen = []

    async def handler(job):
        seen.append((job.name, job.data, job.scheduler_id))

    job = await queue.upsert_job_scheduler("s", every=200, template=NewJob("tick", {"n": 1}))
    async with work(handler):
        await wait_until(lambda: len(seen) >= 4)

    times = await iterations(client, queue)
    assert job.id == f"repeat:s:{times[0]}"
    await assert_no_gap(client, queue.keys.base, 200)
    assert set(map(str, seen)) == {"('tick', {'n': 1}, 's')"}
    scheduler = await queue.get_job_scheduler("s")
    assert scheduler.iterations == len(times)
    assert scheduler.next_at == times[-1]


async def test_many_workers_make_one_job_a_tick(queue, work, client):
    """FIFO-17: N workers, one job per tick."""
    runs = []

    async def handler(job):
        runs.append(job.id)

    await queue.upsert_job_scheduler("s", every=40, limit=15)
    async with work(handler), work(handler), work(handler, concurrency=4):
        await wait_until(lambda: len(runs) == 15)
        await let_pass(0.1, "two more ticks would fit in")

    assert len(runs) == len(set(runs)) == 15
    assert len(await iterations(client, queue)) == 15
    assert (await queue.get_job_scheduler("s")).iterations == 15


async def test_a_worker_that_dies_before_it_advances_loses_nothing(queue, work, client):
    """FIFO-17: a crash between taking an iteration and making the next one."""
    await queue.upsert_job_scheduler("s", every=100)
    (job_id,) = await client.lrange(queue.keys.wait, 0, -1)
    # Taken by somebody who died: active, its lock gone, the schedule not advanced.
    await client.lmove(queue.keys.wait, queue.keys.active, "RIGHT", "LEFT")
    await client.sadd(queue.keys.stalled, job_id)
    runs = []

    async def handler(job):
        runs.append(job.id)

    async with work(handler, stalled_interval=50, max_stalled_count=0):
        await wait_until(lambda: len(runs) >= 3)

    assert runs[0] == job_id
    assert len(set(runs)) == len(runs)


async def test_after_a_pause_there_is_one_run_and_then_the_grid_again(queue, work, client):
    """As after downtime: what was missed is not made up for."""
    job = await queue.upsert_job_scheduler("s", every=200)
    first = int(job.id.rsplit(":", 1)[1])
    await wait_until(lambda: _is_past(client, first + 650))
    runs = []

    async def handler(job):
        runs.append(int(job.id.rsplit(":", 1)[1]))

    async with work(handler):
        await wait_until(lambda: len(runs) >= 4)

    caught_up = (await queue.get_job(job.id)).processed_on
    went_on = (await queue.get_job(f"repeat:s:{runs[1]}")).timestamp
    assert runs[0] == first
    # Whatever the machine was busy with: the slot after the catch-up, and on the same grid.
    assert caught_up <= went_on < runs[1] <= went_on + 200
    assert {(at - first) % 200 for at in runs} == {0}


async def _is_past(client, ms):
    return await server_ms(client) > ms


async def test_a_retry_does_not_advance_the_schedule_again(queue, work, client):
    tries = []

    async def handler(job):
        tries.append(job.id)
        if len(tries) < 3:
            raise ValueError("not yet")

    template = NewJob("tick", attempts=3)
    await queue.upsert_job_scheduler("s", every=FAR, template=template)
    async with work(handler):
        await wait_until(lambda: len(tries) == 3)

    assert len(set(tries)) == 1
    assert len(await iterations(client, queue)) == 2


async def test_a_limit_ends_the_schedule(queue, work, client):
    runs = []
    await queue.upsert_job_scheduler("s", every=30, limit=3)
    async with work(lambda job: runs.append(job.id)):
        await wait_until(lambda: len(runs) == 3)
        await let_pass(0.1, "three more ticks would fit in")

    assert len(await iterations(client, queue)) == 3


async def test_nothing_is_due_after_the_end(queue, work, client):
    # A schedule that a busy machine has no time for is followed by a longer one.
    times = []
    for window in (150, 3_000, 30_000):
        end = await server_ms(client) + window
        try:
            await queue.upsert_job_scheduler(f"s{window}", every=50, end=end)
        except InvalidOptionError:
            assert await server_ms(client) >= end
            continue
        async with work(nothing):
            await wait_until(lambda end=end: _is_past(client, end + 150))

        times = await iterations(client, queue, f"s{window}")
        assert len(times) <= window // 50 + 1
        assert times[-1] <= end
        if len(times) >= 2:
            break
    assert len(times) >= 2


IN_HALF_A_YEAR = f"0 0 1 {(datetime.now(UTC).month + 5) % 12 + 1} *"


@pytest.mark.parametrize(
    "schedule", [{"every": FAR}, {"cron": IN_HALF_A_YEAR, "immediately": True}]
)
async def test_a_day_that_comes_after_the_end_is_none_of_the_schedule(
    schedule, queue, work, client
):
    ran = asyncio.Event()
    end = await server_ms(client) + 60_000
    job = await queue.upsert_job_scheduler("s", end=end, **schedule)

    async with work(lambda _: ran.set()):
        await ran.wait()
        await wait_until(lambda: _is_completed(queue, job.id))

    assert len(await iterations(client, queue)) == 1
    assert await queue.get_job_counts("delayed", "waiting") == {"delayed": 0, "waiting": 0}


async def _is_completed(queue, job_id):
    return await queue.get_state(job_id) == "completed"


@pytest.mark.parametrize("schedule", [{"every": 1000, "start": 2 * FAR}, {"cron": IN_HALF_A_YEAR}])
async def test_a_schedule_whose_first_time_is_after_its_end_is_refused(schedule, queue, client):
    now = await server_ms(client)
    if "start" in schedule:
        schedule = {**schedule, "start": now + schedule["start"]}

    with pytest.raises(InvalidOptionError, match="would never run"):
        await queue.upsert_job_scheduler("s", end=now + 600_000, **schedule)

    assert await queue.get_job_scheduler_count() == 0


async def test_a_start_delays_the_first_run(queue, client):
    start = datetime.now(UTC) + timedelta(hours=2)
    job = await queue.upsert_job_scheduler("s", every=FAR, start=start)

    assert job.id == f"repeat:s:{round(start.timestamp() * 1000)}"
    assert await queue.get_state(job.id) == "delayed"


async def test_an_offset_moves_the_grid(queue):
    job = await queue.upsert_job_scheduler("s", every=FAR, offset=5000)

    assert int(job.id.rsplit(":", 1)[1]) % FAR == 5000


async def test_a_cron_pattern_in_its_zone(queue):
    job = await queue.upsert_job_scheduler("s", cron="0 9 * * 1-5", tz="Europe/Berlin")

    at = datetime.fromtimestamp(int(job.id.rsplit(":", 1)[1]) / 1000, ZoneInfo("Europe/Berlin"))
    assert (at.hour, at.minute, at.second) == (9, 0, 0)
    assert at.weekday() < 5
    scheduler = await queue.get_job_scheduler("s")
    assert (scheduler.cron, scheduler.tz, scheduler.every) == (
        "0 9 * * 1-5",
        "Europe/Berlin",
        None,
    )


async def test_a_cron_pattern_goes_on_second_after_second(queue, work, client):
    runs = []

    async def handler(job):
        runs.append((int(job.id.rsplit(":", 1)[1]), job.timestamp))

    await queue.upsert_job_scheduler("s", cron="* * * * * *", immediately=True)
    async with work(handler):
        await wait_until(lambda: len(runs) >= 3)

    due = [at for at, _ in runs]
    assert due == sorted(set(due))
    assert {at % 1000 for at in due[1:]} == {0}
    # A worker that is late passes seconds over, but each job is for the next one when it is made.
    assert all(at - made <= 1000 for at, made in runs)
    scheduler = await queue.get_job_scheduler("s")
    assert scheduler.tz == "UTC"
    assert len(await iterations(client, queue)) == scheduler.iterations


async def test_the_template_is_the_job(queue, work):
    seen = []

    async def handler(job):
        seen.append((job.name, job.data, job.opts.attempts, job.priority))

    template = NewJob("digest", {"to": "all"}, attempts=4, priority=3, remove_on_complete=True)
    await queue.upsert_job_scheduler("s", every=40, template=template)
    async with work(handler):
        await wait_until(lambda: len(seen) >= 3)

    assert set(map(str, seen)) == {"('digest', {'to': 'all'}, 4, 3)"}


async def test_changing_the_template_keeps_the_slot_and_the_count(queue, client):
    first = await queue.upsert_job_scheduler("s", every=FAR, offset=1000, template=NewJob("a", 1))

    second = await queue.upsert_job_scheduler("s", every=FAR, offset=1000, template=NewJob("b", 2))

    assert second.id == first.id
    assert (second.name, second.data) == ("b", 2)
    assert await client.zrange(queue.keys.delayed, 0, -1) == [first.id]
    stored = await queue.get_job(first.id)
    assert (stored.name, stored.data) == ("b", 2)
    assert await queue.get_job_scheduler_count() == 1


async def test_changing_the_interval_begins_anew(queue, client):
    first = await queue.upsert_job_scheduler("s", every=FAR, offset=1000)

    second = await queue.upsert_job_scheduler("s", every=2 * FAR)

    assert second.id != first.id
    assert await queue.get_job(first.id) is None
    assert await queue.get_state(second.id) == "waiting"


async def test_changing_a_scheduler_whose_job_runs(queue, work, client):
    """The running job stays, and the schedule goes on with the next slot."""
    running, go_on = asyncio.Event(), asyncio.Event()

    async def handler(job):
        running.set()
        await go_on.wait()

    job = await queue.upsert_job_scheduler("s", every=FAR)
    async with work(handler):
        await running.wait()
        changed = await queue.upsert_job_scheduler("s", every=FAR, template=NewJob("new"))
        assert changed.id != job.id
        assert await client.zrange(queue.keys.delayed, 0, -1) == [changed.id]
        go_on.set()
        await wait_until(lambda: _is_completed(queue, job.id))

    assert (await queue.get_job(changed.id)).name == "new"


async def _is_completed(queue, job_id):
    return await queue.get_state(job_id) == "completed"


async def test_schedulers_can_be_listed_and_removed(queue, client):
    await queue.upsert_job_scheduler("late", every=FAR, offset=5000, template=NewJob("x", {"a": 1}))
    await queue.upsert_job_scheduler("soon", every=FAR, limit=4)

    schedulers = await queue.get_job_schedulers()
    assert [scheduler.id for scheduler in schedulers] == ["soon", "late"]
    assert (schedulers[0].limit, schedulers[1].data, schedulers[1].offset) == (4, {"a": 1}, 5000)
    assert [s.id for s in await queue.get_job_schedulers(0, 0)] == ["soon"]
    assert await queue.get_job_scheduler("nobody") is None

    assert await queue.remove_job_scheduler("late")
    assert not await queue.remove_job_scheduler("late")
    assert await queue.get_job_scheduler_count() == 1
    assert await client.zcard(queue.keys.delayed) == 0


async def test_a_removed_scheduler_makes_no_more_jobs(queue, work, client):
    await queue.upsert_job_scheduler("s", every=FAR)
    await queue.remove_job_scheduler("s")
    async with work(nothing):
        await wait_until(lambda: _has_completed(client, queue, 1))

    assert len(await iterations(client, queue)) == 1


async def _has_completed(client, queue, count):
    return await client.zcard(queue.keys.completed) == count


async def test_the_pending_job_cannot_be_removed_alone(queue):
    job = await queue.upsert_job_scheduler("s", every=FAR, offset=1000)

    with pytest.raises(SchedulerOwnsJobError):
        await queue.remove(job.id)


async def test_a_slot_that_is_taken_is_passed_over(queue, client):
    grid = (await server_ms(client) // FAR) * FAR + 1000
    for at in range(grid, grid + 3 * FAR, FAR):
        job_id = f"repeat:s:{at}"
        await client.hset(queue.keys.job(job_id), mapping={"name": "old", "data": "{}"})
        await client.zadd(queue.keys.completed, {job_id: at})

    job = await queue.upsert_job_scheduler("s", every=FAR, offset=1000)

    assert int(job.id.rsplit(":", 1)[1]) == grid + 3 * FAR


async def test_when_the_time_of_a_pattern_is_taken_nothing_changes(queue, client):
    job = await queue.upsert_job_scheduler("s", cron="0 0 1 1 *")
    await queue.remove_job_scheduler("s")
    await client.hset(queue.keys.job(job.id), mapping={"name": "old", "data": "{}"})
    await client.zadd(queue.keys.completed, {job.id: 1})

    with pytest.raises(SchedulerConflictError):
        await queue.upsert_job_scheduler("s", cron="0 0 1 1 *")

    assert await queue.get_job_scheduler_count() == 0


async def test_a_pattern_that_only_others_understand_fails_its_job_and_says_so(queue, work, client):
    job = await queue.upsert_job_scheduler("s", cron="0 0 1 1 *", immediately=True)
    opts = await client.hget(queue.keys.job(job.id), "opts")
    await client.hset(queue.keys.job(job.id), "opts", opts.replace("0 0 1 1 *", "H H * * *"))

    async with work(nothing):
        await wait_until(lambda: _is_failed(queue, job.id))

    assert "H H * * *" in (await queue.get_job(job.id)).failed_reason


async def _is_failed(queue, job_id):
    return await queue.get_state(job_id) == "failed"


async def test_a_job_that_lost_its_schedule_finds_it_with_the_scheduler(queue, work, client):
    job = await queue.upsert_job_scheduler("s", every=FAR)
    await client.hset(queue.keys.job(job.id), "opts", "{}")

    async with work(nothing):
        await wait_until(lambda: _is_completed(queue, job.id))

    times = await iterations(client, queue)
    assert times[1] - times[0] == FAR


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"every": 1000, "cron": "* * * * *"},
        {"every": 0},
        {"every": -5},
        {"cron": "nonsense"},
        {"cron": "* * * * *", "tz": "Mars/Olympus"},
        {"cron": "* * * * *", "offset": 5},
        {"every": 1000, "tz": "UTC"},
        {"every": 1000, "immediately": True},
        {"cron": "* * * * *", "immediately": True, "start": 1},
        {"every": 1000, "limit": 0},
        {"every": 1000, "end": 1000},
        {"every": 1000, "start": datetime(2026, 1, 1)},  # noqa: DTZ001
        {"every": 1000, "template": NewJob("x", delay=5)},
        {"every": 1000, "template": NewJob("x", job_id="mine")},
        {"every": 1000, "template": NewJob("x", deduplication=Deduplication("d"))},
    ],
)
async def test_schedules_that_make_no_sense_are_refused(options, queue, client, prefix):
    with pytest.raises(InvalidOptionError):
        await queue.upsert_job_scheduler("s", **options)
    assert [key async for key in client.scan_iter(match=f"{prefix}*")] == []


@pytest.mark.parametrize("scheduler_id", ["", "a:b", " x", "x\n", 5])
async def test_ids_that_would_break_the_keys_are_refused(scheduler_id, queue):
    with pytest.raises(InvalidInputError):
        await queue.upsert_job_scheduler(scheduler_id, every=1000)


async def test_strange_ids_survive_the_round_trip(queue, work, client):
    scheduler_id = 'täg "lich" \\ {1}'
    job = await queue.upsert_job_scheduler(scheduler_id, every=FAR)
    async with work(nothing):
        await wait_until(lambda: _is_completed(queue, job.id))

    scheduler = await queue.get_job_scheduler(scheduler_id)
    pending = await queue.get_job(f"repeat:{scheduler_id}:{scheduler.next_at}")
    assert pending.opts.job_id == pending.id
    assert pending.opts.raw["repeat"] == {"count": 2, "every": FAR}


def test_the_blocking_client_has_them_too(url, prefix):
    with BlockingQueue("q", connection=url, prefix=prefix) as queue:
        job = queue.upsert_job_scheduler("s", every=timedelta(hours=1), offset=1000)
        assert queue.get_job_schedulers()[0].next_at == int(job.id.rsplit(":", 1)[1])
        assert queue.remove_job_scheduler("s")


async def test_a_schedule_goes_on_when_the_server_comes_back(start_server):
    """The job is not run before the next one is there."""
    server = start_server({"appendonly": "yes", "appendfsync": "always"}, tcp=True)
    runs = []
    async with Queue("q", connection=server.url, prefix="b") as queue:
        await queue.upsert_job_scheduler("s", every=50)
        async with Worker("q", lambda job: runs.append(job.id), connection=server.url, prefix="b"):
            await wait_until(lambda: len(runs) >= 2)
            server.restart()
            before = len(runs)
            await wait_until(lambda: len(runs) >= before + 3, 60)

    assert len(runs) == len(set(runs))
