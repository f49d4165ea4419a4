"""Ids and scheduler ids with colons, which BullMQ allows: they can be read, run and removed."""

from __future__ import annotations

import inspect

import pytest

from tests.helpers import wait_until
from tests.interop.support import wait_for_finished
from toril import FlowProducer, JobFailedError, Queue, UnrecoverableError, Worker
from toril.errors import DeadLetterSourceError, LockLostError

ODD = "order:7:pay"

CALLS = {
    "add_log": ("row",),
    "get_job_logs": (),
    "get_job_log_count": (),
    "clear_logs": (),
    "update_data": ({"n": 2},),
    "update_progress": (50,),
    "get_job": (),
    "get_state": (),
    "explain": (),
    "get_children_values": (),
    "get_dependencies": (),
    "get_dependencies_count": (),
    "get_failed_children": (),
    "peek_dead_letter": (),
    "change_priority": (3,),
}
"""Methods that may be called of any waiting job; the other ones are called below, by name."""
BY_NAME = {
    "cancel",
    "change_delay",
    "extend_lock",
    "promote",
    "publish_event",
    "remove",
    "remove_deduplication_key",
    "replay_dead_letter",
    "retry",
    "wait_for",
}


def test_every_method_that_takes_the_id_of_a_job_is_called_here():
    taking = {
        name
        for name, method in inspect.getmembers(Queue, inspect.isfunction)
        if "job_id" in inspect.signature(method).parameters and not name.startswith("_")
    }

    assert taking == CALLS.keys() | BY_NAME


async def test_what_exists_can_be_read_run_and_removed(peer, toril, client, prefix, url):
    queue = toril.queue("q")
    await peer.add("q", "charge", {"n": 1}, jobId=ODD)

    for name, arguments in CALLS.items():
        await getattr(queue, name)(ODD, *arguments)

    assert [job.id for job in await queue.get_jobs()] == [ODD]
    assert (await queue.get_job(ODD)).data == {"n": 2}
    assert not await queue.remove_deduplication_key("none", job_id=ODD)
    assert await queue.publish_event("noticed", {}, job_id=ODD)
    with pytest.raises(DeadLetterSourceError):
        await queue.replay_dead_letter(ODD)
    with pytest.raises(LockLostError):
        await queue.extend_lock(ODD, "nobody's", 1000)
    async with Worker("q", _logs_and_fails, connection=url, prefix=prefix):
        with pytest.raises(JobFailedError, match="no money"):
            await queue.wait_for(ODD, timeout=60_000)
    assert await queue.get_job_logs(ODD) == ["began"]

    await queue.retry(ODD)
    assert await queue.get_state(ODD) == "prioritized"
    assert (await queue.cancel(ODD)).name
    assert await queue.remove(ODD)
    await peer.add("q", "later", {}, jobId=ODD, delay=60_000)
    await queue.change_delay(ODD, 120_000)
    await queue.promote(ODD)
    assert await queue.remove(ODD)
    assert await queue.get_jobs() == []


async def _logs_and_fails(job):
    await job.log("began")
    await job.report(10)
    raise UnrecoverableError("no money")


async def test_the_ticks_of_a_scheduler_with_a_colon(peer, toril, client, prefix, url):
    queue = toril.queue("q")
    await peer.call("queue.upsertJobScheduler", queue="q", args=["email:digest", {"every": 50}, {}])
    seen = []

    async def handler(job):
        await job.log("sent")
        seen.append(job.id)

    async with Worker("q", handler, connection=url, prefix=prefix):
        await wait_until(lambda: len(set(seen)) >= 2)
        scheduler = await queue.get_job_scheduler("email:digest")
        assert scheduler is not None
        assert await queue.remove_job_scheduler("email:digest")
    assert seen[0].startswith("repeat:email:digest:")
    assert await queue.get_state(seen[0]) == "completed"
    assert await queue.get_failed() == []
    assert await queue.remove(seen[0])
    assert await queue.get_job_scheduler("email:digest") is None


async def test_a_family_whose_ids_have_colons(peer, toril, client, prefix, url):
    child = {"name": "child", "queueName": "parts", "opts": {"jobId": "c:d:e"}}
    tree = {"name": "parent", "queueName": "q", "opts": {"jobId": "p:a:b"}, "children": [child]}
    await peer.call("flow.add", args=[tree])
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        found = await flow.get_flow("p:a:b", "q")
    assert [(node.job.queue_name, node.job.id) for node in found.children] == [("parts", "c:d:e")]

    assert await toril.queue("q").remove("p:a:b")
    assert await toril.queue("parts").get_jobs() == []

    await peer.call("flow.add", args=[tree])
    await toril.start_worker("parts")
    await toril.start_worker("q")
    await wait_for_finished(client, prefix, "q", 1)
    assert await toril.queue("q").get_state("p:a:b") == "completed"


async def test_parts_of_a_job_are_not_removed_as_jobs(toril, client, prefix):
    queue = toril.queue("q")
    await toril.add("q", "x", job_id="a")
    await queue.add_log("a", "row")
    await queue.upsert_job_scheduler("digest", every=60_000)
    await client.hset(f"{prefix}:q:a:processed", f"{prefix}:q:b", "1")

    assert not await queue.remove("a:processed")
    assert not await queue.remove("a:logs")

    assert await queue.get_job_logs("a") == ["row"]
    assert await client.exists(f"{prefix}:q:a:processed")
