"""A group is COMPLETED when all of its jobs are, and says so once."""

from __future__ import annotations

from typing import Any

from tests.features.group_support import Meeting, World
from tests.helpers import wait_until
from toril import GroupEvent, GroupJob, QueueEvents, Worker


async def test_a_group_is_completed_when_its_last_job_is(world: World):
    """SAGA-15, SAGA-16, SAGA-18, SAGA-19: nothing before the last, then all at once."""
    node = await world.order()

    await world.complete("ab")
    info = await world.queue("a").get_group_state(node.group_id)
    assert info is not None
    assert (info.state, info.completed_count, info.unfinished_count) == ("ACTIVE", 2, 1)
    assert await world.events() == []

    await world.complete("c")
    info = await world.queue("a").get_group_state(node.group_id)
    assert info is not None
    assert (info.state, info.completed_count, info.total_jobs) == ("COMPLETED", 3, 3)
    assert info.updated_at >= info.created_at
    assert info.is_finished
    assert await world.events() == [
        {"event": "group:completed", "groupId": node.group_id, "groupName": "order"}
    ]
    assert await world.statuses(node) == dict.fromkeys("abc", "completed")


async def test_jobs_that_complete_in_one_call_count_each(world: World):
    """SAGA-18: a worker settles many attempts at once."""
    jobs = [GroupJob(f"j{n}", queue_name="a") for n in range(5)]
    node = await world.flow.add_group("order", jobs)
    taken = await world.hand("a").take(5)

    assert await world.hand("a").complete(*taken) == [0] * 5

    assert await world.state(node) == "COMPLETED"
    assert await world.event_names() == ["group:completed"]


async def test_three_workers_finish_three_jobs_at_once(world: World):
    """SAGA-20: 1,100 groups, the three members of each held until all run, then let go at once;
    one event each."""
    count = 1100
    nodes = [await world.order() for _ in range(count)]
    meeting = Meeting(nodes, "abc")

    async def return_together(job: Any) -> str:
        await meeting.wait(job)
        return job.id

    workers = [
        Worker(name, return_together, connection=world.url, prefix=world.prefix, concurrency=50)
        for name in "abc"
    ]
    for worker in workers:
        await worker.start()

    async def all_ended() -> bool:
        return await world.client.zcard(f"{world.prefix}:a:toril:groups-ended") == count

    await wait_until(all_ended, 60, every=0.05)
    for worker in workers:
        await worker.close()

    infos = await world.queue("a").get_groups()
    assert {(info.state, info.completed_count) for info in infos} == {("COMPLETED", 3)}
    told = [row["groupId"] for row in await world.events()]
    assert sorted(told) == sorted(node.group_id for node in nodes)


async def test_a_listener_hears_of_a_completed_group(world: World):
    """SAGA-18, SAGA-38: through QueueEvents, with Python's names."""
    heard: list[Any] = []
    async with QueueEvents("a", connection=world.url, prefix=world.prefix) as events:
        events.on(GroupEvent.COMPLETED, heard.append)
        node = await world.order()
        await world.complete("abc")
        await wait_until(lambda: heard)

    assert [event.data for event in heard] == [{"group_id": node.group_id, "group_name": "order"}]
    assert heard[0].name == "group:completed"


async def test_a_retry_that_succeeds_in_the_end_is_a_success(world: World):
    """SAGA-21: failing with attempts left changes nothing."""
    node = await world.order(a={"attempts": 3})
    hand = world.hand("a")
    for _ in range(2):
        await hand.fail(await hand.take_one("a"))
        assert await world.state(node) == "ACTIVE"
        assert await world.statuses(node) == dict.fromkeys("abc", "pending")

    await world.complete("abc")

    assert await world.state(node) == "COMPLETED"


async def test_a_settle_that_is_sent_again_counts_once(world: World):
    """SAGA-39: the same call, its reply lost, and a second call for the same job."""
    from toril.protocol import settling
    from toril.protocol.settling import Policy, Returned, Settled, Take

    node = await world.order()
    job = await world.hand("a").take_one()
    token = world.hand("a").tokens[job.id]
    outcome = settling.decide(job, Returned(1), Policy(), dice=0.0)
    take = Take(count=0, token="t", lock_ms=1000)
    command = settling.settle(
        world.queue("a").keys,
        [Settled(job.id, token, outcome, job)],
        take,
        flight="f",
        request=1,
    )

    replies = [await world.connection.run(command) for _ in range(3)]
    late = await world.hand("a").complete(job)

    assert [reply.results for reply in replies] == [[0], [0], [0]]
    assert late[0] < 0
    info = await world.queue("a").get_group_state(node.group_id)
    assert info is not None
    assert (info.completed_count, info.state) == (1, "ACTIVE")


async def test_a_member_that_is_forced_to_run_twice_counts_once(world: World):
    """SAGA-39: what its last run tells is what counts."""
    node = await world.order()
    await world.complete("a")

    await world.queue("a").retry(node.jobs[0].id, force=True)
    await world.complete("a")
    info = await world.queue("a").get_group_state(node.group_id)
    assert info is not None
    assert (info.state, info.completed_count, info.failed_count) == ("ACTIVE", 1, 0)
    await world.queue("a").retry(node.jobs[0].id, force=True)
    await world.fail("a")

    info = await world.queue("a").get_group_state(node.group_id)
    assert info is not None
    assert (info.state, info.completed_count, info.failed_count) == ("COMPENSATING", 0, 1)


async def test_a_worker_that_lost_its_job_cannot_settle_its_group(world: World):
    """SAGA-39: the zombie's result is refused, the second run counts."""
    node = await world.order("ab")
    hand = world.hand("a")
    job = await hand.take_one()
    await hand.lose(job)

    assert (await hand.complete(job))[0] < 0

    assert await world.statuses(node) == {"a": "pending", "b": "pending"}
    await world.client.lrem(f"{world.prefix}:a:active", 1, job.id)
    await world.client.rpush(f"{world.prefix}:a:wait", job.id)
    await world.complete("ab")
    assert await world.state(node) == "COMPLETED"
