"""Draining, cleaning and obliterating queues (wire-format 4.15 and appendix B)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.client.support import add_child, events_of, finish, hold_forever, make_parent, working
from tests.helpers import wait_until
from tests.keyspace import keys_under
from toril import NewJob
from toril.errors import InvalidOptionError, JobLockedError, NotPausedError
from toril.protocol import removing


async def schedule(client, queue, name, place, at=1794723425000):
    """The pending iteration of a scheduler, in ``place``; returns its id."""
    job_id = f"repeat:{name}:{at}"
    fields = {"name": name, "rjk": name, "timestamp": 1}
    await client.hset(queue.keys.job(job_id), mapping=fields)
    await client.zadd(queue.keys.repeat, {name: at})
    await client.hset(f"{queue.keys.repeat}:{name}", "name", name)
    if place in (queue.keys.wait, queue.keys.paused):
        await client.lpush(place, job_id)
    else:
        await client.zadd(place, {job_id: 1})
    return job_id


@pytest.fixture
def small_slices(monkeypatch):
    monkeypatch.setattr(removing, "SLICE", 3)


async def test_draining_removes_what_waits_and_nothing_else(queue, url, client, small_slices):
    await queue.add("done")
    await finish(queue, url, client)
    await queue.add_bulk([NewJob("a") for _ in range(8)])
    await queue.add_bulk([NewJob("b", priority=2) for _ in range(7)])
    delayed = [await queue.add("c", delay=60_000) for _ in range(4)]
    told = []

    assert await queue.drain(on_progress=told.append) == 15

    assert told[-1] == 15
    assert all(after - before <= 3 for before, after in zip([0, *told], told, strict=False))
    assert await client.exists(queue.keys.wait, queue.keys.prioritized) == 0
    assert await client.zcard(queue.keys.delayed) == 4
    assert await client.zcard(queue.keys.completed) == 1
    assert await queue.drain(delayed=True) == 4
    assert await queue.get_job(delayed[0].id) is None
    assert await events_of(client, queue, "removed", "cleaned") == []


async def test_draining_a_queue_held_by_bullmq_5(queue, client):
    await client.hset(queue.keys.meta, "version", "bullmq:5.81.5")
    await queue.pause()
    await queue.add("a")

    assert await queue.drain() == 1

    assert await client.exists(queue.keys.paused) == 0


async def test_draining_keeps_the_iterations_of_schedulers_by_id(queue, client, small_slices):
    """Appendix B: BullMQ trims the list by count, and keeps ghosts instead."""
    kept = []
    for n in range(5):
        await queue.add("before")
        kept.append(await schedule(client, queue, f"s{n}", queue.keys.wait))
        await queue.add("after")
    in_zset = [await schedule(client, queue, f"d{n}", queue.keys.delayed) for n in range(5)]
    await queue.add("late", delay=60_000)

    assert await queue.drain(delayed=True) == 11

    assert await client.lrange(queue.keys.wait, 0, -1) == kept[::-1]
    assert sorted(await client.zrange(queue.keys.delayed, 0, -1)) == in_zset


async def test_draining_ends_although_jobs_are_added(queue, small_slices):
    await queue.add_bulk([NewJob("a") for _ in range(30)])
    is_adding = True

    async def add() -> None:
        while is_adding:
            await queue.add_bulk([NewJob("more") for _ in range(5)])

    adding = asyncio.create_task(add())
    try:
        async with asyncio.timeout(60):
            assert await queue.drain() >= 30
    finally:
        is_adding = False
        await adding


async def test_a_parent_of_drained_children(queue, make_queue, client):
    """One of the same queue goes with its last child, one elsewhere is let go, without an event."""
    other = make_queue("other")
    here, there = await queue.add("here"), await other.add("there")
    for parent, home in ((here, queue), (there, other)):
        key = await make_parent(client, home, parent.id)
        for _ in range(2):
            child = await queue.add("child")
            await add_child(client, key, queue.keys.job(child.id))

    await queue.drain()

    assert await queue.get_job(here.id) is None
    assert await client.lrange(other.keys.wait, 0, -1) == [there.id]
    assert len(await events_of(client, other, "waiting")) == 1  # that of its add


async def test_cleaning_takes_the_oldest_finished_jobs(queue, url, client, small_slices):
    await queue.add_bulk([NewJob("a") for _ in range(10)])
    await finish(queue, url, client)
    order = await client.zrange(queue.keys.completed, 0, -1)
    told = []

    assert await queue.clean("completed", 60_000) == []
    assert await queue.clean("completed", 0, 4) == order[:4]
    assert await queue.clean("completed", on_progress=told.append) == order[4:]

    assert told == [3, 6]
    assert await client.exists(queue.keys.completed) == 0
    counts = [row["count"] for row in await events_of(client, queue, "cleaned")]
    assert counts == ["0", "4", "6"]


async def test_cleaning_compares_times_as_numbers(queue, url, client):
    await queue.add("a")
    await finish(queue, url, client, failing=True)
    job_id = (await client.zrange(queue.keys.failed, 0, -1))[0]
    await client.zadd(queue.keys.failed, {job_id: 999_999})  # a longer text is not a later time

    assert await queue.clean("failed", 3_600_000) == [job_id]


@pytest.mark.parametrize("held", [False, True])
async def test_cleaning_a_list_leaves_the_rest_in_its_order(held, queue, client, small_slices):
    if held:
        await client.hset(queue.keys.meta, "version", "bullmq:5.81.5")
        await queue.pause()
    place = queue.keys.paused if held else queue.keys.wait
    jobs = [await queue.add("a") for _ in range(14)]
    scheduled = await schedule(client, queue, "s", place)
    old = [job.id for n, job in enumerate(jobs) if n % 3 == 1 or n > 10]
    for job_id in old:
        await client.hset(queue.keys.job(job_id), "timestamp", 1)

    removed = await queue.clean("waiting", 3_600_000)

    assert removed == old
    young = [job.id for job in jobs if job.id not in old]
    assert await client.lrange(place, 0, -1) == [*young, scheduled][::-1]
    assert len(await events_of(client, queue, "cleaned")) == 1


@pytest.mark.parametrize(
    ("state", "options"), [("prioritized", {"priority": 1}), ("delayed", {"delay": 60_000})]
)
async def test_cleaning_what_is_sorted(state, options, queue, client, small_slices):
    jobs = [await queue.add("a", **options) for _ in range(10)]
    old = [job.id for n, job in enumerate(jobs) if n % 2]
    for job_id in old:
        await client.hset(queue.keys.job(job_id), "timestamp", 1)

    assert await queue.clean(state, 3_600_000, 3) == old[:3]
    assert await queue.clean(state, 3_600_000) == old[3:]
    assert await client.zcard(getattr(queue.keys, state)) == 5


async def test_cleaning_active_jobs_leaves_those_that_a_worker_holds(queue, url, client):
    held = await queue.add("held")
    async with working(queue, url, hold_forever) as worker:
        await wait_until(lambda: worker.is_processing)
        await client.hset(queue.keys.job("lost"), mapping={"name": "lost", "timestamp": 1})
        await client.lpush(queue.keys.active, "lost")
        await client.sadd(queue.keys.stalled, "lost", held.id)

        assert await queue.clean("active") == ["lost"]

        assert await client.lrange(queue.keys.active, 0, -1) == [held.id]
        assert await client.smembers(queue.keys.stalled) == {held.id}
        await worker.close(timeout=0)


async def test_an_unknown_state_is_refused(queue):
    with pytest.raises(InvalidOptionError, match="completed, delayed, failed"):
        await queue.clean("done")


async def test_obliterating_asks_for_a_paused_queue_without_active_jobs(queue, url, client):
    job = await queue.add("a")
    with pytest.raises(NotPausedError, match=r"queue\.pause\(\)"):
        await queue.obliterate()

    async with working(queue, url, hold_forever) as worker:
        await wait_until(lambda: worker.is_processing)
        await queue.pause()
        with pytest.raises(JobLockedError, match="force=True"):
            await queue.obliterate()
        assert await queue.get_job(job.id) is not None
        await worker.close(timeout=0)
    assert await queue.obliterate() == 1


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("is_sent_again", [False, True])
async def test_a_queue_that_is_resumed_meanwhile_is_not_erased(queue, force, is_sent_again):
    """Nor said to be, if the first request was lost before it reached the server."""
    await queue.pause()
    plan = removing.obliterate(queue.keys, force=force)
    command = next(plan)
    while command.script.name != "eraseKeys":
        command = plan.send(await queue._connection.run(command))
    await queue.resume()
    job = await queue.add("a")

    if is_sent_again:
        command = msgspec.structs.replace(command, args={**command.args, "resend": True})
    with pytest.raises(NotPausedError):
        await queue._connection.run(command)

    assert await queue.get_state(job.id) == "waiting"


async def fill(queue, make_queue, url, client):
    """A queue with something in every place."""
    await queue.add_bulk([NewJob("a", remove_on_complete=False) for _ in range(5)])
    await queue.add("metrics")
    async with working(queue, url, lambda job: 1, metrics_points=5):
        await wait_until(lambda: client.zcard(queue.keys.completed))
    await queue.add("b")
    await finish(queue, url, client, failing=True)
    await queue.add("c", priority=1)
    await queue.add("d", delay=60_000)
    job = await queue.add("e")
    await queue.add_log(job.id, "row")
    await schedule(client, queue, "s", queue.keys.delayed)
    await schedule(client, queue, "t:with:colons", queue.keys.wait)
    parent = await queue.add("parent")
    key = await make_parent(client, queue, parent.id)
    await add_child(client, key, queue.keys.job(job.id))
    base = queue.keys.base
    await client.set(f"{base}:de:x", "gone", px=60_000)
    await client.hset(f"{base}:dn:x", "name", "next")
    await client.set(f"{base}:limiter", 5, px=60_000)
    await client.set(f"{base}:toril:anything", 1, px=60_000)
    await client.set(f"{base}:stalled-check", 1, px=60_000)
    await client.hset(f"{base}:orphan", "name", "in no container")
    await client.rpush(f"{base}:orphan:logs", "row")
    await client.rpush(f"{base}:nobody:logs", "row")


async def test_obliterating_leaves_no_key(queue, make_queue, url, client, small_slices):
    """Appendix B: BullMQ leaves waiting-children, the limiter and whatever is not its own."""
    await fill(queue, make_queue, url, client)
    await queue.pause()

    assert await queue.obliterate() > 10

    assert await keys_under(client, queue.keys.prefix) == []


async def test_obliterating_by_force_takes_jobs_from_their_workers(queue, url, client):
    await queue.add("a")
    await queue.add("b")
    async with working(queue, url, hold_forever, lock_duration=60_000) as worker:
        await wait_until(lambda: worker.is_processing)
        told = []

        assert await queue.obliterate(force=True, on_progress=told.append) == 2

        assert told == [2]
        await worker.close(timeout=0)
    left = await keys_under(client, queue.keys.prefix)
    assert {key.rpartition(":")[2] for key in left} <= {"meta", "marker", "events"}


async def test_obliterating_spares_the_neighbours(make_queue, client, prefix):
    """Keys of `q:compensation`, and of a queue under the prefix `<prefix>:q`, begin like those of
    `q`; a pattern in a name matches nothing but itself."""
    queue, neighbour = make_queue("q*[a]"), make_queue("q*[a]:compensation")
    similar = make_queue("qq[a]")
    nested = make_queue("q*[a]-2")
    for each in (queue, neighbour, similar, nested):
        job = await each.add("a")
        await each.add_log(job.id, "row")
        failed = await each.add("failed")
        await each.cancel(failed.id)
    foreign = f"{prefix}:q*[a]:inner"
    await client.zadd(f"{foreign}:failed", {"x": 1})
    await client.hset(f"{foreign}:meta", "opts.maxLenEvents", 10_000)
    before = {key for key in await keys_under(client, prefix) if not _is_of(queue, key)}
    await queue.pause()

    await queue.obliterate()

    assert set(await keys_under(client, prefix)) == before
    await client.delete(f"{foreign}:failed", f"{foreign}:meta")


def _is_of(queue, key):
    rest = key.removeprefix(queue.keys.base + ":")
    return rest != key and not rest.startswith(("compensation:", "inner:"))


async def test_an_obliteration_that_broke_off_is_gone_on_with(
    queue, make_queue, url, client, small_slices
):
    await fill(queue, make_queue, url, client)
    await queue.pause()
    plan = removing.obliterate(queue.keys)
    command = next(plan)
    for _ in range(2):
        command = plan.send(await queue._connection.run(command))

    await queue.obliterate()

    assert await keys_under(client, queue.keys.prefix) == []


async def test_a_queue_lives_on_after_its_obliteration(queue, url, client):
    await queue.add("a")
    await queue.pause()
    await queue.obliterate()

    job = await queue.add("b")
    await finish(queue, url, client)

    assert (await queue.get_job(job.id)).return_value == 1
