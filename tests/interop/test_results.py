"""Results, failures, retries, retention and lost locks (wire-format section 10, items 7 to 11)."""

from __future__ import annotations

import pytest

from tests.helpers import wait_until
from tests.interop.support import (
    FAR,
    event_names,
    events_of,
    keys_of_job,
    wait_for_finished,
    wait_for_state,
)
from toril import Backoff, JobFailedError

BAD = {"*": [["fail", "it broke"]]}


async def test_item_7_bullmq_understands_a_failure_of_ours(peer, toril, client, prefix):
    job_id = await peer.add("q", "bad", attempts=2)

    await toril.start_worker("q", BAD)
    await wait_for_state(client, prefix, "q", job_id, "failed")

    job = await peer.job("q", job_id)
    assert "it broke" in job["failedReason"]
    assert not job["failedReason"].startswith('"')
    assert len(job["stacktrace"]) == 2
    assert all("it broke" in trace for trace in job["stacktrace"])
    assert (job["attemptsMade"], await peer.state("q", job_id)) == (2, "failed")
    (exhausted,) = await events_of(client, prefix, "q", "retries-exhausted")
    assert exhausted["attemptsMade"] == "2"


@pytest.mark.parametrize("producer", ["bullmq", "toril"])
@pytest.mark.parametrize("kind", ["fixed", "exponential"])
async def test_item_7_both_take_turns_at_one_job(producer, kind, peer, toril, client, prefix):
    if producer == "bullmq":
        backoff = {"type": kind, "delay": FAR}
        job_id = await peer.add("q", "bad", attempts=4, backoff=backoff)
    else:
        backoff = getattr(Backoff, kind)(FAR)
        job_id = await toril.add("q", "bad", attempts=4, backoff=backoff)
    delays = []
    for turn in range(3):
        if turn % 2:
            worker = await peer.work("q", BAD)
            await wait_for_state(client, prefix, "q", job_id, "delayed")
            await peer.stop_working(worker)
        else:
            running = await toril.start_worker("q", BAD)
            await wait_for_state(client, prefix, "q", job_id, "delayed")
            await toril.stop_worker(running)
        delays.append(int(await client.hget(f"{prefix}:q:{job_id}", "delay")))
        await toril.queue("q").promote(job_id)

    await peer.work("q", BAD)
    await wait_for_state(client, prefix, "q", job_id, "failed")

    job = await toril.queue("q").get_job(job_id)
    assert (job.attempts_made, job.attempts_started, len(job.stacktrace)) == (4, 4, 4)
    assert delays == ([FAR] * 3 if kind == "fixed" else [FAR, 2 * FAR, 4 * FAR])


@pytest.mark.parametrize("worker", ["bullmq", "toril"])
async def test_item_8_an_unrecoverable_error_ends_the_job(worker, peer, toril, client, prefix):
    behaviours = {"*": [["unrecoverable", "never"]]}
    job_id = await (toril if worker == "bullmq" else peer).add("q", "x", attempts=5)

    if worker == "bullmq":
        await peer.work("q", behaviours)
    else:
        await toril.start_worker("q", behaviours)
    await wait_for_state(client, prefix, "q", job_id, "failed")

    ours = await toril.queue("q").get_job(job_id)
    theirs = await peer.job("q", job_id)
    assert ours.attempts_made == theirs["attemptsMade"] == 1
    assert ours.failed_reason == theirs["failedReason"]
    assert ours.failed_reason.endswith("never")


@pytest.mark.parametrize("child_worker", ["bullmq", "toril"])
async def test_item_8_a_parent_doomed_by_its_child_fails_without_running(
    child_worker, peer, toril, client, prefix
):
    child = {"name": "child", "queueName": "c", "opts": {"failParentOnFailure": True}}
    tree = {"name": "parent", "queueName": "p", "children": [child]}
    flow = await peer.call("flow.add", args=[tree])
    parent_id, child_id = flow["job"]["id"], flow["children"][0]["job"]["id"]

    if child_worker == "bullmq":
        await peer.work("c", BAD)
        running = await toril.start_worker("p")
    else:
        await toril.start_worker("c", BAD)
        worker = await peer.work("p")
    await wait_for_state(client, prefix, "p", parent_id, "failed")

    assert (await peer.job("p", parent_id))["failedReason"] == f"child {prefix}:c:{child_id} failed"
    assert not await client.hexists(f"{prefix}:p:{parent_id}", "defa")
    if child_worker == "bullmq":
        assert running.handler.seen == []
    else:
        assert await peer.seen(worker) == []


@pytest.mark.parametrize("worker", ["bullmq", "toril"])
async def test_item_9_a_job_removed_on_completion_leaves_no_key(
    worker, peer, toril, client, prefix
):
    behaviours = {"*": [["log", "x"], ["progress", 1], ["return", 1]]}
    if worker == "bullmq":
        job_id = await toril.add("q", "x", remove_on_complete=True)
        await peer.work("q", behaviours)
    else:
        job_id = await peer.add("q", "x", removeOnComplete=True)
        await toril.start_worker("q", behaviours)

    await wait_for_state(client, prefix, "q", job_id, "gone")

    assert await keys_of_job(client, prefix, "q", job_id) == []
    assert (await event_names(client, prefix, "q", job_id))[-1] == "completed"


@pytest.mark.parametrize(
    "retention", [{"count": 1}, {"age": 3600, "count": 1}, {"age": 3600, "count": 1, "limit": 10}]
)
async def test_item_9_both_keep_only_the_newest(retention, peer, toril, client, prefix):
    apart = {"*": [["sleep", 3], ["echo"]]}
    theirs = [await peer.add("q", f"{n}", removeOnComplete=retention) for n in range(3)]
    ours = [await toril.add("q", f"{n}", remove_on_complete=retention) for n in range(3)]

    running = await toril.start_worker("q", apart)
    await wait_for_state(client, prefix, "q", ours[-1], "completed")
    await toril.stop_worker(running)
    last = await toril.add("q", "last", remove_on_complete=retention)
    await peer.work("q", apart)
    await wait_for_state(client, prefix, "q", last, "completed")

    assert await client.zrange(f"{prefix}:q:completed", 0, -1) == [last]
    for job_id in theirs + ours:
        assert await keys_of_job(client, prefix, "q", job_id) == []


async def test_item_9_the_workers_retention_holds_for_bullmqs_jobs(peer, toril, client, prefix):
    ids = [await peer.add("q", f"{n}") for n in range(3)]
    kept = await peer.add("q", "kept", removeOnComplete=False)

    apart = {"*": [["sleep", 3], ["echo"]]}
    await toril.start_worker("q", apart, remove_on_complete={"count": 1})
    await wait_for_state(client, prefix, "q", kept, "completed")

    assert await client.zrange(f"{prefix}:q:completed", 0, -1) == [ids[-1], kept]


@pytest.mark.parametrize("editor", ["bullmq", "toril"])
async def test_item_10_each_can_edit_the_others_jobs(editor, peer, toril, client, prefix):
    owner = toril if editor == "bullmq" else peer
    names = ("promoted", "delayed", "raised", "removed", "updated")
    later = {name: await owner.add("q", name, {"n": 1}, delay=FAR) for name in names[:2]}
    ready = {name: await owner.add("q", name, {"n": 1}) for name in names[2:]}
    queue = toril.queue("q")

    if editor == "bullmq":
        await peer.call("job.promote", queue="q", jobId=later["promoted"])
        await peer.call("job.changeDelay", queue="q", jobId=later["delayed"], args=[2 * FAR])
        priority = [{"priority": 5}]
        await peer.call("job.changePriority", queue="q", jobId=ready["raised"], args=priority)
        await peer.call("job.remove", queue="q", jobId=ready["removed"])
        await peer.call("job.updateData", queue="q", jobId=ready["updated"], args=[{"n": 2}])
        await peer.call("job.updateProgress", queue="q", jobId=ready["updated"], args=[{"at": 3}])
        await peer.call("job.log", queue="q", jobId=ready["updated"], args=["row"])
    else:
        await queue.promote(later["promoted"])
        await queue.change_delay(later["delayed"], 2 * FAR)
        await queue.change_priority(ready["raised"], 5)
        await queue.remove(ready["removed"])
        await queue.update_data(ready["updated"], {"n": 2})
        await queue.update_progress(ready["updated"], {"at": 3})
        await queue.add_log(ready["updated"], "row")

    assert await peer.state("q", later["promoted"]) == "waiting"
    assert await queue.get_state(later["promoted"]) == "waiting"
    assert (await peer.job("q", later["delayed"]))["delay"] == 2 * FAR
    assert await queue.get_state(ready["raised"]) == "prioritized"
    assert await queue.get_job(ready["removed"]) is None
    assert await peer.job("q", ready["removed"]) == {}
    ours, theirs = await queue.get_job(ready["updated"]), await peer.job("q", ready["updated"])
    assert ours.data == theirs["data"] == {"n": 2}
    assert theirs["progress"] == {"at": 3}
    logs = await peer.call("queue.getJobLogs", queue="q", args=[ready["updated"]])
    assert logs["logs"] == ["row"]


@pytest.mark.parametrize("editor", ["bullmq", "toril"])
async def test_item_10_each_can_retry_what_failed_at_the_other(editor, peer, toril, client, prefix):
    ids = [await peer.add("q", "theirs"), await toril.add("q", "ours"), await peer.add("q", "more")]
    if editor == "bullmq":
        running = await toril.start_worker("q", BAD)
        await wait_for_finished(client, prefix, "q", 3)
        await toril.stop_worker(running)
        await peer.call("job.retry", queue="q", jobId=ids[0])
        await peer.call("queue.retryJobs", queue="q", args=[{}])
    else:
        worker = await peer.work("q", BAD)
        await wait_for_finished(client, prefix, "q", 3)
        await peer.stop_working(worker)
        await toril.queue("q").retry(ids[0])
        await toril.queue("q").retry_all()

    assert await client.zcard(f"{prefix}:q:failed") == 0
    running = await toril.start_worker("q")
    await wait_for_finished(client, prefix, "q", 3)

    for job_id in ids:
        job = await peer.job("q", job_id)
        assert (job["attemptsMade"], job["failedReason"]) == (2, None)


@pytest.mark.parametrize("editor", ["bullmq", "toril"])
async def test_item_10_each_can_promote_all_delayed_jobs(editor, peer, toril, client, prefix):
    ids = [
        await peer.add("q", "theirs", delay=FAR),
        await toril.add("q", "ours", delay=FAR),
    ]

    if editor == "bullmq":
        await peer.call("queue.promoteJobs", queue="q")
    else:
        await toril.queue("q").promote_all()

    assert await client.zcard(f"{prefix}:q:delayed") == 0
    assert list(reversed(await client.lrange(f"{prefix}:q:wait", 0, -1))) == ids


@pytest.mark.parametrize("theft", ["expired", "stolen"])
async def test_item_11_a_job_whose_lock_is_lost_is_not_finished(theft, peer, toril, client, prefix):
    job_id = await peer.add("q", "victim")
    running = await toril.start_worker("q", {"victim": [["hang"]]})
    await wait_until(lambda: running.handler.holding)

    lock = f"{prefix}:q:{job_id}:lock"
    if theft == "expired":
        await client.delete(lock)
    else:
        await client.set(lock, "somebody else", px=60_000)
    running.handler.release(value="too late")
    bystander = await peer.add("q", "bystander")
    await wait_for_state(client, prefix, "q", bystander, "completed")

    assert await event_names(client, prefix, "q", job_id) == ["added", "waiting", "active"]
    assert not await client.hexists(f"{prefix}:q:{job_id}", "returnvalue")
    assert await client.lrange(f"{prefix}:q:active", 0, -1) == [job_id]
    if theft == "stolen":
        assert await client.get(lock) == "somebody else"


async def test_half_a_surrogate_pair_comes_in_and_goes_out(peer, toril, client, prefix):
    """JavaScript's texts may have one; in JSON it is an escape."""
    data = {"text": "cut off \ud83d", "key\udfff": 1}
    job_id = await peer.add("q", "echo", data)

    await toril.start_worker("q")
    await wait_for_finished(client, prefix, "q", 1)

    assert (await peer.job("q", job_id))["returnvalue"] == data
    assert await toril.queue("q").wait_for(job_id, timeout=60_000) == data


async def test_quotes_in_a_reason_are_part_of_it(peer, toril, client, prefix):
    reason = '"currency" must be one of "EUR", "USD"'
    job_id = await peer.add("q", "pay")
    await peer.work("q", {"pay": [["unrecoverable", reason]]})

    with pytest.raises(JobFailedError) as failure:
        await toril.queue("q").wait_for(job_id, timeout=60_000)

    assert failure.value.reason == reason
    assert (await toril.queue("q").get_job(job_id)).failed_reason == reason
