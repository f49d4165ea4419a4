"""A worker's own events, and its pause."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers import wait_until
from toril import NewJob, RateLimit, UnrecoverableError
from toril.protocol.keys import Keys
from toril.protocol.settling import Policy, Raised
from toril.worker.active_job import ActiveJob
from toril.worker.crew import Crew
from toril.worker.events import Emitter
from toril.worker.locks import Locks
from toril.worker.outbox import Outbox


async def test_every_event_in_its_order(queue, start_worker, inside, url, prefix):
    seen = []

    async def handler(job):
        if job.name == "good":
            await job.report(50)
            return 42
        if job.name == "again" and job.attempts_made == 0:
            raise ValueError("once")
        if job.name == "bad":
            raise UnrecoverableError("no")
        return None

    worker = await start_worker(handler)
    for event in ("active", "retrying", "completed", "failed", "progress"):
        worker.on(event, lambda job, *rest, event=event: seen.append((event, job.name, *rest)))
    worker.on("drained", lambda: seen.append(("drained",)))
    worker.on("closing", lambda: seen.append(("closing",)))
    worker.on("closed", lambda: seen.append(("closed",)))
    for name in ("good", "again", "bad"):
        await queue.add(name, attempts=2)
        await wait_until(lambda: seen and seen[-1] == ("drained",))
        seen.append(("next",))
    await worker.close()

    kinds = [tuple(str(part) for part in event) for event in seen]
    assert kinds == [
        ("active", "good"),
        ("progress", "good", "50"),
        ("completed", "good", "42"),
        ("drained",),
        ("next",),
        ("active", "again"),
        ("retrying", "again", "once"),
        ("active", "again"),
        ("completed", "again", "None"),
        ("drained",),
        ("next",),
        ("active", "bad"),
        ("failed", "bad", "no"),
        ("drained",),
        ("next",),
        ("closing",),
        ("closed",),
    ]


async def test_a_callback_that_looks_at_what_was_cancelled_hurts_nobody(
    queue, start_worker, inside
):
    """Regression: the jobs that came with the same reply were not started, and stalled."""
    cancelled = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    may_end = asyncio.Event()

    async def handler(job):
        await may_end.wait()

    worker = await start_worker(handler, concurrency=3)
    worker.on("active", lambda job: cancelled.result())
    await queue.add_bulk([NewJob(f"{n}") for n in range(3)])
    await wait_until(lambda: len(worker.current_jobs) == 3)
    may_end.set()
    await inside.until_finished(3)


async def test_callbacks_may_be_async_and_may_fail(queue, start_worker, inside, caplog):
    seen = []

    async def slow(job, result):
        await asyncio.sleep(0.05)
        seen.append(result)

    async def bad(job, result):
        raise ValueError("an async callback failed")

    def worse(job, result):
        raise ValueError("a callback failed")

    await queue.add("job")
    worker = await start_worker(lambda job: 7)
    for callback in (worse, bad, slow):
        worker.on("completed", callback)
    await inside.until_finished(1)
    await wait_until(lambda: len(caplog.records) >= 2)
    await worker.close()

    assert seen == [7]
    assert caplog.text.count("a callback for 'completed' failed") == 2


async def test_an_unknown_event_is_refused(start_worker):
    worker = await start_worker(print)
    with pytest.raises(ValueError, match="has no event 'complete'; it has active"):
        worker.on("complete", print)


async def test_a_paused_worker_takes_nothing_until_it_resumes(queue, start_worker, inside):
    ran = []
    may_end = asyncio.Event()

    async def handler(job):
        ran.append(job.name)
        if job.name == "running":
            await may_end.wait()

    await queue.add("running")
    worker = await start_worker(handler, concurrency=3)
    await wait_until(lambda: ran == ["running"])
    worker.pause()
    assert worker.is_paused
    await queue.add("later")
    # What its wait at the server brought meanwhile is handed back before a result leaves.
    await worker._life._interrupting
    may_end.set()
    await inside.until_finished(1)

    assert ran == ["running"]
    assert len(await inside.ids("wait")) == 1
    worker.resume()
    await inside.until_finished(2)
    assert ran == ["running", "later"]
    assert not worker.is_paused


async def test_a_paused_worker_wakes_nobody_up_in_vain(queue, start_worker, inside):
    """The marker that a paused worker popped is given to the next one at once."""
    ran = []

    async def first(job):
        ran.append("first")

    async def second(job):
        ran.append("second")

    paused = await start_worker(first)
    await wait_until(lambda: _waiting(inside, 1))
    paused.pause()
    await start_worker(second)
    await queue.add("job")
    await inside.until_finished(1)

    assert ran == ["second"]


async def _waiting(inside, count) -> bool:
    rows = await inside.client.client_list()
    return sum("bzpopmin" in row["cmd"] for row in rows) >= count


async def test_a_busy_worker_leaves_the_rest_to_idle_ones(queue, start_worker, inside):
    """Two workers with a slot each: two long jobs start at once, one in each."""
    began = []
    together = asyncio.Barrier(2)

    def handler_of(name):
        async def handler(job):
            began.append(name)
            await together.wait()

        return handler

    for name in ("one", "two"):
        await start_worker(handler_of(name))
    await wait_until(lambda: _waiting(inside, 2))
    await queue.add_bulk([NewJob("a"), NewJob("b")])
    await inside.until_finished(2)

    assert sorted(began) == ["one", "two"]


async def test_a_rate_limit_holds_without_polling(queue, start_worker, inside):
    times = []

    async def handler(job):
        times.append(job.processed_on)

    await queue.add_bulk([NewJob(f"{n}") for n in range(6)])
    await start_worker(handler, concurrency=5, limiter=RateLimit(2, 200))
    await inside.until_finished(6)

    times.sort()
    assert times[2] - times[0] >= 200
    assert times[4] - times[2] >= 200


@pytest.mark.parametrize("kind", ["callable", "mapping"])
async def test_a_backoff_strategy_of_the_workers_own(kind, queue, start_worker, inside):
    asked = []

    def strategy(made, name, error, job):
        asked.append((made, name, str(error), job.name))
        return 1 if made < 3 else -1

    async def handler(job):
        raise ValueError("again")

    job = await queue.add("job", attempts=10, backoff={"type": "mine"})
    await start_worker(
        handler, backoff_strategy=strategy if kind == "callable" else {"mine": strategy}
    )
    await inside.until_finished(1)

    assert asked == [(made, "mine", "again", "job") for made in (1, 2, 3)]
    assert (await inside.job(job.id))["atm"] == "3"


@pytest.mark.parametrize("runs_in_thread", [False, True])
async def test_a_trace_begins_in_the_handler(queue, start_worker, runs_in_thread):
    """How the worker came to call it is of no use to anybody."""

    def raise_it() -> None:
        raise ValueError("here")

    def plain(job):
        raise_it()

    async def on_loop(job):
        raise_it()

    handler = plain if runs_in_thread else on_loop
    errors = []
    worker = await start_worker(handler)
    worker.on("failed", lambda job, error: errors.append(error))
    job = await queue.add("job")
    await wait_until(lambda: errors)

    (trace,) = (await queue.get_job(job.id)).stacktrace

    lines = [line.strip() for line in trace.splitlines()]
    calls = [line.rpartition(" in ")[2] for line in lines if line.startswith("File ")]
    assert calls[-2:] == [handler.__name__, "raise_it"]
    if not runs_in_thread:
        assert len(calls) == 2
    assert "attempt.py" not in trace
    assert lines[-1] == "ValueError: here"


async def test_who_begins_to_listen_hears_of_later_failures(queue, start_worker):
    worker = await start_worker(refuse)
    first = await queue.add("first")

    async def has_failed() -> bool:
        return await queue.get_state(first.id) == "failed"

    await wait_until(has_failed)
    heard = []
    worker.on("failed", lambda job, error: heard.append((job.name, str(error))))
    await queue.add("second")
    await wait_until(lambda: heard)

    assert heard == [("second", "no")]


async def refuse(job):
    raise ValueError("no")


@pytest.mark.parametrize("listens", [False, True])
def test_an_error_is_kept_only_for_somebody(listens):
    """It holds the frames of its handler, and all that is in them."""
    emitter = Emitter()
    outbox = Outbox()
    crew = Crew(
        Keys("bull", "orders"),
        None,
        Policy(),
        outbox=outbox,
        locks=Locks(),
        sweeper=None,
        keeper=None,
        writer=None,
        emitter=emitter,
        burial=None,
    )
    if listens:
        emitter.on("failed", lambda job, error: None)
    job = ActiveJob("bull", "orders", "1", {b"name": b"x"}, "token", None)
    error = ValueError("no")

    crew._settle(job, Raised(error))

    (item,) = outbox.finished
    assert item.outcome.kind == "failed"
    assert item.outcome.error is (error if listens else None)
