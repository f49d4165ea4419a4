"""Jobs that somebody else wrote badly: each fails or runs by itself, and the worker goes on."""

from __future__ import annotations

import pytest
import redis.asyncio

from tests.helpers import wait_until
from toril import Deduplication, Queue

DAMAGES = {
    "options that are no JSON": {"opts": "{not json"},
    "options that are a list": {"opts": "[]"},
    "options of a wrong kind": {"opts": '{"attempts":"many","backoff":7,"kl":"x","parent":3}'},
    "options that are not there": {"opts": None},
    "attempts that are no number": {"atm": "x", "ats": "1"},
    "starts that are no number": {"ats": "x"},
    "a priority that is no number": {"priority": "high"},
    "a time that is no number": {"timestamp": "yesterday"},
    "data that are no JSON": {"data": "{broken"},
    "data that are no text": {"data": b"\xff\xfe"},
    "data that are not there": {"data": None},
    "traces that are no JSON": {"stacktrace": "[oops"},
    "a name that is not a string": {"name": b"\xff"},
    "a parent that is no JSON": {"parentKey": "nobody:knows:it", "parent": "{"},
    "a parent that is not there": {"parentKey": "nobody:knows:it"},
    "a parent without a name": {"parentKey": "nobody:knows:it", "parent": '{"fpof":true}'},
    "a group nobody knows": {"x.group": "nonsense"},
    "a deduplication nobody knows": {"deid": "gone"},
    "a schedule nobody knows": {"rjk": "digest", "nrjid": "x"},
}


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.no_audit("the job is damaged on purpose")
@pytest.mark.parametrize("outcome", ["returns", "raises", "is retried", "is put off"])
async def test_a_damaged_job_hurts_nobody_else(kind, outcome, queue, start_worker, inside):
    attempts = {"is retried": {"attempts": 2}, "is put off": {"attempts": 2, "backoff": 1}}
    bad = await queue.add("bad", {"n": 1}, **attempts.get(outcome, {}))
    good = [await queue.add("good") for _ in range(3)]
    for field, value in DAMAGES[kind].items():
        if value is None:
            await inside.client.hdel(f"{inside.base}:{bad.id}", field)
        else:
            await inside.client.hset(f"{inside.base}:{bad.id}", field, value)
    errors: list[object] = []

    async def handler(job):
        if job.id == bad.id:
            job.data, job.opts, job.timestamp, job.priority  # noqa: B018 (whoever looks may fail)
            if outcome != "returns":
                raise ValueError("no")

    worker = await start_worker(handler, concurrency=2)
    worker.on("error", errors.append)
    await inside.until_finished(4)
    await worker.close()

    completed = await inside.ids("completed")
    assert set(completed) >= {job.id for job in good}
    assert await inside.ids("active") == []


@pytest.mark.no_audit("the job is damaged on purpose")
async def test_a_damaged_count_of_stalls_does_not_stop_the_sweep(queue, start_worker, inside):
    jobs = [await queue.add(f"{n}") for n in range(3)]
    await inside.client.rename(f"{inside.base}:wait", f"{inside.base}:active")
    await inside.client.hset(f"{inside.base}:{jobs[1].id}", "stc", "often")

    await start_worker(lambda job: None, stalled_interval=50)
    await inside.until_finished(3)

    assert set(await inside.ids("completed")) == {job.id for job in jobs}
    assert (await inside.job(jobs[1].id))["stc"] == "1"


@pytest.mark.no_audit("the job is damaged on purpose")
async def test_a_damaged_successor_does_not_keep_its_predecessor_from_ending(
    queue, start_worker, inside
):
    """What waits behind a deduplication id is run as it is."""
    owner = await queue.add("owner", deduplication=Deduplication("d", keep_last_if_active=True))
    await inside.client.hset(
        f"{inside.base}:dn:d", mapping={"name": "next", "data": "{}", "opts": "{not json"}
    )

    await start_worker(lambda job: None)
    await inside.until_finished(2)

    assert owner.id in await inside.ids("completed")


TOO_MUCH = {
    "a wait of 285,000 years": '{"attempts":2,"backoff":{"type":"fixed","delay":9007199254740991}}',
    "a wait beyond all numbers": '{"attempts":2,"backoff":{"type":"exponential","delay":1e308}}',
    "a wait without end": '{"attempts":2,"backoff":Infinity}',
    "a retention without end": '{"removeOnComplete":1e999,"removeOnFail":1e999}',
    "an age without end": '{"removeOnComplete":{"age":1.7976931348623157e308}}',
    "a count of 400 digits": '{"removeOnComplete":{"count":%s}}' % ("9" * 400),
    "a count of 5,000 digits": '{"removeOnComplete":{"count":%s}}' % ("9" * 5000),
    "NaN": '{"removeOnComplete":NaN,"attempts":NaN}',
    "half a character": '{"lane":"\\ud800","idempotencyKey":"\\udfff"}',
}


@pytest.mark.parametrize("kind", TOO_MUCH)
@pytest.mark.no_audit("the job is damaged on purpose")
@pytest.mark.parametrize("letters", [None, "q-dlq"], ids=["failed", "dead letters"])
async def test_options_beyond_all_bounds_are_bounded(kind, letters, queue, start_worker, inside):
    jobs = [await queue.add("bad", {"n": n}) for n in range(3)]
    for job in jobs:
        await inside.client.hset(f"{inside.base}:{job.id}", "opts", TOO_MUCH[kind])
    good = await queue.add("good")

    async def handler(job):
        if job.id == jobs[0].id:
            raise ValueError("no")

    worker = await start_worker(handler, concurrency=2, dead_letter_queue=letters)

    async def have_ended():
        return await inside.client.zcard(f"{inside.base}:completed") == 3

    await wait_until(have_ended)
    await wait_until(lambda: worker._parts.pump.running == 0, message="the slots are free again")
    assert set(await inside.ids("completed")) == {jobs[1].id, jobs[2].id, good.id}
    assert await inside.ids("active") == []


UNREADABLE = {
    "no JSON": "{not json",
    "nested too deeply": '{"a":' * 5000 + "1" + "}" * 5000,
}


@pytest.mark.parametrize("kind", UNREADABLE)
@pytest.mark.no_audit("the job is damaged on purpose")
@pytest.mark.parametrize("letters", [None, "q-dlq"], ids=["failed", "dead letters"])
async def test_a_job_whose_options_cannot_be_read_fails_for_good(
    kind, letters, queue, start_worker, inside
):
    bad = await queue.add("bad", {"n": 1}, attempts=5)
    await inside.client.hset(f"{inside.base}:{bad.id}", "opts", UNREADABLE[kind])
    good = await queue.add("good")
    ran: list[str] = []

    async def handler(job):
        ran.append(job.id)

    worker = await start_worker(handler, dead_letter_queue=letters)
    await wait_until(lambda: good.id in ran and worker._parts.pump.running == 0)

    assert ran == [good.id]
    if letters is None:
        assert "cannot be read" in (await inside.job(bad.id))["failedReason"]
    else:
        async with Queue(letters, connection=queue._connection, prefix=queue.keys.prefix) as dlq:
            (letter,) = await dlq.get_dead_letter_jobs()
        assert letter.dead_letter.error_type == "DamagedJobError"
        assert letter.dead_letter.original_job_id == bad.id


@pytest.mark.no_audit("the job is damaged on purpose")
@pytest.mark.parametrize("letters", [None, "q-dlq"], ids=["failed", "dead letters"])
async def test_an_outcome_that_cannot_be_written_fails_one_job_and_no_other(
    letters, queue, start_worker, inside
):
    jobs = [await queue.add("job", {"n": n}) for n in range(10)]
    bad = jobs[4]
    await inside.client.set(f"{inside.base}:{bad.id}:dependencies", "no set")

    worker = await start_worker(lambda job: "done", concurrency=10, dead_letter_queue=letters)
    await wait_until(lambda: worker._parts.pump.running == 0)

    async def are_done():
        return await inside.client.zcard(f"{inside.base}:completed") == 9

    await wait_until(are_done)
    await wait_until(lambda: worker._parts.pump.running == 0)
    assert set(await inside.ids("completed")) == {job.id for job in jobs if job is not bad}
    assert await inside.ids("active") == []
    failed = await inside.ids("failed")
    if letters is None:
        assert failed == [bad.id]
        assert "WRONGTYPE" in (await inside.job(bad.id))["failedReason"]
    else:
        assert failed == []
        assert await inside.client.llen(f"{inside.base}-dlq:wait") == 1


@pytest.mark.no_audit("the queue is damaged on purpose")
async def test_a_damaged_queue_fails_no_job(queue, start_worker, inside):
    """The outcomes wait until somebody has mended it: no job is to blame."""
    await inside.client.set(f"{inside.base}:completed", "no sorted set")
    jobs = [await queue.add("job") for _ in range(3)]
    errors: list[object] = []

    worker = await start_worker(lambda job: None, concurrency=3)
    worker.on("error", errors.append)
    await wait_until(lambda: errors)
    await inside.client.delete(f"{inside.base}:completed")
    await wait_until(lambda: worker._parts.pump.running == 0)

    assert await inside.ids("failed") == []
    assert set(await inside.ids("completed")) <= {job.id for job in jobs}


@pytest.mark.no_audit("the job is damaged on purpose")
async def test_a_parent_of_a_wrong_kind_keeps_its_child_from_nothing(queue, start_worker, inside):
    """A failure is written without the ties that trip it; its lane goes on."""
    bad = await queue.add("bad", lane="a")
    good = await queue.add("good", lane="a")
    await inside.client.hset(
        f"{inside.base}:{bad.id}",
        mapping={
            "parentKey": f"{inside.base}:p",
            "parent": f'{{"id":"p","queueKey":"{inside.base}","fpof":true}}',
        },
    )
    await inside.client.set(f"{inside.base}:p:dependencies", "no set")

    await start_worker(lambda job: None)
    await inside.until_finished(2)

    assert await inside.ids("failed") == [bad.id]
    assert await inside.ids("completed") == [good.id]


@pytest.mark.no_audit("the job is damaged on purpose")
@pytest.mark.parametrize("place", ["wait", "active", "delayed"])
async def test_an_id_at_whose_key_there_is_no_hash_stops_nobody(place, queue, start_worker, inside):
    key = f"{inside.base}:{place}"
    if place == "delayed":
        await inside.client.zadd(key, {"odd": 1})
    else:
        await inside.client.lpush(key, "odd")
        await inside.client.sadd(f"{inside.base}:stalled", "odd")
    await inside.client.set(f"{inside.base}:odd", "no hash")
    good = await queue.add("good")

    await start_worker(lambda job: None, stalled_interval=50)
    await inside.until_finished(1)

    async def is_told():
        events = await inside.client.xrange(f"{inside.base}:events")
        return [event for _, event in events if event["event"] == "failed"]

    (told,) = await wait_until(is_told)
    assert told["jobId"] == "odd"
    assert "WRONGTYPE" in told["failedReason"]
    assert await inside.ids("completed") == [good.id]
    assert await inside.ids("active") == []


@pytest.mark.no_audit("its key is not a string")
async def test_a_job_whose_id_is_no_text_runs_and_can_be_removed(
    queue, start_worker, inside, url, prefix
):
    async with redis.asyncio.Redis.from_url(url) as raw:
        base = inside.base.encode()
        for job_id in (b"\xff\xfe", b"\xfe\xff"):
            await raw.hset(base + b":" + job_id, mapping={"name": "odd", "data": "{}"})
            await raw.lpush(base + b":wait", job_id)
        ran: list[str] = []

        async def handler(job):
            await job.log("a row")
            ran.append(job.id)

        await start_worker(handler, concurrency=2)
        await wait_until(lambda: len(ran) == 2)

        async def are_done():
            return await raw.zcard(base + b":completed") == 2

        await wait_until(are_done)
        assert {job.id for job in await queue.get_completed()} == set(ran)
        for job_id in ran:
            assert (await queue.get_job(job_id)).name == "odd"
            assert await queue.remove(job_id)
        assert await raw.exists(base + b":\xff\xfe", base + b":\xfe\xff") == 0


@pytest.mark.no_audit("there are ids without a job")
async def test_an_idle_worker_looks_behind_ids_without_a_job(queue, start_worker, inside):
    """It is woken once, and an idle one looks again by itself in ten minutes only."""
    ran: list[str] = []

    async def handler(job):
        ran.append(job.id)

    worker = await start_worker(handler)
    watch = worker._parts.watch
    await wait_until(lambda: watch._wait is not None, message="it waits for the marker")
    await queue.pause()
    for n in range(5):
        await inside.client.lpush(f"{inside.base}:wait", f"gone-{n}")
    await inside.client.set(f"{inside.base}:odd", "no hash")
    await inside.client.lpush(f"{inside.base}:wait", "odd")
    good = await queue.add("good")
    await queue.resume()

    await wait_until(lambda: ran == [good.id])
