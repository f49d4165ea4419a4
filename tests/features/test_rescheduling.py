"""Schedulers paused, resumed, changed and run once, whoever else is at work on them."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from tests.features.test_schedulers import FAR, IN_HALF_A_YEAR, iterations, nothing, server_ms
from tests.helpers import wait_until
from toril import App, NewJob, every
from toril.client.connection import Connection
from toril.errors import InvalidOptionError, SchedulerNotFoundError
from toril.protocol import scheduling
from toril.sync import Queue as BlockingQueue

NIGHTLY = "0 3 * * *"


async def ahead(queue) -> int:
    """How many jobs are still to run."""
    counts = await queue.get_job_counts("waiting", "delayed", "prioritized")
    return sum(counts.values())


async def pending(queue, scheduler_id="s"):
    """The one job of a scheduler that waits."""
    jobs = await queue.get_jobs(["waiting", "delayed", "prioritized"])
    (job,) = [job for job in jobs if job.scheduler_id == scheduler_id]
    return job


async def advance(connection: Connection, queue, job):
    """What a worker does before it runs a scheduler's job."""
    now_ms = job.processed_on or 0
    return await connection.follow(scheduling.advance(queue.keys, job, now_ms))


@pytest.mark.parametrize("lane", [None, "a lane"])
@pytest.mark.parametrize("when", [{"every": FAR}, {"every": FAR, "offset": 5}, {"cron": NIGHTLY}])
async def test_a_paused_scheduler_keeps_its_record_and_makes_no_job(queue, when, lane):
    template = NewJob("report", {"n": 1}, attempts=3, priority=None if lane else 5, lane=lane)
    await queue.upsert_job_scheduler("s", template=template, **when)
    before, first = await queue.get_job_scheduler("s"), await queue.get_jobs()

    assert await queue.schedulers.pause("s")

    paused = await queue.get_job_scheduler("s")
    assert paused.is_paused
    assert paused.next_at is None
    assert sum((await queue.get_job_counts()).values()) == 0
    assert (paused.every, paused.cron, paused.tz, paused.data) == (
        before.every, before.cron, before.tz, before.data,
    )  # fmt: skip

    assert await queue.schedulers.resume("s")

    after = await queue.get_job_scheduler("s")
    job = await pending(queue)
    assert not after.is_paused
    assert after.iterations == before.iterations
    assert job.id == f"repeat:s:{after.next_at}"
    assert (job.name, job.data, job.lane) == ("report", {"n": 1}, lane)
    assert (job.opts.attempts, job.priority) == (3, 0 if lane else 5)
    assert job.opts.raw["repeat"] == first[0].opts.raw["repeat"]
    if "cron" in when:
        assert after.next_at == before.next_at


async def test_resume_takes_the_next_time_from_now(queue, client):
    start = await server_ms(client)
    await queue.upsert_job_scheduler("s", every=10 * FAR, offset=7)

    await queue.pause_job_scheduler("s")
    await queue.resume_job_scheduler("s")

    found = await queue.get_job_scheduler("s")
    assert start < found.next_at <= await server_ms(client) + 10 * FAR
    assert found.next_at % (10 * FAR) == 7


async def test_a_resumed_scheduler_goes_on_with_its_beat(queue, work, client):
    await queue.upsert_job_scheduler("s", every=200, limit=8)
    async with work(nothing):
        await wait_until(lambda: queue.get_completed_count(), timeout=30)
        await queue.pause_job_scheduler("s")
        paused = await queue.get_job_scheduler("s")
        await queue.resume_job_scheduler("s")

        async def all_ran():
            return await queue.get_completed_count() == 8

        await wait_until(all_ran, timeout=60)

    times = await iterations(client, queue)
    counts = [job.opts.raw["repeat"]["count"] for job in await queue.get_jobs(["completed"])]
    assert paused.is_paused
    assert sorted(counts) == list(range(1, 9))
    assert {(after - before) % 200 for before, after in itertools.pairwise(times)} == {0}


async def test_pausing_twice_and_resuming_what_runs_changes_nothing(queue):
    await queue.upsert_job_scheduler("s", every=FAR)
    assert await queue.pause_job_scheduler("s")
    once = await queue.get_job_scheduler("s")
    assert await queue.pause_job_scheduler("s")
    assert await queue.get_job_scheduler("s") == once

    assert await queue.resume_job_scheduler("s")
    running = await queue.get_job_scheduler("s")
    assert await queue.resume_job_scheduler("s")
    assert await queue.get_job_scheduler("s") == running


async def test_there_must_be_a_scheduler(queue):
    assert not await queue.pause_job_scheduler("none")
    assert not await queue.resume_job_scheduler("none")
    with pytest.raises(SchedulerNotFoundError, match="no scheduler 'none'"):
        await queue.run_job_scheduler("none")
    with pytest.raises(LookupError):
        await queue.change_job_scheduler("none", every=FAR)


# ---------------------------------------------------------------------------- ends


async def test_an_end_before_the_next_time_takes_the_next_job_away(queue, hand, connection, client):
    await queue.upsert_job_scheduler("s", every=FAR)
    worker = hand()
    (taken,) = await worker.take()
    assert await advance(connection, queue, taken) is not None
    await worker.complete(taken)

    await queue.change_job_scheduler("s", end=await server_ms(client) + 60_000)
    assert await ahead(queue) == 0

    await queue.change_job_scheduler("s", end=await server_ms(client) + 2 * FAR)
    assert (await pending(queue)).opts.raw["repeat"]["endDate"] > taken.timestamp


async def test_a_job_that_was_due_before_the_new_end_stays(queue, client):
    job = await queue.upsert_job_scheduler("s", every=FAR)

    await queue.change_job_scheduler("s", end=await server_ms(client) + 60_000)

    assert (await pending(queue)).id == job.id


async def test_a_scheduler_that_is_resumed_too_late_for_its_end_makes_no_job(queue, client):
    now = await server_ms(client)
    # The next time on this grid is years away, whatever the time is now.
    await queue.upsert_job_scheduler("s", every=now // 10, end=now + FAR)
    await queue.pause_job_scheduler("s")

    await queue.resume_job_scheduler("s")

    assert await ahead(queue) == 0
    assert not (await queue.get_job_scheduler("s")).is_paused


@pytest.mark.parametrize("kind", ["offset", "every", "cron"])
async def test_an_upsert_after_whose_end_the_next_time_is_changes_nothing(
    kind, queue, hand, connection, client
):
    now = await server_ms(client)
    when = {
        "offset": {"every": FAR, "offset": (now + FAR // 2) % FAR},
        "every": {"every": FAR},
        "cron": {"cron": IN_HALF_A_YEAR},
    }[kind]
    await queue.upsert_job_scheduler("s", **when)
    if kind == "every":  # its first time is now, the next one in an hour
        (taken,) = await hand().take()
        await advance(connection, queue, taken)
    before = await pending(queue)

    with pytest.raises(InvalidOptionError, match="would never run; choose a later end"):
        await queue.upsert_job_scheduler("s", end=now + 600_000, **when)

    assert (await pending(queue)).id == before.id
    assert (await queue.get_job_scheduler("s")).end is None


# ---------------------------------------------------------------------------- while a job is taken


async def test_a_pause_between_the_take_and_the_next_job(queue, hand, connection):
    """The job that was taken runs, and makes no next one; resuming makes exactly one."""
    await queue.upsert_job_scheduler("s", every=FAR, limit=5)
    worker = hand()
    (taken,) = await worker.take()

    await queue.pause_job_scheduler("s")
    assert await advance(connection, queue, taken) is None
    await worker.complete(taken)
    assert await ahead(queue) == 0

    await queue.resume_job_scheduler("s")
    job = await pending(queue)
    assert job.opts.raw["repeat"]["count"] == 2
    assert (await queue.get_job_scheduler("s")).iterations == 2


async def test_a_pause_after_the_next_job_was_made(queue, hand, connection):
    await queue.upsert_job_scheduler("s", every=FAR, limit=5)
    worker = hand()
    (taken,) = await worker.take()
    assert await advance(connection, queue, taken) is not None

    await queue.pause_job_scheduler("s")
    await worker.complete(taken)
    assert await ahead(queue) == 0

    await queue.resume_job_scheduler("s")
    assert (await pending(queue)).opts.raw["repeat"]["count"] == 2


async def test_a_job_taken_before_a_pause_does_not_advance_after_the_resume(
    queue, hand, connection
):
    await queue.upsert_job_scheduler("s", every=FAR)
    (taken,) = await hand().take()
    await queue.pause_job_scheduler("s")
    await queue.resume_job_scheduler("s")

    assert await advance(connection, queue, taken) is None

    await pending(queue)


async def test_a_change_while_the_pending_job_is_taken_makes_the_next_one(queue, hand, connection):
    await queue.upsert_job_scheduler("s", every=FAR, limit=1)
    (taken,) = await hand().take()

    await queue.change_job_scheduler("s", limit=2)
    assert await advance(connection, queue, taken) is None

    assert (await pending(queue)).opts.raw["repeat"]["count"] == 2


CHANGES = {
    "pause": lambda queue: queue.pause_job_scheduler("s"),
    "remove": lambda queue: queue.remove_job_scheduler("s"),
    "upsert": lambda queue: queue.upsert_job_scheduler("s", every=FAR, limit=1),
    "change": lambda queue: queue.change_job_scheduler("s", limit=2),
}


@pytest.mark.parametrize("lane", [None, "a lane"])
@pytest.mark.parametrize("change", CHANGES)
async def test_a_last_job_that_waits_for_its_next_attempt_is_not_the_pending_one(
    change, lane, queue, hand, connection
):
    """It has run: whoever changes the schedule, or removes it, does not take it away."""
    template = NewJob("tick", attempts=2, backoff=60_000, lane=lane)
    await queue.upsert_job_scheduler("s", every=FAR, limit=1, template=template)
    worker = hand()
    (taken,) = await worker.take()
    assert await advance(connection, queue, taken) is None
    await worker.fail(taken)
    assert await queue.get_state(taken.id) == "delayed"

    await CHANGES[change](queue)

    assert await queue.get_state(taken.id) == "delayed"
    assert await ahead(queue) == (2 if change in ("upsert", "change") else 1)


async def test_pauses_and_resumes_at_work(queue, work, client):
    """Under workers and two operators no time is made twice, and at the end the beat goes on."""
    await queue.upsert_job_scheduler("s", every=50)
    async with work(nothing), work(nothing):

        async def operate():
            for _ in range(30):
                await queue.pause_job_scheduler("s")
                await queue.resume_job_scheduler("s")

        await asyncio.gather(operate(), operate())
        done = await queue.get_completed_count()
        await wait_until(lambda: _more_than(queue, done), timeout=60)
        await queue.pause_job_scheduler("s")

    ran = [job.id for job in await queue.get_jobs(["completed"])]
    assert len(ran) == len(set(ran))
    assert (await queue.get_job_scheduler("s")).is_paused


async def _more_than(queue, count):
    return await queue.get_completed_count() > count


# ---------------------------------------------------------------------------- changes


async def test_a_change_keeps_all_else(queue):
    template = NewJob("report", {"n": 1}, attempts=3)
    await queue.upsert_job_scheduler(
        "s", cron=NIGHTLY, tz="Europe/Berlin", limit=9, template=template
    )
    before = await queue.get_job_scheduler("s")

    after = await queue.schedulers.change("s", limit=4)

    assert (after.limit, after.next_at) == (4, before.next_at)
    assert (after.cron, after.tz, after.data, after.opts.raw) == (
        NIGHTLY, "Europe/Berlin", {"n": 1}, before.opts.raw,
    )  # fmt: skip
    job = await pending(queue)
    assert job.opts.raw["repeat"]["limit"] == 4
    assert job.opts.attempts == 3


async def test_a_new_interval_counts_from_now(queue, client):
    await queue.upsert_job_scheduler("s", every=FAR, limit=3)
    begun = await server_ms(client)

    after = await queue.change_job_scheduler("s", every=2 * FAR)

    assert begun + 2 * FAR <= after.next_at <= await server_ms(client) + 2 * FAR
    assert (after.every, after.limit) == (2 * FAR, 3)
    assert (await pending(queue)).id == f"repeat:s:{after.next_at}"


async def test_from_an_interval_to_a_pattern_and_back(queue):
    await queue.upsert_job_scheduler("s", every=FAR, offset=3)

    pattern = await queue.change_job_scheduler("s", cron=NIGHTLY, tz="Asia/Tokyo")
    assert (pattern.every, pattern.cron, pattern.tz) == (None, NIGHTLY, "Asia/Tokyo")
    assert "every" not in (await pending(queue)).opts.raw["repeat"]

    interval = await queue.change_job_scheduler("s", every=FAR)
    assert (interval.every, interval.cron, interval.tz) == (FAR, None, None)
    assert "pattern" not in (await pending(queue)).opts.raw["repeat"]


async def test_a_new_template(queue):
    await queue.upsert_job_scheduler(
        "s", every=FAR, limit=7, template=NewJob("old", [1], attempts=2)
    )
    before = await queue.get_job_scheduler("s")

    after = await queue.change_job_scheduler("s", template=NewJob("new", {"n": 2}, priority=4))

    job = await pending(queue)
    assert (job.name, job.data, job.priority, job.opts.attempts) == ("new", {"n": 2}, 4, 0)
    assert (after.name, after.data, after.limit, after.every) == ("new", {"n": 2}, 7, FAR)
    assert before.next_at <= after.next_at


async def test_a_changed_scheduler_stays_paused(queue):
    await queue.upsert_job_scheduler("s", every=FAR, limit=5)
    await queue.pause_job_scheduler("s")

    after = await queue.change_job_scheduler("s", every=2 * FAR, template=NewJob("new", {"n": 2}))
    assert after.is_paused
    assert await ahead(queue) == 0

    await queue.resume_job_scheduler("s")
    job = await pending(queue)
    assert (job.name, job.data) == ("new", {"n": 2})
    assert job.opts.raw["repeat"] | {"offset": 0} == {
        "count": 1, "every": 2 * FAR, "limit": 5, "offset": 0,
    }  # fmt: skip


async def test_an_upsert_begins_the_count_of_its_limit_anew(queue, hand, connection):
    """As in BullMQ: nobody can tell a program that starts again from a new schedule."""
    await queue.upsert_job_scheduler("s", every=FAR, limit=1)
    worker = hand()
    (taken,) = await worker.take()
    assert await advance(connection, queue, taken) is None
    await worker.complete(taken)
    assert await ahead(queue) == 0

    await queue.change_job_scheduler("s", limit=1)
    assert await ahead(queue) == 0
    await queue.upsert_job_scheduler("s", every=FAR, limit=1)
    assert (await pending(queue)).opts.raw["repeat"]["count"] == 1


async def test_a_limit_below_what_was_made_ends_it(queue, hand, connection):
    await queue.upsert_job_scheduler("s", every=FAR, limit=5)
    worker = hand()
    (taken,) = await worker.take()
    await advance(connection, queue, taken)
    await worker.complete(taken)

    await queue.change_job_scheduler("s", limit=1)

    assert await ahead(queue) == 0
    assert await queue.get_job_scheduler("s") is not None


@pytest.mark.parametrize(
    ("stored", "new"),
    [
        ({"every": FAR}, {"tz": "UTC"}),
        ({"every": FAR}, {"every": 0}),
        ({"every": FAR}, {"every": 5, "cron": NIGHTLY}),
        ({"every": FAR}, {"limit": 0}),
        ({"every": FAR}, {"end": 5}),
        ({"every": FAR}, {"cron": "nonsense"}),
        ({"cron": NIGHTLY}, {"offset": 5}),
        ({"cron": NIGHTLY}, {"tz": "Nowhere/Land"}),
        ({"cron": NIGHTLY}, {"template": NewJob("a", delay=5)}),
    ],
)
async def test_what_cannot_be_is_refused_and_changes_nothing(queue, stored, new):
    await queue.upsert_job_scheduler("s", **stored)
    before = await queue.get_job_scheduler("s")

    with pytest.raises(InvalidOptionError):
        await queue.change_job_scheduler("s", **new)

    assert await queue.get_job_scheduler("s") == before
    await pending(queue)


async def test_two_operators_change_different_things_at_once(queue):
    """Neither undoes the other: whoever is late reads again."""
    await queue.upsert_job_scheduler("s", every=FAR)
    for number in range(10):
        await asyncio.gather(
            queue.change_job_scheduler("s", every=FAR + number),
            queue.change_job_scheduler("s", limit=100 + number),
            queue.change_job_scheduler("s", template=NewJob("a", {"n": number})),
            queue.pause_job_scheduler("s") if number % 2 else queue.resume_job_scheduler("s"),
        )
        found = await queue.get_job_scheduler("s")
        assert (found.every, found.limit, found.data) == (FAR + number, 100 + number, {"n": number})
        assert found.is_paused == bool(number % 2)


async def test_an_upsert_lets_a_paused_scheduler_run(queue):
    """As BullMQ's does, which knows no pause."""
    await queue.upsert_job_scheduler("s", every=FAR)
    await queue.pause_job_scheduler("s")

    job = await queue.upsert_job_scheduler("s", every=FAR)

    assert not (await queue.get_job_scheduler("s")).is_paused
    assert (await pending(queue)).id == job.id


async def test_an_app_leaves_its_schedules_paused(url, prefix, queue):
    """A worker that starts must not undo what an operator did; what the code says is written."""
    app = App(connection=url, prefix=prefix)

    @app.task(queue="q", schedule=every(hours=1))
    async def report():
        return None

    async with app:
        await app.declare_schedules()
        await queue.pause_job_scheduler("task.report")
        report.schedule = every(hours=2)
        await app.declare_schedules()

        found = await queue.get_job_scheduler("task.report")
        assert found.is_paused
        assert found.every == 2 * FAR
        assert [one.is_current for one in await app.schedules()] == [True]


# ---------------------------------------------------------------------------- now


@pytest.mark.parametrize("is_paused", [False, True])
async def test_run_adds_one_job_of_the_template_beside_the_beat(queue, is_paused):
    template = NewJob("report", {"n": [1, 2]}, attempts=3, priority=4)
    await queue.upsert_job_scheduler("s", cron=NIGHTLY, template=template)
    if is_paused:
        await queue.pause_job_scheduler("s")
    before, waiting = await queue.get_job_scheduler("s"), await queue.get_delayed_count()

    job = await queue.schedulers.run("s")

    stored = await queue.get_job(job.id)
    assert await queue.get_state(job.id) == "prioritized"
    assert (stored.name, stored.data, stored.opts.attempts) == ("report", {"n": [1, 2]}, 3)
    assert stored.scheduler_id is None
    assert "repeat" not in stored.opts.raw
    assert await queue.get_job_scheduler("s") == before
    assert await queue.get_delayed_count() == waiting


async def test_run_uses_the_lane_of_the_template(queue):
    await queue.upsert_job_scheduler("s", every=FAR, template=NewJob("a", lane="user:1"))

    job = await queue.run_job_scheduler("s")

    assert (await queue.get_job(job.id)).lane == "user:1"
    assert await queue.explain(job.id)


def test_blocking_code_can_do_the_same(url, prefix):
    with BlockingQueue("q", connection=url, prefix=prefix) as queue:
        queue.upsert_job_scheduler("s", every=FAR)
        assert queue.schedulers.pause("s")
        assert queue.schedulers.get("s").is_paused
        assert queue.schedulers.change("s", limit=3).limit == 3
        assert queue.schedulers.resume("s")
        assert queue.schedulers.run("s").name == "s"
        queue.obliterate(force=True)
