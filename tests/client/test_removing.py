"""Removing one job, and its family (wire-format 4.15)."""

from __future__ import annotations

import pytest

from tests.client.support import add_child, events_of, finish, hold_forever, make_parent, working
from tests.helpers import wait_until
from tests.keyspace import keys_under, lasting_keys
from toril.errors import InvalidNameError, JobLockedError, SchedulerOwnsJobError
from toril.protocol import removing


async def everything_of(client, queue, job_id):
    return await keys_under(client, queue.keys.job(job_id))


@pytest.mark.parametrize(
    ("options", "place"),
    [({}, "wait"), ({"priority": 3}, "prioritized"), ({"delay": 60_000}, "delayed")],
)
async def test_a_job_that_waits_is_removed_with_its_log(options, place, queue, client):
    job = await queue.add("a", **options)
    await queue.add_log(job.id, "goes too")

    assert await queue.remove(job.id) is True

    assert await everything_of(client, queue, job.id) == []
    assert (await events_of(client, queue))[-1] == {
        "event": "removed",
        "jobId": job.id,
        "prev": place,
    }


@pytest.mark.parametrize("failing", [False, True])
async def test_a_finished_job_is_removed(failing, queue, url, client):
    job = await queue.add("a")
    await finish(queue, url, client, failing=failing)

    assert await queue.remove(job.id) is True

    assert await queue.get_job(job.id) is None
    removed = await events_of(client, queue, "removed")
    assert removed[0]["prev"] == ("failed" if failing else "completed")


async def test_a_job_held_by_bullmq_5_in_paused_is_removed(queue, client):
    await client.hset(queue.keys.meta, "version", "bullmq:5.81.5")
    await queue.pause()
    job = await queue.add("a")

    assert await queue.remove(job.id) is True

    assert await client.exists(queue.keys.paused) == 0
    assert (await events_of(client, queue, "removed"))[0]["prev"] == "paused"


async def test_removing_what_is_not_there_says_so(queue):
    assert await queue.remove("never-was") is False
    with pytest.raises(InvalidNameError):
        await queue.remove("wait")


async def test_a_running_job_is_not_removed(queue, url, client):
    job = await queue.add("a")
    async with working(queue, url, hold_forever) as worker:
        await wait_until(lambda: worker.is_processing)

        with pytest.raises(JobLockedError, match=r"queue\.cancel"):
            await queue.remove(job.id)

        assert await client.lrange(queue.keys.active, 0, -1) == [job.id]
        await worker.close(timeout=0)


async def test_the_next_iteration_of_a_scheduler_is_not_removed(queue, client):
    job_id = "repeat:digest:1794723425000"
    await client.hset(queue.keys.job(job_id), mapping={"name": "digest", "rjk": "digest"})
    await client.zadd(queue.keys.delayed, {job_id: 1})
    await client.zadd(queue.keys.repeat, {"digest": 1794723425000})
    await client.hset(f"{queue.keys.repeat}:digest", "name", "digest")

    with pytest.raises(SchedulerOwnsJobError, match="remove the scheduler"):
        await queue.remove(job_id)

    await client.zadd(queue.keys.repeat, {"digest": 1794723426000})  # an old one may go
    assert await queue.remove(job_id) is True


async def test_removing_the_owner_frees_its_deduplication_id(queue, client):
    job = await queue.add("a")
    await client.hset(queue.keys.job(job.id), "deid", "d")
    await client.set(f"{queue.keys.base}:de:d", job.id)
    await client.hset(f"{queue.keys.base}:dn:d", "name", "next")
    other = await queue.add("b")
    await client.hset(queue.keys.job(other.id), "deid", "e")
    await client.set(f"{queue.keys.base}:de:e", job.id, px=60_000)

    await queue.remove(job.id)
    await queue.remove(other.id)

    assert await client.exists(f"{queue.keys.base}:de:d", f"{queue.keys.base}:dn:d") == 0
    assert await client.exists(f"{queue.keys.base}:de:e") == 1  # it names another owner


async def test_removing_the_last_child_releases_the_parent(queue, make_queue, client):
    children = make_queue("children")
    parent = await queue.add("parent", priority=0)
    key = await make_parent(client, queue, parent.id)
    one, two = await children.add("one"), await children.add("two")
    for child in (one, two):
        await add_child(client, key, children.keys.job(child.id))

    await children.remove(one.id)
    assert await client.zscore(queue.keys.waiting_children, parent.id) is not None
    await children.remove(two.id)

    assert await client.lrange(queue.keys.wait, 0, -1) == [parent.id]
    assert (await events_of(client, queue))[-1]["prev"] == "waiting-children"


async def family(client, queue, children, *, depth=2, width=3):
    """A tree of jobs, finished ones among them; returns the root's id and how many there are."""
    root = await queue.add("root")
    await make_parent(client, queue, root.id)
    level = [queue.keys.job(root.id)]
    count = 1
    for floor in range(depth):
        below = []
        for parent in level:
            for n in range(width):
                job = await children.add(f"{floor}-{n}")
                key = children.keys.job(job.id)
                count += 1
                await add_child(client, parent, key)
                if floor < depth - 1:
                    await make_parent(client, children, job.id)
                    below.append(key)
                elif n == 0:  # this one has completed
                    await client.lrem(children.keys.wait, 1, job.id)
                    await client.zadd(children.keys.completed, {job.id: 1})
                    await client.srem(f"{parent}:dependencies", key)
                    await client.hset(f"{parent}:processed", key, "1")
                elif n == 1:  # this one failed, and that was ignored
                    await client.lrem(children.keys.wait, 1, job.id)
                    await client.zadd(children.keys.failed, {job.id: 1})
                    await client.srem(f"{parent}:dependencies", key)
                    await client.hset(f"{parent}:failed", key, "no")
        level = below
    return root.id, count


@pytest.mark.parametrize("slice_size", [1, 2, 5, 1000])
async def test_a_family_is_removed_with_its_root_in_slices_of_any_size(
    slice_size, queue, make_queue, client
):
    children = make_queue("children")
    root, count = await family(client, queue, children)

    plan = removing.remove(queue.keys, root, slice_size=slice_size)
    assert await queue._connection.follow(plan) is True

    left = await lasting_keys(client, queue.keys.prefix)
    assert [
        key for key in left if key.rpartition(":")[2] not in ("meta", "id", "events", "marker")
    ] == []
    removed = [
        *await events_of(client, queue, "removed"),
        *await events_of(client, children, "removed"),
    ]
    assert len(removed) == count
    assert await events_of(client, queue, "waiting") == [
        {"event": "waiting", "jobId": root}  # from its add: it was never let go
    ]


async def test_a_family_stays_when_a_worker_runs_one_of_it(queue, make_queue, client):
    children = make_queue("children")
    root, _ = await family(client, queue, children)
    before = await keys_under(client, queue.keys.prefix)
    child = await client.rpop(children.keys.wait)
    await client.lpush(children.keys.active, child)
    await client.set(f"{children.keys.job(child)}:lock", "somebody:1", px=60_000)

    with pytest.raises(JobLockedError):
        await queue.remove(root)

    after = set(await keys_under(client, queue.keys.prefix))
    assert set(before) <= after


async def test_children_stay_when_asked(queue, make_queue, client):
    children = make_queue("children")
    root = await queue.add("root")
    key = await make_parent(client, queue, root.id)
    child = await children.add("child")
    await add_child(client, key, children.keys.job(child.id))

    assert await queue.remove(root.id, remove_children=False) is True

    assert await queue.get_job(root.id) is None
    assert await children.get_job(child.id) is not None
