"""Groups of jobs that all succeed, or what was done is undone (sagas)."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from toril.checking import by_hand_for
from toril.client.connection import Connection
from toril.client.ids import new_job_id
from toril.client.waiting import LOOK_AGAIN_S, QueueWaiting
from toril.errors import WaitTimeoutError
from toril.options import Duration, Keep, check_text, milliseconds, whole
from toril.protocol import codec, groups
from toril.protocol.events import Event
from toril.protocol.groups import GroupInfo, GroupMember, GroupNode
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

    @by_hand_for("jobs", "compensation")
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


class QueueGroups(QueueWaiting):
    """The part of a queue that looks after the groups it owns."""

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

    async def get_failed_compensation_count(self) -> int:
        """How many groups of this queue could not be undone and wait for a person."""
        return await self._connection.follow(groups.count_not_undone(self.keys))

    async def cancel_group(self, group_id: str, reason: str | None = None) -> None:
        """Cancel the jobs of a group that have not started, and undo those that completed.

        ``reason`` is kept with the group and told by its event.  Jobs that are running go on, and
        are undone when they complete.  Raises ``GroupNotFoundError``, or
        ``InvalidGroupStateError`` when the group is not ACTIVE.
        """
        request = uuid.uuid4().hex
        await self._connection.run(
            groups.cancel(self.keys, group_id, request=request, reason=reason)
        )

    async def retry_compensation(self, group_id: str) -> int:
        """Try again to undo what could not be undone; returns how many jobs are tried again.

        Raises ``InvalidGroupStateError`` unless the group is FAILED_COMPENSATION.
        """
        request = uuid.uuid4().hex
        return await self._connection.run(
            groups.retry_compensation(self.keys, group_id, request=request)
        )

    async def resolve_group(self, group_id: str, note: str) -> None:
        """Say that what could not be undone was put right by hand; ``note`` is kept.

        The group is FAILED then.  Raises ``InvalidGroupStateError`` unless it is
        FAILED_COMPENSATION.
        """
        request = uuid.uuid4().hex
        await self._connection.run(groups.resolve(self.keys, group_id, note, request=request))

    async def complete_member(self, group_id: str, member: str, result: Any = None) -> None:
        """Say that a member completed of which nobody knows how it ended: the group asks for it.

        ``member`` is the id or the name of its job.  Raises ``InvalidGroupStateError`` unless
        ``GroupInfo.asks`` names it.
        """
        value = codec.encode(result, f"the result of member {member!r}")
        await self._settle_member(group_id, member, "completed", value)

    async def fail_member(self, group_id: str, member: str, reason: str) -> None:
        """Say that a member failed, and that there is nothing of it to undo: as above."""
        check_text(reason, "reason")
        await self._settle_member(group_id, member, "failed", reason.encode())

    async def _settle_member(self, group_id: str, member: str, state: str, value: bytes) -> None:
        request = uuid.uuid4().hex
        await self._connection.run(
            groups.settle_member(self.keys, group_id, member, state, value, request=request)
        )

    async def clean_groups(self, grace: Duration = 0, limit: int = 0) -> list[str]:
        """Forget groups that ended more than ``grace`` ago; returns their ids.

        Those that are FAILED_COMPENSATION stay until they are resolved.
        """
        plan = groups.clean(
            self.keys, grace_ms=milliseconds(grace, "grace"), limit=whole(limit, "limit")
        )
        return await self._connection.follow(plan)

    async def reconcile_groups(self) -> int:
        """Settle the jobs of groups that ended without their group being told; returns how many.

        That happens when a worker of BullMQ runs a member, or another tool removes one.  Workers
        do this by themselves from time to time.
        """
        return await self._connection.follow(groups.reconcile_all(self.keys))

    async def wait_for_group(self, group_id: str, timeout: Duration | None = None) -> GroupInfo:
        """Wait until a group is over, and return it.

        A group that has been forgotten is returned as it ended, for a day.  Raises
        ``GroupNotFoundError``, and ``WaitTimeoutError`` after ``timeout`` ms.
        """
        deadline = math.inf
        if timeout is not None:
            deadline = time.monotonic() + milliseconds(timeout, "timeout") / 1000
        known = await self._known_group(group_id)
        if known.is_finished:
            return known
        listening = self._listen()
        waiter = await listening.add(groups.listening_key(group_id))
        event: Event | None = None
        try:
            while True:
                info = await self.get_group_state(group_id)
                if info is None:
                    # Its retention forgot it at once.  If a worker of an older version did, only
                    # the log of events can tell.
                    if gone := await self._forgotten_group(group_id):
                        return gone
                    event = event or await self._connection.follow(
                        groups.find_end(self.keys, group_id)
                    )
                    return groups.after_event(known, event)
                if info.is_finished:
                    return info
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise WaitTimeoutError(
                        f"group {group_id!r} is still {info.state} after {timeout!r} ms;"
                        f" it continues, and may end later"
                    )
                event = await waiter.wait(min(left_s, LOOK_AGAIN_S)) or event
                listening.refuse_if_closed()
        finally:
            listening.remove(waiter)

    async def _known_group(self, group_id: str) -> GroupInfo:
        info = await self.get_group_state(group_id) or await self._forgotten_group(group_id)
        if info is None:
            raise groups.not_found(group_id)
        return info

    async def _forgotten_group(self, group_id: str) -> GroupInfo | None:
        return await self._connection.run(groups.read_gone(self.keys, group_id))
