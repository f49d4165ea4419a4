"""Flows whose parents and children are in different slots of a cluster."""

from __future__ import annotations

import asyncio

import pytest

from tests.counting import inside
from tests.features.parcels.test_couriers import due, put_off
from tests.helpers import PATIENCE_S, let_pass, wait_until
from toril import FlowJob, FlowProducer, ManualWorker, NewJob, Parent, Queue, Worker, sync
from toril.cli.worker import Burst
from toril.doctor.keyspace import audit
from toril.doctor.reader import ConnectionReader
from toril.errors import ParentNotFoundError, UnrecoverableError
from toril.protocol import parceling
from toril.protocol.parceling import Parcel
from toril.worker.courier import Courier


@pytest.fixture
async def shop(slots):
    """A queue of parents and two of children, each on a node of its own."""
    names = [slots.name(node) for node in range(3)]
    queues = [Queue(name, **slots.options) for name in names]
    yield queues
    for queue in queues:
        await queue.close()


async def echo(job):
    return job.data


def flow_of(parents: Queue, *children: Queue, **options) -> FlowJob:
    below = [
        FlowJob("child", {"n": n}, queue_name=queue.name, **options)
        for n, queue in enumerate(children)
    ]
    return FlowJob("parent", queue_name=parents.name, children=below)


async def comes_after_its_removal(children: Queue, child: Parcel, removal: Parcel) -> None:
    """The parcel with a child is delivered after the one that removes it, and adds nothing."""
    run = children._connection.run
    assert await run(parceling.deliver(children.keys, [removal])) == [1]
    assert await run(parceling.deliver(children.keys, [child, removal])) == [0, 0]
    assert await children.get_waiting_count() == 0


async def is_in(queue: Queue, job_id: str, state: str) -> bool:
    return await queue.get_state(job_id) == state


async def no_parcels(slots, *queues: Queue) -> bool:
    return not any([await slots.leftovers(queue.name) for queue in queues])


async def test_a_parent_waits_for_children_in_other_slots(slots, shop):
    parents, left, right = shop
    numbers = []

    async def gather(job):
        found = await job.children_values()
        numbers.extend(sorted(value["n"] for value in found.values()))

    async with FlowProducer(**slots.options) as producer:
        node = await producer.add(flow_of(parents, left, right, right, parents))
        assert await is_in(parents, node.job.id, "waiting_children")
        assert await right.get_waiting_count() == 2
        assert await parents.get_waiting_count() == 1
        assert await no_parcels(slots, *shop)
        tree = await producer.get_flow(node.job.id, parents.name)
        assert len(tree.children) == 4

        async with (
            Worker(parents.name, _by_name(gather), **slots.options),
            Worker(left.name, echo, **slots.options),
            Worker(right.name, echo, remove_on_complete=True, **slots.options),
        ):
            await wait_until(lambda: is_in(parents, node.job.id, "completed"))
            await wait_until(lambda: no_parcels(slots, *shop))

    assert numbers == [0, 1, 2, 3]
    reader = await ConnectionReader.open(parents._connection)
    assert await audit(reader, slots.prefix) == []


async def test_a_burst_waits_for_what_is_on_its_way_to_another_slot(slots, shop, monkeypatch):
    parents, children, _ = shop
    may_carry = asyncio.Event()
    really_carry = Courier.carry

    async def carry(courier):
        await may_carry.wait()
        await really_carry(courier)

    monkeypatch.setattr(Courier, "carry", carry)
    async with FlowProducer(**slots.options) as producer:
        node = await producer.add(flow_of(parents, children))
    services = [Worker(queue.name, echo, **slots.options) for queue in (parents, children)]

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        running = [group.create_task(service.run()) for service in services]
        burst = group.create_task(Burst(services, []).run())
        await wait_until(children.get_completed_count)
        await let_pass(0.5, "the burst must not end in it")
        has_ended = burst.done() or any(task.done() for task in running)
        may_carry.set()

    assert not has_ended
    assert await is_in(parents, node.job.id, "completed")


def _by_name(gather):
    async def handle(job):
        return await (gather(job) if job.name == "parent" else echo(job))

    return handle


async def test_a_tree_may_come_back_to_the_slot_of_its_root(slots, shop):
    top, middle, _ = shop
    grandchild = FlowJob("leaf", {"n": 1}, queue_name=top.name)
    child = FlowJob("branch", queue_name=middle.name, children=[grandchild])
    root = FlowJob("root", queue_name=top.name, children=[child])
    async with FlowProducer(**slots.options) as producer:
        node = await producer.add(root)
        assert await no_parcels(slots, *shop)
        assert await is_in(middle, node.children[0].job.id, "waiting_children")

        async with (
            Worker(top.name, echo, **slots.options),
            Worker(middle.name, echo, **slots.options),
        ):
            await wait_until(lambda: is_in(top, node.job.id, "completed"))


@pytest.mark.parametrize(
    ("option", "state"),
    [
        ({"fail_parent_on_failure": True}, "failed"),
        ({"continue_parent_on_failure": True}, "completed"),
        ({"ignore_dependency_on_failure": True}, "completed"),
        ({"remove_dependency_on_failure": True}, "completed"),
    ],
)
async def test_a_child_that_fails_elsewhere_tells_its_parent(slots, shop, option, state):
    parents, children, _ = shop

    async def refuse(job):
        raise UnrecoverableError("no")

    async with FlowProducer(**slots.options) as producer:
        node = await producer.add(flow_of(parents, children, **option))
        async with (
            Worker(parents.name, echo, **slots.options),
            Worker(children.name, refuse, **slots.options),
        ):
            await wait_until(lambda: is_in(parents, node.job.id, state))


async def test_a_child_that_is_retried_is_waited_for_again(slots, shop):
    """The news of its end waits for the news that it runs again, which comes late."""
    parents, children, _ = shop

    async def refuse(job):
        raise UnrecoverableError("no")

    async with FlowProducer(**slots.options) as producer:
        node = await producer.add(
            flow_of(parents, children, children, ignore_dependency_on_failure=True)
        )
        first, second = (child.job.id for child in node.children)
        async with Worker(children.name, refuse, **slots.options):
            await wait_until(lambda: is_in(children, second, "failed"))
            await wait_until(lambda: no_parcels(slots, *shop))
        dependencies = slots.key(parents.name, f"{node.job.id}:dependencies")
        assert await slots.client.scard(dependencies) == 0

        line = children._connection
        line.on_parcels = lambda base: None
        await children.retry(first)
        late, _ = await line.run(parceling.fetch(children.keys))
        await put_off(slots, children.name)
        line.on_parcels = None
        processed = slots.key(parents.name, f"{node.job.id}:processed")
        async with Worker(children.name, echo, **slots.options):
            await wait_until(lambda: is_in(children, first, "completed"))
        (relink,) = late
        assert await slots.parcels(children.name) == 2
        assert await slots.client.hlen(processed) == 0
        assert await line.run(parceling.deliver(parents.keys, [relink])) == [0]
        assert await slots.client.smembers(dependencies) == {slots.key(children.name, first)}

        await due(slots, children.name)
        assert await line.follow(parceling.carry(children.keys)) == parceling.Carried(delivered=2)
        assert await slots.client.hlen(processed) == 1
        assert await slots.client.scard(dependencies) == 0


async def test_a_job_is_added_under_a_parent_in_another_slot(slots, shop):
    parents, children, _ = shop
    async with FlowProducer(**slots.options) as producer:
        node = await producer.add(flow_of(parents, children))
    parent = Parent(node.job.id, parents.name)
    late = await children.add("late", {"n": 7}, parent=parent)
    both = await children.add_bulk([NewJob("plain"), NewJob("other", {"n": 8}, parent=parent)])
    dependencies = slots.key(parents.name, f"{node.job.id}:dependencies")

    keys = {slots.key(children.name, job.id) for job in (node.children[0].job, late, both[1])}
    assert await slots.client.smembers(dependencies) == keys
    assert await children.get_waiting_count() == 4
    with pytest.raises(ParentNotFoundError):
        await children.add("x", parent=Parent("nobody", parents.name))

    await children.remove(late.id)
    await children.remove(both[1].id)
    assert await slots.client.scard(dependencies) == 1


async def test_a_parent_is_removed_with_its_children_in_other_slots(slots, shop):
    parents, left, right = shop
    async with FlowProducer(**slots.options) as producer:
        node = await producer.add(flow_of(parents, left, right, parents))

    await parents.remove(node.job.id)

    assert await left.get_waiting_count() == 0
    assert await right.get_waiting_count() == 0
    assert await parents.get_waiting_count() == 0
    assert await no_parcels(slots, *shop)


async def test_a_removal_does_not_overtake_the_child_that_it_removes(slots, shop):
    """The courier with the child is slow: it comes after the one that removes it."""
    parents, children, _ = shop
    parents._connection.on_parcels = lambda base: None
    async with FlowProducer(**slots.options) as producer:
        producer._connection.on_parcels = lambda base: None
        node = await producer.add(flow_of(parents, children))
    (child,), _ = await parents._connection.run(parceling.fetch(parents.keys))

    await parents.remove(node.job.id)

    (removal,), _ = await parents._connection.run(parceling.fetch(parents.keys))
    run = children._connection.run
    assert await run(parceling.deliver(children.keys, [removal])) == [1]
    assert await run(parceling.deliver(children.keys, [child])) == [0]
    assert await run(parceling.deliver(children.keys, [removal])) == [0]
    assert await children.get_waiting_count() == 0
    await parents._connection.run(parceling.collect(parents.keys, [child.id, removal.id]))
    assert await no_parcels(slots, *shop)


async def test_a_job_that_is_its_own_parent_does_not_keep_the_server(slots, shop):
    """A removal looks for the parcel with a child at the jobs above; a circle has no end."""
    parents, children, _ = shop
    async with FlowProducer(**slots.options) as producer:
        node = await producer.add(flow_of(parents, children))
    await wait_until(lambda: no_parcels(slots, *shop))
    parent = slots.key(parents.name, node.job.id)
    await slots.client.hset(parent, "parentKey", parent)

    with inside(slots.cluster.nodes[0]) as commands:
        await parents.remove(node.job.id)

    looks = [one for one in commands if one.startswith("HGET ") and one.endswith(" parentKey")]
    assert len(looks) == 100
    await wait_until(lambda: no_parcels(slots, *shop))
    assert await children.get_waiting_count() == 0


async def test_that_a_child_is_gone_does_not_overtake_that_it_runs_again(slots, shop):
    """Its parent would wait for a child that does not exist."""
    parents, children, _ = shop
    async with FlowProducer(**slots.options) as producer:
        flow = flow_of(parents, children, ignore_dependency_on_failure=True)
        node = await producer.add(flow)
    async with ManualWorker(children.name, **slots.options) as worker:
        job = await worker.get_next_job(20_000)
        await job.fail(ValueError("no"))
    await wait_until(lambda: is_in(parents, node.job.id, "waiting"))
    await wait_until(lambda: no_parcels(slots, *shop))
    children._connection.on_parcels = lambda base: None

    await children.retry(job.id)
    await children.remove(job.id)

    run = parents._connection.run
    parcels, _ = await children._connection.run(parceling.fetch(children.keys))
    parcels.sort(key=lambda one: b"unlink" in one.body)
    again, gone = parcels
    assert await run(parceling.deliver(parents.keys, [gone])) == [1]
    assert await run(parceling.deliver(parents.keys, [again, gone])) == [0, 0]
    await children._connection.run(parceling.collect(children.keys, [again.id, gone.id]))
    assert await slots.client.scard(slots.key(parents.name, f"{node.job.id}:dependencies")) == 0


async def test_a_removal_finds_the_parcel_with_a_grandchild(slots, shop):
    """The flow was added to the queue of its root, in the slot of the parent that is removed."""
    parents, children, _ = shop
    async with Queue(f"{parents.name}-middle", **slots.options) as middle:
        middle._connection.on_parcels = lambda base: None
        flow = FlowJob("root", queue_name=parents.name, children=[flow_of(middle, children)])
        async with FlowProducer(**slots.options) as producer:
            producer._connection.on_parcels = lambda base: None
            node = await producer.add(flow)

        await middle.remove(node.children[0].job.id)

        (removal,), _ = await middle._connection.run(parceling.fetch(middle.keys))
        (child,), _ = await parents._connection.run(parceling.fetch(parents.keys))
        await comes_after_its_removal(children, child, removal)
        await parents._connection.run(parceling.collect(parents.keys, [child.id]))
        await middle._connection.run(parceling.collect(middle.keys, [removal.id]))


ODD = "order:7:pay"
"""An id as other programs give it."""


async def foreign_parent(slots, queue: Queue) -> Parent:
    """A job of another program that waits for its children."""
    fields = {"name": "parent", "data": "{}", "opts": "{}", "timestamp": "1", "delay": "0"}
    await slots.client.hset(slots.key(queue.name, ODD), mapping={**fields, "priority": "0"})
    await slots.client.zadd(slots.key(queue.name, "waiting-children"), {ODD: 1})
    return Parent(ODD, queue.name)


async def test_a_removal_finds_the_parcel_below_a_parent_with_colons_in_its_id(slots, shop):
    """The parcel lies at the queue of that parent: what is before its last colon is no queue."""
    parents, children, _ = shop
    async with Queue(f"{parents.name}-middle", **slots.options) as middle:
        middle._connection.on_parcels = lambda base: None
        leaf = FlowJob("leaf", queue_name=children.name)
        parent = await foreign_parent(slots, parents)
        flow = FlowJob("middle", queue_name=middle.name, children=[leaf], parent=parent)
        async with FlowProducer(**slots.options) as producer:
            producer._connection.on_parcels = lambda base: None
            node = await producer.add(flow)
        (child,), _ = await parents._connection.run(parceling.fetch(parents.keys))

        await middle.remove(node.job.id)

        (removal,), _ = await middle._connection.run(parceling.fetch(middle.keys))
        await comes_after_its_removal(children, child, removal)
        await parents._connection.run(parceling.collect(parents.keys, [child.id]))
        await middle._connection.run(parceling.collect(middle.keys, [removal.id]))


async def test_a_parent_with_colons_in_its_id_hears_that_a_child_runs_again(slots, shop):
    """The news went to a queue that does not exist, and the end of the child waited for it."""
    parents, children, _ = shop
    parent = await foreign_parent(slots, parents)
    job = await children.add("child", parent=parent, ignore_dependency_on_failure=True)
    async with ManualWorker(children.name, **slots.options) as worker:
        for connection in (worker._connection, children._connection):
            connection.on_parcels = lambda base: None
        await (await worker.get_next_job(20_000)).fail(ValueError("no"))
        await children.retry(job.id)
        await (await worker.get_next_job(20_000)).complete("done")

    parcels, _ = await children._connection.run(parceling.fetch(children.keys))

    assert {one.target for one in parcels} == {parents.keys.base}
    assert len(parcels) == 3
    for _ in range(3):  # those of one millisecond may be carried in any order
        await due(slots, children.name)
        await children._connection.follow(parceling.carry(children.keys))
    assert await no_parcels(slots, children)
    assert await slots.client.hlen(slots.key(parents.name, f"{ODD}:processed")) == 1


async def test_the_end_of_a_child_waits_for_a_courier(slots, shop):
    """Its worker died behind the settle: another one of its queue tells the parent."""
    parents, children, _ = shop
    async with FlowProducer(**slots.options) as producer:
        node = await producer.add(flow_of(parents, children))
        line = producer._connection
        line.on_parcels = lambda base: None
        again = await producer.add(flow_of(parents, children))
        child = slots.key(children.name, again.children[0].job.id)
        assert await slots.client.hkeys(slots.key(parents.name, "toril:in-transit")) == [child]
        reader = await ConnectionReader.open(parents._connection)
        assert await audit(reader, slots.prefix) == []

    async with (
        Worker(parents.name, echo, **slots.options),
        Worker(children.name, echo, **slots.options),
    ):
        await wait_until(lambda: is_in(parents, node.job.id, "completed"))
        await wait_until(lambda: is_in(parents, again.job.id, "completed"))


def test_a_blocking_producer_sends_children_to_other_slots(slots):
    parents, children = slots.name(0), slots.name(1)
    flow = FlowJob("parent", queue_name=parents, children=[FlowJob("child", queue_name=children)])
    with (
        sync.FlowProducer(**slots.options) as producer,
        sync.Queue(children, **slots.options) as queue,
    ):
        producer.add(flow)
        assert queue.get_waiting_count() == 1
