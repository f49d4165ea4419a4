"""Jobs that are taken by hand in Toril, beside producers and workers of BullMQ."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.interop.support import event_names, wait_for_finished
from toril import ManualWorker


@pytest.fixture
async def taker(url, prefix):
    async with ManualWorker("q", connection=url, prefix=prefix) as taker:
        yield taker


async def test_node_sees_no_difference(peer, toril, taker, client, prefix):
    """Completed, retried and failed by hand, or by a worker: the same events and the same job."""
    names = {"good": 1, "flaky": 2, "bad": 1}

    async def seen(*ids: str) -> list[Any]:
        kept = ("name", "returnvalue", "failedReason", "attemptsMade", "attemptsStarted")
        jobs = [await peer.job("q", job_id) for job_id in ids]
        return [
            ({key: job.get(key) for key in kept}, await event_names(client, prefix, "q", job["id"]))
            for job in jobs
        ]

    by_hand = [await peer.add("q", name, attempts=tries) for name, tries in names.items()]
    for _ in range(4):
        job = await taker.get_next_job(timeout=60_000)
        if job.name == "good" or job.attempts_made:
            await job.complete({"n": [1]})
        else:
            await job.fail(RuntimeError("no"))
    by_worker = [await peer.add("q", name, attempts=tries) for name, tries in names.items()]
    behaviours = {
        "good": [["return", {"n": [1]}]],
        "flaky": [["fail_until", 1, "no"], ["return", {"n": [1]}]],
        "bad": [["fail", "no"]],
    }
    await toril.start_worker("q", behaviours)
    await wait_for_finished(client, prefix, "q", 6)

    assert await seen(*by_hand) == await seen(*by_worker)


async def test_hands_and_workers_of_both_share_a_queue(peer, toril, taker, client, prefix):
    ids = [await (peer if n % 2 else toril).add("q", f"{n}") for n in range(60)]
    by_hand = []
    # Before the others begin: on a busy machine they may be done when this one gets its turn.
    job = await taker.get_next_job(timeout=0)
    worker = await peer.work("q", {"*": [["sleep", 5], ["echo"]]})
    running = await toril.start_worker("q", {"*": [["sleep", 5], ["echo"]]})
    while job:
        by_hand.append(job.id)
        await job.complete()
        await asyncio.sleep(0)
        job = await taker.get_next_job(timeout=0)
    await wait_for_finished(client, prefix, "q", 60)

    others = [job["id"] for job in await peer.seen(worker)]
    others += [job.id for job in running.handler.seen]
    assert by_hand
    assert Counter(by_hand + others) == Counter(ids)


async def test_trimming_is_that_of_node(peer, toril, client, prefix):
    """Node keeps up to a block of the stream more; nobody keeps less than asked for."""
    queue = toril.queue("q")
    for n in range(5):
        await queue.publish_event("tick", {"n": n})

    await peer.call("queue.trimEvents", queue="q", args=[3])
    assert await client.xlen(f"{prefix}:q:events") >= 3
    await queue.trim_events(3)
    assert await client.xlen(f"{prefix}:q:events") == 3


@pytest.mark.parametrize("maker", ["bullmq", "toril"])
async def test_a_limited_scheduler_ends_by_hand_too(maker, peer, toril, taker, client, prefix):
    """The number of runs is the same whoever makes the scheduler and whoever runs it."""
    if maker == "bullmq":
        args = ["s", {"every": 30, "limit": 4}, {"name": "tick"}]
        await peer.call("queue.upsertJobScheduler", queue="q", args=args)
    else:
        await toril.queue("q").upsert_job_scheduler("s", every=30, limit=4)

    counts = []
    while job := await taker.get_next_job(timeout=0 if len(counts) == 4 else 60_000):
        counts.append(job.opts.raw["repeat"]["count"])
        await job.complete()

    assert counts == [1, 2, 3, 4]
    assert await client.zcard(f"{prefix}:q:delayed") == 0
