"""What a queue tells about itself and its jobs."""

from __future__ import annotations

from collections.abc import Iterable

from toril.client.connection import Connection
from toril.protocol import reading
from toril.protocol.job import Job
from toril.protocol.keys import Keys
from toril.protocol.reading import WorkerInfo


class QueueReading:
    """The reading half of a queue.

    Ranges include both ends and start with the oldest job, unless ``newest_first``; -1 is the last.
    Long ranges are read page by page, and a job that is removed in the meantime is left out.
    """

    keys: Keys
    _connection: Connection

    async def get_job(self, job_id: str) -> Job | None:
        """The job with this id, or None."""
        return await self._connection.run(reading.job(self.keys, job_id))

    async def get_state(self, job_id: str) -> str | None:
        """The state of the job: "waiting", "active", "completed", …, or None if there is none.

        "unknown" is a job that another program dropped from every list: nobody will run it.
        """
        found = await self._connection.run(reading.locate(self.keys, job_id, is_brief=True))
        if found is None and self._connection.is_cluster:
            coming = await self._connection.follow(reading.coming_from(self.keys, job_id))
            return None if coming is None else reading.IN_TRANSIT
        return None if found is None else found.state

    async def get_jobs(
        self,
        states: str | Iterable[str] = (),
        start: int = 0,
        end: int = -1,
        *,
        newest_first: bool = False,
    ) -> list[Job]:
        """The jobs in these states, one state after another; in all states if none is named."""
        wanted = reading.check_states(states)
        return await self._connection.follow(
            reading.jobs(self.keys, wanted, start, end, newest_first=newest_first)
        )

    async def get_job_ids(
        self, *states: str, start: int = 0, end: int = -1, newest_first: bool = False
    ) -> dict[str, list[str]]:
        """The ids of the jobs in each of these states; in all states if none is named."""
        return {
            state: await self._connection.follow(
                reading.ids(self.keys, (state,), start, end, newest_first=newest_first)
            )
            for state in reading.check_states(states)
        }

    async def get_job_counts(self, *states: str) -> dict[str, int]:
        """How many jobs are in each of these states, or in every state, at one moment.

        Jobs on their way to another slot of a cluster are counted if asked for: ``"in_transit"``.
        """
        wanted = reading.check_states(states, beside=reading.IN_TRANSIT)
        return await self._connection.run(reading.counts(self.keys, wanted))

    async def get_counts_per_priority(self, priorities: Iterable[int]) -> dict[int, int]:
        """How many jobs wait with each of these priorities; 0 stands for jobs without one."""
        return await self._connection.follow(
            reading.counts_per_priority(self.keys, tuple(priorities))
        )

    async def get_job_logs(
        self, job_id: str, start: int = 0, end: int = -1, *, newest_first: bool = False
    ) -> list[str]:
        """The rows that were logged for a job."""
        return await self._connection.follow(
            reading.logs(self.keys, job_id, start, end, newest_first=newest_first)
        )

    async def get_job_log_count(self, job_id: str) -> int:
        """How many rows were logged for a job."""
        return await self._connection.run(reading.log_count(self.keys, job_id))

    async def get_workers(self) -> list[WorkerInfo]:
        """The workers that are connected now, including those of BullMQ."""
        return await self._connection.run(reading.workers(self.keys))

    async def get_waiting(
        self, start: int = 0, end: int = -1, *, newest_first: bool = False
    ) -> list[Job]:
        """Jobs that are ready to run, in order."""
        return await self.get_jobs("waiting", start, end, newest_first=newest_first)

    async def get_waiting_count(self) -> int:
        """How many jobs are waiting."""
        return (await self.get_job_counts("waiting"))["waiting"]

    async def get_active(
        self, start: int = 0, end: int = -1, *, newest_first: bool = False
    ) -> list[Job]:
        """Jobs that are running, the longest running one first."""
        return await self.get_jobs("active", start, end, newest_first=newest_first)

    async def get_active_count(self) -> int:
        """How many jobs are active."""
        return (await self.get_job_counts("active"))["active"]

    async def get_delayed(
        self, start: int = 0, end: int = -1, *, newest_first: bool = False
    ) -> list[Job]:
        """Delayed jobs, the next one first."""
        return await self.get_jobs("delayed", start, end, newest_first=newest_first)

    async def get_delayed_count(self) -> int:
        """How many jobs are delayed."""
        return (await self.get_job_counts("delayed"))["delayed"]

    async def get_prioritized(
        self, start: int = 0, end: int = -1, *, newest_first: bool = False
    ) -> list[Job]:
        """Jobs with a priority that are ready to run, the most urgent one first."""
        return await self.get_jobs("prioritized", start, end, newest_first=newest_first)

    async def get_prioritized_count(self) -> int:
        """How many jobs are ready to run with a priority."""
        return (await self.get_job_counts("prioritized"))["prioritized"]

    async def get_waiting_children(
        self, start: int = 0, end: int = -1, *, newest_first: bool = False
    ) -> list[Job]:
        """Parents whose children have not finished yet."""
        return await self.get_jobs("waiting_children", start, end, newest_first=newest_first)

    async def get_waiting_children_count(self) -> int:
        """How many jobs are waiting for children."""
        return (await self.get_job_counts("waiting_children"))["waiting_children"]

    async def get_completed(
        self, start: int = 0, end: int = -1, *, newest_first: bool = False
    ) -> list[Job]:
        """Jobs that completed and are kept."""
        return await self.get_jobs("completed", start, end, newest_first=newest_first)

    async def get_completed_count(self) -> int:
        """How many jobs are completed."""
        return (await self.get_job_counts("completed"))["completed"]

    async def get_failed(
        self, start: int = 0, end: int = -1, *, newest_first: bool = False
    ) -> list[Job]:
        """Jobs that failed for good and are kept."""
        return await self.get_jobs("failed", start, end, newest_first=newest_first)

    async def get_failed_count(self) -> int:
        """How many jobs are failed."""
        return (await self.get_job_counts("failed"))["failed"]
