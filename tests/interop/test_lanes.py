"""Lanes next to BullMQ: what its workers and dashboards see of them, and what they cannot break."""

from __future__ import annotations

from tests.helpers import wait_until
from tests.interop.support import DOOMED, NODE_SURVIVING, SURVIVING, wait_for_state
from tests.interop.test_dashboards import Board
from toril import NewJob

HANG = {"*": [["hang"]]}


async def lane_of(queue, count=3, **options):
    jobs = [NewJob("x", {"n": n}, lane="a", **options) for n in range(count)]
    return [job.id for job in await queue.add_bulk(jobs)]


async def test_bullmq_leaves_jobs_that_wait_in_a_lane_alone(peer, toril, client, prefix):
    """FIFO-02: its workers take the plain jobs only."""
    queue = toril.queue("q")
    ids = await lane_of(queue)
    plain = await toril.add("q", "plain")

    worker = await peer.work("q")
    await wait_for_state(client, prefix, "q", plain, "completed")

    assert [job["id"] for job in await peer.seen(worker)] == [plain]
    assert (await queue.get_lane("a")).depth == 3
    await toril.start_worker("q")
    for job_id in ids:
        await wait_for_state(client, prefix, "q", job_id, "completed")


async def test_a_dead_holder_that_bullmq_sweeps_does_not_let_others_overtake(
    peer, toril, client, prefix
):
    """FIFO-12, FIFO-20: BullMQ runs the swept job, and Toril's next sweep lets the lane go on."""
    queue = toril.queue("q")
    first, *others = await lane_of(queue)
    # Long enough for a busy machine: what lost its lock before it died would go back to its lane.
    await toril.crash("q", HANG, **{**DOOMED, "lock_duration": 3000})

    worker = await peer.work("q", **NODE_SURVIVING)
    await wait_for_state(client, prefix, "q", first, "completed")
    assert [job["id"] for job in await peer.seen(worker)] == [first]
    assert (await queue.get_lane("a")).holder == first

    await toril.start_worker("q", **SURVIVING)
    for job_id in others:
        await wait_for_state(client, prefix, "q", job_id, "completed")
    await wait_until(lambda: _has_no_lanes(queue))


async def test_a_failed_job_that_bullmq_retries_goes_back_to_its_lane(peer, toril, client, prefix):
    """FIFO-02: it enters the plain list, and Toril's worker puts it where it belongs."""
    queue = toril.queue("q")
    (failing,) = await lane_of(queue, 1, attempts=1)
    running = await toril.start_worker("q", {"*": [["fail", "no"]]})
    await wait_for_state(client, prefix, "q", failing, "failed")
    await toril.stop_worker(running)

    await peer.call("job.retry", queue="q", jobId=failing, args=["failed"])
    await toril.start_worker("q")

    await wait_for_state(client, prefix, "q", failing, "completed")
    await wait_until(lambda: _has_no_lanes(queue))


async def test_failed_jobs_that_bullmq_retries_in_any_order_run_in_that_of_their_lane(
    peer, toril, client, prefix
):
    """L2: retried as 2, 1, 0 with plain jobs between them, and with a fourth that has waited."""
    queue = toril.queue("q")
    ids = await lane_of(queue, attempts=1)
    running = await toril.start_worker("q", {"x": [["fail", "no"]]})
    for job_id in ids:
        await wait_for_state(client, prefix, "q", job_id, "failed")
    await toril.stop_worker(running)
    ids.append((await queue.add("x", {"n": 3}, lane="a")).id)

    for job_id in (ids[2], ids[1], ids[0]):
        await peer.call("job.retry", queue="q", jobId=job_id, args=["failed"])
        await toril.add("q", "plain")
    running = await toril.start_worker("q", concurrency=1)

    for job_id in ids:
        await wait_for_state(client, prefix, "q", job_id, "completed")
    seen = [job.id for job in running.handler.seen if job.name == "x"]
    assert seen == ids
    await wait_until(lambda: _has_no_lanes(queue))


async def test_dashboards_show_jobs_of_lanes_once_they_run(peer, toril, client, prefix):
    """FIFO-32: active, completed and failed ones; those that wait are known to Toril only."""
    queue = toril.queue("q")
    first, *_ = await lane_of(queue)
    await toril.start_worker("q", HANG)
    await wait_for_state(client, prefix, "q", first, "active")
    board = Board((await peer.call("board.start", names=["q"]))["port"])

    page = await board.queue("q", "active")

    assert [job["id"] for job in page["jobs"]] == [first]
    assert page["jobs"][0]["opts"]["lane"] == "a"
    assert page["counts"]["waiting"] == 0
    counts = await queue.get_job_counts("waiting", "active")
    assert counts == {"waiting": 2, "active": 1}


async def _has_no_lanes(queue):
    return await queue.get_lane_count() == 0
