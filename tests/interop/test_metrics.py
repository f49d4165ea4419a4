"""What BullMQ's tools see after a run of Toril (wire-format section 10, item 30)."""

from __future__ import annotations

from tests.interop.support import forget_all, wait_for_finished


async def run_minutes(side, start, client, prefix) -> None:
    """Two jobs, a minute later one and a failure, three minutes later one more.

    Once more from the start if a minute of the clock ended meanwhile, which would count too.
    """
    while True:
        await forget_all(client, prefix)
        began = (await client.time())[0] // 60
        await try_minutes(side, start, client, prefix)
        if (await client.time())[0] // 60 == began:
            return


async def try_minutes(side, start, client, prefix) -> None:
    finished = 0
    for minutes, names in ((0, ["a", "a"]), (1, ["a", "bad"]), (3, ["a"])):
        for kind in ("completed", "failed"):
            if await client.exists(f"{prefix}:q:metrics:{kind}"):
                await client.hincrby(f"{prefix}:q:metrics:{kind}", "prevTS", -60_000 * minutes)
        for name in names:
            await side.add("q", name, {})
        finished += len(names)
        stop = await start()
        await wait_for_finished(client, prefix, "q", finished)
        await stop()


async def test_item_30_metrics_are_those_of_bullmq(peer, toril, client, prefix):
    behaviours = {"bad": [["fail", "no"]]}

    async def start_theirs():
        worker = await peer.work("q", behaviours, metrics={"maxDataPoints": 10})
        return lambda: peer.stop_working(worker)

    async def start_ours():
        worker = await toril.start_worker("q", behaviours, metrics_points=10)
        return lambda: toril.stop_worker(worker)

    async def shown():
        kinds = ("completed", "failed")
        answers = [await peer.call("queue.getMetrics", queue="q", args=[kind]) for kind in kinds]
        return [
            (a["data"], a["count"], a["meta"]["count"], a["meta"]["prevCount"]) for a in answers
        ]

    await run_minutes(peer, start_theirs, client, prefix)
    theirs = await shown()
    await run_minutes(toril, start_ours, client, prefix)

    assert await shown() == theirs
    assert theirs[0][2] == 4
    metrics = await toril.queue("q").get_metrics("completed")
    assert [metrics.data, metrics.points, metrics.count] == list(theirs[0][:3])


async def test_item_30_bullmq_lists_our_workers_and_exports_our_queue(peer, toril, client, prefix):
    await toril.add("q", "a", {})
    await toril.start_worker("q", name="mine")
    await wait_for_finished(client, prefix, "q", 1)
    await toril.add("q", "later", {}, delay=3_600_000)

    workers = await peer.call("queue.getWorkers", queue="q")
    meta = await peer.call("queue.getMeta", queue="q")
    text = await peer.call("queue.exportPrometheusMetrics", queue="q")

    assert [worker["rawname"].rpartition(":w:")[2] for worker in workers] == ["mine"]
    assert meta["maxLenEvents"] == 10_000
    assert 'bullmq_job_count{queue="q", state="completed"} 1' in text
    assert 'bullmq_job_count{queue="q", state="delayed"} 1' in text
