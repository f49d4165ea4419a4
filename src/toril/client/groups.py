"""Groups of jobs that all succeed, or what was done is undone (sagas)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from toril.client.connection import Connection
from toril.client.ids import new_job_id
from toril.options import Duration, Keep
from toril.protocol import groups
from toril.protocol.groups import GroupInfo, GroupMember, GroupNode
from toril.protocol.keys import Keys
from toril.protocol.new_group import (
    COMPENSATION_QUEUE,
    Compensation,
    GroupJob,
    new_group,
    queues_of,
)


class GroupProducer:
    """The part of a ``FlowProducer`` that creates groups."""

    prefix: str
    _connection: Connection

    async def add_group(
        self,
        name: str,
        jobs: Iterable[GroupJob | Mapping[str, Any]],
        compensation: Mapping[str, Compensation | Mapping[str, Any]] | None = None,
        *,
        queue_name: str | None = None,
        compensation_queue: str = COMPENSATION_QUEUE,
        compensation_order: str = "parallel",
        compensate_late: bool = True,
        group_retention: bool | int | Keep | None = None,
        timeout: Duration | None = None,
    ) -> GroupNode:
        """Create a group and all of its jobs in one step, over several queues.

        When every job has completed the group is COMPLETED.  When one fails for good, those that
        have not started are cancelled, and for each that completed the job that ``compensation``
        names is added to ``compensation_queue``; when those are done the group is FAILED, or
        FAILED_COMPENSATION when one of them failed.

        ``queue_name`` is the queue that owns the group, that of the first job unless given: ask
        that queue for the group, and listen there.  ``timeout`` cancels the group when it has not
        completed by then.  ``group_retention`` forgets finished groups; without it they stay.
        """
        group = new_group(
            name,
            jobs,
            compensation,
            queue_name=queue_name,
            compensation_queue=compensation_queue,
            order=compensation_order,
            late=compensate_late,
            keep=group_retention,
            timeout=timeout,
        )
        self._connection.check_slots(*queues_of(group, self.prefix))
        ids = [new_job_id() for _ in group.jobs]
        return await self._connection.run(groups.create(self.prefix, group, str(uuid.uuid4()), ids))


class QueueGroups:
    """The part of a queue that looks after the groups it owns."""

    keys: Keys
    _connection: Connection

    async def get_group_state(self, group_id: str) -> GroupInfo | None:
        """The group with its state and its counts, or None."""
        return await self._connection.run(groups.read(self.keys, group_id))

    async def get_group_jobs(self, group_id: str) -> list[GroupMember]:
        """The jobs of a group, in whatever queues they are; empty when there is no such group."""
        return await self._connection.run(groups.members(self.keys, group_id))

    async def get_groups(
        self,
        state: str | Iterable[str] = (),
        start: int = 0,
        end: int = -1,
        *,
        newest_first: bool = False,
    ) -> list[GroupInfo]:
        """The groups that this queue owns, in these states or in all, the oldest first."""
        states = (state,) if isinstance(state, str) else state
        return await self._connection.follow(
            groups.groups(self.keys, states, start, end, newest_first=newest_first)
        )

    async def cancel_group(self, group_id: str) -> None:
        """Cancel the jobs of a group that have not started, and undo those that completed.

        Jobs that are running go on, and are undone when they complete.  Raises
        ``GroupNotFoundError``, or ``InvalidGroupStateError`` when the group is not ACTIVE.
        """
        request = uuid.uuid4().hex
        await self._connection.run(groups.cancel(self.keys, group_id, request=request))
