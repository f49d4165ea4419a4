"""How steps enter the system."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from toril.checking import checked
from toril.client.ids import new_job_id
from toril.client.queue import Queue
from toril.options import NewJob
from toril.protocol.job import Job
from toril.steps.enqueueing import EnqueueOptions, step_job
from toril.steps.payload import JobPayload


@checked
class Producer:
    """Enqueues steps into one queue, under the job name ``step``.

    Every step carries an idempotency key: the one given, or one generated when it is enqueued.  If
    a key is given, the job's id is derived from it and from the step: the same step enqueued twice
    is one job for as long as it is kept, and two steps with one key are two jobs.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    async def enqueue(self, payload: JobPayload[Any], options: EnqueueOptions | None = None) -> Job:
        """Enqueue one step; ``job.duplicated`` is True if it already existed."""
        (job,) = await self.queue.add_bulk([self._job(payload, options)])
        return job

    async def enqueue_many(
        self, payloads: Iterable[JobPayload[Any]], options: EnqueueOptions | None = None
    ) -> list[Job]:
        """Enqueue steps in a few round trips, in order."""
        return await self.queue.add_bulk([self._job(payload, options) for payload in payloads])

    def _job(self, payload: JobPayload[Any], options: EnqueueOptions | None) -> NewJob:
        return step_job(
            payload,
            options,
            self.queue.default_job_options,
            now_ms=time.time_ns() // 1_000_000,
            chance=new_job_id(),
        )
