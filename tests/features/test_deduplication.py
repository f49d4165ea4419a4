"""Deduplication: one job with an id at a time, and the modes of it."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers import wait_until
from toril import Deduplication, FlowJob, FlowProducer, NewJob, Worker
from toril.errors import InvalidOptionError
from toril.sync import Queue as BlockingQueue

FAR = 3_600_000


async def deduplicated(client, queue) -> list[dict[str, str]]:
    rows = await client.xrange(queue.keys.events)
    return [fields for _, fields in rows if fields["event"] == "deduplicated"]


async def test_a_duplicate_is_answered_with_the_owner(queue, client):
    """RULES-12: a suppressed add is reported to the caller."""
    owner = await queue.add("a", {"n": 1}, deduplication=Deduplication("d"))
    duplicate = await queue.add("b", {"n": 2}, deduplication=Deduplication("d"))

    assert not owner.duplicated
    assert owner.deduplication_id == "d"
    assert duplicate.duplicated
    assert (duplicate.id, duplicate.name, duplicate.data) == (owner.id, "a", {"n": 1})
    assert await client.llen(queue.keys.wait) == 1
    assert await queue.get_deduplication_job_id("d") == owner.id


async def test_duplicates_in_one_bulk_are_told_apart(queue, client):
    jobs = await queue.add_bulk(
        [NewJob(name, deduplication=Deduplication("d")) for name in "abc"] + [NewJob("plain")]
    )

    assert [job.duplicated for job in jobs] == [False, True, True, False]
    assert {job.id for job in jobs[:3]} == {jobs[0].id}
    assert [row["jobId"] for row in await deduplicated(client, queue)] == [jobs[0].id] * 2


async def test_the_id_is_free_when_its_owner_is_finished(queue, url, prefix):
    first = await queue.add("a", deduplication=Deduplication("d"))
    async with Worker("q", lambda job: None, connection=url, prefix=prefix):
        await wait_until(lambda: _is_gone(queue, "d"))

    second = await queue.add("b", deduplication=Deduplication("d"))

    assert second.id != first.id


async def _is_gone(queue, deduplication_id):
    return await queue.get_deduplication_job_id(deduplication_id) is None


async def test_a_throttle_outlives_its_owner_and_ends(queue, url, prefix, client):
    throttle = Deduplication("d", ttl=60_000)
    first = await queue.add("a", deduplication=throttle)
    async with Worker("q", lambda job: None, connection=url, prefix=prefix):
        await wait_until(lambda: _is_in(queue, first.id, "completed"))

    assert (await queue.add("b", deduplication=throttle)).id == first.id
    await client.pexpire(f"{prefix}:q:de:d", 1)
    await wait_until(lambda: _is_gone(queue, "d"))
    assert (await queue.add("c", deduplication=throttle)).id != first.id


async def _is_in(queue, job_id, state):
    return await queue.get_state(job_id) == state


async def test_extend_restarts_the_time(queue, client):
    options = Deduplication("d", ttl=FAR, extend=True)
    await queue.add("a", deduplication=options)
    await client.pexpire(f"{queue.keys.base}:de:d", 1000)

    await queue.add("b", deduplication=options)

    assert await client.pttl(f"{queue.keys.base}:de:d") > 1000


async def test_replace_keeps_the_newest_of_the_delayed(queue, client):
    options = Deduplication("d", ttl=FAR, replace=True)
    first = await queue.add("a", delay=FAR, deduplication=options)
    await client.pexpire(f"{queue.keys.base}:de:d", 50_000)

    second = await queue.add("b", delay=FAR, deduplication=options)

    assert not second.duplicated
    assert await queue.get_job(first.id) is None
    assert await client.zrange(queue.keys.delayed, 0, -1) == [second.id]
    assert await client.pttl(f"{queue.keys.base}:de:d") <= 50_000


async def test_replace_leaves_an_owner_that_is_not_delayed(queue):
    first = await queue.add("a", deduplication=Deduplication("d", replace=True))

    second = await queue.add("b", delay=FAR, deduplication=Deduplication("d", replace=True))

    assert (second.id, second.duplicated) == (first.id, True)


async def test_a_parent_does_not_wait_for_a_child_that_is_replaced(queue, url, prefix):
    """A flow made the owner a child: it was there already."""
    options = Deduplication("d", replace=True)
    await queue.add("a", job_id="x", delay=FAR, deduplication=options)
    async with FlowProducer(connection=url, prefix=prefix) as producer:
        child = FlowJob("x", queue_name="q", job_id="x")
        flow = await producer.add(FlowJob("parent", queue_name="q", children=[child]))
    assert await queue.get_state(flow.job.id) == "waiting_children"

    await queue.add("b", delay=FAR, deduplication=options)

    assert await queue.get_state(flow.job.id) == "waiting"
    assert (await queue.get_dependencies_count(flow.job.id)).unprocessed == 0


async def test_reschedule_moves_the_delayed_owner(queue, client):
    options = Deduplication("d", reschedule=True)
    owner = await queue.add("a", delay=1000, deduplication=options)

    await queue.add("b", delay=FAR, deduplication=options)

    due_ms = await client.zscore(queue.keys.delayed, owner.id) / 4096
    assert due_ms - owner.timestamp >= FAR
    assert (await queue.get_job(owner.id)).delay == FAR


async def test_the_last_one_that_came_while_active_runs_after_it(queue, url, prefix):
    options = Deduplication("d", keep_last_if_active=True)
    started, go_on = asyncio.Event(), asyncio.Event()
    ran = []

    async def handler(job):
        ran.append(job.data)
        started.set()
        await go_on.wait()

    await queue.add("a", 1, deduplication=options)
    async with Worker("q", handler, connection=url, prefix=prefix):
        await started.wait()
        answers = [await queue.add("a", n, deduplication=options) for n in (2, 3, 4)]
        go_on.set()
        await wait_until(lambda: len(ran) == 2)
        await wait_until(lambda: _is_gone(queue, "d"))

    assert all(answer.duplicated for answer in answers)
    assert ran == [1, 4]


async def test_a_key_whose_owner_is_gone_does_not_hold_the_id(queue, client):
    """What another client removed without care must not keep an id busy for ever."""
    await client.set(f"{queue.keys.base}:de:d", "nobody")
    await client.hset(f"{queue.keys.base}:dn:d", mapping={"name": "old", "data": "1", "opts": "{}"})

    job = await queue.add("a", deduplication=Deduplication("d"))

    assert not job.duplicated
    assert await queue.get_deduplication_job_id("d") == job.id
    assert not await client.exists(f"{queue.keys.base}:dn:d")


async def test_a_successful_replace_forgets_the_pending_job(queue, client):
    options = Deduplication("d", replace=True)
    await queue.add("a", delay=FAR, deduplication=options)
    await client.hset(f"{queue.keys.base}:dn:d", mapping={"name": "old", "data": "1", "opts": "{}"})

    await queue.add("b", delay=FAR, deduplication=options)

    assert not await client.exists(f"{queue.keys.base}:dn:d")


async def test_an_id_can_be_given_free_by_hand(queue):
    first = await queue.add("a", deduplication=Deduplication("d"))

    assert not await queue.remove_deduplication_key("d", job_id="another")
    assert await queue.get_deduplication_job_id("d") == first.id
    assert await queue.remove_deduplication_key("d", job_id=first.id)
    assert not await queue.remove_deduplication_key("d")
    assert not (await queue.add("b", deduplication=Deduplication("d"))).duplicated


async def test_an_equal_job_id_goes_before_the_deduplication_id(queue):
    first = await queue.add("a", job_id="mine", deduplication=Deduplication("d"))

    again = await queue.add("b", job_id="mine", deduplication=Deduplication("e"))

    assert (again.id, again.duplicated) == (first.id, True)
    assert await queue.get_deduplication_job_id("e") is None


def test_the_blocking_client_has_it_too(url, prefix):
    with BlockingQueue("q", connection=url, prefix=prefix) as queue:
        owner = queue.add("a", deduplication=Deduplication("d"))
        assert queue.add("b", deduplication=Deduplication("d")).duplicated
        assert queue.get_deduplication_job_id("d") == owner.id
        assert queue.remove_deduplication_key("d")


@pytest.mark.parametrize(
    "options",
    [
        {"id": ""},
        {"id": "d", "ttl": 0},
        {"id": "d", "extend": True},
        {"id": "d", "reschedule": True, "replace": True},
    ],
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(InvalidOptionError):
        Deduplication(**options)


async def test_who_lost_the_id_does_not_let_the_next_one_go(queue, client, url, prefix):
    """Regression: a job whose time was over ended, and what waited for the new owner ran."""
    old_may_end, owner_may_end = asyncio.Event(), asyncio.Event()
    running: list[str] = []

    async def handle(job):
        running.append(job.name)
        await {"old": old_may_end, "owner": owner_may_end}.get(job.name, old_may_end).wait()

    last = Deduplication("d", keep_last_if_active=True)
    old = await queue.add("old", deduplication=Deduplication("d", ttl=FAR))
    async with Worker("q", handle, connection=url, prefix=prefix, concurrency=3):
        await wait_until(lambda: running == ["old"])
        await client.delete(f"{queue.keys.base}:de:d")  # its time is over
        owner = await queue.add("owner", deduplication=last)
        await wait_until(lambda: running == ["old", "owner"])
        await queue.add("next", deduplication=last)

        old_may_end.set()
        await queue.wait_for(old.id, 60_000)

        assert await queue.get_deduplication_job_id("d") == owner.id
        assert running == ["old", "owner"]
        owner_may_end.set()
        await wait_until(lambda: running == ["old", "owner", "next"])


async def test_what_bullmq_kept_over_ours_is_its_own(queue, client, url, prefix):
    """It writes its fields over those that are there, and leaves the others."""
    last = Deduplication("d", keep_last_if_active=True)

    async def handle(job):
        if job.name == "owner":
            await queue.add("ours", run_at=4_000_000_000_000, priority=3, deduplication=last)
            fields = {"name": "theirs", "data": "{}", "opts": "{}", "jid": "theirs"}
            await client.hset(f"{queue.keys.base}:dn:d", mapping=fields)

    await queue.add("owner", deduplication=last)
    async with Worker("q", handle, connection=url, prefix=prefix):
        await wait_until(lambda: client.zscore(queue.keys.completed, "theirs"))

    theirs = await client.hgetall(f"{queue.keys.base}:theirs")
    assert (theirs["name"], theirs["delay"], theirs["priority"]) == ("theirs", "0", "0")
