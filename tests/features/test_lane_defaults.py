"""The defaults that GroupMQ promises, and lanes on a cluster."""

from __future__ import annotations

from tests.servers import Cluster
from toril import Backoff, NewJob, Queue, Worker


async def test_the_defaults_of_workers(url, prefix):
    """FIFO-10, FIFO-11: 30 s for a job, renewed every third of that; sweeps; 5 s of blocking."""
    worker = Worker("q", print, connection=url, prefix=prefix)
    options = worker.options
    await worker.close()

    assert (options.lock_duration, options.stalled_interval) == (30_000, 30_000)
    assert options.drain_delay == 5_000
    assert worker._parts.lease._interval_s == 10.0


async def test_a_job_of_a_lane_says_nothing_that_it_was_not_told(url, prefix):
    """FIFO-06, FIFO-10: no ordering delay, three attempts, growing waits, no limit of size."""
    async with Queue("q", connection=url, prefix=prefix) as queue:
        job = await queue.add("x", lane="a")
        at_once = await queue.add("x", lane="a", backoff=0)

    assert set(job.opts.raw) == {"attempts", "lane"}
    assert (job.delay, job.opts.attempts) == (0, 3)
    assert job.opts.backoff == Backoff.exponential(500, jitter=0.25)
    assert at_once.opts.backoff == Backoff.fixed(0)


async def test_a_waiting_job_of_a_lane_is_small(url, prefix, client):
    """Its hash stays in the compact form, which a value of more than 64 bytes would end."""
    async with Queue("q", connection=url, prefix=prefix) as queue:
        job = await queue.add("x", {"n": 1}, lane="user:42", order_ms=1_794_731_999_999)

    assert await client.object("ENCODING", queue.keys.job(job.id)) == "listpack"


async def test_lanes_run_on_a_cluster(cluster: Cluster):
    """FIFO-02: all keys of a lane are in the slot of their queue, whatever is in its name."""
    ran = []
    lanes = ["{other}", "user:42", "}{"]
    url = cluster.url.replace("redis://", "redis+cluster://")

    async def handler(job):
        ran.append((job.lane, job.data))

    async with Queue("{lanes}", connection=url, prefix="t") as queue:
        await queue.add_bulk([NewJob("x", n, lane=lane) for n in range(4) for lane in lanes])
        async with Worker("{lanes}", handler, connection=url, prefix="t", concurrency=5):
            assert await queue.wait_until_empty(60_000)
        assert await queue.get_lanes() == []
        await queue.obliterate(force=True)

    for lane in lanes:
        assert [n for name, n in ran if name == lane] == [0, 1, 2, 3]
