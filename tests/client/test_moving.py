"""Retrying, promoting, changing places by hand (wire-format 4.14, 4.17)."""

from __future__ import annotations

import pytest

from tests.client.support import add_child, events_of, finish, make_parent
from toril.errors import (
    InvalidOptionError,
    JobNotFoundError,
    JobNotInStateError,
    LockLostError,
)
from toril.protocol import moving


async def test_a_failed_job_runs_again_and_keeps_its_count(queue, url, client):
    job = await queue.add("a", attempts=2)
    await finish(queue, url, client, failing=True)
    await client.hset(queue.keys.job(job.id), mapping={"x.cancel": "old", "defa": "old"})

    await queue.retry(job.id)

    fields = await client.hgetall(queue.keys.job(job.id))
    assert fields["atm"] == "2"
    gone = {"finishedOn", "processedOn", "failedReason", "x.cancel", "defa"}
    assert gone & fields.keys() == set()
    assert (await events_of(client, queue))[-1] == {
        "event": "waiting",
        "jobId": job.id,
        "prev": "failed",
    }
    await finish(queue, url, client)
    assert (await queue.get_job(job.id)).return_value == 1


async def test_attempts_start_over_when_asked(queue, url, client):
    job = await queue.add("a")
    await finish(queue, url, client, failing=True)

    await queue.retry(job.id, reset_attempts=True)

    assert await client.hmget(queue.keys.job(job.id), "atm", "ats") == [None, None]


async def test_a_completed_job_runs_again_with_its_priority(queue, url, client):
    job = await queue.add("a", priority=3)
    await finish(queue, url, client)

    await queue.retry(job.id)

    assert await client.zrange(queue.keys.prioritized, 0, -1) == [job.id]
    assert await client.hget(queue.keys.job(job.id), "returnvalue") is None


@pytest.mark.parametrize(("data", "stored"), [({"n": 2}, '{"n":2}'), (None, "{}"), ([], "[]")])
async def test_a_job_runs_again_with_other_data(queue, url, client, data, stored):
    job = await queue.add("a", {"n": 1})
    await finish(queue, url, client, failing=True)

    await queue.retry(job.id, data=data)

    assert await client.hget(queue.keys.job(job.id), "data") == stored
    assert await queue.get_state(job.id) == "waiting"


async def test_data_that_are_not_given_stay(queue, url, client):
    job = await queue.add("a", {"n": 1})
    await finish(queue, url, client, failing=True)

    await queue.retry(job.id)

    assert (await queue.get_job(job.id)).data == {"n": 1}


async def test_only_finished_jobs_can_be_retried(queue):
    job = await queue.add("a", {"n": 1})

    with pytest.raises(JobNotInStateError, match="neither failed nor completed"):
        await queue.retry(job.id, data={"n": 2})

    assert (await queue.get_job(job.id)).data == {"n": 1}, "a refusal changes nothing"
    with pytest.raises(JobNotFoundError):
        await queue.retry("never-was")
    with pytest.raises(InvalidOptionError):
        await queue.retry_all("delayed")


async def test_a_retried_child_is_pending_again(queue, make_queue, url, client):
    children = make_queue("children")
    parent = await queue.add("parent")
    key = await make_parent(client, queue, parent.id)
    failing, pending = await children.add("failing"), await children.add("pending", delay=60_000)
    await add_child(client, key, children.keys.job(failing.id), flags=',"idof":true')
    await add_child(client, key, children.keys.job(pending.id))
    await finish(children, url, client, failing=True)
    assert await client.hexists(f"{key}:failed", children.keys.job(failing.id))

    await children.retry(failing.id)

    assert await client.exists(f"{key}:failed") == 0
    assert await client.scard(f"{key}:dependencies") == 2


async def test_all_failed_jobs_run_again_once_in_their_order(queue, url, client, monkeypatch):
    monkeypatch.setattr(moving, "SLICE", 3)
    jobs = [await queue.add("a") for _ in range(10)]
    urgent = await queue.add("b", priority=1)
    await finish(queue, url, client, failing=True)
    order = await client.zrange(queue.keys.failed, 0, -1)
    told = []

    assert await queue.retry_all(on_progress=told.append) == 11

    assert told == [3, 6, 9, 11]
    assert await client.exists(queue.keys.failed) == 0
    waiting = await client.lrange(queue.keys.wait, 0, -1)
    assert waiting[::-1] == [job_id for job_id in order if job_id != urgent.id]
    assert {*waiting, urgent.id} == {job.id for job in [*jobs, urgent]}
    assert await client.zrange(queue.keys.prioritized, 0, -1) == [urgent.id]


async def test_retrying_all_stops_at_a_time(queue, url, client):
    old = await queue.add("a")
    await finish(queue, url, client, failing=True)
    at = int(await client.hget(queue.keys.job(old.id), "finishedOn"))
    await client.zadd(queue.keys.failed, {old.id: at - 10})
    new = await queue.add("b")
    await finish(queue, url, client, failing=True)

    assert await queue.retry_all(until=at - 5) == 1

    assert await client.zrange(queue.keys.failed, 0, -1) == [new.id]


async def test_a_delayed_job_is_promoted(queue, client):
    job = await queue.add("a", delay=60_000)

    await queue.promote(job.id)

    assert await client.lrange(queue.keys.wait, 0, -1) == [job.id]
    assert await client.hget(queue.keys.job(job.id), "delay") == "0"
    assert await client.zscore(queue.keys.marker, "0") == 0
    with pytest.raises(JobNotInStateError, match="not delayed"):
        await queue.promote(job.id)
    with pytest.raises(JobNotFoundError):
        await queue.promote("never-was")


async def test_all_delayed_jobs_are_promoted_with_their_priorities(queue, client, monkeypatch):
    monkeypatch.setattr(moving, "SLICE", 3)
    plain = [await queue.add("a", delay=60_000 + n) for n in range(7)]
    urgent = await queue.add("b", delay=60_000, priority=2)
    told = []

    assert await queue.promote_all(on_progress=told.append) == 8

    assert told == [3, 6, 8]
    assert (await client.lrange(queue.keys.wait, 0, -1))[::-1] == [job.id for job in plain]
    assert await client.zrange(queue.keys.prioritized, 0, -1) == [urgent.id]
    assert await client.hget(queue.keys.job(plain[0].id), "delay") == "0"
    assert await queue.promote_all() == 0


@pytest.mark.parametrize("held", [False, True])
async def test_a_waiting_job_moves_with_its_priority(held, queue, client):
    if held:
        await client.hset(queue.keys.meta, "version", "bullmq:5.81.5")
        await queue.pause()
    place = queue.keys.paused if held else queue.keys.wait
    first, second = await queue.add("a"), await queue.add("b")

    await queue.change_priority(first.id, 5)
    await queue.change_priority(second.id, 5, lifo=True)
    assert await client.zrange(queue.keys.prioritized, 0, -1) == [second.id, first.id]
    await queue.change_priority(first.id, 0)
    await queue.change_priority(second.id, 0, lifo=True)

    assert await client.lrange(place, 0, -1) == [first.id, second.id]
    assert await client.exists(queue.keys.prioritized) == 0


async def test_the_priority_of_a_delayed_job_counts_when_it_is_due(queue, client):
    job = await queue.add("a", delay=60_000)

    await queue.change_priority(job.id, 7)
    assert await client.zscore(queue.keys.delayed, job.id) is not None
    await queue.promote(job.id)

    assert await client.zrange(queue.keys.prioritized, 0, -1) == [job.id]
    with pytest.raises(InvalidOptionError):
        await queue.change_priority(job.id, -1)
    with pytest.raises(JobNotFoundError):
        await queue.change_priority("never-was", 1)


async def test_a_delayed_job_is_put_off_from_now(queue, client):
    job = await queue.add("a", delay=10)

    await queue.change_delay(job.id, 60_000)

    seconds, _ = await client.time()
    due_ms = await client.zscore(queue.keys.delayed, job.id) / 4096
    assert 55_000 < due_ms - seconds * 1000 < 62_000
    assert await client.hget(queue.keys.job(job.id), "delay") == "60000"
    assert (await events_of(client, queue))[-1]["delay"] == str(int(due_ms))
    await queue.promote(job.id)
    with pytest.raises(JobNotInStateError):
        await queue.change_delay(job.id, 1)


async def test_data_progress_and_log_are_changed_from_outside(queue, client):
    job = await queue.add("a", {"n": 1})

    await queue.update_data(job.id, {"n": []})
    await queue.update_progress(job.id, {"half": True})
    rows = [await queue.add_log(job.id, f"row {n}", keep=2) for n in range(3)]

    changed = await queue.get_job(job.id)
    assert changed.data == {"n": []}
    assert changed.progress == {"half": True}
    assert rows == [1, 2, 2]
    assert await client.lrange(f"{queue.keys.job(job.id)}:logs", 0, -1) == ["row 1", "row 2"]
    await queue.clear_logs(job.id, keep=1)
    assert await client.lrange(f"{queue.keys.job(job.id)}:logs", 0, -1) == ["row 2"]
    await queue.clear_logs(job.id)
    assert await client.exists(f"{queue.keys.job(job.id)}:logs") == 0
    for change in (
        queue.update_data("never-was", 1),
        queue.update_progress("never-was", 1),
        queue.add_log("never-was", "row"),
        queue.clear_logs("never-was"),
    ):
        with pytest.raises(JobNotFoundError):
            await change


async def test_a_lock_is_extended_by_its_token_only(queue, client):
    job = await queue.add("a")
    await client.rpoplpush(queue.keys.wait, queue.keys.active)
    lock = f"{queue.keys.job(job.id)}:lock"
    await client.set(lock, "w:1", px=30_000)

    await queue.extend_lock(job.id, "w:1", 60_000)
    assert await client.pttl(lock) > 50_000
    with pytest.raises(LockLostError):
        await queue.extend_lock(job.id, "w:2", 60_000)
