"""Groups (sagas): created by one script, settled by those that end a job, steered from here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from toril.errors import GroupNotFoundError, GroupValidationError, InvalidGroupStateError
from toril.protocol import adding, codec
from toril.protocol.adding import Added, Prepared
from toril.protocol.command import Command, Plan, Resend, plain, script
from toril.protocol.job import Job
from toril.protocol.keys import Keys, check_job_id
from toril.protocol.new_group import Compensation, GroupJob, NewGroup

LOOK_AGAIN_MS = 30_000
"""How long a group may stand before it is looked at whether something happened to its jobs."""

GROUPS_PER_READ = 200
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

    @property
    def is_finished(self) -> bool:
        return self.state.is_final

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


# ---------------------------------------------------------------------------- keys


def record_key(keys: Keys, group_id: str) -> str:
    """The hash of a group; its other keys are this one and a suffix."""
    check_job_id(group_id)
    return f"{keys.base}:groups:{group_id}"


def _open_key(keys: Keys) -> str:
    return keys.own("groups-open")


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
        entry.pop("custom", None)
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
        },
        payloads=payloads,
        resend=Resend.SAME,
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
        return self._write(f"{job.name}#{index}", job.compensation)

    def _write(self, key: str, compensation: Compensation) -> int:
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
        number = self._numbers[key] = len(self.packed)
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
)


def read(keys: Keys, group_id: str) -> Command[GroupInfo | None]:
    """A group, or None."""

    def parse(reply: list[Any]) -> GroupInfo | None:
        return _info(group_id, reply)

    return plain("HMGET", record_key(keys, group_id), *_FIELDS, parse=parse)


def _info(group_id: str, values: list[Any]) -> GroupInfo | None:
    name, state, *numbers, failed_job_id, reason, note = values
    if state is None:
        return None
    counts = [codec.number(value) or 0 for value in numbers]
    return GroupInfo(
        id=group_id,
        name=codec.text(name),
        state=GroupState(codec.text(state)),
        created_at=counts[0],
        updated_at=counts[1],
        total_jobs=counts[2],
        completed_count=counts[3],
        failed_count=counts[4],
        cancelled_count=counts[5],
        failed_job_id=_optional(failed_job_id),
        reason=_optional(reason),
        note=_optional(note),
    )


def _optional(value: bytes | None) -> str | None:
    return None if value is None else codec.text(value)


def members(keys: Keys, group_id: str) -> Command[list[GroupMember]]:
    """The jobs of a group in the order in which they were given."""
    record = record_key(keys, group_id)

    def parse(reply: list[list[bytes]]) -> list[GroupMember]:
        found = []
        for key, status, name in reply:
            base, _, job_id = codec.text(key).rpartition(":")
            found.append(
                GroupMember(
                    job_id=job_id,
                    job_key=codec.text(key),
                    status=codec.text(status),
                    queue_name=base.removeprefix(f"{keys.prefix}:"),
                    name=codec.text(name),
                )
            )
        return found

    return script(
        "listGroup",
        keys,
        {},
        parse,
        extra={"members": f"{record}:jobs", "plan": f"{record}:plan"},
        resend=Resend.SAME,
    )


def groups(
    keys: Keys, states: Iterable[str], start: int, end: int, *, newest_first: bool
) -> Plan[list[GroupInfo]]:
    """The groups that the queue owns, from ``start`` to ``end`` of those in ``states``."""
    wanted = {GroupState(state) for state in states}
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
        page: list[GroupInfo | None] = yield [read(keys, codec.text(item)) for item in ids]
        found += [info for info in page if info and (not wanted or info.state in wanted)]
        first += GROUPS_PER_READ
    return found[start : end + 1]


# ---------------------------------------------------------------------------- steering


def cancel(keys: Keys, group_id: str, *, request: str) -> Command[None]:
    """Cancel what has not started and undo what is done; ``request`` names this very call."""

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
        {"request": request, "reason": _CANCELLED},
        parse,
        extra={"group": record_key(keys, group_id)},
        resend=Resend.SAME,
    )


def not_found(group_id: str) -> GroupNotFoundError:
    return GroupNotFoundError(f"Group {group_id} not found")
