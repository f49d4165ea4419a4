"""Enqueueing steps from blocking code: the same names as in ``toril.steps``, without ``await``."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from toril.checking import checked
from toril.client.ids import new_job_id
from toril.options import NewJob
from toril.protocol.job import Job
from toril.steps.enqueueing import EnqueueOptions, step_job
from toril.steps.payload import JobPayload
from toril.sync.queue import Queue


@checked
class Producer:
    """Enqueues steps into one queue, under the job name ``step``."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def enqueue(self, payload: JobPayload[Any], options: EnqueueOptions | None = None) -> Job:
        """Enqueue one step; ``job.duplicated`` is True if it already existed."""
        (job,) = self.queue.add_bulk([self._job(payload, options)])
        return job

    def enqueue_many(
        self, payloads: Iterable[JobPayload[Any]], options: EnqueueOptions | None = None
    ) -> list[Job]:
        """Enqueue steps in a few round trips, in order."""
        return self.queue.add_bulk([self._job(payload, options) for payload in payloads])

    def _job(self, payload: JobPayload[Any], options: EnqueueOptions | None) -> NewJob:
        return step_job(
            payload,
            options,
            self.queue.default_job_options,
            now_ms=time.time_ns() // 1_000_000,
            chance=new_job_id(),
        )


__all__ = ["EnqueueOptions", "JobPayload", "Producer"]
