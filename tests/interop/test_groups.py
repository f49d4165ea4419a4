"""Groups whose members are run by workers of BullMQ, which know nothing of them."""

from __future__ import annotations

from typing import Any

from tests.helpers import wait_until
from tests.interop.support import wait_for_state
from toril import Compensation, FlowProducer, GroupJob, GroupNode
from toril.protocol import groups
from toril.worker import group_keeper


async def order(toril: Any, **options: Any) -> GroupNode:
    """Jobs a, b and c in queues of their own; a and b can be undone in queues BullMQ can open."""
    own = {name: options.pop(name, {}) for name in "abc"}
    jobs = [GroupJob(name, {"n": name}, queue_name=name, **own[name]) for name in "abc"]
    compensation = {name: Compensation(f"undo-{name}", attempts=1, backoff=None) for name in "ab"}
    async with FlowProducer(connection=toril.url, prefix=toril.prefix) as flow:
        return await flow.add_group(
            "order", jobs, compensation, compensation_queue="{queue}-compensation", **options
        )


async def test_members_run_by_bullmq_settle_their_group(peer, toril, client, prefix):
    """SAGA-43: all completed by stock workers, then COMPLETED by the reconciler."""
    node = await order(toril)
    for job in node.jobs:
        await peer.work(job.queue_name, {"*": [["return", {"ok": job.name}]]})
    for job in node.jobs:
        await wait_for_state(client, prefix, job.queue_name, job.id, "completed")
    queue = toril.queue("a")
    assert (await queue.get_group_state(node.group_id)).state == "ACTIVE"

    assert await queue.reconcile_groups() == 3

    info = await queue.get_group_state(node.group_id)
    assert (info.state, info.completed_count) == ("COMPLETED", 3)


async def test_a_failure_in_bullmq_undoes_what_both_did(peer, toril, client, prefix):
    """SAGA-43: a by us, b by BullMQ and removed there, c fails in BullMQ; undone by both."""
    node = await order(toril, b={"remove_on_complete": True})
    a, b, c = node.jobs
    await toril.start_worker("a", {"*": [["return", {"by": "us"}]]})
    await wait_for_state(client, prefix, "a", a.id, "completed")
    await peer.work("b", {"*": [["return", {"by": "them"}]]})

    async def b_is_gone() -> bool:
        return not await client.exists(f"{prefix}:b:{b.id}")

    await wait_until(b_is_gone)
    await peer.work("c", {"*": [["fail", "out of stock"]]})
    await wait_for_state(client, prefix, "c", c.id, "failed")
    queue = toril.queue("a")

    await queue.reconcile_groups()

    info = await queue.get_group_state(node.group_id)
    assert (info.state, info.failed_job_id) == ("COMPENSATING", c.id)
    assert "out of stock" in info.reason
    (undo_b,) = await toril.queue("b-compensation").get_waiting()
    assert undo_b.data["originalReturnValue"] == {"by": "them"}
    await toril.start_worker("a-compensation", {"*": [["return", 1]]})
    await peer.work("b-compensation", {"*": [["return", 1]]})
    await wait_for_state(client, prefix, "b-compensation", undo_b.id, "completed")
    await wait_for_state(client, prefix, "a-compensation", f"{node.group_id}-c0", "completed")
    await queue.reconcile_groups()
    assert (await queue.get_group_state(node.group_id)).state == "FAILED"


async def test_a_worker_of_ours_settles_what_bullmq_finished(
    peer, toril, client, prefix, monkeypatch
):
    """SAGA-43: with no manual action, as soon as the group is due to be looked at."""
    monkeypatch.setattr(group_keeper, "LOOK_AT_GROUPS_S", 0.1)
    node = await order(toril)
    for job in node.jobs:
        await peer.work(job.queue_name, {"*": [["return", 1]]})
    for job in node.jobs:
        await wait_for_state(client, prefix, job.queue_name, job.id, "completed")
    (group_id,) = await client.zrange(f"{prefix}:a:toril:groups-open", 0, -1)
    await client.zadd(f"{prefix}:a:toril:groups-open", {group_id: 1})

    await toril.start_worker("a", {})

    async def is_completed() -> bool:
        info = await toril.queue("a").get_group_state(node.group_id)
        return info.state == groups.GroupState.COMPLETED

    await wait_until(is_completed)


async def test_bullmq_never_runs_a_member_that_was_cancelled_in_a_long_list(
    peer, toril, client, prefix
):
    """SAGA-22, SAGA-43: the mark is one that its workers honour."""
    filler = [f"f{n}" for n in range(2001)]
    await client.rpush(f"{prefix}:b:wait", *filler)
    node = await order(toril)
    await toril.queue("a").cancel_group(node.group_id)
    assert (await toril.queue("a").get_group_state(node.group_id)).state == "FAILED"
    await client.ltrim(f"{prefix}:b:wait", 0, 0)
    worker = await peer.work("b", {"*": [["return", 1]]})

    await wait_for_state(client, prefix, "b", node.jobs[1].id, "failed")

    assert await peer.seen(worker) == []
    await toril.queue("a").reconcile_groups()
    assert (await toril.queue("a").get_group_state(node.group_id)).failed_count == 0


async def test_a_member_of_an_undone_group_that_bullmq_retries_is_not_run(
    peer, toril, client, prefix
):
    """Charge, refund, and no second charge: it goes back to failed, with the reason."""
    node = await order(toril)
    charged, failing, _ = node.jobs
    charging = await toril.start_worker("a", {"*": [["return", 1]]})
    await wait_for_state(client, prefix, "a", charged.id, "completed")
    await toril.start_worker("b", {"*": [["fail", "no"]]})
    await wait_for_state(client, prefix, "b", failing.id, "failed")

    for state in ("being undone", "ended"):
        seen = len(charging.handler.seen)
        await peer.call("queue.retryJobs", queue="b", args=[{"state": "failed"}])
        await peer.call("queue.retryJobs", queue="a", args=[{"state": "completed"}])
        await peer.call("queue.retryJobs", queue="a", args=[{"state": "failed"}])

        for name, job in (("a", charged), ("b", failing)):
            await wait_for_reason(client, f"{prefix}:{name}:{job.id}", state)
            assert await toril.queue(name).get_state(job.id) == "failed"
        assert len(charging.handler.seen) == seen
        undoing = await toril.start_worker("a-compensation", {"*": [["return", 1]]})
        await wait_for_state(client, prefix, "a-compensation", f"{node.group_id}-c0", "completed")
        await toril.stop_worker(undoing)

    await toril.queue("a").retry(charged.id, force=True)
    await wait_for_state(client, prefix, "a", charged.id, "completed")


async def wait_for_reason(client: Any, job: str, words: str) -> None:
    async def is_told() -> bool:
        return words in (await client.hget(job, "failedReason") or "")

    await wait_until(is_told, message=f"{job} failed because its group is {words}")
