"""Crashes, long jobs and shutdown beside the other party (section 10, items 16 to 18)."""

from __future__ import annotations

from tests.helpers import wait_until
from tests.interop.peer import NodePeer
from tests.interop.support import (
    DOOMED,
    NODE_DOOMED,
    NODE_SURVIVING,
    SURVIVING,
    event_names,
    events_of,
    wait_for_finished,
    wait_for_state,
)

HANG = {"*": [["hang"]]}
RECOVERED = ["added", "waiting", "active", "waiting", "stalled", "active", "completed"]
GIVEN_UP = ["waiting", "stalled", "active", "failed"]


async def test_item_16_bullmq_finishes_what_a_killed_toril_worker_began(
    peer, toril, client, prefix
):
    job_id = await peer.add("q", "long", {"n": 1})
    await toril.crash("q", HANG, **DOOMED)

    await peer.work("q", **NODE_SURVIVING)
    await wait_for_state(client, prefix, "q", job_id, "completed")

    job = await peer.job("q", job_id)
    assert (job["stalledCounter"], job["attemptsMade"], job["attemptsStarted"]) == (1, 1, 2)
    assert await event_names(client, prefix, "q", job_id) == RECOVERED


async def test_item_16_toril_finishes_what_a_killed_bullmq_worker_began(
    peer, toril, url, client, prefix
):
    job_id = await toril.add("q", "long", {"n": 1})
    await _crash_node(peer, url, prefix)

    await toril.start_worker("q", **SURVIVING)
    await wait_for_state(client, prefix, "q", job_id, "completed")

    job = await toril.queue("q").get_job(job_id)
    assert (job.stalled_count, job.attempts_made, job.attempts_started) == (1, 1, 2)
    assert await event_names(client, prefix, "q", job_id) == RECOVERED


async def test_item_16_bullmq_gives_up_a_job_that_killed_toril_twice(peer, toril, client, prefix):
    job_id = await peer.add("q", "long", attempts=5)
    await toril.crash("q", HANG, **DOOMED)
    await toril.crash("q", HANG, **DOOMED)

    worker = await peer.work("q", **NODE_SURVIVING)
    await wait_for_state(client, prefix, "q", job_id, "failed")

    job = await toril.queue("q").get_job(job_id)
    assert job.failed_reason == "job stalled more than allowable limit"
    assert job.stalled_count == 2
    assert await peer.seen(worker) == []
    assert (await event_names(client, prefix, "q", job_id))[-4:] == GIVEN_UP


async def test_item_16_toril_gives_up_a_job_that_killed_bullmq_twice(
    peer, toril, url, client, prefix
):
    job_id = await toril.add("q", "long", attempts=5)
    await _crash_node(peer, url, prefix)
    await _crash_node(peer, url, prefix)

    running = await toril.start_worker("q", **SURVIVING)
    await wait_for_state(client, prefix, "q", job_id, "failed")

    job = await peer.job("q", job_id)
    assert job["failedReason"] == "job stalled more than allowable limit"
    assert job["stalledCounter"] == 2
    assert running.handler.seen == []
    assert (await event_names(client, prefix, "q", job_id))[-4:] == GIVEN_UP


async def test_item_17_a_long_job_is_never_taken_for_stalled(peer, toril, client, prefix):
    """Both sweep, at different intervals, while each runs a job that outlasts its lock."""
    lock_ms = 6000
    behaviours = {"*": [["sleep", lock_ms + 500], ["return", "done"]]}
    ids = [await peer.add("q", "one"), await toril.add("q", "two")]

    running = await toril.start_worker("q", behaviours, lock_duration=lock_ms, stalled_interval=70)
    node = {"lockDuration": lock_ms, "lockRenewTime": 300, "stalledInterval": 110}
    worker = await peer.work("q", behaviours, **node)
    await wait_for_finished(client, prefix, "q", 2)

    assert await events_of(client, prefix, "q", "stalled", "failed") == []
    assert len(running.handler.seen) + len(await peer.seen(worker)) == 2
    for job_id in ids:
        assert (await peer.job("q", job_id))["attemptsStarted"] == 1


async def test_item_18_closing_a_toril_worker_loses_nothing(peer, toril, client, prefix):
    behaviours = {"*": [["sleep", 5], ["echo"]]}
    ids = [await peer.add("q", f"{n}") for n in range(150)]
    await peer.work("q", behaviours)
    for _ in range(3):
        running = await toril.start_worker("q", behaviours, concurrency=5)

        async def is_busy(seen=running.handler.seen):
            # While this process gets no time, BullMQ may run all there is.
            if not await client.llen(f"{prefix}:q:wait"):
                ids.extend([await peer.add("q", "more") for _ in range(10)])
            return len(seen) >= 5

        await wait_until(is_busy)
        await toril.stop_worker(running)

    await wait_for_finished(client, prefix, "q", len(ids))

    assert await client.llen(f"{prefix}:q:active") == 0
    assert set(await client.zrange(f"{prefix}:q:completed", 0, -1)) == set(ids)
    async with client.pipeline(transaction=False) as pipe:
        for job_id in ids:
            pipe.hget(f"{prefix}:q:{job_id}", "atm")
        made = await pipe.execute()
    # One that came while its worker was closing was handed back unrun, and counts no attempt.
    assert set(made) == {"1"}


async def test_item_18_a_job_that_outlasts_the_shutdown_goes_to_bullmq_at_once(
    peer, toril, client, prefix
):
    job_id = await peer.add("q", "long")
    running = await toril.start_worker("q", HANG)
    await wait_until(lambda: running.handler.holding)

    await running.worker.close(timeout=50)
    worker = await peer.work("q")
    await wait_for_state(client, prefix, "q", job_id, "completed")

    assert [job["id"] for job in await peer.seen(worker)] == [job_id]
    assert "stalled" not in await event_names(client, prefix, "q", job_id)


async def _crash_node(peer, url: str, prefix: str) -> None:
    """A BullMQ worker that takes the job, once its turn comes, and is killed."""
    async with NodePeer(peer.version, url, prefix) as victim:
        await victim.work("q", HANG, **NODE_DOOMED)
        await victim.event("holding")
        await victim.kill()
