"""Jobs added by one party and run by the other (wire-format section 10, items 1 to 6)."""

from __future__ import annotations

import statistics

import pytest

from tests.helpers import wait_until
from tests.interop.support import (
    FAR,
    NODE_PATIENT,
    PATIENT,
    event_names,
    wait_for_finished,
    wait_for_state,
    wait_until_idle,
)
from toril import Backoff, Keep, NewJob
from toril.errors import InvalidNameError

PAYLOADS = {
    "plain": ("plain", {"n": 1, "f": 1.5, "t": "x", "yes": True}),
    "unicode": ("naïve ☃ 名前", {"ключ": "値 🐂", "quote": "\"'\\/\n\t\u2028"}),
    "a megabyte": ("large", {"blob": "é" * 500_000}),
    "nested nulls": ("nulls", {"a": None, "b": [None, {"c": None, "d": []}], "e": {}}),
    "big numbers": ("numbers", {"safe": 2**53 - 1, "negative": -1, "tiny": 1e-7}),
}
LATE_MS = 50


@pytest.mark.parametrize("kind", PAYLOADS)
async def test_item_1_toril_runs_what_bullmq_added(kind, peer, toril, client, prefix):
    name, data = PAYLOADS[kind]
    job_id = await peer.add("q", name, data, attempts=3, keepLogs=5)

    worker = await toril.start_worker("q", name="w")
    await wait_for_state(client, prefix, "q", job_id, "completed")

    (seen,) = worker.handler.seen
    assert (seen.id, seen.name, seen.data, seen.opts.attempts) == (job_id, name, data, 3)
    job = await peer.job("q", job_id)
    assert job["returnvalue"] == data
    assert (job["attemptsMade"], job["attemptsStarted"]) == (1, 1)
    assert job["timestamp"] <= job["processedOn"] <= job["finishedOn"]
    assert job["processedBy"] == "w"
    assert await peer.state("q", job_id) == "completed"


@pytest.mark.parametrize("kind", PAYLOADS)
async def test_item_2_bullmq_runs_what_toril_added(kind, peer, toril, client, prefix):
    name, data = PAYLOADS[kind]
    queue = toril.queue("q")
    job = await queue.add(name, data)

    worker = await peer.work("q")
    returned = await queue.wait_for(job.id, timeout=60_000)

    (seen,) = await peer.seen(worker)
    assert (seen["id"], seen["name"], seen["data"]) == (job.id, name, data)
    assert returned == data
    assert await queue.get_state(job.id) == "completed"


async def test_item_2_bullmq_reads_the_options_that_toril_wrote(peer, toril, client, prefix):
    job_id = (
        await toril.queue("q").add(
            "options",
            {"n": 1},
            attempts=5,
            backoff=Backoff.exponential(1000, jitter=0.5),
            keep_logs=7,
            stack_trace_limit=3,
            size_limit=1000,
            remove_on_complete=Keep(count=10, age=3_600_000),
            remove_on_fail=4,
            priority=9,
        )
    ).id

    opts = (await peer.job("q", job_id))["opts"]

    assert opts["attempts"] == 5
    assert opts["backoff"] == {"type": "exponential", "delay": 1000, "jitter": 0.5}
    assert opts["keepLogs"] == 7
    assert opts["stackTraceLimit"] == 3
    assert opts["sizeLimit"] == 1000
    assert opts["removeOnComplete"] == {"count": 10, "age": 3600}
    assert opts["removeOnFail"] in (4, {"count": 4})
    assert opts["priority"] == 9


@pytest.mark.parametrize(
    ("given", "accepted"),
    [
        (True, [True, {"count": 0}]),
        (False, [False]),
        (1, [1, {"count": 1}]),
        (Keep(count=2), [2, {"count": 2}]),
        (Keep(age=60_000), [{"age": 60}]),
    ],
)
async def test_item_2_every_form_of_retention_is_read(given, accepted, peer, toril):
    job = await toril.queue("q").add("x", remove_on_complete=given)

    stored = (await peer.job("q", job.id))["opts"]["removeOnComplete"]

    assert (type(stored), stored) in [(type(form), form) for form in accepted]


@pytest.mark.parametrize("consumer", ["bullmq", "toril"])
async def test_item_3_jobs_of_two_producers_run_in_the_order_they_were_added(
    consumer, peer, toril, client, prefix
):
    expected = []
    for chunk in range(20):
        names = [f"{chunk}-{n}" for n in range(50)]
        expected += names
        if chunk % 2:
            rows = [{"name": name, "data": {}} for name in names]
            await peer.call("queue.addBulk", queue="q", args=[rows])
        else:
            await toril.queue("q").add_bulk([NewJob(name) for name in names])

    assert await _order(consumer, peer, toril, client, prefix, 1000) == expected


@pytest.mark.parametrize("consumer", ["bullmq", "toril"])
async def test_item_3_priorities_and_lifo_mean_the_same_to_both(
    consumer, peer, toril, client, prefix
):
    queue = toril.queue("q")
    await peer.add("q", "p3", priority=3)
    await queue.add("p2 first", priority=2)
    await peer.add("q", "p2 second", priority=2)
    await queue.add("p2 third", priority=2)
    await peer.add("q", "p1", priority=1)
    await queue.add("plain")
    await peer.add("q", "lifo", lifo=True)
    await queue.add("lifo later", lifo=True)

    order = await _order(consumer, peer, toril, client, prefix, 8)

    assert order == [
        "lifo later",
        "lifo",
        "plain",
        "p1",
        "p2 first",
        "p2 second",
        "p2 third",
        "p3",
    ]


DELAYS = (200, 920, 1640, 2360, 3080, 3800, 4520)
"""Far enough apart for the worker to be idle again: each job shows how late it is woken. A process
that gets no time for two or three seconds is late for some of them, and not for most."""


def check_lateness(late: list[int]) -> None:
    """Never early; within 50 ms when the machine is not busy, and never by a look too late."""
    assert min(late) >= -1, late
    assert min(late) <= LATE_MS, late
    assert statistics.median(late) <= 20 * LATE_MS, late


async def test_item_4_an_idle_toril_worker_takes_bullmqs_delayed_jobs_when_due(
    peer, toril, client, prefix
):
    await toril.start_worker("q")
    await wait_until_idle(client, prefix, "q")

    ids = [await peer.add("q", "later", delay=delay) for delay in DELAYS]
    await wait_for_finished(client, prefix, "q", len(ids))

    jobs = [await peer.job("q", job_id) for job_id in ids]
    check_lateness(
        [
            job["processedOn"] - job["timestamp"] - delay
            for job, delay in zip(jobs, DELAYS, strict=True)
        ]
    )


async def test_item_4_an_idle_bullmq_worker_takes_torils_delayed_jobs_when_due(
    peer, toril, client, prefix
):
    await peer.work("q")
    await wait_until_idle(client, prefix, "q")

    ids = [await toril.add("q", "later", delay=delay) for delay in DELAYS]
    await wait_for_finished(client, prefix, "q", len(ids))

    jobs = [await toril.queue("q").get_job(job_id) for job_id in ids]
    check_lateness(
        [job.processed_on - job.timestamp - delay for job, delay in zip(jobs, DELAYS, strict=True)]
    )


@pytest.mark.parametrize("consumer", ["bullmq", "toril"])
async def test_item_4_jobs_due_together_keep_their_order(consumer, peer, toril, client, prefix):
    seconds, micros = await client.time()
    together = {"timestamp": seconds * 1000 + micros // 1000, "delay": 500}
    await toril.add("q", "low", priority=9, **together)
    await peer.add("q", "high", priority=1, **together)
    await peer.add("q", "first", **together)
    await toril.add("q", "second", **together)
    await peer.add("q", "third", **together)

    order = await _order(consumer, peer, toril, client, prefix, 5)

    assert order == ["first", "second", "third", "high", "low"]


async def test_item_5_the_same_id_is_one_job(peer, toril, client, prefix):
    queue = toril.queue("q")
    await peer.add("q", "theirs", {"n": 1}, jobId="order-1")
    again = await queue.add("ours", {"n": 2}, job_id="order-1")
    await queue.add("ours", {"n": 1}, job_id="order-2")
    theirs = await peer.add("q", "theirs", {"n": 2}, jobId="order-2")

    assert (again.id, theirs) == ("order-1", "order-2")
    assert await client.llen(f"{prefix}:q:wait") == 2
    for job_id in ("order-1", "order-2"):
        assert await event_names(client, prefix, "q", job_id) == ["added", "waiting", "duplicated"]
        assert (await peer.job("q", job_id))["data"] == {"n": 1}


@pytest.mark.parametrize("job_id", ["12", "a:b", "0", "wait", "-5", "meta"])
async def test_item_5_ids_that_would_do_harm_are_refused(job_id, toril):
    with pytest.raises(InvalidNameError):
        await toril.queue("q").add("x", job_id=job_id)


async def test_item_6_torils_add_wakes_an_idle_bullmq_worker_at_once(peer, toril, client, prefix):
    await peer.work("q", **NODE_PATIENT)
    latencies = []
    for _ in range(7):
        await wait_until_idle(client, prefix, "q")
        job_id = await toril.add("q", "x")
        await wait_for_state(client, prefix, "q", job_id, "completed")
        job = await peer.job("q", job_id)
        latencies.append(job["processedOn"] - job["timestamp"])

    # A busy machine is late now and then; one that looks by itself is always late, by seconds.
    assert min(latencies) < 100, latencies
    assert max(latencies) < 9000, latencies


async def test_item_6_bullmqs_add_wakes_an_idle_toril_worker_at_once(peer, toril, client, prefix):
    await toril.start_worker("q", **PATIENT)
    latencies = []
    for _ in range(7):
        await wait_until_idle(client, prefix, "q")
        job_id = await peer.add("q", "x")
        await wait_for_state(client, prefix, "q", job_id, "completed")
        job = await peer.job("q", job_id)
        latencies.append(job["processedOn"] - job["timestamp"])

    # A busy machine is late now and then; one that looks by itself is always late, by seconds.
    assert min(latencies) < 100, latencies
    assert max(latencies) < 9000, latencies


@pytest.mark.parametrize("producer", ["bullmq", "toril"])
async def test_item_6_two_adds_wake_both_idle_workers(producer, peer, toril, client, prefix):
    behaviours = {"*": [["hang"]]}
    worker = await toril.start_worker("q", behaviours, **PATIENT)
    await peer.work("q", behaviours, **NODE_PATIENT)
    await wait_until_idle(client, prefix, "q", workers=2)

    side = peer if producer == "bullmq" else toril
    await side.add("q", "one")
    await side.add("q", "two")

    await peer.event("holding", timeout=60)
    await wait_until(lambda: worker.handler.holding)
    worker.handler.release()
    await peer.call("worker.release")
    await wait_for_finished(client, prefix, "q", 2)


async def test_item_6_a_job_that_is_not_due_wakes_nobody(peer, toril, client, prefix):
    worker = await toril.start_worker("q")
    await wait_until_idle(client, prefix, "q")

    await peer.add("q", "far", delay=FAR)
    now = await peer.add("q", "now")
    await wait_for_state(client, prefix, "q", now, "completed")

    assert worker.handler.names == ["now"]


async def _order(consumer, peer, toril, client, prefix, count) -> list[str]:
    """The names of the jobs in the order in which one worker of ``consumer`` got them."""
    if consumer == "bullmq":
        worker = await peer.work("q")
        await wait_for_finished(client, prefix, "q", count)
        return [job["name"] for job in await peer.seen(worker)]
    running = await toril.start_worker("q", concurrency=1)
    await wait_for_finished(client, prefix, "q", count)
    return running.handler.names
