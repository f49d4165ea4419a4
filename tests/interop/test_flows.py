"""Parents and children on both sides (wire-format section 10, items 19 to 21)."""

from __future__ import annotations

import pytest

from tests.interop.scenario import NodeDriver, wait_until
from tests.interop.support import FAR, events_of, wait_for_state
from toril import FlowJob, FlowProducer

GATHER = {"*": [["children_values"]]}


@pytest.fixture(params=["bullmq", "toril"])
def adder(request, peer, toril):
    """Who adds the flow."""
    return NodeDriver(peer) if request.param == "bullmq" else toril


@pytest.fixture(params=["parents in bullmq", "parents in toril"])
def sides(request, peer, toril):
    """Who runs the parents and who the children: ``start(queue, behaviours)`` for each."""
    sides = (peer.work, toril.start_worker)
    return sides if request.param == "parents in bullmq" else sides[::-1]


def tree(*children, **options):
    return {"name": "parent", "queue": "p", "options": options, "children": list(children)}


def leaf(name, data=None, **options):
    return {"name": name, "queue": "c", "data": data or {"n": name}, "options": options}


async def test_item_19_children_run_there_and_parents_here(adder, sides, peer, client, prefix):
    run_parents, run_children = sides
    await adder.add("p", "first in line", {})
    labels = await adder.flow(tree(leaf("one", {"n": 1}), leaf("two", {"n": 2})))

    await run_children("c")
    await wait_for_state(client, prefix, "p", labels["parent"], "wait")
    # A parent that is let go runs next, before those that waited longer.
    assert (await client.lrange(f"{prefix}:p:wait", -1, -1)) == [labels["parent"]]
    await run_parents("p", {"parent": [["children_values"]]})
    await wait_for_state(client, prefix, "p", labels["parent"], "completed")

    job = await peer.job("p", labels["parent"])
    assert sorted(value["n"] for value in job["returnvalue"]) == [1, 2]
    assert job["attemptsStarted"] == 1


async def test_item_19_three_generations_over_three_queues(adder, sides, peer, client, prefix):
    run_parents, run_children = sides
    below = {"name": "grandchild", "queue": "g", "data": {"n": 3}}
    labels = await adder.flow(tree({**leaf("child"), "children": [below]}))

    await run_parents("g")
    await run_children("c", {"child": [["children_values"]]})
    await run_parents("p", {"parent": [["children_values"]]})
    await wait_for_state(client, prefix, "p", labels["parent"], "completed")

    assert (await peer.job("p", labels["parent"]))["returnvalue"] == [[{"n": 3}]]


@pytest.mark.no_audit("the audit knows one prefix")
async def test_item_19_a_flow_over_two_prefixes(peer, toril, client, prefix, url):
    other = f"{prefix}x"
    async with FlowProducer(connection=url, prefix=prefix) as producer:
        child = FlowJob("child", 5, queue_name="c", prefix=other)
        node = await producer.add(FlowJob("parent", queue_name="p", children=[child]))
        assert node.children[0].job.prefix == other

        view = peer.process.at(other)
        await view.work("c")
        await toril.start_worker("p", GATHER)
        await wait_for_state(client, prefix, "p", node.job.id, "completed")
        await view.close_all()

    assert (await peer.job("p", node.job.id))["returnvalue"] == [5]


@pytest.mark.parametrize(
    ("policy", "state"),
    [
        ("fail_parent_on_failure", "failed"),
        ("continue_parent_on_failure", "completed"),
        ("ignore_dependency_on_failure", "completed"),
        ("remove_dependency_on_failure", "completed"),
        (None, "waiting-children"),
    ],
)
async def test_item_20_a_child_fails_on_the_other_side(
    policy, state, adder, sides, peer, client, prefix
):
    run_parents, run_children = sides
    options = {policy: True} if policy else {}
    labels = await adder.flow(tree(leaf("bad", **options)))

    await run_children("c", {"bad": [["fail", "no"]]})
    await wait_for_state(client, prefix, "c", labels["bad"], "failed")
    await run_parents("p", {"parent": [["return", "ran"]]})
    await wait_for_state(client, prefix, "p", labels["parent"], state)

    job = await peer.job("p", labels["parent"])
    if policy == "fail_parent_on_failure":
        assert job["failedReason"] == f"child {prefix}:c:{labels['bad']} failed"
    assert (job["returnvalue"] == "ran") == (state == "completed")


async def test_item_20_a_failure_climbs_through_both(adder, sides, client, prefix):
    run_parents, run_children = sides
    below = {"name": "low", "queue": "g", "options": {"fail_parent_on_failure": True}}
    labels = await adder.flow(
        tree({**leaf("middle", fail_parent_on_failure=True), "children": [below]})
    )

    await run_parents("g", {"low": [["fail", "no"]]})
    await run_children("c")
    await run_parents("p")

    await wait_for_state(client, prefix, "p", labels["parent"], "failed")
    await wait_for_state(client, prefix, "c", labels["middle"], "failed")


@pytest.mark.parametrize("options", [{"delay": 150}, {"priority": 4}])
async def test_item_20_a_parent_keeps_its_delay_and_its_priority(
    options, adder, sides, client, prefix
):
    run_parents, run_children = sides
    labels = await adder.flow(tree(leaf("one", remove_on_complete=True), **options))

    await run_children("c")
    await wait_for_state(client, prefix, "p", labels["parent"], "delayed", "prioritized")
    await run_parents("p", GATHER)
    await wait_for_state(client, prefix, "p", labels["parent"], "completed")

    assert await client.hget(f"{prefix}:p:{labels['parent']}", "returnvalue") == '[{"n":"one"}]'


async def test_item_20_children_added_by_a_running_parent(sides, peer, toril, client, prefix):
    run_parents, run_children = sides
    job_id = await toril.add("p", "parent", {})

    await run_parents("p", {"parent": [["add_children_once", "c", 1, 2], ["children_values"]]})
    await wait_for_state(client, prefix, "p", job_id, "waiting-children")
    await run_children("c")
    await wait_for_state(client, prefix, "p", job_id, "completed")

    job = await peer.job("p", job_id)
    assert (job["returnvalue"], job["attemptsMade"], job["attemptsStarted"]) == ([1, 2], 1, 2)
    names = [row["event"] for row in await events_of(client, prefix, "p")]
    assert names[-6:] == ["active", "waiting-children", "waiting", "active", "completed", "drained"]


async def test_item_20_a_child_retried_by_the_other_side(adder, sides, peer, toril, client, prefix):
    run_parents, run_children = sides
    labels = await adder.flow(tree(leaf("flaky", fail_parent_on_failure=False)))
    await run_children("c", {"flaky": [["fail_on_start", 1, "no"], ["return", 7]]})
    await wait_for_state(client, prefix, "c", labels["flaky"], "failed")

    if run_parents == peer.work:
        await peer.call("job.retry", queue="c", jobId=labels["flaky"], args=["failed"])
    else:
        await toril.retry("c", labels["flaky"])
    await run_parents("p", GATHER)
    await wait_for_state(client, prefix, "p", labels["parent"], "completed")

    assert (await peer.job("p", labels["parent"]))["returnvalue"] == [7]


async def test_item_21_bullmq_reads_a_flow_of_toril(peer, toril, client, prefix):
    below = {"name": "grandchild", "queue": "g"}
    labels = await toril.flow(tree({**leaf("a"), "children": [below]}, leaf("b"), leaf("c")))
    worker = await toril.start_worker("c")
    await wait_for_state(client, prefix, "c", labels["b"], "completed")
    await wait_for_state(client, prefix, "c", labels["c"], "completed")
    await toril.stop_worker(worker)

    flow = await peer.call("flow.getFlow", args=[{"id": labels["parent"], "queueName": "p"}])
    counts = await peer.call("job.getDependenciesCount", queue="p", jobId=labels["parent"])
    dependencies = await peer.call("job.getDependencies", queue="p", jobId=labels["parent"])

    assert sorted(child["job"]["name"] for child in flow["children"]) == ["a", "b", "c"]
    (middle,) = [child for child in flow["children"] if child["job"]["name"] == "a"]
    assert middle["children"][0]["job"]["name"] == "grandchild"
    assert (counts["processed"], counts["unprocessed"]) == (2, 1)
    assert dependencies["unprocessed"] == [f"{prefix}:c:{labels['a']}"]
    assert set(dependencies["processed"]) == {f"{prefix}:c:{labels[name]}" for name in "bc"}


async def test_item_21_toril_reads_a_flow_of_bullmq(peer, toril, client, prefix, url):
    below = {"name": "grandchild", "queue": "g"}
    labels = await NodeDriver(peer).flow(tree({**leaf("a"), "children": [below]}, leaf("b")))
    await peer.work("c")
    await wait_for_state(client, prefix, "c", labels["b"], "completed")

    async with FlowProducer(connection=url, prefix=prefix) as producer:
        flow = await producer.get_flow(labels["parent"], "p")
    dependencies = await toril.queue("p").get_dependencies(labels["parent"])

    assert sorted(child.job.name for child in flow.children) == ["a", "b"]
    assert [node.children[0].job.name for node in flow.children if node.job.name == "a"] == [
        "grandchild"
    ]
    assert dependencies.processed == {f"{prefix}:c:{labels['b']}": {"n": "b"}}
    assert dependencies.unprocessed == [f"{prefix}:c:{labels['a']}"]


@pytest.mark.parametrize("remover", ["bullmq", "toril"])
async def test_item_21_removing_a_pending_child_lets_the_parent_go(
    remover, adder, peer, toril, client, prefix
):
    labels = await adder.flow(tree(leaf("one", delay=FAR)))

    if remover == "bullmq":
        await peer.call("job.remove", queue="c", jobId=labels["one"])
    else:
        await toril.remove("c", labels["one"])

    await wait_for_state(client, prefix, "p", labels["parent"], "wait")


async def test_item_20_completing_too_early_is_refused(peer, toril, client, prefix):
    """-4: a handler that returns while its child is pending has failed."""
    job_id = await toril.add("p", "parent", {})
    running = await toril.start_worker("p", {"parent": [["hang"]]})

    async def holding():
        return job_id in running.handler.holding

    await wait_until(holding, "the parent runs")
    parent = {"id": job_id, "queue": f"{prefix}:p"}
    await peer.add("c", "child", parent=parent)
    running.handler.release()
    await wait_for_state(client, prefix, "p", job_id, "failed")

    assert "pending" in (await peer.job("p", job_id))["failedReason"]
