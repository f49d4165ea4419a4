"""Groups of jobs that all succeed, or else are undone (sagas)."""

from __future__ import annotations

import asyncio
import math
import random
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from toril.checking import by_hand_for
from toril.client.agreeing import Agreeing
from toril.client.connection import Connection
from toril.client.ids import new_job_id
from toril.client.waiting import LOOK_AGAIN_S, SHORTEST_LOOK_S, QueueWaiting
from toril.errors import AmbiguousResultError, GroupNotFoundError, WaitTimeoutError
from toril.options import Duration, FlowJob, Keep, Replicas, check_text, milliseconds, whole
from toril.protocol import codec, groups, partitioning, starting
from toril.protocol import placing as placing_of
from toril.protocol.command import Command
from toril.protocol.events import Event
from toril.protocol.groups import GroupInfo, GroupMember, GroupNode, GroupStep
from toril.protocol.keys import Keys
from toril.protocol.new_group import (
    COMPENSATION_QUEUE,
    Compensation,
    GroupJob,
    GroupSignal,
    NewGroup,
    check_group_id,
    check_home,
    may_be_group_id,
    new_group,
    queues_of,
)
from toril.protocol.partitioning import MOST_PARTITIONS
from toril.protocol.placing import Placing
from toril.protocol.replicating import replicated

T = TypeVar("T")

WATCH_S = 0.5
"""How often to look at a group that another queue owns."""


class GroupReading:
    """What any queue can tell about a group: it finds the queue that owns it."""

    prefix: str
    _connection: Connection

    def _near(self) -> Keys:
        """The queue where the search for a group starts."""
        raise NotImplementedError

    async def get_group_state(self, group_id: str) -> GroupInfo | None:
        """The group with its state and its counts, or None.

        You can ask any queue: if this one does not own the group, the queues of the server are
        searched for it.
        """
        info: GroupInfo | None = await self._ask(group_id, lambda keys: groups.read(keys, group_id))
        return info

    async def get_group_jobs(self, group_id: str) -> list[GroupMember]:
        """The members of a group, whichever queues they are in; empty if there is no such group.

        Members whose turn has not come are included: they are "planned", and have no job yet.
        """
        check_text(group_id, "group_id")
        if not may_be_group_id(group_id):
            return []
        if found := await self._connection.follow(groups.members(self._near(), group_id)):
            return found
        owner = await self._owner_of(group_id)
        if owner is None:
            return []
        return await self._connection.follow(groups.members(owner, group_id))

    async def get_group_results(self, group_id: str) -> dict[str, Any]:
        """What the completed members returned, by their keys, as long as the group is kept.

        Raises ``GroupNotFoundError``.
        """
        found: dict[str, Any] | None = await self._ask(
            group_id, lambda keys: groups.results(keys, group_id)
        )
        if found is None:
            raise groups.not_found(group_id)
        return found

    async def get_group_timeline(self, group_id: str) -> list[GroupStep]:
        """What happened to the group and its members, in order; raises ``GroupNotFoundError``."""
        owner = await self._owner_of(group_id)
        if owner is None:
            raise groups.not_found(group_id)
        return await self._connection.follow(groups.timeline(owner, group_id))

    async def _ask(self, group_id: str, make: Callable[[Keys], Command[Any]]) -> Any:
        """The answer of the queue that knows the group: this one, or one found by searching."""
        check_text(group_id, "group_id")
        if not may_be_group_id(group_id):
            return None
        near = self._near()
        if found := await self._connection.run(make(near)):
            return found
        owner = await self._owner_of(group_id)
        return None if owner is None else await self._connection.run(make(owner))

    async def _owner_of(self, group_id: str) -> Keys | None:
        check_text(group_id, "group_id")
        plan = groups.find_owner(self._near(), group_id, is_cluster=self._connection.is_cluster)
        return await self._connection.follow(plan)


class GroupProducer(GroupReading):
    """The part of a ``FlowProducer`` that creates groups."""

    _replicas: Replicas | None
    _agreeing: Agreeing

    def _near(self) -> Keys:
        return Keys(self.prefix, "groups")

    @by_hand_for("jobs", "compensation", "on_completed", "on_failed", "group_id")
    async def add_group(
        self,
        name: str,
        jobs: Iterable[GroupJob | GroupSignal | FlowJob | Mapping[str, Any]],
        compensation: Mapping[str, Compensation | Mapping[str, Any]] | None = None,
        *,
        group_id: str | None = None,
        queue_name: str | None = None,
        compensation_queue: str = COMPENSATION_QUEUE,
        compensation_order: str | None = None,
        compensate_late: bool = True,
        group_retention: bool | int | Keep | None = None,
        remember: Duration | None = None,
        timeout: Duration | None = None,
        undo_timeout: Duration | None = None,
        on_completed: Any = None,
        on_failed: Any = None,
    ) -> GroupNode:
        """Create a group and all of its jobs in one step, over several queues.

        A member is a ``GroupJob``, a ``GroupSignal`` or a call of a task, whose undo undoes it.
        A member that names others in ``after`` becomes a job when these have completed.  When every
        member has completed, the group is COMPLETED.  If one fails for good, members that have not
        started are cancelled, and for each completed member the job named by ``compensation`` is
        added to ``compensation_queue``, the last stage first; when those are done, the group is
        FAILED, or FAILED_COMPENSATION if one of them failed.

        You choose ``group_id``: repeating the same call finds the group and starts nothing, and a
        different group with this id raises ``GroupExistsError``.  ``queue_name`` is the queue that
        owns the group, by default that of the first job: listen there.  ``timeout`` cancels the
        group if it has not completed by then; ``undo_timeout`` says when undoing has taken too
        long.  ``on_completed`` and ``on_failed`` are jobs that are added when the group ends.
        ``group_retention`` says which finished groups are kept: by default the last 10,000, for 7
        days.  ``remember`` says for how long the id of a group that is no longer kept stays known,
        so that repeating the call starts nothing: by default for a day, at least for a minute.
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
            remember=remember,
            timeout=timeout,
            undo_timeout=undo_timeout,
            on_completed=on_completed,
            on_failed=on_failed,
        )
        return await self._start(group, group_id)

    async def keep_groups(self, *queue_names: str) -> int:
        """Check the groups that these queues own once; returns how much was settled.

        This enforces time limits and starts the next stages.  Workers do it by themselves; call it
        from a timer if no Toril worker serves a queue of the group.
        """
        settled = 0
        for name in queue_names:
            count = placing_of.told_of(name, self._agreeing.told)
            parts = [partitioning.name_of(name, number) for number in range(count)]
            for part in parts if count > 1 else [name]:
                settled += await self._connection.follow(groups.keep(Keys(self.prefix, part)))
        return settled

    async def _placing(self, names: Iterable[str]) -> Placing:
        return Placing(await self._agreeing.of(names), random.randrange(MOST_PARTITIONS))

    async def _place(self, group: NewGroup, group_id: str) -> NewGroup:
        """The group in partitions; if it exists, or is remembered, where it is or was."""
        placing = await self._placing(placing_of.queues_of_group(group))
        for count, owner in placing.owners_before(group, group_id):
            keys = Keys(self.prefix, owner)
            looks = [groups.read(keys, group_id), groups.read_gone(keys, group_id)]
            found = await self._connection.run_all(looks)
            if any(found):
                return placing.of_group(group, group_id, {group.owner: count})
        return placing.of_group(group, group_id)

    async def _start(self, group: NewGroup, group_id: str | None) -> GroupNode:
        check_home(group.name, group.prefix, self.prefix)
        made_up = str(uuid.uuid4()) if group_id is None else check_group_id(group_id)
        if self._agreeing.is_needed:
            group = await self._place(group, made_up)
        self._connection.check_slots(*queues_of(group, self.prefix))
        if group_id is None:
            ids = [new_job_id() for _ in group.members]
            command = starting.create(self.prefix, group, made_up, ids)
        else:
            seed = new_job_id()
            ids = starting.ids_of(group, seed)
            command = starting.create(self.prefix, group, made_up, ids, seed=seed)
        try:
            return await self._connection.run(
                replicated(command, self._replicas, starting.tell_of_members)
            )
        except AmbiguousResultError as error:
            error.id = made_up
            raise


class QueueGroups(GroupReading, QueueWaiting):
    """The part of a queue that looks after groups."""

    def _near(self) -> Keys:
        return self.keys

    async def get_groups(
        self,
        state: str | Iterable[str] = (),
        start: int = 0,
        end: int = -1,
        *,
        newest_first: bool = False,
    ) -> list[GroupInfo]:
        """The groups that this queue owns, in these states or in any, the oldest first."""
        states = (state,) if isinstance(state, str) else state
        return await self._connection.follow(
            groups.groups(self.keys, states, start, end, newest_first=newest_first)
        )

    async def get_failed_compensation_count(self) -> int:
        """How many groups of this queue could not be undone and wait for a person."""
        return await self._connection.follow(groups.count_not_undone(self.keys))

    async def cancel_group(self, group_id: str, reason: str | None = None) -> None:
        """Cancel the jobs of a group that have not started, and undo those that completed.

        ``reason`` is kept with the group and included in its event.  Running jobs continue, and are
        undone when they complete.  Raises ``GroupNotFoundError``, or ``InvalidGroupStateError`` if
        the group is not ACTIVE, or its pivot has completed.
        """
        request = uuid.uuid4().hex
        await self._steer(
            group_id, lambda keys: groups.cancel(keys, group_id, request=request, reason=reason)
        )

    async def retry_compensation(self, group_id: str) -> int:
        """Retry the compensations that failed; returns how many jobs are retried.

        Raises ``InvalidGroupStateError`` unless the group is FAILED_COMPENSATION.
        """
        request = uuid.uuid4().hex
        return await self._steer(
            group_id, lambda keys: groups.retry_compensation(keys, group_id, request=request)
        )

    async def retry_group(self, group_id: str) -> int:
        """Run the members that block a group again; returns how many.

        Raises ``InvalidGroupStateError`` unless the group is BLOCKED.
        """
        request = uuid.uuid4().hex
        return await self._steer(
            group_id, lambda keys: groups.retry_group(keys, group_id, request=request)
        )

    async def resolve_group(
        self,
        group_id: str,
        note: str,
        *,
        expected_state: str | None = None,
        expected_members: Collection[str] | None = None,
    ) -> None:
        """Say that a failed group was fixed by hand; ``note`` is kept with it.

        A FAILED_COMPENSATION group becomes FAILED.  A BLOCKED one continues, as if the members that
        block it had completed and returned None.  Raises ``InvalidGroupStateError`` for any other
        state.

        Between your look at the group and this call, another member may have failed.  With
        ``expected_state`` and ``expected_members``, the keys of the members that block it or whose
        undoing failed, the call is refused with ``InvalidGroupStateError`` if they are others.
        """
        request = uuid.uuid4().hex
        await self._steer(
            group_id,
            lambda keys: groups.resolve(
                keys,
                group_id,
                note,
                request=request,
                expected_state=expected_state,
                expected_members=expected_members,
            ),
        )

    async def complete_member(self, group_id: str, member: str, result: Any = None) -> None:
        """Say that a member completed: a signal, one that blocks its group, or one whose outcome is
        unknown.

        ``member`` is its key, its name or the id of its job.  Raises ``InvalidGroupStateError``
        if the group does not wait for it, for example the second time, and ``JobNotFoundError``.
        """
        value = codec.encode(result, f"the result of member {member!r}")
        await self._settle_member(group_id, member, "completed", value)

    async def fail_member(self, group_id: str, member: str, reason: str) -> None:
        """Say that a member failed and left nothing to undo; otherwise like ``complete_member``."""
        check_text(reason, "reason")
        await self._settle_member(group_id, member, "failed", reason.encode())

    async def _settle_member(self, group_id: str, member: str, state: str, value: bytes) -> None:
        request = uuid.uuid4().hex
        await self._steer(
            group_id,
            lambda keys: groups.settle_member(
                keys, group_id, member, state, value, request=request
            ),
        )

    async def _steer(self, group_id: str, make: Callable[[Keys], Command[T]]) -> T:
        """Run a command on a group, on the queue that owns it if that is not this one."""
        try:
            return await self._connection.run(make(self.keys))
        except GroupNotFoundError:
            owner = await self._owner_of(group_id)
            if owner is None or owner.base == self.keys.base:
                raise
            return await self._connection.run(make(owner))

    async def clean_groups(self, grace: Duration = 0, limit: int = 0) -> list[str]:
        """Forget groups that ended more than ``grace`` ago; returns their ids.

        FAILED_COMPENSATION groups stay until they are resolved.
        """
        plan = groups.clean(
            self.keys, grace_ms=milliseconds(grace, "grace"), limit=whole(limit, "limit")
        )
        return await self._connection.follow(plan)

    async def reconcile_groups(self) -> int:
        """Settle jobs that ended without their group being notified; returns how many.

        That happens when a BullMQ worker runs a member, or another tool removes one.  Workers do
        this by themselves from time to time.
        """
        return await self._connection.follow(groups.reconcile_all(self.keys))

    async def wait_for_group(
        self, group_id: str, timeout: Duration | None = None, *, may_come: bool = False
    ) -> GroupInfo:
        """Wait until a group is over, and return it.

        A group that has been forgotten is returned as it ended while it is remembered.  Raises
        ``GroupNotFoundError``, and ``WaitTimeoutError`` after ``timeout`` ms.  With ``may_come`` it
        also waits for a group that does not exist yet, such as an outbox row not yet sent.
        """
        deadline = math.inf
        if timeout is not None:
            deadline = time.monotonic() + milliseconds(timeout, "timeout") / 1000
        owner = await self._owner_of(group_id)
        if owner is None and may_come:
            owner = await self._wait_for_start(group_id, deadline)
        if owner is None:
            raise groups.not_found(group_id)
        if owner.base != self.keys.base:
            return await self._watch_group(owner, group_id, deadline)
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
                    raise _still(info)
                event = await waiter.wait(min(left_s, LOOK_AGAIN_S)) or event
                listening.refuse_if_closed()
        finally:
            listening.remove(waiter)

    async def _wait_for_start(self, group_id: str, deadline: float) -> Keys:
        """The queue that owns a group, once it is there."""
        check_group_id(group_id)
        look_s = SHORTEST_LOOK_S
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise WaitTimeoutError(
                    f"group {group_id!r} was not started before the timeout; if its row is in an"
                    f" outbox, check that a relay is running"
                )
            await asyncio.sleep(min(left_s, look_s))
            if owner := await self._owner_of(group_id):
                return owner
            look_s = min(2 * look_s, 4 * WATCH_S)

    async def _watch_group(self, owner: Keys, group_id: str, deadline: float) -> GroupInfo:
        """Wait for a group of another queue, without listening to that queue's events."""
        while True:
            info = await self._connection.run(groups.read(owner, group_id))
            if info is None:
                info = await self._connection.run(groups.read_gone(owner, group_id))
            if info is None:
                raise groups.not_found(group_id)
            if info.is_finished:
                return info
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise _still(info)
            await asyncio.sleep(min(left_s, WATCH_S))

    async def _known_group(self, group_id: str) -> GroupInfo:
        info = await self.get_group_state(group_id) or await self._forgotten_group(group_id)
        if info is None:
            raise groups.not_found(group_id)
        return info

    async def _forgotten_group(self, group_id: str) -> GroupInfo | None:
        return await self._connection.run(groups.read_gone(self.keys, group_id))


def _still(info: GroupInfo) -> WaitTimeoutError:
    return WaitTimeoutError(
        f"group {info.id!r} was still {info.state} at the timeout; it continues, and may end later"
    )
