"""Groups (sagas): created by one script, settled by those that end a job, steered from here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from toril.errors import (
    GroupNotFoundError,
    GroupValidationError,
    InvalidGroupStateError,
    InvalidOptionError,
    JobNotFoundError,
)
from toril.protocol import adding, codec, events
from toril.protocol.adding import Added, Prepared
from toril.protocol.command import Command, Plan, Resend, plain, script
from toril.protocol.events import Event
from toril.protocol.job import Job
from toril.protocol.keys import Keys, check_job_id
from toril.protocol.new_group import Compensation, GroupJob, NewGroup
from toril.protocol.reading import readable
from toril.protocol.refusals import Refusal

LOOK_AGAIN_MS = 30_000
"""How long a group may stand before it is looked at whether something happened to its jobs."""

GROUPS_PER_READ = 200
GROUPS_PER_CLEAN = 100
JOBS_PER_LOOK = 500
OWNERS_PER_LOOK = 100
_CANCELLED = "cancelled"


class GroupState(StrEnum):
    """Where a group is."""

    ACTIVE = "ACTIVE"
    COMPLETED = "COMPLETED"
    COMPENSATING = "COMPENSATING"
    FAILED = "FAILED"
    FAILED_COMPENSATION = "FAILED_COMPENSATION"

    @property
    def is_final(self) -> bool:
        """Does nothing more happen by itself?"""
        return self not in (GroupState.ACTIVE, GroupState.COMPENSATING)


class GroupEvent(StrEnum):
    """The names of the events that tell of groups, on the stream of the queue that owns them."""

    COMPLETED = "group:completed"
    COMPENSATING = "group:compensating"
    FAILED = "group:failed"
    RETRYING = "group:retrying"
    RESOLVED = "group:resolved"


ENDS = frozenset({GroupEvent.COMPLETED, GroupEvent.FAILED, GroupEvent.RESOLVED})


class GroupNode(msgspec.Struct, frozen=True):
    """A group that was created, and its jobs."""

    group_id: str
    group_name: str
    jobs: list[Job]


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A group as it was when it was read."""

    id: str
    name: str
    state: GroupState
    created_at: int
    updated_at: int
    total_jobs: int
    completed_count: int
    failed_count: int
    cancelled_count: int
    failed_job_id: str | None = None
    """The job whose failure turned the group over; empty when it was cancelled."""
    reason: str | None = None
    note: str | None = None
    """What ``resolve_group`` was told."""
    asks: str | None = None
    """What the group needs to know from a person before it can go on, if it does: see
    ``complete_member`` and ``fail_member``."""

    @property
    def is_finished(self) -> bool:
        return self.state.is_final

    @property
    def needs_a_person(self) -> bool:
        """Does it go no further until somebody undoes by hand, or says how a member ended?"""
        if self.state is GroupState.FAILED_COMPENSATION:
            return True
        return bool(self.asks) and not self.is_finished

    @property
    def unfinished_count(self) -> int:
        """How many members have neither completed, failed nor been cancelled."""
        ended = self.completed_count + self.failed_count + self.cancelled_count
        return self.total_jobs - ended


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a group: "pending", "active", "completed", "failed" or "cancelled"."""

    job_id: str
    job_key: str
    status: str
    queue_name: str
    name: str = ""
    compensation_key: str | None = None
    """The key of the job that undoes it, once there is one."""
    compensation_status: str | None = None
    """How that job ended: "completed", "failed", "cancelled", or "pending"."""


# ---------------------------------------------------------------------------- keys


def record_key(keys: Keys, group_id: str) -> str:
    """The hash of a group; its other keys are this one and a suffix."""
    check_job_id(group_id, "group id")
    return f"{keys.base}:groups:{group_id}"


def _open_key(keys: Keys) -> str:
    return keys.own("groups-open")


def _asking_key(keys: Keys) -> str:
    return keys.own("groups-asking")


def _gone_key(keys: Keys, group_id: str) -> str:
    """What is known for a day of a group that has been forgotten."""
    check_job_id(group_id)
    return keys.own(f"groups-gone:{group_id}")


# ---------------------------------------------------------------------------- creating


def create(
    prefix: str, group: NewGroup, group_id: str, job_ids: Sequence[str]
) -> Command[GroupNode]:
    """Create the group with all of its jobs, or nothing; ``job_ids`` are for those without one."""
    owner = Keys(prefix, group.owner)
    queues = [Keys(prefix, name) for name in dict.fromkeys(job.queue_name for job in group.jobs)]
    numbers = {queue.name: number for number, queue in enumerate(queues, 1)}
    definitions = _Definitions(group)
    prepared: list[Prepared] = []
    entries: list[dict[str, Any]] = []
    for index, (job, job_id) in enumerate(zip(group.jobs, job_ids, strict=True)):
        ready = adding.prepare(job, job_id)
        opts = codec.encode_options_of_member(job, group_id, group.name)
        prepared.append(msgspec.structs.replace(ready, opts=opts))
        undo = definitions.of(index, job)
        entry = {**ready.entry, "queue": numbers[job.queue_name], "kind": _kind(undo, definitions)}
        if undo:
            entry["undo"] = undo
        entries.append(entry)
    args: dict[str, Any] = {
        "id": group_id,
        "name": group.name,
        "queues": [queue.base for queue in queues],
        "jobs": entries,
        "definitions": definitions.packed,
        "targets": {
            queue.base: Keys(prefix, group.compensation_queue_of(queue.name)).base
            for queue in queues
            if queue.name in definitions.queues
        },
        "order": group.order,
        "late": group.late,
        "look_again_ms": LOOK_AGAIN_MS,
    }
    if group.keep is not None:
        args["keep"] = codec.keep_args(group.keep) or {}
    if group.timeout_ms is not None:
        args["timeout_ms"] = group.timeout_ms
    payloads = [codec.encode_compensations(definitions.stored)]
    for ready in prepared:
        payloads += [ready.data, ready.opts]

    def parse(reply: Any) -> GroupNode:
        if isinstance(reply, list) and reply[0] == Refusal.LANE_FULL:
            raise adding.refusal(prepared[reply[1] - 1], reply[0])
        if not isinstance(reply, int):
            raise GroupValidationError(
                f"group {group.name!r} was not created: job id {codec.text(reply[0])!r} exists"
                f" already in {codec.text(reply[1])!r}"
            )
        jobs = [
            Job(prefix, job.queue_name, ready.id, adding.fields_of(ready, Added(ready.id, reply)))
            for job, ready in zip(group.jobs, prepared, strict=True)
        ]
        return GroupNode(group_id, group.name, jobs)

    record = record_key(owner, group_id)
    return script(
        "addGroup",
        owner,
        args,
        parse,
        extra={
            "groups": f"{owner.base}:groups",
            "group": record,
            "members": f"{record}:jobs",
            "plan": f"{record}:plan",
            "open": _open_key(owner),
            "gone": _gone_key(owner, group_id),
        },
        payloads=payloads,
        resend=Resend.NUMBERED,
    )


class _Definitions:
    """The compensations of a group, each written once however many members it undoes."""

    def __init__(self, group: NewGroup) -> None:
        self._group = group
        self._numbers: dict[str, int] = {}
        self.packed: list[dict[str, str]] = []
        self.stored: dict[str, msgspec.Raw] = {}
        self.undoes_failures: set[int] = set()
        self.queues: set[str] = set()
        for key, compensation in group.compensation.items():
            self._write(key, compensation)

    def of(self, index: int, job: GroupJob) -> int:
        """The number of the definition that undoes this member; 0 for none."""
        if self._group.compensation_of(job) is None:
            return 0
        self.queues.add(job.queue_name)
        if job.compensation is None:
            return self._numbers[job.name]
        return self._write(f"{job.name}#{index}", job.compensation, is_own=True)

    def _write(self, key: str, compensation: Compensation, *, is_own: bool = False) -> int:
        while key in self.stored:
            key += "#"
        data = codec.encode(compensation.data, f"the data of compensation {compensation.name!r}")
        options = codec.wire_options(compensation.as_job())
        self.stored[key] = codec.encode_compensation(compensation.name, data, options)
        self.packed.append(
            {
                "name": compensation.name,
                "opts": codec.encode_wire_options(options).decode(),
                "data": data.decode(),
            }
        )
        number = len(self.packed)
        if not is_own:
            self._numbers[key] = number
        if compensation.compensate_failed:
            self.undoes_failures.add(number)
        return number


def _kind(undo: int, definitions: _Definitions) -> str:
    if not undo:
        return "u"
    return "f" if undo in definitions.undoes_failures else "m"


# ---------------------------------------------------------------------------- reading

_FIELDS = (
    "name",
    "state",
    "createdAt",
    "updatedAt",
    "totalJobs",
    "completedCount",
    "failedCount",
    "cancelledCount",
    "x.failedJobId",
    "x.reason",
    "x.note",
    "x.asks",
)


def read(keys: Keys, group_id: str) -> Command[GroupInfo | None]:
    """A group, or None."""

    def parse(reply: list[Any]) -> GroupInfo | None:
        return _info(group_id, reply)

    return plain("HMGET", record_key(keys, group_id), *_FIELDS, parse=parse)


def read_gone(keys: Keys, group_id: str) -> Command[GroupInfo | None]:
    """A group that has been forgotten, as it ended; None after a day."""

    def parse(reply: list[Any]) -> GroupInfo | None:
        return _info(group_id, reply)

    return plain("HMGET", _gone_key(keys, group_id), *_FIELDS, parse=parse)


def _info(group_id: str, values: list[Any]) -> GroupInfo | None:
    name, state, *numbers, failed_job_id, reason, note, asks = values
    if state is None:
        return None
    counts = [codec.number(value) or 0 for value in numbers]
    return GroupInfo(
        id=group_id,
        name=codec.text(name),
        state=_state(group_id, codec.text(state)),
        created_at=counts[0],
        updated_at=counts[1],
        total_jobs=counts[2],
        completed_count=counts[3],
        failed_count=counts[4],
        cancelled_count=counts[5],
        failed_job_id=_optional(failed_job_id),
        reason=_optional(reason),
        note=_optional(note),
        asks=_optional(asks),
    )


def info_or_none(group_id: str, values: list[Any]) -> GroupInfo | None:
    """The same for those who list groups: one that cannot be read is stepped over."""
    try:
        return _info(group_id, values)
    except InvalidGroupStateError:
        return None


def _state(group_id: str, state: str) -> GroupState:
    try:
        return GroupState(state)
    except ValueError:
        raise InvalidGroupStateError(
            f"group {group_id!r} has the state {state[:100]!r}, which this version does not know:"
            f" a newer version wrote it, or somebody damaged it; run the doctor"
        ) from None


def _optional(value: bytes | None) -> str | None:
    return None if value is None else codec.text(value)


def members(keys: Keys, group_id: str) -> Command[list[GroupMember]]:
    """The jobs of a group in the order in which they were given."""
    record = record_key(keys, group_id)

    def parse(reply: list[list[bytes]]) -> list[GroupMember]:
        found = []
        for key, status, name, *undone in reply:
            base, _, job_id = codec.text(key).rpartition(":")
            undo_key, undo_status = map(codec.text, undone) if undone else (None, None)
            found.append(
                GroupMember(
                    job_id=job_id,
                    job_key=codec.text(key),
                    status=codec.text(status),
                    queue_name=base.removeprefix(f"{keys.prefix}:"),
                    name=codec.text(name),
                    compensation_key=undo_key,
                    compensation_status=undo_status,
                )
            )
        return found

    return script(
        "listGroup",
        keys,
        {},
        parse,
        extra={
            "members": f"{record}:jobs",
            "plan": f"{record}:plan",
            "compensations": f"{record}:compensations",
        },
        resend=Resend.SAME,
    )


def groups(
    keys: Keys, states: Iterable[str], start: int, end: int, *, newest_first: bool
) -> Plan[list[GroupInfo]]:
    """The groups that the queue owns, from ``start`` to ``end`` of those in ``states``."""
    try:
        wanted = {GroupState(state) for state in states}
    except ValueError as error:
        raise InvalidOptionError(
            f"state: {error}; the states are {', '.join(GroupState)}"
        ) from error
    if wanted == {GroupState.FAILED_COMPENSATION}:
        broken: list[GroupInfo] | None = yield from _not_undone(keys, newest_first=newest_first)
        if broken is not None:
            return broken[start : None if end == -1 else end + 1]
    index = f"{keys.base}:groups"
    if start < 0 or end < 0:
        total: int = yield plain("ZCARD", index, parse=int)
        end = end if end >= 0 else total + end
        start = start if start >= 0 else max(0, total + start)
    verb = "ZREVRANGE" if newest_first else "ZRANGE"
    found: list[GroupInfo] = []
    first = 0
    while len(found) <= end:
        last = first + GROUPS_PER_READ - 1
        ids: list[bytes] = yield plain(verb, index, first, last, parse=list)
        if not ids:
            break
        page: list[GroupInfo | None] = yield from _read_each(keys, ids)
        found += [info for info in page if info and (not wanted or info.state in wanted)]
        first += GROUPS_PER_READ
    return found[start : end + 1]


def _read_each(keys: Keys, ids: Sequence[bytes]) -> Plan[list[GroupInfo | None]]:
    """The groups with these ids, as far as they can be read."""

    def reader(group_id: str) -> Command[GroupInfo | None]:
        return plain(
            "HMGET",
            f"{keys.base}:groups:{group_id}",
            *_FIELDS,
            parse=lambda reply: info_or_none(group_id, reply),
        )

    return (yield from readable([reader(codec.name(item)) for item in ids]))


def _not_undone(keys: Keys, *, newest_first: bool) -> Plan[list[GroupInfo] | None]:
    """The groups whose undoing failed, by their index; None if that does not name all of them."""
    verb = "ZREVRANGE" if newest_first else "ZRANGE"
    ids: list[bytes] = yield plain(verb, _asking_key(keys), 0, -1, parse=list)
    found: list[GroupInfo] = []
    for first in range(0, len(ids), GROUPS_PER_READ):
        some = ids[first : first + GROUPS_PER_READ]
        page: list[GroupInfo | None] = yield from _read_each(keys, some)
        found += [info for info in page if info and info.state is GroupState.FAILED_COMPENSATION]
    count: int = yield from count_not_undone(keys)
    return found if len(found) >= count else None


def count_not_undone(keys: Keys) -> Plan[int]:
    """How many groups are FAILED_COMPENSATION: those that are neither open nor ended in order."""
    total, opened, ended = yield [
        plain("ZCARD", f"{keys.base}:groups", parse=int),
        plain("ZCARD", _open_key(keys), parse=int),
        plain("ZCARD", keys.own("groups-ended"), parse=int),
    ]
    return max(0, int(total) - int(opened) - int(ended))


def asking(keys: Keys) -> Plan[list[GroupInfo]]:
    """The groups that wait for a person to say how a member ended."""
    ids: list[bytes] = yield plain("ZRANGE", _asking_key(keys), 0, GROUPS_PER_READ, parse=list)
    if not ids:
        return []
    page: list[GroupInfo | None] = yield from _read_each(keys, ids)
    return [info for info in page if info and info.asks and not info.is_finished]


def needing_a_person(keys: Keys, *, most: int) -> Plan[list[GroupInfo]]:
    """The groups that go no further by themselves, those that have been so for longest last.

    They could not be undone, or ask how a member ended.
    """
    ids: list[bytes] = yield plain("ZREVRANGE", _asking_key(keys), 0, most - 1, parse=list)
    if not ids:
        return []
    page: list[GroupInfo | None] = yield from _read_each(keys, ids)
    return [info for info in page if info and info.needs_a_person]


def count_needing_a_person(keys: Keys) -> Command[int]:
    """About how many those are."""
    return plain("ZCARD", _asking_key(keys), parse=int)


def listening_key(group_id: str) -> str:
    """Under which whoever waits for a group is told of its end; no job has such an id."""
    return f"group:{group_id}"


def concerned_by(event: Event) -> str | None:
    """Who waits for this event: the key of a group that has ended."""
    if event.name not in ENDS:
        return None
    return listening_key(str(event.data.get("group_id")))


def find_end(keys: Keys, group_id: str) -> Plan[Event | None]:
    """How a group that is forgotten ended, as far as the log of events still knows."""
    wanted = listening_key(group_id)
    before = "+"
    for _ in range(events.PAGES_SEARCHED):
        page: list[Event] = yield events.page_before(keys, before)
        for event in page:
            if concerned_by(event) == wanted:
                return event
        if not page:
            return None
        before = f"({page[-1].id}"
    return None


def after_event(known: GroupInfo, event: Event | None) -> GroupInfo:
    """A group that is forgotten already, as far as an event tells how it ended."""
    if event is None:
        raise not_found(known.id)
    if event.name == GroupEvent.COMPLETED:
        return msgspec.structs.replace(
            known, state=GroupState.COMPLETED, completed_count=known.total_jobs
        )
    state = _state(known.id, str(event.data.get("state", "FAILED")))
    return msgspec.structs.replace(known, state=state)


# ---------------------------------------------------------------------------- steering


def cancel(keys: Keys, group_id: str, *, request: str, reason: str | None = None) -> Command[None]:
    """Cancel what has not started and undo what is done; ``request`` names this very call."""
    if reason is not None and (not isinstance(reason, str) or not reason):
        raise InvalidOptionError(f"reason={reason!r} must be a string that says why")

    def parse(reply: Any) -> None:
        if isinstance(reply, int):
            raise not_found(group_id)
        state = codec.text(reply)
        if state == GroupState.COMPLETED:
            raise InvalidGroupStateError("Cannot cancel a completed group")
        if state != GroupState.ACTIVE:
            raise InvalidGroupStateError(f"Cannot cancel group in state {state}")

    return script(
        "cancelGroup",
        keys,
        {"request": request, "reason": reason or _CANCELLED},
        parse,
        extra={"group": record_key(keys, group_id)},
        resend=Resend.SAME,
    )


def retry_compensation(keys: Keys, group_id: str, *, request: str) -> Command[int]:
    """Undo again what could not be undone; returns how many jobs are tried again."""

    def parse(reply: Any) -> int:
        if isinstance(reply, int) and reply >= 0:
            return reply
        raise _refused(reply, group_id, "retry the compensation of")

    return script(
        "retryCompensation",
        keys,
        {"request": request},
        parse,
        extra={"group": record_key(keys, group_id), "open": _open_key(keys)},
        resend=Resend.SAME,
    )


def resolve(keys: Keys, group_id: str, note: str, *, request: str) -> Command[None]:
    """Say that what could not be undone has been put right by other means."""
    if not isinstance(note, str) or not note:
        raise InvalidOptionError(f"note={note!r} must be a string that says what was done")

    def parse(reply: Any) -> None:
        if reply != b"FAILED_COMPENSATION":
            raise _refused(reply, group_id, "resolve")

    return script(
        "resolveGroup",
        keys,
        {"request": request, "note": note},
        parse,
        extra={"group": record_key(keys, group_id)},
        resend=Resend.SAME,
    )


def settle_member(
    keys: Keys, group_id: str, member: str, state: str, value: bytes, *, request: str
) -> Command[None]:
    """Say how a member ended of which nobody knows it; ``value`` is its result or the reason."""

    def parse(code: int) -> None:
        if code == Refusal.NO_GROUP:
            raise not_found(group_id)
        if code == Refusal.MISSING:
            raise JobNotFoundError(
                f"group {group_id!r} has no member {member!r}, or several of that name; give its id"
            )
        if code == Refusal.WRONG_GROUP_STATE:
            raise InvalidGroupStateError(
                f"group {group_id!r} does not ask how member {member!r} ended; see get_group_jobs()"
            )

    record = record_key(keys, group_id)
    return script(
        "settleMember",
        keys,
        {"request": request, "member": member, "state": state},
        parse,
        extra={"group": record, "members": f"{record}:jobs", "plan": f"{record}:plan"},
        payloads=[value],
        resend=Resend.SAME,
    )


def clean(keys: Keys, *, grace_ms: int, limit: int) -> Plan[list[str]]:
    """Forget groups that ended more than ``grace_ms`` ago; at most ``limit`` unless it is 0."""
    gone: list[str] = []
    cutoff_ms: int | None = None
    while True:
        wanted = min(GROUPS_PER_CLEAN, limit - len(gone)) if limit else GROUPS_PER_CLEAN
        args: dict[str, Any] = {"grace_ms": grace_ms, "slice": wanted}
        if cutoff_ms is not None:
            args["cutoff_ms"] = cutoff_ms
        extra = {"ended": keys.own("groups-ended")}
        cutoff_ms, ids = yield script(
            "cleanGroups", keys, args, tuple, extra=extra, resend=Resend.SAME
        )
        gone += [codec.text(item) for item in ids]
        if len(ids) < wanted or 0 < limit <= len(gone):
            return gone


class Due(msgspec.Struct, frozen=True):
    """The queues whose groups are to be looked at now, and when the next will be."""

    owners: list[Keys]
    wait_ms: int | None


def due(keys: Keys) -> Command[Due]:
    """Whose groups are due, of those that a worker of this queue minds."""

    def parse(reply: list[Any]) -> Due:
        bases, wait_ms = reply
        names = [codec.text(base).removeprefix(f"{keys.prefix}:") for base in bases]
        owners = [keys.sibling(name) for name in names]
        return Due(owners, None if wait_ms < 0 else wait_ms)

    return script(
        "dueGroups",
        keys,
        {"most": OWNERS_PER_LOOK},
        parse,
        extra={"open": _open_key(keys), "deadlines": keys.own("group-deadlines")},
        resend=Resend.SAME,
    )


class Reconciled(msgspec.Struct, frozen=True):
    """What one look at the open groups brought."""

    settled: int
    more: bool
    stayed: int
    wait_ms: int | None


def reconcile(
    keys: Keys, *, everything: bool = False, skip: int = 0, most: int = JOBS_PER_LOOK
) -> Command[Reconciled]:
    """Look at some open groups: those that are due, or ``everything`` after the first ``skip``."""

    def parse(reply: list[int]) -> Reconciled:
        settled, more, stayed, wait_ms = reply
        return Reconciled(settled, more == 1, stayed, None if wait_ms < 0 else wait_ms)

    return script(
        "reconcileGroups",
        keys,
        {"most": most, "everything": everything, "skip": skip, "look_again_ms": LOOK_AGAIN_MS},
        parse,
        extra={"open": _open_key(keys)},
        resend=Resend.SAME,
    )


def reconcile_all(keys: Keys) -> Plan[int]:
    """Look at all open groups; returns how many jobs and groups were settled by that."""
    settled: int = 0
    skip: int = 0
    while True:
        look: Reconciled = yield reconcile(keys, everything=True, skip=skip)
        settled += look.settled
        skip += look.stayed
        if not look.more:
            return settled


def _refused(reply: Any, group_id: str, verb: str) -> Exception:
    if isinstance(reply, int):
        return not_found(group_id)
    return InvalidGroupStateError(
        f"Cannot {verb} group in state {codec.text(reply)}; only one that is FAILED_COMPENSATION"
    )


def not_found(group_id: str) -> GroupNotFoundError:
    return GroupNotFoundError(f"Group {group_id} not found")
