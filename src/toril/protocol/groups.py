"""Groups (sagas): created by one script, settled by those that end a job, steered from here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from toril.errors import (
    GroupNotFoundError,
    InvalidGroupStateError,
    InvalidOptionError,
    JobNotFoundError,
)
from toril.options import check_text
from toril.protocol import codec, discovering, events
from toril.protocol.command import Command, Plan, Resend, plain, script
from toril.protocol.events import Event
from toril.protocol.job import Job
from toril.protocol.keys import Keys
from toril.protocol.new_group import may_be_group_id
from toril.protocol.reading import readable
from toril.protocol.refusals import Refusal

T = TypeVar("T")

LOOK_AGAIN_MS = 30_000
"""How long a group may stand before it is looked at whether something happened to its jobs."""

GROUPS_PER_READ = 200
MEMBERS_PER_READ = 200
GROUPS_PER_CLEAN = 100
JOBS_PER_LOOK = 500
OWNERS_PER_LOOK = 100
_CANCELLED = "cancelled"
_PAST_PIVOT = "PAST_PIVOT"
_BROKEN = ("failed", "cancelled")


class GroupState(StrEnum):
    """Where a group is."""

    ACTIVE = "ACTIVE"
    COMPLETED = "COMPLETED"
    COMPENSATING = "COMPENSATING"
    FAILED = "FAILED"
    FAILED_COMPENSATION = "FAILED_COMPENSATION"
    BLOCKED = "BLOCKED"

    @property
    def is_final(self) -> bool:
        """Does nothing more happen by itself?"""
        return self not in (GroupState.ACTIVE, GroupState.COMPENSATING, GroupState.BLOCKED)


NEED_A_PERSON = frozenset({GroupState.FAILED_COMPENSATION, GroupState.BLOCKED})


class GroupEvent(StrEnum):
    """The names of the events that tell of groups, on the stream of the queue that owns them."""

    COMPLETED = "group:completed"
    COMPENSATING = "group:compensating"
    FAILED = "group:failed"
    RETRYING = "group:retrying"
    BLOCKED = "group:blocked"
    RESOLVED = "group:resolved"


ENDS = frozenset({GroupEvent.COMPLETED, GroupEvent.FAILED, GroupEvent.RESOLVED})


class GroupNode(msgspec.Struct, frozen=True):
    """A group that was created, and its jobs: those of later stages too."""

    group_id: str
    group_name: str
    jobs: list[Job]
    is_new: bool = True
    """False if a call before this one has created it."""


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
        """Does it go no further until somebody acts by hand, or says how a member ended?"""
        if self.state in NEED_A_PERSON:
            return True
        return bool(self.asks) and not self.is_finished

    @property
    def unfinished_count(self) -> int:
        """How many members have neither completed, failed nor been cancelled."""
        ended = self.completed_count + self.failed_count + self.cancelled_count
        return self.total_jobs - ended


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a group, and where it stands.

    Its status is "planned" (others come first), "awaited" (a signal whose turn has come),
    "in_transit" (on its way to another slot of a cluster), "pending", "active", "completed",
    "failed" or "cancelled".
    """

    job_id: str
    job_key: str
    status: str
    queue_name: str
    name: str = ""
    key: str = ""
    """By what the group knows it: its key, its name, or the id of its job if others share that."""
    after: tuple[str, ...] = ()
    """The keys of those for whom it waits, or waited."""
    is_signal: bool = False
    reason: str | None = None
    """Why it failed or was cancelled."""
    started_at: int | None = None
    """When its job was last taken, as long as the job is kept."""
    finished_at: int | None = None
    compensation_key: str | None = None
    """The key of the job that undoes it, once there is one."""
    compensation_status: str | None = None
    """How that job ended: "completed", "failed", "cancelled", or "pending"."""
    compensation_finished_at: int | None = None


class GroupStep(msgspec.Struct, frozen=True):
    """One line of a group's timeline."""

    at: int
    what: str
    member: str | None = None
    reason: str | None = None


MOST_NAMED = 20


def broken(state: GroupState, members: Iterable[GroupMember]) -> list[str]:
    """The keys of the members that a person has to put right before ``resolve``.

    They block the group, or undoing them failed.
    """
    if state is GroupState.BLOCKED:
        return [one.key for one in members if one.status in _BROKEN]
    return [one.key for one in members if one.compensation_status in _BROKEN]


def named(members: Sequence[str]) -> str:
    """The keys of members in a sentence; of very many, the first."""
    words = ", ".join(map(repr, members[:MOST_NAMED])) or "no member"
    more = len(members) - MOST_NAMED
    return f"{words} and {more:,} more" if more > 0 else words


def stage_of(members: Sequence[GroupMember]) -> dict[str, int]:
    """The stage of each member by its key: one more than the latest of those that it waits for."""
    after = {member.key: member.after for member in members}
    found: dict[str, int] = {}
    left = list(after)
    while left:
        ready = [key for key in left if all(one in found or one not in after for one in after[key])]
        for key in ready or left:  # a damaged graph is shown anyway
            found[key] = 1 + max((found.get(one, 0) for one in after[key]), default=0)
        left = [key for key in left if key not in found]
    return found


# ---------------------------------------------------------------------------- keys


def record_key(keys: Keys, group_id: str) -> str:
    """The hash of a group; its other keys are this one and a suffix."""
    _check_known(group_id)
    return f"{keys.base}:groups:{group_id}"


def _check_known(group_id: str) -> None:
    """Refuse what cannot be the id of a group."""
    check_text(group_id, "group_id")
    if not may_be_group_id(group_id):
        raise not_found(group_id)


def open_key(keys: Keys) -> str:
    return keys.own("groups-open")


def _asking_key(keys: Keys) -> str:
    return keys.own("groups-asking")


def gone_key(keys: Keys, group_id: str) -> str:
    """What is known for a day of a group that has been forgotten."""
    _check_known(group_id)
    return keys.own(f"groups-gone:{group_id}")


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

    return plain("HMGET", gone_key(keys, group_id), *_FIELDS, parse=parse)


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
        failed_job_id=codec.text_or_none(failed_job_id),
        reason=codec.text_or_none(reason),
        note=codec.text_or_none(note),
        asks=codec.text_or_none(asks),
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
            f" a newer version wrote it, or it is damaged; run the doctor"
        ) from None


def _state_given(state: str, name: str) -> GroupState:
    try:
        return GroupState(state)
    except ValueError as error:
        raise InvalidOptionError(
            f"{name}: {error}; the states are {', '.join(GroupState)}"
        ) from error


def members(keys: Keys, group_id: str) -> Plan[list[GroupMember]]:
    """The members of a group in the order in which they were given.

    They are read some at a time, so that other calls need not wait for very many of them.
    """
    count: int
    lines: list[list[Any]]
    count, lines = yield [
        plain("HLEN", f"{record_key(keys, group_id)}:jobs", parse=int),
        _lines(keys, group_id, 0, list),
    ]
    return _members(keys, lines + (yield from _further_lines(keys, group_id, count)))


def first_members(keys: Keys, group_id: str) -> Command[list[GroupMember]]:
    """The first members of a group, as many as one call reads."""
    return _lines(keys, group_id, 0, lambda lines: _members(keys, lines))


def _further_lines(keys: Keys, group_id: str, count: int) -> Plan[list[list[Any]]]:
    found: list[list[Any]] = []
    for first in range(MEMBERS_PER_READ, count, MEMBERS_PER_READ):
        lines: list[list[Any]] = yield _lines(keys, group_id, first, list)
        found += lines
    return found


def _lines(
    keys: Keys, group_id: str, first: int, parse: Callable[[list[list[Any]]], T]
) -> Command[T]:
    """What is stored of the members from one place on."""
    record = record_key(keys, group_id)
    return script(
        "listGroup",
        keys,
        {"first": first, "most": MEMBERS_PER_READ},
        parse,
        extra={
            "members": f"{record}:jobs",
            "plan": f"{record}:plan",
            "compensations": f"{record}:compensations",
            "results": f"{record}:results",
        },
        resend=Resend.SAME,
    )


def _members(keys: Keys, lines: Sequence[list[Any]]) -> list[GroupMember]:
    labels = {words[0]: codec.text(words[4]) for words in lines}
    return [_member(keys.prefix, words, labels) for words in lines]


def _member(prefix: str, words: list[Any], labels: dict[int, str]) -> GroupMember:
    _, key, status, name, label, kind, after, started_at, at, why, *undone = words
    base, _, job_id = codec.text(key).rpartition(":")
    undo_key, undo_status, undo_at = undone or (None, None, None)
    return GroupMember(
        job_id=job_id,
        job_key=codec.text(key),
        status=codec.text(status),
        queue_name=base.removeprefix(f"{prefix}:"),
        name=codec.text(name),
        key=codec.text(label),
        after=tuple(labels.get(number, str(number)) for number in after),
        is_signal=kind == b"s",
        reason=codec.text(why) or None,
        started_at=codec.number(started_at) or None,
        finished_at=codec.number(at) or None,
        compensation_key=codec.text_or_none(undo_key),
        compensation_status=codec.text_or_none(undo_status),
        compensation_finished_at=codec.number(undo_at) or None,
    )


def results(keys: Keys, group_id: str) -> Command[dict[str, Any] | None]:
    """What the members that have completed returned, by their keys; None without such a group."""
    record = record_key(keys, group_id)

    def parse(reply: list[list[bytes]] | None) -> dict[str, Any] | None:
        if reply is None:
            return None
        return {codec.text(label): codec.decode_or_text(value) for label, value in reply}

    return script(
        "groupResults",
        keys,
        {},
        parse,
        extra={
            "group": record,
            "members": f"{record}:jobs",
            "plan": f"{record}:plan",
            "results": f"{record}:results",
        },
        resend=Resend.SAME,
    )


def timeline(keys: Keys, group_id: str) -> Plan[list[GroupStep]]:
    """What happened to a group and its members, as far as it is known, in order."""
    return (yield from story(keys, group_id)).steps


class Story(msgspec.Struct, frozen=True):
    """A group with everything that is known of it."""

    info: GroupInfo
    members: list[GroupMember]
    steps: list[GroupStep]


def story(keys: Keys, group_id: str) -> Plan[Story]:
    """A group, its members, and what happened to them in order."""
    info, log = yield [
        read(keys, group_id),
        plain("LRANGE", f"{record_key(keys, group_id)}:log", 0, -1, parse=list),
    ]
    if info is None:
        raise not_found(group_id)
    found = yield from members(keys, group_id)
    return Story(info, found, told(info, found, [step for step in map(_logged, log) if step]))


def _logged(entry: bytes) -> GroupStep | None:
    """A step as it was noted; None for what another program wrote there."""
    words = codec.text(entry).split("\n", 3)
    if len(words) < 4 or not (words[0].isascii() and words[0].isdecimal()):
        return None
    return GroupStep(int(words[0]), words[1], words[2] or None, words[3] or None)


_ORDER = {"created": 0, "started": 1, "completed": 2, "failed": 3, "cancelled": 3, "undone": 5}
"""In which order things are told that happened in the same millisecond."""
_ORDER |= {"compensating": 4, "blocked": 4, "retrying": 6, "resolved": 7}


def told(
    info: GroupInfo, found: Sequence[GroupMember], log: Sequence[GroupStep]
) -> list[GroupStep]:
    """The timeline of a group, put together from what is kept of it."""
    steps = [GroupStep(info.created_at, "created")]
    for member in found:
        if member.started_at is not None:
            steps.append(GroupStep(member.started_at, "started", member.key))
        if member.finished_at is not None:
            steps.append(GroupStep(member.finished_at, member.status, member.key, member.reason))
    for member in reversed(found):  # the last stage is undone first
        undone = member.compensation_status
        if member.compensation_finished_at is not None and undone is not None:
            what = "undone" if undone == "completed" else f"undoing {undone}"
            steps.append(GroupStep(member.compensation_finished_at, what, member.key))
    steps = sorted([*steps, *log], key=lambda step: (step.at, _ORDER.get(step.what, 2)))
    if info.is_finished:
        steps.append(GroupStep(info.updated_at, str(info.state), None, info.note))
    return steps


def find_owner(keys: Keys, group_id: str, *, is_cluster: bool = False) -> Plan[Keys | None]:
    """The queue that owns a group, or owned it before it was forgotten; None if there is none.

    Looks into this queue, into those that own groups with members here, then into all others.
    """
    if not may_be_group_id(group_id):
        return None
    near: list[bytes] = yield plain("ZRANGE", keys.own("group-deadlines"), 0, 99, parse=list)
    bases = [codec.text(base) for base in near]
    names = [keys.name, *(base.removeprefix(f"{keys.prefix}:") for base in bases)]
    owner: Keys | None = yield from _owner_among(keys, dict.fromkeys(names), group_id)
    if owner is not None:
        return owner
    every: list[str] = yield from discovering.queue_names(keys.prefix, is_cluster=is_cluster)
    others = dict.fromkeys(name for name in every if name not in names)
    return (yield from _owner_among(keys, others, group_id))


def _owner_among(keys: Keys, names: Iterable[str], group_id: str) -> Plan[Keys | None]:
    queues = [keys.sibling(name) for name in names]
    for first in range(0, len(queues), GROUPS_PER_READ):
        some = queues[first : first + GROUPS_PER_READ]
        found: list[Any] = yield [
            plain("EXISTS", record_key(queue, group_id), gone_key(queue, group_id), parse=int)
            for queue in some
        ]
        for queue, count in zip(some, found, strict=True):
            if count:
                return queue
    return None


def groups(
    keys: Keys, states: Iterable[str], start: int, end: int, *, newest_first: bool
) -> Plan[list[GroupInfo]]:
    """The groups that the queue owns, from ``start`` to ``end`` of those in ``states``."""
    wanted = {_state_given(state, "state") for state in states}
    if wanted and wanted <= NEED_A_PERSON:
        asking: list[GroupInfo] | None = yield from _asking_in(
            keys, wanted, newest_first=newest_first
        )
        if asking is not None:
            return asking[start : None if end == -1 else end + 1]
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


def newest(keys: Keys, start: int, end: int) -> Plan[list[GroupInfo]]:
    """The groups from one place to another, the newest first; it costs no more than their number.

    Those that cannot be read are left out.
    """
    ids: list[bytes] = yield plain("ZREVRANGE", f"{keys.base}:groups", start, end, parse=list)
    found: list[GroupInfo] = []
    for first in range(0, len(ids), GROUPS_PER_READ):
        some = ids[first : first + GROUPS_PER_READ]
        page: list[GroupInfo | None] = yield from _read_each(keys, some)
        found += [info for info in page if info]
    return found


def newest_states(keys: Keys, start: int, end: int) -> Plan[list[str]]:
    """The states of the groups from one place to another, the newest first; what is gone is not."""
    ids: list[bytes] = yield plain("ZREVRANGE", f"{keys.base}:groups", start, end, parse=list)
    found: list[str] = []
    for first in range(0, len(ids), GROUPS_PER_READ):
        some = [codec.name(item) for item in ids[first : first + GROUPS_PER_READ]]
        reads = [
            plain("HGET", f"{keys.base}:groups:{one}", "state", parse=codec.text_or_none)
            for one in some
        ]
        states: list[str | None] = yield from readable(reads)
        found += [state for state in states if state]
    return found


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


def _asking_in(
    keys: Keys, wanted: set[GroupState], *, newest_first: bool
) -> Plan[list[GroupInfo] | None]:
    """The groups in states that need a person, by their index; None if that does not name all."""
    verb = "ZREVRANGE" if newest_first else "ZRANGE"
    ids: list[bytes] = yield plain(verb, _asking_key(keys), 0, -1, parse=list)
    found: list[GroupInfo] = []
    for first in range(0, len(ids), GROUPS_PER_READ):
        some = ids[first : first + GROUPS_PER_READ]
        page: list[GroupInfo | None] = yield from _read_each(keys, some)
        found += [info for info in page if info and info.state in wanted]
    if GroupState.FAILED_COMPENSATION not in wanted:
        return found
    count: int = yield from count_not_undone(keys)
    named = sum(info.state is GroupState.FAILED_COMPENSATION for info in found)
    return found if named >= count else None


def count_not_undone(keys: Keys) -> Plan[int]:
    """How many groups are FAILED_COMPENSATION: those that are neither open nor ended in order."""
    counts: list[int] = yield _counts_of_ended(keys)
    return _not_undone(*counts)


def _counts_of_ended(keys: Keys) -> list[Command[int]]:
    sets = (f"{keys.base}:groups", open_key(keys), keys.own("groups-ended"))
    return [plain("ZCARD", each, parse=int) for each in sets]


def _not_undone(total: int, opened: int, ended: int) -> int:
    return max(0, total - opened - ended)


def asking(keys: Keys) -> Plan[list[GroupInfo]]:
    """The groups that wait for a person to say how a member ended."""
    ids: list[bytes] = yield plain("ZRANGE", _asking_key(keys), 0, GROUPS_PER_READ, parse=list)
    if not ids:
        return []
    page: list[GroupInfo | None] = yield from _read_each(keys, ids)
    return [info for info in page if info and info.asks and not info.is_finished]


def needing_a_person(keys: Keys, *, most: int) -> Plan[list[GroupInfo]]:
    """The groups that go no further by themselves, those that have been so for longest last.

    They could not be undone, are blocked, or ask how a member ended.
    """
    ids: list[bytes] = yield plain("ZREVRANGE", _asking_key(keys), 0, most - 1, parse=list)
    if not ids:
        return []
    page: list[GroupInfo | None] = yield from _read_each(keys, ids)
    return [info for info in page if info and info.needs_a_person]


def count_asking(keys: Keys) -> Command[int]:
    """About how many those are: workers of the previous version do not write the index."""
    return plain("ZCARD", _asking_key(keys), parse=int)


class Stuck(msgspec.Struct, frozen=True):
    """How many groups of a queue go no further by themselves."""

    not_undone: int
    needing_a_person: int
    """All of them, with those that a worker of the previous version could not undo."""


def count_stuck(queues: Sequence[Keys]) -> Plan[list[Stuck]]:
    """The groups of each queue that go no further by themselves, counted in one message."""
    commands = [[*_counts_of_ended(keys), count_asking(keys)] for keys in queues]
    counts: list[int] = yield [each for some in commands for each in some]
    found: list[Stuck] = []
    for first in range(0, len(counts), 4):
        *ended, asking = counts[first : first + 4]
        not_undone = _not_undone(*ended)
        found.append(Stuck(not_undone, max(asking, not_undone)))
    return found


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
        if state == GroupState.BLOCKED or state == _PAST_PIVOT:
            raise InvalidGroupStateError(
                f"Cannot cancel group {group_id!r}: its pivot has completed, so it can no longer"
                f" be undone; continue with retry_group or resolve_group"
            )
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
        extra={"group": record_key(keys, group_id), "open": open_key(keys)},
        resend=Resend.SAME,
    )


def retry_group(keys: Keys, group_id: str, *, request: str) -> Command[int]:
    """Run the members again that block a group; returns how many."""

    def parse(reply: Any) -> int:
        if isinstance(reply, int) and reply >= 0:
            return reply
        raise _refused(reply, group_id, "retry", "BLOCKED")

    record = record_key(keys, group_id)
    return script(
        "retryGroup",
        keys,
        {"request": request},
        parse,
        extra={"group": record, "members": f"{record}:jobs", "plan": f"{record}:plan"},
        resend=Resend.SAME,
    )


def resolve(
    keys: Keys,
    group_id: str,
    note: str,
    *,
    request: str,
    expected_state: str | None = None,
    expected_members: Collection[str] | None = None,
) -> Command[None]:
    """Say that what could not be done, or undone, has been put right by other means.

    What is expected is compared in the call itself, so that nothing lies between looking and doing.
    """
    if not isinstance(note, str) or not note:
        raise InvalidOptionError(f"note={note!r} must be a string that says what was done")
    args: dict[str, Any] = {"request": request, "note": note}
    if expected_state is not None:
        args["expected_state"] = _state_given(expected_state, "expected_state").value
    if expected_members is not None:
        for key in expected_members:
            check_text(key, "expected_members")
        args["expected_members"] = list(dict.fromkeys(expected_members))

    def parse(reply: Any) -> None:
        if isinstance(reply, list):
            _, state, keys_now = reply
            raise InvalidGroupStateError(
                f"group {group_id!r} is not as expected, and was left alone: it is"
                f" {codec.text(state)} now ({named([codec.text(key) for key in keys_now])});"
                f" look at it again"
            )
        if reply not in (b"FAILED_COMPENSATION", b"BLOCKED"):
            raise _refused(reply, group_id, "resolve", "FAILED_COMPENSATION or BLOCKED")

    return script(
        "resolveGroup",
        keys,
        args,
        parse,
        extra={"group": record_key(keys, group_id)},
        resend=Resend.SAME,
    )


def settle_member(
    keys: Keys, group_id: str, member: str, state: str, value: bytes, *, request: str
) -> Command[None]:
    """Say how a member ended that nobody else can tell; ``value`` is its result or the reason."""

    def parse(reply: Any) -> None:
        code, *words = reply if isinstance(reply, list) else [reply]
        if code == Refusal.NO_GROUP:
            raise not_found(group_id)
        if code == Refusal.MISSING:
            raise JobNotFoundError(
                f"group {group_id!r} has no member {member!r}, or several of that name; give its"
                f" key, or the id of its job"
            )
        if code == Refusal.WRONG_GROUP_STATE:
            state_of_group, status = (codec.text(word) for word in words)
            raise InvalidGroupStateError(
                f"group {group_id!r} is {state_of_group} and does not ask how member {member!r}"
                f" ended: it is {status}"
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
            "cleanGroups", keys, args, tuple, extra=extra, resend=Resend.NUMBERED
        )
        gone += [codec.text(item) for item in ids]
        if len(ids) < wanted or 0 < limit <= len(gone):
            return gone


class Due(msgspec.Struct, frozen=True):
    """The queues whose groups are to be looked at now, and when the next will be."""

    owners: list[Keys]
    wait_ms: int | None
    away: list[Keys] = []
    """Owners of groups with jobs here, in other slots of a cluster: they tell themselves."""


def due(keys: Keys) -> Command[Due]:
    """Whose groups are due, of those that a worker of this queue minds."""

    def parse(reply: list[Any]) -> Due:
        here, wait_ms, away = reply
        return Due(queues(here), None if wait_ms < 0 else wait_ms, queues(away))

    def queues(bases: list[bytes]) -> list[Keys]:
        names = [codec.text(base).removeprefix(f"{keys.prefix}:") for base in bases]
        return [keys.sibling(name) for name in names]

    return script(
        "dueGroups",
        keys,
        {"most": OWNERS_PER_LOOK},
        parse,
        extra={"open": open_key(keys), "deadlines": keys.own("group-deadlines")},
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
        extra={"open": open_key(keys)},
        resend=Resend.SAME,
    )


def keep(keys: Keys) -> Plan[int]:
    """Look at the groups that are due; returns how many jobs and groups were settled by that."""
    settled = 0
    while True:
        look: Reconciled = yield reconcile(keys)
        settled += look.settled
        if look.wait_ms != 0:
            return settled


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


def _refused(
    reply: Any, group_id: str, verb: str, wanted: str = "FAILED_COMPENSATION"
) -> Exception:
    if isinstance(reply, int):
        return not_found(group_id)
    return InvalidGroupStateError(
        f"Cannot {verb} group in state {codec.text(reply)}; only one that is {wanted}"
    )


def not_found(group_id: str) -> GroupNotFoundError:
    return GroupNotFoundError(f"Group {group_id} not found")
