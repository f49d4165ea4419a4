"""Flows: a parent runs when its children are done, and all of a tree is there or nothing."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers import let_pass, wait_until
from tests.keyspace import lasting_keys
from toril import (
    Deduplication,
    FlowJob,
    FlowProducer,
    NewJob,
    Parent,
    Queue,
    WaitingChildrenError,
    Worker,
)
from toril.client.connection import Connection
from toril.errors import (
    CrossSlotError,
    InvalidOptionError,
    ParentConflictError,
    ParentNotFoundError,
)
from toril.protocol import flows
from toril.sync import FlowProducer as BlockingFlowProducer

POLICIES = ("fail", "continue", "ignore", "remove", "none")


@pytest.fixture
async def producer(url, prefix):
    async with FlowProducer(connection=url, prefix=prefix) as producer:
        yield producer


@pytest.fixture
async def queues(url, prefix):
    async with (
        Queue("parents", connection=url, prefix=prefix) as parents,
        Queue("children", connection=url, prefix=prefix) as children,
    ):
        yield parents, children


@pytest.fixture
def work(url, prefix):
    def make(name, handler, **options):
        return Worker(name, handler, connection=url, prefix=prefix, **options)

    return make


def parent(*children, **options):
    return FlowJob("parent", {"p": 1}, queue_name="parents", children=children, **options)


def child(name="child", data=None, **options):
    return FlowJob(name, data, queue_name="children", **options)


async def is_in(queue, job_id, state):
    return await queue.get_state(job_id) == state


async def echo(job):
    return job.data


async def test_a_parent_runs_once_all_children_are_done(producer, queues, work):
    parents, _ = queues
    runs = []

    async def gather(job):
        runs.append(await job.children_values())
        return sum(runs[-1].values())

    node = await producer.add(parent(child(data=1), child(data=2), child(data=3)))
    assert await parents.get_state(node.job.id) == "waiting_children"
    async with work("parents", gather), work("children", echo, concurrency=3):
        await wait_until(lambda: is_in(parents, node.job.id, "completed"))

    keys = {f"{parents.keys.prefix}:children:{below.job.id}" for below in node.children}
    assert [set(values) for values in runs] == [keys]
    assert (await parents.get_job(node.job.id)).return_value == 6


async def test_a_tree_may_reach_over_many_queues_and_generations(producer, queues, work):
    parents, _ = queues
    order = []

    async def note(job):
        order.append(job.name)

    node = await producer.add(
        parent(
            FlowJob(
                "middle", queue_name="children", children=[FlowJob("leaf", queue_name="leaves")]
            )
        )
    )
    async with work("parents", note), work("children", note), work("leaves", note):
        await wait_until(lambda: is_in(parents, node.job.id, "completed"))

    assert order == ["leaf", "middle", "parent"]
    assert node.children[0].children[0].job.name == "leaf"


@pytest.mark.parametrize("policy", POLICIES)
async def test_what_a_failed_child_does_to_its_parent(policy, producer, queues, work):
    parents, children = queues
    options = {
        "fail": {"fail_parent_on_failure": True},
        "continue": {"continue_parent_on_failure": True},
        "ignore": {"ignore_dependency_on_failure": True},
        "remove": {"remove_dependency_on_failure": True},
        "none": {},
    }[policy]
    seen = []

    async def look(job):
        seen.append((await job.failed_children(), await job.dependencies_count()))

    async def fail(job):
        if job.name == "bad":
            raise ValueError("no")

    node = await producer.add(parent(child("bad", **options), child("good", delay=3_600_000)))
    bad, good = (below.job for below in node.children)
    bad_key = children.keys.job(bad.id)
    async with work("parents", look), work("children", fail):
        await wait_until(lambda: is_in(children, bad.id, "failed"))
        if policy == "fail":
            await wait_until(lambda: is_in(parents, node.job.id, "failed"))
            job = await parents.get_job(node.job.id)
            assert job.failed_reason == f"child {bad_key} failed"
            assert (await parents.get_dependencies(node.job.id)).failed == [bad_key]
            assert seen == []
            return
        if policy == "continue":
            await wait_until(lambda: len(seen) == 1)
            assert seen[0][0] == {bad_key: "ValueError: no"}
            # It ran while a child was pending: it may look, but not complete.
            await wait_until(lambda: is_in(parents, node.job.id, "failed"))
            return
        await children.promote(good.id)
        await wait_until(lambda: is_in(children, good.id, "completed"))
        if policy == "none":
            assert await parents.get_state(node.job.id) == "waiting_children"
            assert (await parents.get_dependencies(node.job.id)).unprocessed == [bad_key]
            return
        await wait_until(lambda: is_in(parents, node.job.id, "completed"))

    reasons, counts = seen[0]
    assert reasons == ({bad_key: "ValueError: no"} if policy == "ignore" else {})
    assert (counts.processed, counts.unprocessed, counts.failed) == (1, 0, 0)


async def test_a_failure_climbs_as_far_as_its_policies_do(producer, queues, work):
    parents, children = queues

    async def fail(job):
        raise ValueError("no")

    node = await producer.add(
        parent(
            FlowJob(
                "middle",
                queue_name="children",
                fail_parent_on_failure=True,
                children=[FlowJob("leaf", queue_name="leaves", fail_parent_on_failure=True)],
            )
        )
    )
    async with work("parents", echo), work("children", echo), work("leaves", fail):
        await wait_until(lambda: is_in(parents, node.job.id, "failed"))

    assert await children.get_state(node.children[0].job.id) == "failed"


def test_a_child_has_at_most_one_policy():
    with pytest.raises(InvalidOptionError, match="give one"):
        flows.prepare(
            [parent(child(fail_parent_on_failure=True, ignore_dependency_on_failure=True))],
            "bull",
            lambda: "j1",
        )


async def test_a_policy_needs_a_parent(queues):
    parents, _ = queues
    with pytest.raises(InvalidOptionError, match="no parent"):
        await parents.add("x", fail_parent_on_failure=True)


# ---------------------------------------------------------------------- all or nothing


async def test_a_flow_that_is_refused_leaves_nothing(producer, client, prefix, queues):
    parents, children = queues
    other = await producer.add(parent(child(job_id="taken")))
    before = await lasting_keys(client, prefix)

    with pytest.raises(ParentConflictError):
        await producer.add(parent(child("one"), child("two", job_id="taken")))
    with pytest.raises(ParentNotFoundError):
        await producer.add(parent(child("one"), parent=Parent("nobody", "parents")))

    assert await lasting_keys(client, prefix) == before
    assert (await children.get_job("taken")).parent_key == parents.keys.job(other.job.id)


async def test_bad_input_is_refused_before_anything_is_sent(producer, client, prefix):
    for flow in (
        parent(child(job_id="same"), child(job_id="same")),
        parent(child(deduplication=Deduplication("d"))),
        parent(child(parent=Parent("x", "parents"))),
        parent(FlowJob("x", queue_name="a:b")),
        parent(FlowJob("x", {1, 2, object()}, queue_name="children")),
    ):
        with pytest.raises(ValueError):  # noqa: PT011  (the classes differ, all are ValueErrors)
            await producer.add(flow)
    assert await lasting_keys(client, prefix) == []


def test_a_plain_job_is_no_part_of_a_flow():
    with pytest.raises(InvalidOptionError, match="FlowJob"):
        flows.prepare([parent(NewJob("x"))], "bull", lambda: "j1")


def test_a_job_with_children_cannot_be_replaced():
    with pytest.raises(InvalidOptionError, match="children"):
        parent(child(), deduplication=Deduplication("d", replace=True))


async def test_a_flow_has_a_largest_size(producer):
    with pytest.raises(InvalidOptionError, match="one step"):
        await producer.add(parent(*[child() for _ in range(flows.MOST_JOBS)]))


async def test_a_wide_flow_is_one_step(producer, queues, client):
    parents, children = queues
    node = await producer.add(parent(*[child(data=n) for n in range(2000)]))

    assert (await parents.get_dependencies_count(node.job.id)).unprocessed == 2000
    assert await client.llen(children.keys.wait) == 2000
    # Children start in the order in which they stand in the flow.
    assert (await client.lrange(children.keys.wait, -1, -1))[0] == node.children[0].job.id


async def test_many_flows_are_added_together_or_not_at_all(producer, queues, client, prefix):
    parents, _ = queues
    nodes = await producer.add_bulk([parent(child(data=n)) for n in range(3)])
    assert [node.children[0].job.data for node in nodes] == [0, 1, 2]
    assert await producer.add_bulk([]) == []

    before = await lasting_keys(client, prefix)
    with pytest.raises(ParentNotFoundError):
        await producer.add_bulk([parent(), parent(parent=Parent("nobody", "parents"))])
    assert await lasting_keys(client, prefix) == before
    assert (await parents.get_job_counts())["waiting_children"] == 3


# ---------------------------------------------------------------------- ids that exist


async def test_adding_a_flow_again_changes_nothing(producer, queues, client):
    parents, children = queues
    flow = parent(child(job_id="c1"), child(job_id="c2"), job_id="p1")
    await producer.add(flow)

    again = await producer.add(flow)

    assert again.job.duplicated
    assert again.children == ()
    assert await client.llen(children.keys.wait) == 2
    assert (await parents.get_dependencies_count("p1")).unprocessed == 2


async def test_a_child_that_is_done_already_counts_as_done(producer, queues, work):
    parents, children = queues
    await children.add("x", 5, job_id="shared")
    async with work("children", echo):
        await wait_until(lambda: is_in(children, "shared", "completed"))

    node = await producer.add(parent(child(job_id="shared")))

    assert node.children[0].job.duplicated
    assert await parents.get_state(node.job.id) == "waiting"
    assert await parents.get_children_values(node.job.id) == {children.keys.job("shared"): 5}


async def test_a_parent_waits_for_all_although_one_child_is_done_already(producer, queues, work):
    parents, children = queues
    await children.add("x", 5, job_id="shared")
    async with work("children", echo):
        await wait_until(lambda: is_in(children, "shared", "completed"))

    node = await producer.add(parent(child(job_id="shared"), child(delay=3_600_000)))

    assert await parents.get_state(node.job.id) == "waiting_children"


async def test_a_flow_can_be_deduplicated_as_a_whole(producer, queues, client):
    _, children = queues
    first = await producer.add(parent(child(), deduplication=Deduplication("d")))

    second = await producer.add(parent(child(), deduplication=Deduplication("d")))

    assert (second.job.id, second.job.duplicated) == (first.job.id, True)
    assert await client.llen(children.keys.wait) == 1


# ---------------------------------------------------------------------- children of a running job


async def test_a_handler_adds_children_and_steps_aside(queues, work):
    parents, children = queues
    runs = []

    async def spread(job):
        runs.append(job.attempts_started)
        if job.data["step"] == "spread":
            await job.update_data({"step": "gather"})
            for n in (1, 2):
                await children.add("child", n, parent=job)
            raise WaitingChildrenError
        return sorted((await job.children_values()).values())

    job = await parents.add("parent", {"step": "spread"}, attempts=1)
    async with work("parents", spread):
        await wait_until(lambda: is_in(parents, job.id, "waiting_children"))
        async with work("children", echo):
            await wait_until(lambda: is_in(parents, job.id, "completed"))

    stored = await parents.get_job(job.id)
    assert (stored.return_value, stored.attempts_made, runs) == ([1, 2], 1, [1, 2])


async def test_stepping_aside_when_the_children_are_done_already_runs_on_at_once(queues, work):
    """As if the last child had been done just after: no wait, no attempt counted."""
    parents, children = queues
    runs = []

    async def spread(job):
        runs.append(job.attempts_started)
        if len(runs) == 1:
            added = await children.add("child", 1, parent=job)
            await wait_until(lambda: is_in(children, added.id, "completed"))
            raise WaitingChildrenError
        return await job.children_values()

    job = await parents.add("parent", attempts=1)
    async with work("parents", spread), work("children", echo):
        await wait_until(lambda: is_in(parents, job.id, "completed"))

    stored = await parents.get_job(job.id)
    assert list(stored.return_value.values()) == [1]
    assert (stored.attempts_made, runs) == (1, [1, 2])


async def test_a_handler_that_waits_for_nothing_again_and_again_is_slowed_down(
    queues, work, client
):
    parents, _ = queues
    runs = []

    async def wait(job):
        runs.append(job.processed_on)
        if len(runs) < 7:
            raise WaitingChildrenError

    job = await parents.add("parent")
    async with work("parents", wait):
        await wait_until(lambda: is_in(parents, job.id, "completed"))

    # Three times at once, then after 20, 40 and 80 ms.
    events = await client.xrange(parents.keys.events)
    assert sum(fields["event"] == "delayed" for _, fields in events) == 3
    assert runs[6] - runs[5] >= 80


async def test_a_parent_that_returns_while_children_are_pending_fails(queues, work):
    parents, children = queues

    async def forget(job):
        await children.add("child", 1, parent=job, delay=3_600_000)

    job = await parents.add("parent")
    async with work("parents", forget):
        await wait_until(lambda: is_in(parents, job.id, "failed"))

    assert "pending" in (await parents.get_job(job.id)).failed_reason


async def test_a_parent_that_returns_after_its_child_failed_fails(queues, work):
    """-9: the child takes its parent with it, although the parent's handler does not look."""
    parents, children = queues

    async def fail(job):
        raise ValueError("the child broke")

    async def look_away(job):
        added = await children.add("child", 1, parent=job, fail_parent_on_failure=True)
        await wait_until(lambda: is_in(children, added.id, "failed"))
        return "all is well"

    job = await parents.add("parent", attempts=3)
    async with work("children", fail), work("parents", look_away):
        await wait_until(lambda: is_in(parents, job.id, "failed"))

    stored = await parents.get_job(job.id)
    assert (stored.return_value, stored.attempts_made) == (None, 1)
    assert "child" in stored.failed_reason


async def test_a_child_can_be_added_by_the_id_of_its_parent(queues, client):
    parents, children = queues
    job = await parents.add("parent")

    added = await children.add("child", parent=Parent(job.id, "parents"))

    assert added.parent_key == parents.keys.job(job.id)
    assert (await parents.get_dependencies(job.id)).unprocessed == [children.keys.job(added.id)]
    with pytest.raises(ParentNotFoundError):
        await children.add("child", parent=Parent("nobody", "parents"))
    with pytest.raises(InvalidOptionError):
        await children.add("child", parent=job, deduplication=Deduplication("d"))
    with pytest.raises(InvalidOptionError):
        await children.add("child", parent="a text")


async def test_a_whole_flow_can_be_added_below_a_running_job(producer, queues, work):
    parents, _ = queues

    async def spread(job):
        if job.attempts_started == 1:
            await producer.add(child("middle", children=[child("leaf")], parent=job))
            raise WaitingChildrenError
        return list(await job.children_values())

    job = await parents.add("parent")
    async with work("parents", spread), work("children", echo):
        await wait_until(lambda: is_in(parents, job.id, "completed"))

    assert len((await parents.get_job(job.id)).return_value) == 1


def gather_in_a_thread(job):
    counts = job.dependencies_count()
    return [sorted(job.children_values().values()), counts.processed, job.failed_children()]


def look_in_a_process(job):
    return [job.dependencies().unprocessed, *gather_in_a_thread(job)]


@pytest.mark.parametrize("executor", ["local", "process"])
async def test_plain_functions_see_their_children_too(executor, producer, queues, work):
    parents, _ = queues
    handler = gather_in_a_thread if executor == "local" else look_in_a_process

    node = await producer.add(parent(child(data=1), child(data=2)))
    async with work("parents", handler, executor=executor), work("children", echo):
        await wait_until(lambda: is_in(parents, node.job.id, "completed"))

    value = (await parents.get_job(node.job.id)).return_value
    assert value == ([[1, 2], 2, {}] if executor == "local" else [[], [1, 2], 2, {}])


# ---------------------------------------------------------------------- looking


async def test_a_flow_can_be_read_back(producer, queues, work):
    parents, _ = queues
    node = await producer.add(
        parent(child("a", children=[child("b", children=[child("c")])]), child("d"))
    )
    async with work("children", echo):
        await wait_until(lambda: is_in(parents, node.job.id, "waiting"))

    flow = await producer.get_flow(node.job.id, "parents")
    assert _names(flow) == ("parent", (("a", (("b", (("c", ()),)),)), ("d", ())))
    shallow = await producer.get_flow(node.job.id, "parents", depth=2)
    assert _names(shallow) == ("parent", (("a", ()), ("d", ())))
    narrow = await producer.get_flow(node.job.id, "parents", max_children=1)
    assert len(narrow.children) == 1
    assert await producer.get_flow("nobody", "parents") is None
    with pytest.raises(InvalidOptionError):
        await producer.get_flow(node.job.id, "parents", depth=0)


def _names(node):
    return node.job.name, tuple(_names(below) for below in node.children)


def test_the_blocking_client_has_flows_too(url, prefix):
    with BlockingFlowProducer(connection=url, prefix=prefix) as producer:
        node = producer.add(parent(child(data=1)))
        assert _names(producer.get_flow(node.job.id, "parents")) == ("parent", (("child", ()),))


# ---------------------------------------------------------------------- clusters


async def test_on_a_cluster_all_queues_of_a_flow_need_hash_tags(cluster):
    url = cluster.url.replace("redis://", "redis+cluster://")
    async with FlowProducer(connection=url, prefix="bull") as producer:
        with pytest.raises(CrossSlotError):
            await producer.add(parent(child()))
    async with (
        FlowProducer(connection=url, prefix="{flow}") as producer,
        Queue("parents", connection=url, prefix="{flow}") as parents,
    ):
        node = await producer.add(parent(child(data=1)))
        handlers = {"connection": url, "prefix": "{flow}"}
        async with Worker("parents", echo, **handlers), Worker("children", echo, **handlers):
            await wait_until(lambda: is_in(parents, node.job.id, "completed"))


def test_the_connection_is_shared_if_asked(url, prefix):
    async def main():
        connection = Connection(url)
        async with FlowProducer(connection=connection, prefix=prefix) as producer:
            await producer.add(parent(child()))
        async with FlowProducer(connection=connection, prefix=prefix) as producer:
            await producer.add(parent(child()))
        await connection.close()

    asyncio.run(main())


async def test_what_children_returned_comes_in_the_order_given(producer, url, prefix):
    """Whatever ids they have, and in whichever order they end."""
    given = ["zebra", None, "apple", None, "mango", *[None] * 200]

    async def by_number(job):
        await asyncio.sleep(0.03 if job.data < 3 else 0)
        return job.data

    async with Queue("parents", connection=url, prefix=prefix) as parents:
        children = [
            FlowJob("child", number, queue_name=f"q{number % 2}", job_id=job_id)
            for number, job_id in enumerate(given)
        ]
        node = await producer.add(FlowJob("parent", queue_name="parents", children=children))
        plain = [FlowJob("child", n, queue_name=f"q{n % 2}") for n in reversed(range(150))]
        second = await producer.add(FlowJob("parent", queue_name="parents", children=plain))
        workers = [
            Worker(f"q{n}", by_number, connection=url, prefix=prefix, concurrency=50)
            for n in range(2)
        ]
        for worker in workers:
            await worker.start()
        await wait_until(lambda: parents.get_waiting_count(), message="a parent is let go")

        async def both() -> bool:
            return await parents.get_waiting_count() == 2

        await wait_until(both)
        values = await parents.get_children_values(node.job.id)
        assert list(values.values()) == list(range(len(given)))
        assert list((await parents.get_children_values(second.job.id)).values()) == [
            *reversed(range(150))
        ]
        dependencies = await parents.get_dependencies(node.job.id)
        assert list(dependencies.processed) == list(values)
        for worker in workers:
            await worker.close()


@pytest.mark.parametrize("lane", [None, "a lane"])
async def test_a_parent_that_is_retried_waits_for_the_children_that_are_retried_with_it(
    lane, producer, queue, hand, client
):
    """What failed in an outage is retried as a whole: the parent finds what its child returns."""
    hand = hand()
    child = FlowJob("child", queue_name="q", fail_parent_on_failure=True)
    flow = await producer.add(
        FlowJob("parent", queue_name="q", lane=lane, attempts=1, children=[child])
    )
    await hand.fail(await hand.take_one())
    await let_pass(0.002, "the child failed in an earlier millisecond")
    doomed = await hand.take_one()
    assert doomed.id == flow.job.id
    await hand.fail(doomed)

    assert await queue.retry_all() == 2

    (retried,) = await hand.take(2)
    assert retried.id == flow.children[0].job.id
    assert await queue.get_state(flow.job.id) == "waiting_children"
    told = [
        row for _, row in await client.xrange(queue.keys.events) if row.get("jobId") == doomed.id
    ]
    assert (told[-1]["event"], told[-1]["prev"]) == ("waiting-children", "failed")
    await hand.complete(retried)
    parent = await hand.take_one()
    assert parent.id == flow.job.id
    assert len(await queue.get_children_values(parent.id)) == 1
    await hand.complete(parent)
    assert await queue.get_state(parent.id) == "completed"
