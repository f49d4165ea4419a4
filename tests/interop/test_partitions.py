"""A partition is a plain queue: Node's BullMQ adds to it and works on it."""

from __future__ import annotations

from tests.helpers import wait_until
from toril import NewJob, Queue, Worker


async def test_toril_runs_what_bullmq_added_to_a_partition(peer, url, prefix):
    options = {"connection": url, "prefix": prefix, "partitions": 3}
    ran = []

    async def handle(job):
        ran.append(job.id)
        return job.data

    async with Queue("mail", **options) as queue:
        ids = [await peer.add(f"{{mail-{n}}}", "send", {"n": n}) for n in range(3)]
        ids += [await peer.add("{mail-1}", "send", {"n": 9}, jobId="own")]
        async with Worker("mail", handle, concurrency=2, **options):
            await wait_until(lambda: len(ran) == 4, 60)
            assert await queue.wait_for("own", timeout=60_000) == {"n": 9}

        assert sorted(ran) == sorted(ids)
        assert await peer.state("{mail-1}", "own") == "completed"


async def test_bullmq_runs_what_toril_added_to_a_partition(peer, url, prefix):
    async with Queue("mail", connection=url, prefix=prefix, partitions=2) as queue:
        jobs = await queue.add_bulk([NewJob("send", {"n": n}, job_id=f"j-{n}") for n in range(10)])
        workers = [await peer.work(f"{{mail-{n}}}") for n in range(2)]

        for job in jobs:
            assert await queue.wait_for(job.id, timeout=60_000) == job.data
        seen = [one["id"] for worker in workers for one in await peer.seen(worker)]

        assert sorted(seen) == sorted(job.id for job in jobs)
        assert await queue.get_completed_count() == 10
