"""The idempotency key of a job is the same text in both languages, whatever happens to the job."""

from __future__ import annotations

import pytest

from tests.helpers import wait_until
from toril import Worker


def key_in_node(job: dict, queue: str) -> str:
    """What docs/guides/idempotency.md tells Node programs to write."""
    given = job["opts"].get("idempotencyKey")
    return given if given is not None else f"{queue}:{job['id']}:{job['timestamp']}"


@pytest.mark.parametrize("options", [{}, {"job_id": "order-1"}, {"idempotency_key": "mine"}])
async def test_node_reads_the_key_of_our_jobs_by_the_rule(options, peer, toril):
    job = await toril.queue("q").add("a", {"n": 1}, **options)

    assert key_in_node(await peer.job("q", job.id), "q") == job.idempotency_key


async def test_a_job_keeps_its_key_when_node_edits_fails_and_retries_it(peer, toril, url, prefix):
    queue = toril.queue("q")
    job_id = await peer.add("q", "a", {"n": 1}, delay=60_000)
    keys = {(await queue.get_job(job_id)).idempotency_key}
    await peer.call("job.updateData", queue="q", jobId=job_id, args=[{"n": 2}])
    await peer.call("job.changeDelay", queue="q", jobId=job_id, args=[50_000])
    keys.add((await queue.get_job(job_id)).idempotency_key)
    await peer.call("job.promote", queue="q", jobId=job_id)
    ran = []

    async def handler(job):
        ran.append(job.idempotency_key)
        if len(ran) == 1:
            raise ValueError("no")

    async with Worker("q", handler, connection=url, prefix=prefix):
        await wait_until(queue.get_failed_count)
        await peer.call("job.retry", queue="q", jobId=job_id)
        await wait_until(queue.get_completed_count)

    assert len(ran) == 2
    assert {*ran, *keys, key_in_node(await peer.job("q", job_id), "q")} == keys
    assert len(keys) == 1
