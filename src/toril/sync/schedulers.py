# Written by tools/unasync.py from src/toril/client/schedulers.py: change that file instead.
"""The part of a queue that makes jobs come again and again."""

from __future__ import annotations

from datetime import datetime

from toril.options import Duration, NewJob, Repeat, Schedule, check_text, schedule_of
from toril.protocol import scheduling
from toril.protocol.job import Job
from toril.protocol.keys import Keys, check_scheduler_id
from toril.protocol.scheduling import JobScheduler
from toril.sync.connection import Connection


class QueueSchedulers:
    """Schedulers of the queue: each has one pending job, and makes the next when that is taken."""

    keys: Keys
    _connection: Connection

    def upsert_job_scheduler(
        self,
        scheduler_id: str,
        *,
        every: Duration | None = None,
        cron: str | None = None,
        tz: str | None = None,
        start: int | datetime | None = None,
        end: int | datetime | None = None,
        limit: int | None = None,
        offset: Duration | None = None,
        immediately: bool = False,
        template: NewJob | None = None,
    ) -> Job:
        """Create a scheduler or change the one with this id; returns its next job.

        It runs ``every`` so often, or at the times of a ``cron`` pattern in the zone ``tz`` (UTC
        without one): between ``start`` and ``end``, at most ``limit`` times.  ``template`` is the
        name, the data and the options of its jobs; without one they are named like the scheduler.
        """
        check_scheduler_id(scheduler_id)
        schedule = Schedule(
            every=every,
            cron=cron,
            tz=tz,
            start=start,
            end=end,
            limit=limit,
            offset=offset,
            immediately=immediately,
        )
        template = NewJob(scheduler_id) if template is None else template
        return self._connection.follow(
            scheduling.upsert(self.keys, scheduler_id, schedule, template)
        )

    def get_job_scheduler(self, scheduler_id: str) -> JobScheduler | None:
        """The scheduler with this id, or None."""
        return self._connection.follow(scheduling.one(self.keys, scheduler_id))

    def get_job_schedulers(self, start: int = 0, end: int = -1) -> list[JobScheduler]:
        """The schedulers of the queue, the next due first."""
        return self._connection.follow(scheduling.many(self.keys, start, end))

    def get_job_scheduler_count(self) -> int:
        """How many schedulers the queue has."""
        return self._connection.run(scheduling.count(self.keys))

    def remove_job_scheduler(self, scheduler_id: str) -> bool:
        """Remove a scheduler, and its pending job; False if there is none."""
        return self._connection.run(scheduling.remove(self.keys, scheduler_id))

    def _add_repeating(self, repeat: Repeat, template: NewJob) -> Job:
        schedule = schedule_of(repeat)
        scheduler_id = scheduling.repeating_id(template.lane or template.name, schedule)
        return self._connection.follow(
            scheduling.upsert(self.keys, scheduler_id, schedule, template)
        )

    def remove_repeating_job(self, lane: str, repeat: Repeat) -> bool:
        """Remove what ``add(…, lane=lane, repeat=repeat)`` created; False if there is none.

        For jobs without a lane, pass their name.
        """
        check_text(lane, "lane")
        scheduler_id = scheduling.repeating_id(lane, schedule_of(repeat))
        return self.remove_job_scheduler(scheduler_id)
