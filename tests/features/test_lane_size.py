"""max_lane_size: who is refused, and who is let in whatever the lane holds."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers import name_of
from tests.keyspace import lasting_keys
from toril import Deduplication, FlowJob, FlowProducer, GroupJob, NewJob, Queue
from toril.errors import LaneFullError


@pytest.fixture
async def flow(url, prefix):
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        yield flow


@pytest.fixture
def hand(hand):
    return hand()


def member(most, **options):
    return {"lane": "a", "max_lane_size": most, **options}


async def test_jobs_that_wait_for_a_time_count(queue):
    """FIFO-28: a lane cannot be filled behind its limit by jobs that come in later."""
    await queue.add("x", delay=60_000, **member(2))
    await queue.add("x", **member(2))

    for options in ({}, {"delay": 60_000}):
        with pytest.raises(LaneFullError, match="'a' would have more than 2 waiting jobs"):
            await queue.add("x", **member(2, **options))


@pytest.mark.parametrize("mode", [{}, {"ttl": 60_000}, {"replace": True}], ids=name_of)
async def test_a_deduplicated_job_needs_no_room(mode, queue, client):
    """Whoever adds it hears of the job that is there; a full lane is none of its business."""
    once = Deduplication("d", **mode)
    owner = await queue.add("x", **member(2, deduplication=once))
    await queue.add("x", **member(2))

    again = await queue.add("x", **member(2, deduplication=once))

    assert again.id == owner.id
    assert len(await queue.get_waiting()) == 2
    for other in (None, Deduplication("other", **mode)):
        with pytest.raises(LaneFullError):
            await queue.add("x", **member(2, deduplication=other))


async def test_the_newest_job_of_a_full_lane_waits_for_its_running_owner(queue, hand):
    """keep_last_if_active: it comes into the lane when its owner is done."""
    newest = Deduplication("d", keep_last_if_active=True)
    owner = await queue.add("x", **member(1, deduplication=newest))
    await hand.take()
    await queue.add("x", **member(1))

    assert (await queue.add("x", **member(1, deduplication=newest))).id == owner.id


async def test_who_replaces_a_job_of_a_full_lane_takes_its_place(queue):
    """A debounce goes on; from another lane, or from none, there is no place to take."""
    debounce = Deduplication("d", ttl=60_000, replace=True)
    later = {"delay": 60_000, "deduplication": debounce}
    await queue.add("x", **member(2))
    await queue.add("x", **member(2, **later))
    newest = await queue.add("x", **member(2, **later))

    assert [job.id for job in await queue.get_delayed()] == [newest.id]
    for lane in (None, "b"):
        elsewhere = Deduplication("e", ttl=60_000, replace=True)
        owner = await queue.add("x", lane=lane, delay=60_000, deduplication=elsewhere)
        with pytest.raises(LaneFullError):
            await queue.add("x", **member(2, delay=60_000, deduplication=elsewhere))
        assert await queue.get_state(owner.id) == "delayed"
        await queue.remove(owner.id)


@pytest.mark.parametrize("waiting", [0, 1], ids=name_of)
async def test_a_flow_is_refused_as_a_whole(waiting, queue, flow, client, prefix):
    """FLOW: its jobs count each other; nothing of a refused one is written, in no queue."""
    for _ in range(waiting):
        await queue.add("before", lane="a")
    before = await lasting_keys(client, prefix)
    children = [FlowJob("child", queue_name="q", **member(3)) for _ in range(4 - waiting)]
    tree = FlowJob("parent", queue_name="other", children=children)

    with pytest.raises(LaneFullError, match="'a' would have more than 3"):
        await flow.add(tree)
    with pytest.raises(LaneFullError):
        await flow.add_bulk([FlowJob("alone", queue_name="other"), tree])

    assert await lasting_keys(client, prefix) == before
    smaller = FlowJob("parent", queue_name="other", children=children[1:])
    assert len((await flow.add(smaller)).children) == 3 - waiting


async def test_a_parent_enters_its_lane_when_its_children_are_done(queue, flow, hand):
    """A parent is refused at a full lane; once accepted it comes in, however full that is."""
    tree = FlowJob(
        "parent", queue_name="q", children=[FlowJob("child", queue_name="q")], **member(1)
    )
    await flow.add(tree)
    (child,) = await hand.take(1)
    await queue.add("x", **member(1))

    with pytest.raises(LaneFullError):
        await flow.add(tree)
    await hand.complete(child)

    assert (await queue.get_lane("a")).depth == 2


async def test_a_group_is_refused_as_a_whole(queue, flow, client, prefix):
    """GRP: neither a record nor a member of a refused group is written."""
    await queue.add("before", lane="a")
    before = await lasting_keys(client, prefix)
    jobs = [GroupJob(name, queue_name="q", **member(2)) for name in ("one", "two")]

    with pytest.raises(LaneFullError, match="'a' would have more than 2"):
        await flow.add_group(name="g", jobs=[GroupJob("zero", queue_name="other"), *jobs])

    assert await lasting_keys(client, prefix) == before
    node = await flow.add_group(name="g", jobs=jobs[:1])
    assert len(node.jobs) == 1


async def test_two_lanes_of_one_flow_do_not_count_each_other(flow):
    children = [
        FlowJob("child", queue_name=queue, lane=lane, max_lane_size=1)
        for queue in ("q", "other")
        for lane in ("a", "b")
    ]

    node = await flow.add(FlowJob("parent", queue_name="q", children=children))

    assert len(node.children) == 4


async def test_what_was_accepted_once_comes_back_to_a_full_lane(queue, hand):
    """FIFO-07, FIFO-08, FIFO-28: given back, promoted, retried by hand: never refused."""
    failing = await queue.add("x", 0, attempts=1, **member(1))
    (job,) = await hand.take(1)
    await hand.fail(job)
    later = await queue.add("x", 1, delay=60_000, **member(1))
    with pytest.raises(LaneFullError):
        await queue.add("x", **member(1))

    await queue.retry(failing.id)
    await queue.promote(later.id)
    (job,) = await hand.take(1)
    await hand.give_back(job)

    lane = await queue.get_lane("a")
    assert (lane.depth, lane.delayed, lane.head) == (2, 0, failing.id)


async def test_a_replay_is_not_refused(url, prefix, queue, hand):
    """DLQ: a letter goes back to its lane, however many wait there."""
    from tests.features.test_lane_diversion import Handler
    from tests.helpers import wait_until
    from toril import Worker

    await queue.add("x", {"n": 0}, attempts=1, **member(1))
    worker = Worker(
        "q", Handler(0), connection=url, prefix=prefix, dead_letter_queue="q-dlq", drain_delay=100
    )
    async with Queue("q-dlq", connection=url, prefix=prefix) as letters:
        async with worker:
            await wait_until(letters.get_dead_letter_count)
        await queue.add("x", {"n": 1}, **member(1))

        await letters.replay_all_dead_letters()

        assert await letters.get_dead_letter_count() == 0
    assert (await queue.get_lane("a")).depth == 2


async def test_a_scheduler_goes_on_when_its_lane_is_full(url, prefix, queue):
    """FIFO-15, FIFO-17: a tick is never dropped; it waits like any other job of the lane."""
    from tests.helpers import wait_until
    from toril import Worker

    release = asyncio.Event()
    ran = []

    async def handler(job):
        ran.append(job.name)
        await release.wait()

    await queue.add("first", **member(1))
    async with Worker("q", handler, connection=url, prefix=prefix, drain_delay=100):
        await wait_until(lambda: ran)
        await queue.add("second", **member(1))
        await queue.upsert_job_scheduler(
            "s", every=20, limit=2, template=NewJob("tick", **member(1))
        )
        await wait_until(lambda: depth(queue, 2))
        release.set()
        await wait_until(lambda: len(ran) == 4)

    assert ran == ["first", "second", "tick", "tick"]


async def depth(queue, least):
    lane = await queue.get_lane("a")
    return lane is not None and lane.depth >= least
