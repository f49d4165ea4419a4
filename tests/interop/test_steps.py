"""Steps between the two languages: the same payload shape on the wire (STEP-01)."""

from __future__ import annotations

from dataclasses import dataclass

from tests.helpers import wait_until
from toril.steps import BaseConsumer, JobPayload, Producer


@dataclass
class Page:
    url: str


class Fetch(BaseConsumer[Page]):
    async def handle(self, payload, job):
        return {"workflow": payload.workflow_id, "url": payload.data.url, "try": payload.attempt}


async def test_our_consumer_runs_the_steps_of_a_node_producer(peer, toril, url, prefix):
    data = {"workflowId": "w1", "stepId": "fetch", "data": {"url": "u"}, "attempt": 1}
    job_id = await peer.add(
        *("imports", "step", data), jobId="w1-fetch-1700", attempts=3, idempotencyKey="order-1"
    )
    consumer = Fetch("imports", connection=url, prefix=prefix)
    await consumer.start()
    queue = toril.queue("imports")
    await wait_until(queue.get_completed_count)
    await consumer.close()

    job = await peer.job("imports", job_id)
    assert job["returnvalue"] == {"workflow": "w1", "url": "u", "try": 1}
    assert (await queue.get_job(job_id)).idempotency_key == "order-1"


async def test_a_node_worker_runs_the_steps_of_our_producer(peer, toril):
    queue = toril.queue("imports")
    job = await Producer(queue).enqueue(JobPayload("w1", "fetch", Page("u")))

    worker = await peer.work("imports")
    await wait_until(queue.get_completed_count)

    (seen,) = await peer.seen(worker)
    assert (seen["id"], seen["name"]) == (job.id, "step")
    assert seen["data"] == {"workflowId": "w1", "stepId": "fetch", "data": {"url": "u"}}
    assert seen["opts"]["attempts"] == 3
    assert seen["opts"]["backoff"] == {"type": "exponential", "delay": 1000, "jitter": 0.5}
    assert seen["opts"]["idempotencyKey"] == job.idempotency_key
