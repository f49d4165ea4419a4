"""Rate limits, global concurrency and pause, shared by both (wire-format section 10, 25 to 27)."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.helpers import wait_until
from tests.interop.support import (
    NODE_PATIENT,
    PATIENT,
    events_of,
    wait_for_finished,
    wait_for_state,
    wait_until_idle,
)


def most_in_a_window(starts: list[int], duration: int) -> int:
    """The largest number of starts in any half-open window of ``duration`` ms."""
    starts = sorted(starts)
    return max(sum(start <= other < start + duration for other in starts) for start in starts)


async def starts_of(client, prefix, count) -> list[int]:
    ids = await client.zrange(f"{prefix}:q:completed", 0, -1)
    assert len(ids) == count
    return [int(await client.hget(f"{prefix}:q:{job_id}", "processedOn")) for job_id in ids]


@pytest.mark.parametrize("source", ["worker", "queue"])
async def test_item_25_mixed_workers_keep_one_rate_limit(source, peer, toril, client, prefix):
    limit = {"max": 10, "duration": 300}
    for n in range(40):
        await (peer if n % 2 else toril).add("q", f"{n}")
    options = {"limiter": limit} if source == "worker" else {}
    if source == "queue":
        await peer.call("queue.setGlobalRateLimit", queue="q", args=[10, 300])

    running = await toril.start_worker("q", {"*": [["sleep", 10]]}, concurrency=3, **options)
    worker = await peer.work("q", {"*": [["sleep", 10]]}, concurrency=3, **options)
    await wait_for_finished(client, prefix, "q", 40)

    starts = await starts_of(client, prefix, 40)
    # A fixed window lets at most two windows' worth meet at its edge.
    assert most_in_a_window(starts, 300) <= 20
    # Four windows; a busy machine needs some more, and those who look seldom many more.
    assert 3 * 300 - 50 <= max(starts) - min(starts) <= 30 * 300
    assert len(running.handler.seen) + len(await peer.seen(worker)) == 40


@pytest.mark.parametrize("limiter", ["bullmq", "toril"])
async def test_item_25_a_limit_set_by_hand_holds_both_back(limiter, peer, toril, client, prefix):
    limit = {"max": 100, "duration": 1000}
    seconds, micros = await client.time()
    if limiter == "bullmq":
        await peer.call("queue.rateLimit", queue="q", args=[700])
    else:
        await toril.queue("q").rate_limit(700)
    ids = [await peer.add("q", "one"), await toril.add("q", "two")]

    await toril.start_worker("q", limiter=limit)
    await peer.work("q", limiter=limit)
    await wait_for_finished(client, prefix, "q", 2)

    # By the server's clock: `processedOn` is when its worker asked, which may have been before.
    begun = {
        row["jobId"]: int(at.partition("-")[0])
        for at, row in await client.xrange(f"{prefix}:q:events")
        if row["event"] == "active"
    }
    assert begun.keys() == set(ids)
    for at_ms in begun.values():
        assert at_ms - (seconds * 1000 + micros // 1000) >= 690


@pytest.mark.parametrize("first", ["bullmq", "toril"])
async def test_item_25_a_rate_limited_job_is_put_back_in_front(first, peer, toril, client, prefix):
    behaviours = {"limited": [["rate_limit_once", 150], ["return", 1]]}
    limit = {"max": 100, "duration": 1000}
    await peer.add("q", "limited")
    await toril.add("q", "second")

    if first == "bullmq":
        worker = await peer.work("q", behaviours, limiter=limit)
        await wait_for_finished(client, prefix, "q", 2)
        names = [job["name"] for job in await peer.seen(worker)]
    else:
        running = await toril.start_worker("q", behaviours, limiter=limit)
        await wait_for_finished(client, prefix, "q", 2)
        names = running.handler.names

    assert names == ["limited", "limited", "second"]
    rows = await events_of(client, prefix, "q", "waiting")
    assert [row.get("prev") for row in rows] == [None, None, "active"]


async def test_item_26_mixed_workers_keep_the_global_concurrency(peer, toril, client, prefix):
    await peer.call("queue.setGlobalConcurrency", queue="q", args=[3])
    behaviours = {"*": [["sleep", 15], ["echo"]]}
    for n in range(60):
        await (peer if n % 2 else toril).add("q", f"{n}")

    running = await toril.start_worker("q", behaviours, concurrency=5, **PATIENT)
    await peer.work("q", behaviours, concurrency=5, **NODE_PATIENT)
    started = asyncio.get_running_loop().time()
    most_seen = 0

    async def finished() -> bool:
        nonlocal most_seen
        most_seen = max(most_seen, await client.llen(f"{prefix}:q:active"))
        return await client.zcard(f"{prefix}:q:completed") == 60

    await wait_until(finished, 60, every=0.002)
    took = asyncio.get_running_loop().time() - started

    # From the log, which misses nothing: who looks may come when all is over.
    active = most = 0
    for row in await events_of(client, prefix, "q", "active", "completed"):
        active += 1 if row["event"] == "active" else -1
        most = max(most, active)
    assert most == 3
    assert most_seen <= 3
    assert running.handler.most_running <= 3
    # 20 rounds of 15 ms; a slot that waited for a worker's next look would cost 10 s.
    assert took < 9


@pytest.mark.parametrize("pauser", ["bullmq", "toril"])
async def test_item_27_a_pause_by_one_stops_the_other(pauser, peer, toril, client, prefix):
    other = await (
        toril.start_worker("q", **PATIENT) if pauser == "bullmq" else peer.work("q", **NODE_PATIENT)
    )
    await wait_until_idle(client, prefix, "q")
    await peer.call("queue.open", queue="q")

    await (peer.call("queue.pause", queue="q") if pauser == "bullmq" else toril.pause("q"))
    ids = [await peer.add("q", "theirs"), await toril.add("q", "ours")]
    await toril.add("q", "urgent", priority=1)
    assert await peer.call("queue.isPaused", queue="q") is True
    counts = await toril.queue("q").get_job_counts()
    assert (counts["waiting"], counts["prioritized"], counts["active"]) == (2, 1, 0)
    await (peer.call("queue.resume", queue="q") if pauser == "bullmq" else toril.resume("q"))
    await wait_for_finished(client, prefix, "q", 3, timeout=60)

    if pauser == "bullmq":
        assert [job.id for job in other.handler.seen][:2] == ids
    else:
        assert [job["id"] for job in await peer.seen(other)][:2] == ids


async def test_item_27_toril_adds_where_bullmq_5_keeps_paused_jobs(peer, toril, client, prefix):
    await peer.add("q", "before")
    await peer.call("queue.pause", queue="q")
    job_id = await toril.add("q", "while paused")

    place = await wait_for_state(client, prefix, "q", job_id, "wait", "paused")

    assert place == ("paused" if peer.version == 5 else "wait")
    assert await peer.state("q", job_id) in {"waiting", "paused"}
    await peer.call("queue.resume", queue="q")
    assert len(await client.lrange(f"{prefix}:q:wait", 0, -1)) == 2


async def test_item_27_no_job_is_lost_over_many_pauses(peer, toril, client, prefix):
    """Both pause and resume at random while both add; nothing of it may disappear."""
    dice = random.Random(27)
    await peer.call("queue.open", queue="q")
    queue = toril.queue("q")

    async def add() -> list[str]:
        ids = []
        for n in range(300):
            side = peer if dice.random() < 0.5 else toril
            ids.append(await side.add("q", f"{n}"))
        return ids

    async def switch() -> None:
        for _ in range(500):
            match dice.randrange(4):
                case 0:
                    await peer.call("queue.pause", queue="q")
                case 1:
                    await peer.call("queue.resume", queue="q")
                case 2:
                    await queue.pause()
                case 3:
                    await queue.resume()

    ids, *_ = await asyncio.gather(add(), switch(), switch())
    await queue.resume()

    assert sorted(await client.lrange(f"{prefix}:q:wait", 0, -1)) == sorted(ids)
    assert await client.llen(f"{prefix}:q:paused") == 0
