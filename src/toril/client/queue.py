"""The queue, as producers and operators see it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, Unpack, cast

from toril.checking import by_hand, checked, shown
from toril.client.adder import Adder
from toril.client.connection import Connection, Target
from toril.client.dead_letters import QueueDeadLetters
from toril.client.deduplication import QueueDeduplication
from toril.client.editing import QueueEditing
from toril.client.event_log import QueueEventLog
from toril.client.explaining import QueueExplaining
from toril.client.families import QueueFamilies
from toril.client.groups import QueueGroups
from toril.client.lanes import QueueLanes
from toril.client.limits import QueueLimits
from toril.client.listening import Listening
from toril.client.metrics import QueueMetrics
from toril.client.places import PerPlace
from toril.client.reading import QueueReading
from toril.client.schedulers import QueueSchedulers
from toril.client.views import DeadLetterView, GroupView, LaneView, SchedulerView
from toril.errors import InvalidOptionError
from toril.options import (
    OPTION_NAMES,
    Duration,
    JobOptions,
    NewJob,
    Repeat,
    Replicas,
    new_job,
    refuse_unknown,
)
from toril.protocol import adding, reading
from toril.protocol.adding import Added, Prepared
from toril.protocol.job import Job
from toril.protocol.keys import Keys


@checked
class Queue(
    QueueReading,
    QueueGroups,
    QueueDeduplication,
    QueueEditing,
    QueueLimits,
    QueueFamilies,
    QueueDeadLetters,
    QueueSchedulers,
    QueueLanes,
    QueueExplaining,
    QueueMetrics,
    QueueEventLog,
):
    """A queue of jobs on a Redis or Valkey server.

    ``connection`` is a URL or a redis-py client; None means ``TORIL_URL``, or else localhost.
    ``default_job_options`` are used for jobs that are added without them.
    With ``replicas``, an add returns when that many replicas have the job, and raises
    ``NotReplicatedError`` if they have not confirmed it within ``replicas_timeout``.
    With ``partitions``, it is made of that many plain queues, on any nodes of a cluster.
    """

    def __new__(cls, *args: Any, partitions: int = 1, **options: Any) -> Self:
        if partitions == 1 or cls is not Queue:
            return super().__new__(cls)
        from toril.client.partitions import PartitionedQueue

        return cast(Self, object.__new__(PartitionedQueue))

    def __init__(
        self,
        name: str,
        *,
        connection: Target = None,
        prefix: str = "bull",
        default_job_options: JobOptions | None = None,
        replicas: int = 0,
        replicas_timeout: Duration = 1000,
        partitions: int = 1,
    ) -> None:
        if partitions != 1:
            raise InvalidOptionError(
                f"a subclass of Queue cannot have partitions={partitions!r}; use Queue itself"
            )
        self.keys = Keys(prefix, name)
        self.name = name
        self._defaults: Mapping[str, Any] = default_job_options or {}
        refuse_unknown(self._defaults, OPTION_NAMES, f"the default_job_options of queue {name!r}")
        new_job("defaults", None, {}, self._defaults)
        self._owns_connection = not isinstance(connection, Connection)
        self._connection = (
            connection if isinstance(connection, Connection) else Connection(connection)
        )
        self._connection.check_slots(self.keys)
        self.adder = Adder(self._connection, self.keys, Replicas.of(replicas, replicas_timeout))
        self._listenings = PerPlace(
            lambda: Listening(self._connection, self.keys), Listening.abandon
        )

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} on {self._connection!r}>"

    @property
    def partitions(self) -> list[Queue]:
        """The plain queues that this one is made of: itself, unless it has partitions."""
        return [self]

    @property
    def default_job_options(self) -> Mapping[str, Any]:
        """The options of jobs that are added without them."""
        return self._defaults

    @property
    def lanes(self) -> LaneView:
        """The methods about lanes, under short names: ``queue.lanes.pause("user:42")``."""
        return LaneView(self)

    @property
    def dead_letters(self) -> DeadLetterView:
        """The methods about dead letters, under short names: ``queue.dead_letters.replay(id)``."""
        return DeadLetterView(self)

    @property
    def groups(self) -> GroupView:
        """The methods about groups, under short names: ``queue.groups.cancel(group_id)``."""
        return GroupView(self)

    @property
    def schedulers(self) -> SchedulerView:
        """The methods about schedulers, under short names: ``queue.schedulers.remove(id)``."""
        return SchedulerView(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish pending adds and close the connection."""
        await self.adder.close()
        try:
            await self._close_listening()
        finally:
            if self._owns_connection:
                await self._connection.close()

    @by_hand
    async def add(
        self,
        name: str,
        data: Any = None,
        *,
        repeat: Repeat | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Add a job; returns it when the server has it.

        With a ``job_id`` that already exists, or a deduplication id that another job owns,
        nothing is added: that job is returned, and its ``duplicated`` is True.  Adds awaited at the
        same time are sent together.

        ``repeat={"every": ms}`` or ``{"cron": pattern, "tz": zone}`` creates a scheduler for it,
        which ``remove_repeating_job`` removes; its next job is returned.
        """
        if repeat is not None:
            template = new_job(name, data, options, self._defaults)
            return await self._add_repeating(repeat, template)
        job = new_job(name, data, options, self._defaults)
        return await self._add(self.adder.prepare(job))

    @by_hand
    async def add_bulk(self, jobs: Iterable[NewJob]) -> list[Job]:
        """Add many jobs in a few round trips, in order."""
        prepared = [self.adder.prepare(self._with_defaults(job)) for job in new_jobs(jobs)]
        return await self._as_they_are(await self.adder.send_all(prepared, self._as_added))

    async def _add(self, job: Prepared) -> Job:
        added = self._as_added(job, await self.adder.send(job))
        return added if not added.duplicated else (await self._as_they_are([added]))[0]

    def _with_defaults(self, job: NewJob) -> NewJob:
        if not self._defaults:
            return job
        given = {name: value for name in OPTION_NAMES if (value := getattr(job, name)) is not None}
        return new_job(job.name, job.data, given, self._defaults)

    async def _as_they_are(self, jobs: list[Job]) -> list[Job]:
        """The jobs that were added; for duplicates, the jobs that already exist."""
        taken = [job.id for job in jobs if job.duplicated]
        if not taken:
            return jobs
        commands = [reading.job(self.keys, job_id, duplicated=True) for job_id in taken]
        existing = dict(zip(taken, await self._connection.run_all(commands), strict=True))
        return [(existing[job.id] or job) if job.duplicated else job for job in jobs]

    def _as_added(self, job: Prepared, added: Added) -> Job:
        fields = adding.fields_of(job, added)
        return Job(self.keys.prefix, self.name, added.id, fields, duplicated=added.is_duplicate)


def new_jobs(jobs: Any) -> Iterator[NewJob]:
    """The jobs that ``add_bulk`` was given; anything else is refused."""
    if not isinstance(jobs, Iterable) or isinstance(jobs, str | bytes | Mapping):
        raise InvalidOptionError(
            f"add_bulk() got jobs={shown(jobs)}; it takes a list of NewJob(name, data, …)"
        )
    for job in jobs:
        if not isinstance(job, NewJob):
            parts = ", ".join(map(shown, job)) if isinstance(job, tuple) else "name, data, …"
            raise InvalidOptionError(
                f"add_bulk() got {shown(job)} among its jobs; write NewJob({parts})"
            )
        yield job
