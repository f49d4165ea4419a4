"""The doctor next to real BullMQ: it knows its workers and its repeatable jobs."""

from __future__ import annotations

from tests.helpers import wait_until
from toril import FlowProducer, GroupJob
from toril.doctor import examine


def told(report, code):
    return [one for one in report.findings if one.code == code]


async def test_a_stock_worker_is_seen_with_its_library(peer, toril, url, prefix):
    """Workers by library and version; on a plain queue a worker of BullMQ is no problem."""
    queue = toril.queue("q")
    await toril.add("q", "plain")
    await peer.work("q")
    await wait_until(queue.get_workers)

    report = await examine(url, prefix=prefix)

    (libraries,) = told(report, "D208")
    assert "ioredis" in libraries.problem
    assert not told(report, "D207")
    assert not told(report, "D201")


async def test_a_stock_worker_on_a_queue_with_lanes_or_groups_is_an_error(peer, toril, url, prefix):
    """It finishes jobs without telling the lane or the group."""
    lanes, groups = toril.queue("laned"), toril.queue("grouped")
    await lanes.add("x", {}, lane="a")
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        await flow.add_group(name="g", jobs=[GroupJob("x", queue_name="grouped", data={})])
    for queue in (lanes, groups):
        await peer.work(queue.name)
        await wait_until(queue.get_workers)

    report = await examine(url, prefix=prefix, audit=False)

    assert {one.subject for one in told(report, "D207")} == {"queue laned", "queue grouped"}
    assert all(one.severity == "error" for one in told(report, "D207"))


async def test_jobs_that_bullmq_repeats_by_add_are_told_and_schedulers_are_not(
    peer, toril, url, prefix
):
    """RULES-10: what BullMQ 5 still does and BullMQ 6 does no more; schedulers of both are fine."""
    queue = toril.queue("q")
    await queue.upsert_job_scheduler("ours", every=3_600_000)
    await peer.call(
        "queue.upsertJobScheduler", queue="q", args=["theirs", {"every": 3_600_000}, {}]
    )
    before = await examine(url, prefix=prefix)

    if peer.version == 5:
        await peer.add("q", "digest", repeat={"pattern": "0 9 * * *"})
    after = await examine(url, prefix=prefix)

    assert not told(before, "D213")
    assert len(told(after, "D213")) == (1 if peer.version == 5 else 0)
