"""Jobs that somebody else wrote badly: each fails or runs by itself, and the worker goes on."""

from __future__ import annotations

import pytest

from toril import Deduplication

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
    "a name that is no text": {"name": b"\xff"},
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
