"""The move: a branch of the finish, in one script (DLQ-01 to DLQ-16, DLQ-31, DLQ-32)."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from tests.features.dead_letters.conftest import DLQ, refuse
from tests.helpers import wait_until
from toril import Backoff, DeadLetterOptions, Deduplication, NewJob, Queue, Worker
from toril.errors import CrossSlotError, InvalidOptionError, UnrecoverableError
from toril.sync import Queue as BlockingQueue


async def test_a_worker_takes_the_target_as_a_name_a_queue_or_options(side, url, prefix):
    """DLQ-01."""
    blocking = BlockingQueue(DLQ, connection=url, prefix=prefix)
    targets = [DLQ, side.dlq, blocking, DeadLetterOptions(DLQ), DeadLetterOptions(side.dlq)]

    for number, target in enumerate(targets, start=1):
        await side.orders.add("charge", {"n": number})
        async with side.worker(refuse, dead_letter_queue=target):
            await side.letters(number)
    blocking.close()


@pytest.mark.parametrize("target", ["", 7, DeadLetterOptions, object(), ["a"], b"dlq", "a:b"])
async def test_a_target_that_names_no_queue_is_refused_at_construction(target, url):
    """DLQ-02."""
    with pytest.raises(ValueError, match="queue"):
        Worker("orders", refuse, connection=url, dead_letter_queue=target)


@pytest.mark.parametrize("options", [{"queue_name": ""}, {"queue_name": None}])
def test_options_without_a_name_are_refused(options):
    """DLQ-02."""
    with pytest.raises(ValueError, match="is not a queue"):
        DeadLetterOptions(**options)


async def test_a_queue_cannot_be_its_own_target_nor_one_of_another_prefix(side, url, prefix):
    """DLQ-04: the target shares the source's prefix."""
    with pytest.raises(InvalidOptionError, match="own dead_letter_queue"):
        side.worker(refuse, dead_letter_queue="orders")
    other = Queue(DLQ, connection=url, prefix=f"{prefix}x")
    with pytest.raises(InvalidOptionError, match="prefix"):
        side.worker(refuse, dead_letter_queue=other)
    await other.close()


async def test_without_the_option_jobs_go_to_failed_and_no_key_of_a_target_exists(side):
    """DLQ-03."""
    job = await side.orders.add("charge", {"n": 1}, attempts=2)

    async with side.worker(refuse, dead_letter_queue=None):
        await wait_until(lambda: side.client.zscore(f"{side.prefix}:orders:failed", job.id))

    assert [key async for key in side.client.scan_iter(match=f"{side.prefix}:{DLQ}*")] == []
    assert not await side.client.hexists(f"{side.prefix}:orders:meta", "x.deadLettered")
    assert "deadLettered" not in [event["event"] for event in await side.events()]


async def test_a_job_that_used_up_its_attempts_is_in_the_target_and_nowhere_else(side):
    """DLQ-04, DLQ-05, DLQ-13 (C-11): the target needs no preparation, the source keeps nothing."""
    job = await side.orders.add("charge", {"order": 123}, attempts=3)

    async with side.failing():
        await side.letters(1)

    (letter,) = await side.dlq.get_dead_letter_jobs(0, 9)
    assert letter.data["order"] == 123
    assert letter.data["_dlqMeta"]["attemptsMade"] == 3
    assert await side.client.zcard(f"{side.prefix}:orders:failed") == 0
    assert await side.hash(job.id) == {}
    assert await side.dlq.get_state(letter.id) == "waiting"


async def test_the_source_may_be_kept_among_the_failed(side):
    """C-11: with keep_source the job is also in `failed`, as its retention says."""
    kept = await side.orders.add("charge", {"n": 1})
    gone = await side.orders.add("charge", {"n": 2}, remove_on_fail=True)

    async with side.worker(refuse, dead_letter_queue=DeadLetterOptions(DLQ, keep_source=True)):
        await side.letters(2)

    assert await side.orders.get_state(kept.id) == "failed"
    assert (await side.orders.get_job(kept.id)).data == {"n": 1}
    assert await side.orders.get_job(gone.id) is None


async def test_an_unrecoverable_error_goes_there_after_one_attempt(side):
    """DLQ-06."""
    await side.orders.add("charge", {"n": 1}, attempts=5)

    async def handler(job):
        raise UnrecoverableError("Invalid payload")

    async with side.failing(handler):
        await side.letters(1)

    (letter,) = await side.dlq.get_dead_letter_jobs()
    assert letter.dead_letter.attempts_made == 1
    assert letter.dead_letter.failed_reason == "Invalid payload"
    assert letter.dead_letter.cause == "unrecoverable"


async def test_a_job_that_succeeds_at_last_does_not_go_there(side):
    """DLQ-07."""
    job = await side.orders.add("charge", {"n": 1}, attempts=3)

    async def handler(job):
        if job.attempts_made < 2:
            raise ConnectionError("not yet")

    async with side.failing(handler):
        await wait_until(lambda: side.client.zscore(f"{side.prefix}:orders:completed", job.id))

    assert await side.dlq.get_dead_letter_count() == 0
    assert not await side.client.exists(f"{side.prefix}:{DLQ}:wait")


async def test_between_attempts_a_job_is_delayed_and_not_there(side):
    """DLQ-08."""
    job = await side.orders.add("charge", {"n": 1}, attempts=2, backoff=Backoff.fixed(60_000))

    async with side.failing():
        await wait_until(lambda: side.client.zscore(f"{side.prefix}:orders:delayed", job.id))
        assert await side.dlq.get_dead_letter_count() == 0
        await side.client.zadd(f"{side.prefix}:orders:delayed", {job.id: 1})
        await side.client.zadd(f"{side.prefix}:orders:marker", {"1": 1})
        await side.letters(1)


async def test_no_observer_sees_a_job_in_both_places_or_in_neither(side):
    """DLQ-09, S6: whoever looks, at whatever moment, counts every job once."""
    total = 300
    base, dlq = f"{side.prefix}:orders", f"{side.prefix}:{DLQ}:wait"
    for number in range(total):
        await side.orders.add("charge", {"n": number}, attempts=2)
    seen = set()

    async def look() -> int:
        async with side.client.pipeline(transaction=True) as pipeline:
            for part in ("wait", "active"):
                pipeline.llen(f"{base}:{part}")
            for part in ("failed", "delayed", "prioritized"):
                pipeline.zcard(f"{base}:{part}")
            pipeline.llen(dlq)
            counts = await pipeline.execute()
        assert sum(counts) == total, counts
        seen.add(counts[-1])
        return counts[-1]

    async with side.failing(concurrency=5):
        await wait_until(lambda: _is(look, total), 60, every=0.0)

    assert len(seen) > 5, "the observer must have looked while jobs were being moved"


async def _is(look, wanted) -> bool:
    return await look() == wanted


@pytest.mark.parametrize("ties", [{}, {"lane": "a"}], ids=["by the short way", "by the long one"])
async def test_everything_happens_that_happens_at_any_failure(ties, side):
    """DLQ-10, DLQ-11, DLQ-12 (C-10, C-15): events of both queues, in order."""
    job = await side.orders.add("charge", {"n": 1}, attempts=1, **ties)

    async with side.failing(metrics_points=60):
        await side.letters(1)

    events = await side.events()
    assert [event["event"] for event in events] == [
        "added",
        "waiting",
        "active",
        "failed",
        "retries-exhausted",
        "deadLettered",
        "drained",
    ]
    (letter,) = await side.dlq.get_dead_letter_jobs()
    assert events[-2] == {
        "event": "deadLettered",
        "jobId": job.id,
        "queue": "orders",
        "deadLetterQueue": DLQ,
        "failedReason": "ConnectionError: Connection refused",
        "deadLetterJobId": letter.id,
    }
    there = await side.events(DLQ)
    assert [(event["event"], event["jobId"]) for event in there] == [("waiting", letter.id)]
    assert await side.client.hget(f"{side.prefix}:orders:metrics:failed", "count") == "1"
    assert await side.client.hget(f"{side.prefix}:orders:metrics:deadLettered", "count") == "1"


async def test_a_worker_of_the_target_wakes(side):
    """DLQ-12: the target's marker is set."""
    seen = []

    async def inspect(job):
        seen.append(job.dead_letter.source_queue)

    async with Worker(DLQ, inspect, connection=side.url, prefix=side.prefix) as consumer:
        await wait_until(lambda: consumer.last_reply_age is not None)
        await side.orders.add("charge", {"n": 1})
        async with side.failing():
            await wait_until(lambda: seen == ["orders"])


async def test_the_next_job_is_fetched_in_the_same_call(side):
    """DLQ-10 (C-10): a failure still brings the next job with it."""
    for number in range(3):
        await side.orders.add("charge", {"n": number})

    async with side.failing():
        await side.letters(3)

    names = [event["event"] for event in await side.events()]
    assert names.count("drained") == 1
    assert names.index("deadLettered") < names.index("active", names.index("deadLettered"))


async def test_a_deduplication_id_is_free_again(side):
    """DLQ-10 (C-10)."""
    once = Deduplication("order-7")
    await side.orders.add("charge", {"n": 1}, deduplication=once)

    async with side.failing():
        await side.letters(1)
        await side.orders.add("charge", {"n": 2}, deduplication=once)
        await side.letters(2)

    assert not await side.client.exists(f"{side.prefix}:orders:de:order-7")


@pytest.mark.parametrize(
    ("flag", "ends"), [("fpof", "failed"), ("idof", "waits"), ("rdof", "waits"), (None, "waits")]
)
async def test_a_parent_learns_of_a_child_that_went_there(side, flag, ends):
    """DLQ-10 (C-10): a flow does not hang, whatever its policy."""
    base = f"{side.prefix}:parents"
    parent = {"id": "p1", "queueKey": base}
    if flag:
        parent[flag] = True
    await side.client.hset(
        f"{base}:p1", mapping={"name": "parent", "data": "{}", "opts": "{}", "timestamp": 1}
    )
    await side.client.zadd(f"{base}:waiting-children", {"p1": 1})
    child = await side.orders.add("child", {"n": 1})
    child_key = f"{side.prefix}:orders:{child.id}"
    await side.client.sadd(f"{base}:p1:dependencies", child_key)
    await side.client.hset(
        child_key, mapping={"parentKey": f"{base}:p1", "parent": json.dumps(parent)}
    )

    async with side.failing():
        await side.letters(1)

    assert await side.client.lrange(f"{base}:wait", 0, -1) == ["p1"]
    doomed = await side.client.hget(f"{base}:p1", "defa")
    assert (doomed == f"child {child_key} failed") if ends == "failed" else doomed is None
    if flag == "idof":
        assert "refused" in await side.client.hget(f"{base}:p1:failed", child_key)


async def test_the_metadata_tell_everything(side):
    """DLQ-14, DLQ-15, DLQ-16: the eight fields of the source, one trace per attempt, the name."""
    before = int(time.time() * 1000) - 1000
    job = await side.orders.add(
        "send-email", {"orderId": 123}, attempts=2, backoff=Backoff.fixed(1), priority=5
    )

    async with side.failing():
        await side.letters(1)

    (letter,) = await side.dlq.get_dead_letter_jobs()
    raw = letter.data["_dlqMeta"]
    assert letter.name == "send-email"
    assert {key: value for key, value in letter.data.items() if key != "_dlqMeta"} == {
        "orderId": 123
    }
    assert raw["sourceQueue"] == "orders"
    assert raw["originalJobId"] == job.id
    assert raw["failedReason"] == "Connection refused"
    assert len(raw["stacktrace"]) == 2
    assert all("Connection refused" in trace for trace in raw["stacktrace"])
    assert raw["attemptsMade"] == 2
    assert before < raw["deadLetteredAt"] < before + 60_000
    assert raw["originalTimestamp"] == job.timestamp
    assert raw["originalOpts"] == {
        "attempts": 2,
        "backoff": {"type": "fixed", "delay": 1},
        "priority": 5,
    }
    meta = letter.dead_letter
    assert (meta.source_queue, meta.original_job_id, meta.attempts_made) == ("orders", job.id, 2)
    assert meta.error_type == "ConnectionError"
    assert meta.fingerprint == "ConnectionError@conftest.py:refuse"
    assert (meta.cause, meta.replays, meta.history) == ("attempts", 0, [])
    assert (await side.orders.add("other")).dead_letter is None


async def test_both_ways_there_write_the_same(side):
    """DLQ-14: by the short way and, as a member of a lane, by the long one."""
    for options in ({}, {"lane": "a"}):
        await side.orders.add("charge", {"n": 1}, attempts=1, **options)

    async with side.failing():
        await side.letters(2)

    (one, other) = await side.dlq.get_dead_letter_jobs()
    stored = [await side.hash(letter.id, DLQ) for letter in (one, other)]
    assert stored[0].keys() == stored[1].keys()
    assert list(one.data["_dlqMeta"]) == list(other.data["_dlqMeta"])
    for letter in (one, other):
        assert letter.dead_letter.dead_lettered_at == letter.timestamp
        assert letter.dead_letter.stacktrace == one.dead_letter.stacktrace


async def test_failures_of_many_kinds_in_one_call_keep_their_own_words(side):
    """What letters have in common is sent once; no letter gets what is another's."""
    reasons = [f"bank {number % 3} is away" for number in range(60)]
    jobs = [
        NewJob(f"charge-{number % 2}", {"n": number, "reason": reason}, attempts=number % 2)
        for number, reason in enumerate(reasons)
    ]
    added = await side.orders.add_bulk(jobs)

    async with side.failing(concurrency=60):
        await side.letters(len(jobs))

    letters = await side.dlq.get_dead_letter_jobs(0, -1)
    seen = {letter.dead_letter.original_job_id: letter for letter in letters}
    for number, (job, new) in enumerate(zip(added, jobs, strict=True)):
        letter = seen[job.id]
        meta = letter.dead_letter
        assert (letter.name, letter.data["n"]) == (new.name, number)
        assert meta.failed_reason == reasons[number]
        assert reasons[number] in meta.stacktrace[0]
        assert meta.original_opts == {"attempts": number % 2}
        assert meta.original_timestamp == job.timestamp


async def test_ids_there_are_the_targets_own(side, url, prefix):
    """C-18: two sources that use the same ids do not collide in one target."""
    other = Queue("refunds", connection=url, prefix=prefix)
    for queue in (side.orders, other):
        await queue.add("charge", {"from": queue.name}, job_id="same")
        async with side.worker(refuse, queue.name):
            await wait_until(lambda queue=queue: _gone(queue))

    letters = await side.dlq.get_dead_letter_jobs()

    assert [letter.id for letter in letters] == ["2", "1"]
    assert {letter.dead_letter.original_job_id for letter in letters} == {"same"}
    assert [letter.data["from"] for letter in letters] == ["refunds", "orders"]
    await other.close()


async def _gone(queue) -> bool:
    return await queue.get_job("same") is None


async def test_the_worker_tells_its_listeners_and_its_hook(side):
    """DLQ-11, DLQ-31: a local event under two names, a plain or async hook, and counters."""
    told, hooked = [], []

    async def hook(job, letter):
        await asyncio.sleep(0)
        hooked.append((job.id, letter.dead_letter_queue))

    job = await side.orders.add("charge", {"n": 1})
    options = DeadLetterOptions(DLQ, on_dead_letter=hook)
    worker = side.worker(refuse, dead_letter_queue=options)
    worker.on("deadLettered", lambda job, letter: told.append(letter))
    worker.on("dead_lettered", lambda job, letter: told.append(letter))
    worker.on("failed", lambda job, error: told.append(error))
    async with worker:
        await wait_until(lambda: hooked)

    (letter,) = await side.dlq.get_dead_letter_jobs()
    error, first, second = told
    assert isinstance(error, ConnectionError)
    assert first == second
    assert (first.job_id, first.queue, first.dead_letter_queue) == (job.id, "orders", DLQ)
    assert first.failed_reason == "ConnectionError: Connection refused"
    assert first.dead_letter_job_id == letter.id
    assert hooked == [(job.id, DLQ)]
    assert worker.dead_lettered == 1
    assert await side.orders.get_dead_lettered_total() == 1


async def test_a_hook_that_fails_hurts_nobody(side):
    """DLQ-31."""

    def hook(job, letter):
        raise RuntimeError("pager is down")

    for number in range(3):
        await side.orders.add("charge", {"n": number})

    async with side.worker(refuse, dead_letter_queue=DeadLetterOptions(DLQ, hook)) as worker:
        await side.letters(3)
        await wait_until(lambda: worker.dead_lettered == 3)


async def _give_up(side, job_id):
    """What the sweep does to a job whose workers died once too often."""
    await side.client.hset(
        f"{side.prefix}:orders:{job_id}", "defa", "job stalled more than allowable limit"
    )


async def test_jobs_given_up_after_stalls_go_there_too(side):
    """DLQ-32 (C-13, S9): and their cause says so."""
    job = await side.orders.add("poison", {"n": 1})
    await _give_up(side, job.id)
    ran = []

    async with side.failing(ran.append):
        await side.letters(1)

    (letter,) = await side.dlq.get_dead_letter_jobs()
    assert letter.dead_letter.cause == "stalled"
    assert "stalled more than allowable" in letter.dead_letter.failed_reason
    assert ran == []


async def test_stalled_jobs_may_be_left_out(side):
    """DLQ-32: include_stalled=False."""
    job = await side.orders.add("poison", {"n": 1})
    await _give_up(side, job.id)

    options = DeadLetterOptions(DLQ, include_stalled=False)
    async with side.worker(refuse, dead_letter_queue=options):
        await wait_until(lambda: side.client.zscore(f"{side.prefix}:orders:failed", job.id))

    assert await side.dlq.get_dead_letter_count() == 0


async def test_jobs_started_too_often_go_there_too(side):
    """DLQ-32: max_started_attempts."""
    job = await side.orders.add("poison", {"n": 1}, attempts=10)
    await side.client.hset(f"{side.prefix}:orders:{job.id}", "ats", 5)

    async with side.failing(max_started_attempts=3):
        await side.letters(1)

    (letter,) = await side.dlq.get_dead_letter_jobs()
    assert letter.dead_letter.cause == "stalled"
    assert "started more than allowable" in letter.dead_letter.failed_reason


async def test_a_worker_that_lost_its_lock_moves_nothing(side):
    """S6: the token is checked as at any finish."""
    job = await side.orders.add("charge", {"n": 1})
    lock = f"{side.prefix}:orders:{job.id}:lock"
    lost = []

    async def handler(job):
        await side.client.set(lock, "somebody else", px=60_000)
        raise ConnectionError("too late")

    worker = side.worker(handler)
    worker.on("lost", lambda job, error: lost.append(job.id))
    async with worker:
        await wait_until(lambda: lost == [job.id])

    assert await side.dlq.get_dead_letter_count() == 0
    assert await side.hash(job.id)
    await side.client.delete(lock)


async def test_logs_go_along(side):
    """DLQ-14: what the handler logged is still there for whoever looks."""
    await side.orders.add("charge", {"n": 1})

    async def handler(job):
        await job.log("calling the bank")
        raise ConnectionError("no answer")

    async with side.failing(handler):
        await side.letters(1)

    (letter,) = await side.dlq.get_dead_letter_jobs()
    rows = await side.client.lrange(f"{side.prefix}:{DLQ}:{letter.id}:logs", 0, -1)
    assert rows == ["calling the bank"]


async def test_a_cluster_refuses_a_target_without_a_hash_tag_at_construction(cluster):
    """DLQ-27: never a CROSSSLOT when a job fails."""
    url = cluster.url.replace("redis://", "redis+cluster://", 1)
    with pytest.raises(CrossSlotError, match="put a hash tag into"):
        Worker("{a}orders", refuse, connection=url, dead_letter_queue="orders-dlq")
    for target in ("{a}orders-dlq", "{b}orders-dlq"):
        worker = Worker("{a}orders", refuse, connection=url, dead_letter_queue=target)
        await worker.close()
