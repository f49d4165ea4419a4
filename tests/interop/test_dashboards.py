"""Dashboards and tools of BullMQ on queues that only Toril used (section 10, items 29 to 31)."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.helpers import wait_until
from tests.interop.support import FAR, wait_for_finished, wait_for_state, wait_until_idle


class Board:
    """bull-board's HTTP interface."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}/api"

    async def get(self, path: str) -> Any:
        return await self._request("GET", path)

    async def put(self, path: str, body: Any = None) -> Any:
        return await self._request("PUT", path, body)

    async def patch(self, path: str, body: Any) -> Any:
        return await self._request("PATCH", path, body)

    async def queue(self, name: str, status: str = "latest") -> Any:
        page = await self.get(f"/queues?activeQueue={name}&status={status}&page=1&jobsPerPage=50")
        return next(queue for queue in page["queues"] if queue["name"] == name)

    async def _request(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            self._base + path,
            method=method,
            data=None if method == "GET" else json.dumps(body or {}).encode(),
            headers={"content-type": "application/json"},
        )

        def send() -> Any:
            try:
                with urllib.request.urlopen(request, timeout=60) as response:
                    text = response.read()
            except urllib.error.HTTPError as error:
                pytest.fail(f"{method} {path}: {error.code} {error.read()[:500]!r}")
            return json.loads(text) if text else None

        return await asyncio.to_thread(send)


@pytest.fixture
async def board(peer) -> Board:
    return Board((await peer.call("board.start", names=["q"]))["port"])


async def make_one_of_each(toril, client, prefix) -> dict[str, str]:
    """A job in every state, all by Toril."""
    ids = {
        "completed": await toril.add("q", "good", {"n": 1}),
        "failed": await toril.add("q", "bad", {"n": 2}, attempts=2),
    }
    behaviours = {
        "good": [["log", "first"], ["log", "second"], ["progress", 50], ["return", {"ok": True}]],
        "bad": [["fail", "it broke"]],
    }
    running = await toril.start_worker("q", behaviours, name="ours")
    await wait_for_finished(client, prefix, "q", 2)
    await toril.stop_worker(running)
    ids["delayed"] = await toril.add("q", "later", delay=FAR)
    ids["prioritized"] = await toril.add("q", "urgent", priority=3)
    ids["waiting"] = await toril.add("q", "ready")
    return ids


async def test_item_29_the_board_shows_our_jobs(board, toril, client, prefix):
    ids = await make_one_of_each(toril, client, prefix)

    queue = await board.queue("q")

    assert {state: queue["counts"][state] for state in ids} == dict.fromkeys(ids, 1)
    for state, job_id in ids.items():
        page = await board.queue("q", state)
        assert [job["id"] for job in page["jobs"]] == [job_id], state
    details = await board.get(f"/queues/q/{ids['completed']}")
    assert details["status"] == "completed"
    assert details["job"]["returnValue"] == {"ok": True}
    assert details["job"]["progress"] == 50
    failed = (await board.get(f"/queues/q/{ids['failed']}"))["job"]
    assert failed["isFailed"] is True
    assert "it broke" in failed["failedReason"]
    assert len(failed["stacktrace"]) == 2
    assert "first" in json.dumps(await board.get(f"/queues/q/{ids['completed']}/logs"))


async def test_item_29_the_boards_buttons_work_on_our_jobs(board, peer, toril, client, prefix):
    ids = await make_one_of_each(toril, client, prefix)

    await board.put(f"/queues/q/{ids['delayed']}/promote")
    assert await toril.queue("q").get_state(ids["delayed"]) == "waiting"
    await board.put(f"/queues/q/{ids['failed']}/retry")
    assert await toril.queue("q").get_state(ids["failed"]) == "waiting"
    await board.put(f"/queues/q/{ids['prioritized']}/clean")
    assert await toril.queue("q").get_job(ids["prioritized"]) is None
    await board.put("/queues/q/clean/completed")
    await board.put("/queues/q/pause")
    assert await peer.call("queue.isPaused", queue="q") is True
    await board.put("/queues/q/resume")
    running = await toril.start_worker("q")
    await wait_for_finished(client, prefix, "q", 3)
    await toril.stop_worker(running)
    await toril.add("q", "left over")
    await board.put("/queues/q/empty")
    assert (await toril.queue("q").get_job_counts())["waiting"] == 0
    await board.put("/queues/q/pause")
    await board.put("/queues/q/obliterate")

    left = [key async for key in client.scan_iter(match=f"{prefix}:q:*")]
    assert [key for key in left if ":toril:" not in key] == []


async def test_item_29_the_board_retries_and_promotes_all(board, toril, client, prefix):
    failed = [await toril.add("q", "bad") for _ in range(3)]
    running = await toril.start_worker("q", {"bad": [["fail", "it broke"]]})
    await wait_for_finished(client, prefix, "q", 3)
    await toril.stop_worker(running)
    delayed = [await toril.add("q", "later", delay=FAR) for _ in range(2)]

    await board.put("/queues/q/retry/failed")
    await board.put("/queues/q/promote")

    await toril.start_worker("q")
    for job_id in failed + delayed:
        await wait_for_state(client, prefix, "q", job_id, "completed")


async def test_item_29_the_board_shows_our_flows(board, toril):
    tree = {
        "name": "parent",
        "queue": "q",
        "children": [
            {
                "name": "child",
                "queue": "q",
                "children": [{"name": "grandchild", "queue": "q"}],
            },
            {"name": "other", "queue": "q"},
        ],
    }
    labels = await toril.flow(tree)

    page = await board.get(f"/queues/q/{labels['grandchild']}/flow")

    root = page["flowRoot"]
    assert (root["id"], root["name"]) == (labels["parent"], "parent")
    children = {child["name"]: child for child in root["children"]}
    assert set(children) == {"child", "other"}
    assert [one["id"] for one in children["child"]["children"]] == [labels["grandchild"]]


async def test_item_29_the_board_shows_our_schedulers_workers_and_metrics(
    board, toril, client, prefix
):
    await toril.upsert_scheduler("q", "digest", {"every": FAR, "limit": 4}, {"data": {"n": 1}})
    await toril.start_worker("q", name="ours", metrics_points=60)
    await wait_for_finished(client, prefix, "q", 1)
    await wait_until_idle(client, prefix, "q")

    (scheduler,) = (await board.get("/job-schedulers"))["schedulers"]
    workers = (await board.get("/queues/q/workers"))["workers"]
    metrics = await board.get("/queues/q/metrics")

    assert (scheduler["queueName"], scheduler["every"]) == ("q", FAR)
    assert len(workers) == 1
    assert "ours" in json.dumps(workers)
    assert metrics["completed"]["meta"]["count"] == 1


async def test_item_29_the_board_edits_our_jobs_schedulers_and_limits(board, toril, client, prefix):
    ids = await make_one_of_each(toril, client, prefix)
    queue = toril.queue("q")
    await toril.upsert_scheduler("q", "digest", {"every": FAR}, {"data": {"n": 1}})
    delayed, waiting = ids["delayed"], ids["waiting"]
    seconds, _ = await client.time()

    await board.patch(f"/queues/q/{waiting}/update-data", {"jobData": {"n": [1]}})
    await board.patch(f"/queues/q/{waiting}/priority", {"priority": 7})
    run_at = (seconds + 7200) * 1000
    await board.patch(f"/queues/q/{delayed}/delay", {"runAt": run_at})
    await board.put("/queues/q/concurrency", {"concurrency": 3})
    await board.put("/queues/q/rate-limit", {"max": 5, "duration": 1000})
    await board.put("/queues/q/job-schedulers/digest/remove")

    job = await queue.get_job(waiting)
    assert (job.data, job.priority) == ({"n": [1]}, 7)
    assert await queue.get_state(waiting) == "prioritized"
    assert abs((await queue.get_job(delayed)).delay - 7_200_000) < 60_000
    assert await queue.get_global_concurrency() == 3
    assert (await queue.get_global_rate_limit()).max == 5
    assert await queue.get_job_scheduler("digest") is None


async def test_item_30_bullmq_lists_our_workers(peer, toril, client, prefix):
    await toril.start_worker("q", name="ours")
    await toril.start_worker("q")
    await wait_until_idle(client, prefix, "q", workers=2)

    workers = await peer.call("queue.getWorkers", queue="q")

    assert len(workers) == 2
    assert any(worker["rawname"].endswith(":w:ours") for worker in workers)
    assert await peer.call("queue.getWorkersCount", queue="q") == 2


async def test_item_30_toril_lists_bullmqs_workers(peer, toril, client, prefix):
    await peer.work("q", name="theirs")
    await wait_until_idle(client, prefix, "q")

    workers = await toril.queue("q").get_workers()

    assert [worker.name for worker in workers] == ["theirs"]


async def test_item_30_bullmq_reads_our_metrics_and_meta(peer, toril, client, prefix):
    await toril.start_worker("q", {"bad": [["fail", "no"]]}, metrics_points=60)
    for name in ("good", "good", "bad"):
        await toril.add("q", name)
    await wait_for_finished(client, prefix, "q", 3)

    completed = await peer.call("queue.getMetrics", queue="q", args=["completed"])
    failed = await peer.call("queue.getMetrics", queue="q", args=["failed"])
    text = await peer.call("queue.exportPrometheusMetrics", queue="q")
    meta = await peer.call("queue.getMeta", queue="q")

    assert (completed["meta"]["count"], failed["meta"]["count"]) == (2, 1)
    assert 'bullmq_job_count{queue="q", state="completed"} 2' in text
    assert 'bullmq_job_count{queue="q", state="failed"} 1' in text
    assert meta["maxLenEvents"] == 10_000
    assert meta["paused"] is False


async def test_item_31_bullmq_finds_no_orphans_among_our_keys(peer, toril, client, prefix):
    ids = await make_one_of_each(toril, client, prefix)
    before = sorted([key async for key in client.scan_iter(match=f"{prefix}:q:*")])

    await peer.call("queue.removeOrphanedJobs", queue="q")

    after = sorted([key async for key in client.scan_iter(match=f"{prefix}:q:*")])
    # Opening the queue in Node writes meta; a reply remembered by Toril may expire.
    assert set(before) - set(after) <= {key for key in before if ":toril:" in key}
    for state, job_id in ids.items():
        assert await toril.queue("q").get_state(job_id) == state


@pytest.mark.parametrize("by", ["bullmq", "toril"])
async def test_item_31_obliterating_leaves_nothing_of_bullmqs(by, peer, toril, client, prefix):
    await make_one_of_each(toril, client, prefix)
    await peer.add("q", "theirs")

    if by == "bullmq":
        await peer.call("queue.obliterate", queue="q", args=[{"force": True}])
    else:
        await toril.queue("q").pause()
        await toril.queue("q").obliterate(force=True)

    async def only_ours_left() -> bool:
        left = [key async for key in client.scan_iter(match=f"{prefix}:q:*")]
        return all(":toril:" in key for key in left)

    await wait_until(only_ours_left)
    job_id = await toril.add("q", "life goes on")
    await toril.start_worker("q")
    await wait_for_state(client, prefix, "q", job_id, "completed")
