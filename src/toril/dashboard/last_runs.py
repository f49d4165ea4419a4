"""The jobs that schedules made last.

A run that is on time was due one interval before the next.  One that was late, because no worker
was there, was due longer ago, and no record says when: but the job that is due next was added when
the last one was taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from toril.client.connection import Connection
from toril.protocol import reading, scheduling
from toril.protocol.command import Command
from toril.protocol.job import Job
from toril.protocol.keys import Keys
from toril.protocol.scheduling import JobScheduler

ON_TIME_MS = 1000
"""A run on time is not later than this; whoever takes a job adds the next one as soon."""
MOST_LOOKED_FOR = 600
"""So many jobs are looked for on one page, shared by its schedules."""
MOST_TIMES = 60
"""Of one schedule the last times that are tried."""

Due = tuple[Keys, JobScheduler, int | None]
"""A schedule, and when it was last due if that was on time."""


async def last_runs(connection: Connection, schedules: Sequence[Due]) -> list[Job | None]:
    """The job of the last run of each schedule; None where it is not kept, or not found."""
    if not schedules:
        return []
    on_time = [_run(keys, one, due or 0) for keys, one, due in schedules]
    found = await connection.run_all(on_time)
    missing = [
        index
        for index, (_, one, due) in enumerate(schedules)
        if found[index] is None and one.every and due is not None
    ]
    pending = [_run(schedules[at][0], schedules[at][1], schedules[at][1].next_at or 0)
               for at in missing]  # fmt: skip
    following = await connection.run_all(pending) if pending else []
    taken = {
        index: job.timestamp
        for index, job in zip(missing, following, strict=True)
        if job is not None and job.timestamp - (schedules[index][2] or 0) > ON_TIME_MS
    }
    times = min(MOST_TIMES, max(MOST_LOOKED_FOR // max(len(taken), 1), 1))
    for index, taken_at in taken.items():
        found[index] = await _late_run(connection, schedules[index], taken_at, times)
    return found


async def _late_run(connection: Connection, schedule: Due, taken_at: int, times: int) -> Job | None:
    """The job that was taken at this time, of those that were due before the last time."""
    keys, one, due = schedule
    every = one.every or 0
    reads = [_run(keys, one, (due or 0) - every * back) for back in range(1, times + 1)]
    for job in await connection.run_all(reads):
        if job is not None and _was_taken_at(job, taken_at):
            return job
    return None


def _was_taken_at(job: Job, taken_at: int) -> bool:
    """An older job that is kept is not the last run."""
    first = next(iter(job.attempt_history), None)
    return first is not None and first.number == 1 and abs(first.started_on - taken_at) < ON_TIME_MS


def _run(keys: Keys, scheduler: JobScheduler, due: int) -> Command[Job | None]:
    """What a list shows of the job of one time, and its attempts."""
    return reading.head(keys, scheduling.iteration_id(scheduler.id, due), "x.attempts")
