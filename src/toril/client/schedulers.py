"""The part of a queue that manages repeating jobs."""

from __future__ import annotations

from datetime import datetime

from toril.client.connection import Connection
from toril.client.ids import new_job_id
from toril.errors import SchedulerNotFoundError
from toril.options import Duration, NewJob, Repeat, Schedule, check_text, schedule_of
from toril.protocol import adding, rescheduling, scheduling
from toril.protocol.adding import Added
from toril.protocol.job import Job
from toril.protocol.keys import Keys, check_scheduler_id
from toril.protocol.scheduling import JobScheduler


class QueueSchedulers:
    """Schedulers of the queue: each has one pending job, and adds the next when that is taken."""

    keys: Keys
    _connection: Connection

    async def upsert_job_scheduler(
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

        It runs at the interval ``every``, or at the times of a ``cron`` pattern in the time zone
        ``tz`` (by default UTC): between ``start`` and ``end``, at most ``limit`` times.
        ``template`` holds the name, the data and the options of its jobs; without it they are named
        like the scheduler.
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
        return await self._connection.follow(
            scheduling.upsert(self.keys, scheduler_id, schedule, template)
        )

    async def get_job_scheduler(self, scheduler_id: str) -> JobScheduler | None:
        """The scheduler with this id, or None."""
        return await self._connection.follow(scheduling.one(self.keys, scheduler_id))

    async def get_job_schedulers(self, start: int = 0, end: int = -1) -> list[JobScheduler]:
        """The schedulers of the queue: the paused ones, then the next due first."""
        return await self._connection.follow(scheduling.many(self.keys, start, end))

    async def get_job_scheduler_count(self) -> int:
        """How many schedulers the queue has."""
        return await self._connection.run(scheduling.count(self.keys))

    async def remove_job_scheduler(self, scheduler_id: str) -> bool:
        """Remove a scheduler, and its pending job; False if there is none."""
        return await self._connection.run(scheduling.remove(self.keys, scheduler_id))

    async def pause_job_scheduler(self, scheduler_id: str) -> bool:
        """Add no more jobs until it is resumed; False if there is no such scheduler.

        Its pending job is removed.  A job that has already been taken runs to its end.
        ``upsert_job_scheduler``, in Python or Node, lets the scheduler run again.
        """
        return await self._connection.run(rescheduling.pause(self.keys, scheduler_id))

    async def resume_job_scheduler(self, scheduler_id: str) -> bool:
        """Let a paused scheduler run again, from its next time on; False if there is none.

        Times that passed while it was paused are not made up for.
        """
        return await self._connection.follow(rescheduling.resume(self.keys, scheduler_id))

    async def change_job_scheduler(
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
        template: NewJob | None = None,
    ) -> JobScheduler:
        """Change what is given, and keep everything else; returns the scheduler as it is now.

        A new interval counts from now.  A paused scheduler stays paused.  Earlier runs count
        towards ``limit``.  Raises ``SchedulerNotFoundError`` if there is none.
        """
        new = rescheduling.Change(
            every=every,
            cron=cron,
            tz=tz,
            start=start,
            end=end,
            limit=limit,
            offset=offset,
            template=template,
        )
        await self._connection.follow(rescheduling.change(self.keys, scheduler_id, new))
        found = await self.get_job_scheduler(scheduler_id)
        if found is None:
            raise SchedulerNotFoundError(f"scheduler {scheduler_id!r} was removed just now")
        return found

    async def run_job_scheduler(self, scheduler_id: str) -> Job:
        """Add one job from its template now, outside its schedule, paused or not; returns the job.

        Raises ``SchedulerNotFoundError`` if there is no such scheduler.
        """
        plan = rescheduling.once(self.keys, scheduler_id, new_job_id())
        prepared = await self._connection.follow(plan)
        answers = await self._connection.run(adding.add(self.keys, [prepared]))
        adding.raise_worst(answers)
        (added,) = answers
        assert isinstance(added, Added)
        fields = adding.fields_of(prepared, added)
        return Job(self.keys.prefix, self.keys.name, added.id, fields)

    async def _add_repeating(self, repeat: Repeat, template: NewJob) -> Job:
        schedule = schedule_of(repeat)
        scheduler_id = scheduling.repeating_id(template.lane or template.name, schedule)
        return await self._connection.follow(
            scheduling.upsert(self.keys, scheduler_id, schedule, template)
        )

    async def remove_repeating_job(self, lane: str, repeat: Repeat) -> bool:
        """Remove what ``add(…, lane=lane, repeat=repeat)`` created; False if there is none.

        For jobs without a lane, pass their name.
        """
        check_text(lane, "lane")
        scheduler_id = scheduling.repeating_id(lane, schedule_of(repeat))
        return await self.remove_job_scheduler(scheduler_id)
