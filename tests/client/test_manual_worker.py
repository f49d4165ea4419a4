"""Taking jobs by hand: what becomes of them is what becomes of a worker's jobs."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import time
from collections import Counter

import pytest

from tests.helpers import until_blocked, until_renewed, wait_until
from tests.proxy import Proxy, runs
from toril import (
    Backoff,
    DeadLetterOptions,
    FlowJob,
    FlowProducer,
    InvalidInputError,
    JobNotInStateError,
    LockLostError,
    ManualWorker,
    NewJob,
    PayloadError,
    RateLimit,
    RateLimitError,
    RefusedError,
    ServerError,
    UnrecoverableError,
    Worker,
)
from toril.client.sockets import REPLY_TIMEOUT_S
from toril.errors import DamagedJobError, InvalidOptionError, PendingChildrenError
from toril.sync import ManualWorker as BlockingManualWorker


@pytest.fixture
async def make_taker(url, prefix):
    takers = []

    def make(name="q", **options):
        takers.append(ManualWorker(name, **{"connection": url, "prefix": prefix, **options}))
        return takers[-1]

    yield make
    for taker in takers:
        await taker.close()


@pytest.fixture
def taker(make_taker):
    return make_taker()


async def test_a_job_is_taken_and_completed(queue, taker):
    added = await queue.add("charge", {"n": 1})

    job = await taker.get_next_job()
    assert (job.id, job.name, job.data, job.attempts_started) == (added.id, "charge", {"n": 1}, 1)
    assert await queue.get_state(job.id) == "active"
    await job.report(50)
    assert await job.log("half") == 1
    await job.update_data({"n": 2})
    await job.complete({"receipt": 7})

    stored = await queue.get_job(job.id)
    assert (stored.return_value, stored.progress, stored.data) == ({"receipt": 7}, 50, {"n": 2})
    assert stored.attempts_made == 1
    assert await queue.get_state(job.id) == "completed"
    with pytest.raises(JobNotInStateError, match="already settled"):
        await job.fail(ValueError("too late"))


async def test_nothing_to_take(queue, taker):
    assert await taker.get_next_job(timeout=0) is None
    assert await taker.get_next_job(timeout=20) is None
    await queue.add("x", delay=60_000)
    assert await taker.get_next_job(timeout=0) is None


async def test_who_waits_is_woken_by_an_add_and_by_the_time(queue, make_taker, client):
    """Nobody polls: without being woken it would look again after ten seconds."""
    taker = make_taker(drain_delay=600_000)
    waiting = asyncio.create_task(taker.get_next_job())
    await until_blocked(client)
    now = await queue.add("now")

    job = await waiting
    assert job.id == now.id
    await job.complete()

    later = await queue.add("later", delay=100)
    job = await taker.get_next_job(timeout=60_000)
    assert (job.id, job.processed_on - job.timestamp >= 100) == (later.id, True)
    await job.complete()


async def test_a_failure_is_tried_again_after_its_backoff_and_then_final(queue, taker):
    job_id = (await queue.add("x", attempts=2, backoff=Backoff.fixed(30))).id

    job = await taker.get_next_job()
    await job.fail(ValueError("first"))
    assert await queue.get_state(job_id) == "delayed"
    again = await taker.get_next_job()
    await again.fail(ValueError("second"))

    stored = await queue.get_job(job_id)
    assert await queue.get_state(job_id) == "failed"
    assert (stored.attempts_made, stored.failed_reason) == (2, "ValueError: second")
    assert len(stored.stacktrace) == 2


async def test_errors_say_what_is_to_happen_as_they_do_in_handlers(queue, taker):
    await queue.add("hopeless", attempts=5)
    await (await taker.get_next_job()).fail(UnrecoverableError("no"))
    assert await queue.get_failed_count() == 1

    await queue.add("limited")
    await (await taker.get_next_job()).fail(RateLimitError(60_000))
    assert await queue.get_rate_limit_ttl() > 0
    assert await taker.get_next_job(timeout=10) is None
    await queue.remove_rate_limit()
    job = await taker.get_next_job()
    await job.move_to_delayed(60_000)
    assert await queue.get_state(job.id) == "delayed"
    assert (await queue.get_job(job.id)).attempts_made == 0

    with pytest.raises(InvalidInputError, match="give an exception"):
        await job.fail("a text")


async def test_a_job_that_is_given_back_is_the_next_one(queue, taker):
    first, _ = await queue.add_bulk([NewJob("a"), NewJob("b")])

    job = await taker.get_next_job()
    await job.move_to_wait()

    again = await taker.get_next_job()
    assert (again.id, again.attempts_made, again.attempts_started) == (first.id, 0, 2)
    await again.complete()


async def test_a_value_that_is_no_json_changes_nothing(queue, taker):
    await queue.add("x")
    job = await taker.get_next_job()

    with pytest.raises(PayloadError):
        await job.complete(object())

    assert await queue.get_state(job.id) == "active"
    await job.complete("fine")


async def test_dead_letters(queue, make_queue, make_taker):
    taker = make_taker(dead_letter_queue="q-dlq")
    job_id = (await queue.add("x", {"n": 1})).id

    await (await taker.get_next_job()).fail(ValueError("broken"))

    letters = make_queue("q-dlq")
    (letter,) = await letters.get_dead_letter_jobs(0, 9)
    assert (letter.dead_letter.original_job_id, letter.data["n"]) == (job_id, 1)
    with pytest.raises(InvalidOptionError, match="on_dead_letter"):
        make_taker(dead_letter_queue=DeadLetterOptions("q-dlq", on_dead_letter=print))
    with pytest.raises(InvalidOptionError, match="cannot be its own"):
        make_taker(dead_letter_queue="q")


async def test_a_lane_runs_one_at_a_time(queue, taker):
    await queue.add_bulk([NewJob(f"{n}", lane="a") for n in range(2)])

    first = await taker.get_next_job()
    assert await taker.get_next_job(timeout=0) is None
    await first.complete()
    second = await taker.get_next_job()

    assert (first.name, second.name) == ("0", "1")
    assert second.fence > first.fence
    await second.complete()


async def test_a_parent_waits_for_its_children(queue, taker, url, prefix):
    async with FlowProducer(connection=url, prefix=prefix) as flows:
        await flows.add(
            FlowJob("parent", queue_name="q", children=[FlowJob("child", queue_name="q")])
        )
    child = await taker.get_next_job()
    await child.complete(7)
    parent = await taker.get_next_job()
    assert list((await parent.children_values()).values()) == [7]

    late = await queue.add("late", parent=parent)
    with pytest.raises(PendingChildrenError):
        await parent.complete()
    await parent.move_to_waiting_children()
    assert await queue.get_state(parent.id) == "waiting_children"
    job = await taker.get_next_job()
    assert job.id == late.id
    await job.complete(8)
    again = await taker.get_next_job()
    await again.move_to_waiting_children()  # nothing to wait for: it comes back at once
    await (await taker.get_next_job()).complete()

    assert await queue.get_state(parent.id) == "completed"


async def test_a_scheduler_goes_on_and_keeps_its_limit(queue, taker):
    await queue.upsert_job_scheduler("s", every=20, limit=3)

    seen = []
    while job := await taker.get_next_job(timeout=0 if len(seen) == 3 else 60_000):
        seen.append(job.scheduler_id)
        await job.complete()

    assert seen == ["s"] * 3
    assert await queue.get_delayed_count() == 0


@pytest.mark.parametrize("field", [("timestamp", "1"), ("defa", "somebody doomed it")])
async def test_a_scheduler_goes_on_although_its_job_must_not_run(field, queue, taker, client):
    template = NewJob("tick", expires=60_000)
    first = await queue.upsert_job_scheduler("s", every=3_600_000, template=template)
    await client.hset(queue.keys.job(first.id), *field)

    assert await taker.get_next_job(timeout=0) is None

    assert await queue.get_state(first.id) == "failed"
    (following,) = await queue.get_delayed()
    assert following.scheduler_id == "s"


async def test_what_must_not_run_is_not_handed_out(queue, taker, client):
    doomed = await queue.add("doomed", attempts=3)
    await client.hset(queue.keys.job(doomed.id), "defa", "its parent is gone")
    good = await queue.add("good")

    job = await taker.get_next_job()

    assert job.id == good.id
    assert (await queue.get_job(doomed.id)).failed_reason == "its parent is gone"
    await job.complete()


@pytest.mark.no_audit("the jobs are broken on purpose")
async def test_what_cannot_be_read_holds_nobody_up(queue, make_taker, client):
    """Hashes of careless or hostile producers: none of them is between us and the good one."""
    taker = make_taker(stalled_interval=50)
    hostile = {
        "endless": {"name": "n", "data": "{}", "opts": '{"removeOnComplete": 1e999}'},
        "late": {"name": "n", "opts": '{"backoff":{"type":"fixed","delay":9007199254740991}}'},
        "deep": {"name": "n", "data": "[" * 5000, "opts": "[" * 5000},
        "empty": {"name": "n", "data": "", "opts": ""},
        "words": {"name": "\ud83d", "data": "no json", "opts": "no json", "atm": "x"},
    }
    for job_id, fields in hostile.items():
        encoded = {name: value.encode("utf-8", "surrogatepass") for name, value in fields.items()}
        await client.hset(queue.keys.job(job_id), mapping=encoded)
        await client.lpush(queue.keys.wait, job_id)
    await client.sadd(f"{queue.keys.job('empty')}:dependencies", "x")
    await client.set(f"{queue.keys.job('late')}:dependencies", "of the wrong type")
    good = await queue.add("good")

    job = await taker.get_next_job(timeout=60_000)
    while job.id != good.id:
        with contextlib.suppress(RefusedError, ServerError):
            await job.fail(ValueError("no"))
        job = await taker.get_next_job(timeout=60_000)

    await job.complete("fine")
    assert await queue.get_state(good.id) == "completed"


async def test_a_limiter_holds_by_hand_too(queue, make_taker):
    taker = make_taker(limiter=RateLimit(1, 300))
    await queue.add_bulk([NewJob("a"), NewJob("b")])

    first = await taker.get_next_job()
    second = await taker.get_next_job()

    assert second.processed_on - first.processed_on >= 300
    await first.complete()
    await second.complete()


async def test_who_asks_within_the_window_of_a_limiter_gets_nothing(queue, make_taker):
    taker = make_taker(limiter=RateLimit(1, 600_000))
    await queue.add_bulk([NewJob("a"), NewJob("b")])
    first = await taker.get_next_job()

    assert await taker.get_next_job(timeout=0) is None

    await first.complete()
    assert await queue.get_waiting_count() == 1


# ---------------------------------------------------------------------------- locks


async def test_locks_are_renewed_while_the_job_is_held(queue, make_taker, client):
    taker = make_taker()
    taker._interval_s = 0.1
    await queue.add("x")
    job = await taker.get_next_job()

    await until_renewed(client, f"{queue.keys.job(job.id)}:lock")
    await queue.cancel(job.id, "not needed")
    await wait_until(lambda: job.is_cancelled)
    assert job.cancel_reason == "cancelled: not needed"

    await job.complete()


@pytest.mark.parametrize("kind", ["async", "blocking"])
async def test_a_line_that_goes_silent_is_left_before_the_lock_is_lost(kind, queue, server, prefix):
    """Replies may take 5 seconds elsewhere; a short lock is over by then."""
    renewals: list[float] = []

    def rule(words: list[bytes]) -> str | None:
        if not runs(words, "renew"):
            return None
        renewals.append(time.monotonic())
        return "hold" if len(renewals) == 1 else None

    await queue.add("x")
    async with Proxy(server.port) as proxy:
        proxy.rule = rule
        options = {"connection": proxy.url, "prefix": prefix, "lock_duration": 900}
        if kind == "async":
            taker = ManualWorker("q", **options)
            job = await taker.get_next_job()
            await wait_until(lambda: len(renewals) == 2)
            await taker.close()
        else:
            blocking = BlockingManualWorker("q", **options)
            job = await asyncio.to_thread(blocking.get_next_job)
            await wait_until(lambda: len(renewals) == 2)
            await asyncio.to_thread(blocking.close)

    assert job is not None
    assert renewals[1] - renewals[0] < REPLY_TIMEOUT_S


async def test_without_renewals_the_caller_extends_the_lock(queue, make_taker, client):
    taker = make_taker(lock_duration=60_000, renew=False)
    await queue.add("x")
    job = await taker.get_next_job()
    lock = f"{queue.keys.job(job.id)}:lock"
    assert await client.get(lock) == job.token

    await job.extend_lock(600_000)
    assert await client.pttl(lock) > 60_000
    await queue.cancel(job.id)
    await job.extend_lock(60_000)
    assert job.is_cancelled

    await client.delete(lock)
    with pytest.raises(LockLostError):
        await job.extend_lock(1000)
    for write in (lambda: job.report(1), lambda: job.complete(1)):
        with pytest.raises(LockLostError):
            await write()
    assert job.is_lost


@pytest.mark.parametrize("how", ["complete", "fail", "move_to_wait"])
async def test_a_lost_job_is_run_by_another_and_never_written(how, queue, make_taker, client):
    first = make_taker(renew=False, stalled_interval=20)
    second = make_taker(stalled_interval=20)
    await queue.add("x")
    lost = await first.get_next_job()
    await client.delete(f"{queue.keys.job(lost.id)}:lock")

    again = await second.get_next_job(timeout=60_000)
    assert (again.id, again.attempts_started) == (lost.id, 2)
    with pytest.raises(LockLostError):
        await {
            "complete": lambda: lost.complete("by the loser"),
            "fail": lambda: lost.fail(ValueError("by the loser")),
            "move_to_wait": lost.move_to_wait,
        }[how]()
    await again.complete("by the winner")

    assert (await queue.get_job(lost.id)).return_value == "by the winner"


async def test_a_job_that_is_forgotten_comes_back(queue, make_taker):
    """Its lock is renewed only while somebody refers to it."""
    taker = make_taker(lock_duration=300, stalled_interval=20)
    added = await queue.add("x")
    await taker.get_next_job()
    gc.collect()
    taker._lock_ms = 30_000  # of those to come: the next one is completed, however late

    again = await taker.get_next_job(timeout=60_000)

    assert (again.id, again.attempts_started) == (added.id, 2)
    await again.complete()


async def test_closing_hands_back_what_is_held(queue, make_taker, client):
    taker = make_taker()
    await queue.add_bulk([NewJob("a"), NewJob("b")])
    job = await taker.get_next_job()

    await taker.close()

    assert await queue.get_job_counts("waiting", "active") == {"waiting": 2, "active": 0}
    assert (await queue.get_job(job.id)).attempts_made == 0
    assert not await client.exists(queue.keys.own("replies"))
    assert await taker.get_next_job() is None
    with pytest.raises(JobNotInStateError):
        await job.complete()


async def test_closing_ends_the_waiting(queue, make_taker, client):
    taker = make_taker()
    waiting = asyncio.create_task(taker.get_next_job())
    await until_blocked(client)

    await taker.close()

    assert await asyncio.wait_for(waiting, 60) is None


async def test_cancelling_loses_no_job_and_wakes_the_next_one(queue, make_taker):
    """Neither a job that was taken meanwhile, nor a completion that was under way."""
    dice = random.Random(7)
    taker = make_taker()
    await queue.add_bulk([NewJob(f"{n}") for n in range(30)])

    async def take_and_complete():
        await (await taker.get_next_job()).complete()

    while await queue.get_completed_count() < 30:
        task = asyncio.create_task(take_and_complete())
        for _ in range(dice.randrange(20)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    jobs = await queue.get_completed(0, -1)
    assert [(job.attempts_made, job.attempts_started) for job in jobs] == [(1, 1)] * 30


# ---------------------------------------------------------------------------- broken lines


@pytest.mark.parametrize("fault", ["lose", "cut", "double"])
async def test_broken_lines_neither_lose_nor_double_a_job(fault, queue, server, prefix):
    dice = random.Random(3)
    taken = Counter()
    async with Proxy(server.port) as proxy:
        proxy.rule = lambda words: fault if runs(words, "settle") and dice.random() < 0.3 else None
        added = await queue.add_bulk([NewJob(f"{n}", attempts=2) for n in range(40)])
        async with ManualWorker("q", connection=proxy.url, prefix=prefix) as taker:
            while sum(taken.values()) < 60:
                job = await taker.get_next_job()
                taken[job.id] += 1
                if int(job.name) % 2 and job.attempts_made == 0:
                    await job.fail(ValueError("once"))
                else:
                    await job.complete(job.name)
            proxy.rule = lambda words: None

    assert proxy.broken
    assert taken == Counter({job.id: 1 + int(job.name) % 2 for job in added})
    assert await queue.get_completed_count() == 40


async def test_what_an_outage_left_open_is_known_afterwards(queue, server, prefix, make_taker):
    """The take and the completion were done, and every reply of them was lost."""
    added = await queue.add("x")
    async with Proxy(server.port) as proxy:
        taker = make_taker(connection=proxy.url)
        taker._connection._patience_s = 0.0
        proxy.rule = lambda words: "lose" if runs(words, "settle") else None
        with pytest.raises(ServerError):
            await taker.get_next_job()
        proxy.rule = lambda words: None
        job = await taker.get_next_job(timeout=0)
        assert (job.id, job.attempts_started) == (added.id, 1)

        proxy.rule = lambda words: "lose" if runs(words, "settle") else None
        with pytest.raises(ServerError):
            await job.complete("once")
        assert await queue.get_state(job.id) == "completed"
        proxy.rule = lambda words: None
        await job.complete("once")
        with pytest.raises(JobNotInStateError):
            await job.complete("twice")
        await taker.close()

    assert (await queue.get_job(added.id)).return_value == "once"


async def test_tasks_share_a_manual_worker_with_a_worker_beside(queue, taker, url, prefix):
    added = await queue.add_bulk([NewJob(f"{n}") for n in range(200)])
    ran = Counter()

    async def work():
        while job := await taker.get_next_job(timeout=0):
            ran[job.id] += 1
            await job.complete()

    async def handler(job):
        ran[job.id] += 1

    async with Worker("q", handler, connection=url, prefix=prefix, concurrency=3):
        await asyncio.gather(*(work() for _ in range(5)))
        await queue.wait_until_empty(60_000)

    assert ran == Counter(job.id for job in added)


async def test_it_is_listed_among_the_workers(queue, make_taker):
    taker = make_taker(worker_name="by-hand")
    waiting = asyncio.create_task(taker.get_next_job())

    async def is_listed():
        return "by-hand" in str(await queue.get_workers())

    await wait_until(is_listed)
    await taker.close()
    assert await waiting is None


@pytest.mark.no_audit("the job is damaged on purpose")
async def test_a_job_whose_outcome_cannot_be_written_fails_and_says_so(queue, taker, client):
    added = await queue.add("charge")
    await client.set(f"{queue.keys.job(added.id)}:dependencies", "no set")
    job = await taker.get_next_job()

    with pytest.raises(DamagedJobError, match="WRONGTYPE"):
        await job.complete()

    assert await queue.get_state(added.id) == "failed"
    assert "WRONGTYPE" in (await queue.get_job(added.id)).failed_reason
