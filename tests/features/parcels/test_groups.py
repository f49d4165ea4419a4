"""Groups whose members are in different slots of a cluster."""

from __future__ import annotations

import pytest

from tests.helpers import wait_until
from toril import FlowProducer, GroupJob, GroupSignal, ManualWorker, Parent, Worker
from toril.errors import (
    InvalidGroupStateError,
    NotReplicatedError,
    UnrecoverableError,
    WaitingChildrenError,
)
from toril.protocol import parceling


async def test_a_group_over_three_slots_completes(shop):
    group_id = await shop.add()

    assert [await queue.get_waiting_count() for queue in shop.queues] == [1, 1, 1]
    assert await shop.is_quiet()
    async with shop.open():
        await shop.until(group_id, "COMPLETED")
    assert shop.ran == {"a": 1, "b": 1, "c": 1}
    results = await shop.queues[2].get_group_results(group_id)
    assert results == {"a": "did a", "b": "did b", "c": "did c"}
    await shop.check()


@pytest.mark.parametrize("failing", ["a", "c"])
async def test_what_was_done_elsewhere_is_undone(shop, failing):
    shop.refused = {failing}
    last = shop.member(failing, "abc".index(failing), delay=3_600_000, undo=None)
    others = [shop.member(name, n) for n, name in enumerate("abc") if name != failing]
    group_id = await shop.add(*others, last, queue_name=shop.names[0])
    done = {name for name in "abc" if name != failing}

    async def are_done() -> bool:
        statuses = await shop.statuses(group_id)
        return all(statuses[name] == "completed" for name in done)

    async with shop.open():
        await wait_until(are_done)
        members = {one.name: one for one in await shop.queues[0].get_group_jobs(group_id)}
        await shop.queues["abc".index(failing)].promote(members[failing].job_id)
        await shop.until(group_id, "FAILED")

    assert {name: shop.ran[f"undo-{name}"] for name in done} == dict.fromkeys(done, 1)
    told = shop.told[f"undo-{min(done)}"]
    assert told["reason"] == f"{failing} refused"
    assert told["originalReturnValue"] == f"did {min(done)}"
    await shop.check()


async def test_members_elsewhere_that_wait_are_cancelled(shop):
    group_id = await shop.add()
    async with shop.open(1):
        await wait_until(lambda: shop.ran["b"])
        await wait_until(shop.is_quiet)

    await shop.queues[0].cancel_group(group_id, reason="enough")
    await shop.carry()

    assert await shop.statuses(group_id) == {"a": "cancelled", "b": "completed", "c": "cancelled"}
    assert [await queue.get_waiting_count() for queue in shop.queues] == [0, 0, 0]
    async with shop.open():
        await shop.until(group_id, "FAILED")
    assert shop.ran == {"b": 1, "undo-b": 1}
    await shop.check()


@pytest.mark.parametrize("owner", [0, 1])
async def test_a_cancelled_member_takes_its_children_in_other_slots_along(shop, owner):
    """Its group could not be cancelled: the member was nowhere, and its group never ended."""
    parents, children = shop.queues[0], shop.queues[2]

    async def wait_for_a_child(job):
        await children.add("child", parent=Parent(job.id, parents.name))
        raise WaitingChildrenError

    group_id = await shop.add(shop.member("a", 0), queue_name=shop.names[owner])
    async with Worker(parents.name, wait_for_a_child, **shop.slots.options):
        await wait_until(parents.get_waiting_children_count)
        assert await children.get_waiting_count() == 1
        await shop.queues[owner].cancel_group(group_id)
        await shop.until(group_id, "FAILED")

        async def is_gone() -> bool:
            return not await children.get_waiting_count()

        await wait_until(is_gone)

    assert await shop.statuses(group_id) == {"a": "cancelled"}
    assert await parents.get_waiting_children_count() == 0
    await shop.check()


async def test_the_removal_of_a_child_of_a_member_does_not_overtake_it(shop):
    """The courier with the child is slow: it comes after the one that removes it."""
    parents, children = shop.queues[0], shop.queues[2]
    parents._connection.on_parcels = lambda base: None
    children._connection.on_parcels = lambda base: None
    group_id = await shop.add(shop.member("a", 0))
    async with ManualWorker(parents.name, **shop.slots.options) as by_hand:
        job = await by_hand.get_next_job()
        await children.add("child", parent=Parent(job.id, parents.name))
        await job.move_to_waiting_children()
    (child,), _ = await parents._connection.run(parceling.fetch(parents.keys))

    await parents.cancel_group(group_id)

    found, _ = await parents._connection.run(parceling.fetch(parents.keys))
    (removal,) = [one for one in found if one.id != child.id]
    run = children._connection.run
    assert await run(parceling.deliver(children.keys, [removal])) == [1]
    assert await run(parceling.deliver(children.keys, [child, removal])) == [0, 0]
    assert await children.get_waiting_count() == 0
    await run(parceling.collect(parents.keys, [child.id, removal.id]))
    assert await shop.state(group_id) == "FAILED"
    await shop.carry()
    await shop.check()


async def test_a_cancel_does_not_overtake_what_it_cancels(shop, slots, monkeypatch):
    """Nobody delivers what the first call leaves before the second has left its own."""
    held = lambda _: None  # noqa: E731
    monkeypatch.setattr(shop.flow._connection, "on_parcels", held)
    monkeypatch.setattr(shop.queues[0]._connection, "on_parcels", held)
    group_id = await shop.add()
    assert await shop.statuses(group_id) == {"a": "pending", "b": "in_transit", "c": "in_transit"}
    await shop.queues[0].cancel_group(group_id)

    parcels, _ = await shop.queues[0]._connection.run(parceling.fetch(shop.queues[0].keys))
    target = shop.queues[1].keys
    mine = [one for one in parcels if one.target == target.base]
    assert len(mine) == 2
    run = shop.queues[1]._connection.run
    assert await run(parceling.deliver(target, [mine[1]])) == [1]
    assert await run(parceling.deliver(target, [mine[0]])) == [0]
    assert await run(parceling.deliver(target, [mine[1]])) == [0]

    assert await shop.queues[1].get_waiting_count() == 0
    async with shop.open():
        await shop.until(group_id, "FAILED")
    assert not shop.ran
    await shop.check()


async def test_a_cancelled_member_does_not_overtake_its_own_end(shop):
    """Somebody retried it, so that it waits again and is cancelled; but it had done its work."""
    group_id = await shop.add(shop.member("a", 0, delay=60_000), shop.member("b", 1))
    here, there = shop.queues[:2]
    async with ManualWorker(there.name, **shop.slots.options) as worker:
        for connection in (worker._connection, here._connection, there._connection):
            connection.on_parcels = lambda _: None
        job = await worker.get_next_job(20_000)
        await job.complete("done")
    await there.retry(job.id, force=True)
    await here.cancel_group(group_id)
    run, target = here._connection.run, here.keys
    cancels, _ = await run(parceling.fetch(here.keys))
    assert await run(parceling.deliver(there.keys, cancels)) == [0]
    await run(parceling.collect(here.keys, [one.id for one in cancels]))
    parcels, _ = await run(parceling.fetch(there.keys))
    cancelled = [one for one in parcels if b"cancelled" in one.body]

    assert len(parcels) == 3
    assert await run(parceling.deliver(target, cancelled)) == [1]
    for one in (b"completed", b"memberRetried", b"cancelled"):
        some = [parcel for parcel in parcels if one in parcel.body]
        assert await run(parceling.deliver(target, some)) == [0]
    await run(parceling.collect(there.keys, [one.id for one in parcels]))
    async with shop.open():
        await shop.until(group_id, "FAILED")
    assert shop.ran["undo-b"] == 1


@pytest.mark.parametrize("how", ["by hand", "as it ends"])
async def test_that_a_member_is_gone_does_not_overtake_its_own_end(shop, how):
    """Somebody retried it and it was removed; but it had done its work, and that comes first."""
    group_id = await shop.add(shop.member("a", 0, delay=60_000), shop.member("b", 1))
    here, there = shop.queues[:2]
    last = b"cancelled" if how == "by hand" else b"failed"
    options = {"remove_on_fail": True, **shop.slots.options}
    async with ManualWorker(there.name, **options) as worker:
        for connection in (worker._connection, there._connection):
            connection.on_parcels = lambda _: None
        job = await worker.get_next_job(20_000)
        await job.complete("done")
        await there.retry(job.id, force=True)
        if how == "by hand":
            await there.remove(job.id)
        else:
            await (await worker.get_next_job(20_000)).fail(UnrecoverableError("no"))
    assert await there.get_job(job.id) is None

    run = here._connection.run
    parcels, _ = await run(parceling.fetch(there.keys))
    in_order = (b"completed", b"memberRetried", last)
    told = [[one for one in parcels if word in one.body] for word in in_order]
    assert [len(some) for some in told] == [1, 1, 1]
    assert await run(parceling.deliver(here.keys, told[-1])) == [1]
    for some in told:
        assert await run(parceling.deliver(here.keys, some)) == [0]
    await run(parceling.collect(there.keys, [one.id for one in parcels]))
    async with shop.open():
        await shop.until(group_id, "FAILED")
    assert shop.ran == {"undo-b": 1}
    await shop.check()


async def test_a_member_that_runs_elsewhere_is_told_and_undone(shop):
    shop.refused = {"a"}
    turned = []

    async def slow(job):
        shop.ran[job.name] += 1
        await job.signal.wait()
        turned.append(job.name)
        return "late"

    members = [shop.member("a", 0, delay=1000), shop.member("b", 1)]
    group_id = await shop.add(*members)
    undoing = Worker(f"{shop.names[1]}:compensation", shop.handle, **shop.slots.options)
    async with Worker(shop.names[1], slow, **shop.slots.options), undoing, shop.open(0):
        await shop.until(group_id, "FAILED")

    assert turned == ["b"]
    assert shop.ran["undo-b"] == 1
    assert shop.told["undo-b"]["originalReturnValue"] == "late"
    await shop.check()


async def test_a_member_whose_group_has_turned_is_not_tried_again(shop):
    async def fail_late(job):
        shop.ran[job.name] += 1
        await job.signal.wait()
        raise ValueError("not now")

    members = [shop.member("a", 0), shop.member("b", 1, attempts=5)]
    group_id = await shop.add(*members)
    async with Worker(shop.names[1], fail_late, **shop.slots.options):
        await wait_until(lambda: shop.ran["b"])
        await shop.queues[0].cancel_group(group_id)
        await shop.until(group_id, "FAILED")

    assert shop.ran == {"b": 1}
    await shop.check()


async def test_stages_in_other_slots_follow_each_other(shop):
    group_id = await shop.add(
        shop.member("a", 0),
        shop.member("b", 1, after=["a"], inputs={"receipt": "a"}),
        GroupSignal("ok", after=["b"]),
        shop.member("c", 2, after=["b", "ok"], inputs={"receipt": "b"}),
        on_completed=GroupJob("invoice", {"x": 1}, queue_name=shop.names[2]),
    )
    async with shop.open():
        await wait_until(lambda: shop.ran["b"])
        await shop.queues[2].complete_member(group_id, "ok", {"by": "us"})
        await shop.until(group_id, "COMPLETED")
        await wait_until(lambda: shop.ran["invoice"])

    assert shop.order == ["a", "b", "c", "invoice"]
    assert shop.told["b"] == {"n": "b", "receipt": "did a"}
    assert shop.told["c"] == {"n": "c", "receipt": "did b"}
    assert shop.told["invoice"]["group"]["results"]["c"] == "did c"
    await shop.check()


async def test_the_way_back_follows_the_graph_through_the_slots(shop):
    shop.refused = {"c"}
    group_id = await shop.add(
        shop.member("a", 0),
        shop.member("b", 1, after=["a"]),
        shop.member("c", 2, after=["b"]),
        on_failed=GroupJob("apologise", {}, queue_name=shop.names[1]),
    )
    async with shop.open():
        await shop.until(group_id, "FAILED")
        await wait_until(lambda: shop.ran["apologise"])

    assert shop.order == ["a", "b", "c", "undo-b", "undo-a", "apologise"]
    await shop.check()


async def test_a_time_limit_is_kept_by_a_worker_of_another_slot(watched):
    shop = watched
    group_id = await shop.add(timeout=6000)

    async with shop.open(1, 2):
        await shop.until(group_id, "FAILED")

    assert shop.ran["undo-b"] == shop.ran["b"] == 1
    assert shop.ran["a"] == 0
    await shop.check()


async def test_compensations_elsewhere_that_failed_are_tried_again(shop):
    shop.refused = {"c", "undo-b"}
    members = [shop.member("a", 0), shop.member("b", 1), shop.member("c", 2, after=["a", "b"])]
    group_id = await shop.add(*members, queue_name=shop.names[0])
    async with shop.open():
        await shop.until(group_id, "FAILED_COMPENSATION")
        shop.refused = set()
        assert await shop.queues[0].retry_compensation(group_id) == 1
        await shop.until(group_id, "FAILED")

    assert shop.ran["undo-b"] == 2
    assert shop.ran["undo-a"] == 1
    await shop.check()


async def test_a_blocked_group_runs_its_members_elsewhere_again(shop):
    shop.refused = {"c"}
    members = [
        shop.member("a", 0, undo=None),
        shop.member("b", 1, after=["a"], pivot=True, undo=None),
        shop.member("c", 2, after=["b"], undo=None),
    ]
    group_id = await shop.add(*members)
    async with shop.open():
        await shop.until(group_id, "BLOCKED")
        shop.refused = set()
        assert await shop.queues[1].retry_group(group_id) == 1
        await shop.until(group_id, "COMPLETED")

    assert shop.ran == {"a": 1, "b": 1, "c": 2}
    await shop.check()


async def test_a_blocked_group_is_resolved_only_as_it_was_looked_at_from_anywhere(shop):
    shop.refused = {"c", "d"}
    members = [
        shop.member("a", 0, pivot=True, undo=None),
        shop.member("c", 2, after=["a"], undo=None),
        shop.member("d", 1, after=["c"], undo=None),
    ]
    group_id = await shop.add(*members)

    async def has_failed(name: str) -> bool:
        return (await shop.statuses(group_id))[name] == "failed"

    async with shop.open():
        await wait_until(lambda: has_failed("c"))
        await shop.queues[1].resolve_group(group_id, "by hand", expected_members=["c"])
        await wait_until(lambda: has_failed("d"))
        with pytest.raises(InvalidGroupStateError, match=r"BLOCKED now \('d'\)"):
            await shop.queues[1].resolve_group(group_id, "by hand", expected_members=["c"])
        assert await has_failed("d")
        await shop.queues[2].resolve_group(group_id, "by hand", expected_members=["d"])
        await shop.until(group_id, "COMPLETED")

    await shop.check()


async def test_a_finished_member_elsewhere_runs_again_only_if_forced(shop):
    shop.refused = {"c"}
    members = [
        shop.member("b", 1, pivot=True, undo=None),
        shop.member("c", 2, after=["b"], undo=None),
    ]
    group_id = await shop.add(*members)
    async with shop.open():
        await shop.until(group_id, "BLOCKED")
        failed = (await shop.queues[2].get_failed())[0]
        with pytest.raises(InvalidGroupStateError):
            await shop.queues[2].retry(failed.id)
        assert await shop.queues[2].retry_all() == 0
        shop.refused = set()
        await shop.queues[2].retry(failed.id, force=True)
        await shop.until(group_id, "COMPLETED")

    assert shop.ran == {"b": 1, "c": 2}
    await shop.check()


async def test_the_same_group_is_started_once(shop):
    for _ in range(2):
        group_id = await shop.add(group_id="order-1")
    assert [await queue.get_waiting_count() for queue in shop.queues] == [1, 1, 1]

    async with shop.open(remove_on_complete=True):
        await shop.until(group_id, "COMPLETED")
    await shop.add(group_id="order-1")
    assert [await queue.get_waiting_count() for queue in shop.queues] == [0, 0, 0]
    await shop.check()


async def test_a_group_over_slots_may_wait_for_replicas(shop):
    """What the server answers beside the call does not hide that there are parcels."""
    members = [shop.member(name, n) for n, name in enumerate("abc")]
    async with FlowProducer(replicas=1, replicas_timeout=1, **shop.slots.options) as flow:
        with pytest.raises(NotReplicatedError):
            await flow.add_group("order", members, group_id="order-1")

    assert [await queue.get_waiting_count() for queue in shop.queues] == [1, 1, 1]
    async with shop.open():
        await shop.until("order-1", "COMPLETED")
    await shop.check()


async def test_an_id_that_is_taken_elsewhere_fails_its_member(shop):
    await shop.queues[1].add("mine", {}, job_id="b-1", delay=3_600_000)
    members = [shop.member("a", 0), shop.member("b", 1, job_id="b-1")]
    group_id = await shop.add(*members)
    async with shop.open():
        await shop.until(group_id, "FAILED")

    info = await shop.queues[0].get_group_state(group_id)
    assert info.reason == "a job with the id b-1 exists already"
    assert await shop.queues[1].get_delayed_count() == 1
    await shop.check()


async def test_an_end_that_was_lost_is_found(shop, slots):
    """As after a failover: the parcel was collected, and its target has forgotten it."""
    group_id = await shop.add()
    async with shop.open():
        await shop.until(group_id, "COMPLETED")
        await wait_until(shop.is_quiet)
    record = slots.key(shop.names[0], f"groups:{group_id}")
    members = {one.name: one for one in await shop.queues[0].get_group_jobs(group_id)}
    await slots.client.hset(f"{record}:jobs", members["b"].job_key, "pending")
    await slots.client.hset(record, mapping={"state": "ACTIVE", "completedCount": "2"})
    await slots.client.zadd(slots.key(shop.names[0], "toril:groups-open"), {group_id: 1})

    await shop.queues[0].reconcile_groups()
    await shop.carry()

    assert await shop.state(group_id) == "COMPLETED"
    await shop.check()


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_member_that_is_gone_elsewhere_is_found_in_the_events(shop, slots, is_known):
    group_id = await shop.add()
    members = {one.name: one for one in await shop.queues[0].get_group_jobs(group_id)}
    job_id = members["b"].job_id
    await slots.client.delete(members["b"].job_key)
    await slots.client.lrem(slots.key(shop.names[1], "wait"), 1, job_id)
    if is_known:
        events = slots.key(shop.names[1], "events")
        await slots.client.xadd(
            events, {"event": "completed", "jobId": job_id, "returnvalue": '"by another"'}
        )

    await shop.queues[0].reconcile_groups()
    await shop.carry()

    async with shop.open():
        await shop.until(group_id, "COMPLETED" if is_known else "FAILED")
    if is_known:
        results = await shop.queues[0].get_group_results(group_id)
        assert results["b"] == "by another"
    await shop.check()


async def _types_asked(slots) -> int:
    stats = await slots.client.info("commandstats", target_nodes="primaries")
    return sum(node.get("cmdstat_type", {}).get("calls", 0) for node in stats.values())


async def test_a_delivery_checks_only_the_keys_that_it_needs(shop, slots, monkeypatch):
    """Ten for a job that comes; none for a completed member, which only its group needs."""
    monkeypatch.setattr(shop.flow._connection, "on_parcels", lambda _: None)
    group_id = await shop.add(shop.member("b", 1), shop.member("c", 2), queue_name=shop.names[0])
    before = await _types_asked(slots)
    await shop.carry()
    assert await _types_asked(slots) - before == 20
    await slots.client.set(slots.key(shop.names[0], "wait"), "not a list")

    async with shop.open(1, 2):
        await shop.until(group_id, "COMPLETED")
        await wait_until(shop.is_quiet)

    assert await _types_asked(slots) - before == 20
    await slots.client.delete(slots.key(shop.names[0], "wait"))
    await shop.check()


KEYS_OF_A_NEW_JOB = (
    *("wait", "paused", "active", "prioritized", "delayed", "marker", "meta", "id", "pc", "events"),
)


@pytest.mark.parametrize("name", KEYS_OF_A_NEW_JOB)
async def test_a_member_is_refused_as_a_whole_if_its_queue_is_damaged(shop, slots, name):
    damaged = slots.key(shop.names[1], name)
    await slots.client.delete(damaged)
    await slots.client.sadd(damaged, "not this")
    group_id = await shop.add(shop.member("b", 1, job_id="b-1"), queue_name=shop.names[0])

    words = set((await slots.refused(shop.names[0])).values())
    assert words == {"a key of its target holds a value of another kind"}
    assert not await slots.client.exists(slots.key(shop.names[1], "b-1"))

    await slots.client.delete(damaged)
    assert await shop.queues[0]._connection.follow(parceling.offer_again(shop.queues[0].keys)) == 1
    await shop.carry()
    async with shop.open(1):
        await shop.until(group_id, "COMPLETED")
    await shop.check()
