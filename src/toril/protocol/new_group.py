"""A new group: its jobs, how each is undone, and the check of it all before anything is sent.

A group (a saga) is a set of jobs that all succeed, or what was done is undone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from toril.checking import shown
from toril.errors import GroupValidationError, InvalidNameError, InvalidOptionError
from toril.options import (
    MAX_NAME_LENGTH,
    OPTION_NAMES,
    Backoff,
    Duration,
    FlowJob,
    Keep,
    NewJob,
    check_text,
    flag,
    milliseconds,
    refuse_unknown,
)
from toril.protocol import codec
from toril.protocol.job import StoredJob
from toril.protocol.keys import COMPENSATION_SUFFIX, Keys, check_prefix, check_queue_name
from toril.protocol.stages import Graph, graph_of

MOST_MEMBERS = 1000
"""So that no step of a group holds the server for longer than a few milliseconds."""

COMPENSATION_QUEUE = "{queue}" + COMPENSATION_SUFFIX
ORDERS = ("graph", "parallel", "reverse")
TOLD = "group"
"""Under this name the jobs at the end of a group are told how it ended."""
DAY_MS = 86_400_000
RETENTION = Keep(count=10_000, age=7 * DAY_MS)
"""Which finished groups are kept unless somebody says otherwise."""
LEAST_REMEMBER_MS = 60_000
"""A call whose reply was lost is sent again within this time."""
_GROUP_ID = re.compile(r"[^\s:{}\x00-\x1f]{1,255}")


class _Compensation(msgspec.Struct, frozen=True):
    name: str
    data: Any = None


class Compensation(_Compensation, frozen=True, kw_only=True):
    """The job that undoes a member of a group once that member has completed.

    With ``compensate_failed`` it also undoes a member that was started and did not complete: one
    that may have left something half done.
    """

    attempts: int = 3
    backoff: Backoff | Duration | Mapping[str, Any] | None = Backoff("exponential", 1000)
    timeout: Duration | None = None
    delay: Duration | None = None
    priority: int | None = None
    lane: str | None = None
    remove_on_complete: bool | int | Keep | None = None
    remove_on_fail: bool | int | Keep | None = None
    compensate_failed: bool = False
    telemetry: str | None = None

    def __post_init__(self) -> None:
        self.as_job()

    def as_job(self) -> NewJob:
        """The same as a job: the check of its options is that of any job."""
        return NewJob(
            self.name,
            attempts=self.attempts,
            backoff=self.backoff,
            timeout=self.timeout,
            delay=self.delay,
            priority=self.priority,
            lane=self.lane,
            remove_on_complete=self.remove_on_complete,
            remove_on_fail=self.remove_on_fail,
            telemetry=self.telemetry,
        )


class GroupJob(NewJob, frozen=True, kw_only=True):
    """A job that is to be a member of a group: what ``NewJob`` takes, the queue, and its place.

    It becomes a job when the members that ``after`` names have completed; they are named by their
    ``key``, or by their names.  ``inputs`` puts results of members into its data.  Once a ``pivot``
    has completed nothing is undone any more.  ``compensation`` undoes this job alone; it goes
    before the group's entry for its name.  A group that would be under another ``prefix`` than
    this one is refused.
    """

    queue_name: str
    prefix: str | None = None
    compensation: Compensation | None = None
    key: str | None = None
    after: Sequence[str] = ()
    inputs: Mapping[str, str] = {}
    pivot: bool = False

    def __post_init__(self) -> None:
        NewJob.__post_init__(self)
        check_queue_name(self.queue_name)
        if self.prefix is not None:
            check_prefix(self.prefix)
        _check_place(self)
        if not isinstance(self.inputs, Mapping):
            raise GroupValidationError(
                f"inputs={shown(self.inputs)} of member {self.name!r} must be a dict: the name in"
                f" its data, and the member whose result goes there"
            )
        for name, key in self.inputs.items():
            check_text(name, f"a name in the inputs of member {self.name!r}")
            check_text(key, f"a member in the inputs of member {self.name!r}")
        flag(self.pivot, "pivot")
        if self.inputs:
            _check_room_for_inputs(self)

    @property
    def is_signal(self) -> bool:
        return False


class _Signal(msgspec.Struct, frozen=True):
    name: str


class GroupSignal(_Signal, frozen=True, kw_only=True):
    """A member of a group that no worker runs: ``complete_member`` or ``fail_member`` ends it.

    If that does not happen within ``timeout``, counted from when its turn has come, it fails, or
    completes with ``default``.
    """

    key: str | None = None
    after: Sequence[str] = ()
    timeout: Duration | None = None
    default: Any = msgspec.UNSET

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or len(self.name) > MAX_NAME_LENGTH:
            raise GroupValidationError(
                f"signal name {shown(self.name)} must be a string of 1 to {MAX_NAME_LENGTH}"
                f" characters"
            )
        check_text(self.name, "signal name")
        _check_place(self)
        if self.timeout_ms is None and self.default is not msgspec.UNSET:
            raise GroupValidationError(
                f"signal {self.name!r} has a default and no timeout, after which it would be used"
            )

    @property
    def timeout_ms(self) -> int | None:
        return None if self.timeout is None else milliseconds(self.timeout, "timeout", least=1)

    @property
    def is_signal(self) -> bool:
        return True

    @property
    def pivot(self) -> bool:
        return False

    @property
    def inputs(self) -> Mapping[str, str]:
        return {}


NewMember = GroupJob | GroupSignal


class NewGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group that is to be created."""

    name: str
    members: tuple[NewMember, ...]
    graph: Graph
    compensation: Mapping[str, Compensation] = {}
    owner: str
    compensation_queue: str = COMPENSATION_QUEUE
    order: str = "parallel"
    late: bool = True
    keep: Keep | None = None
    remember_ms: int | None = None
    timeout_ms: int | None = None
    undo_timeout_ms: int | None = None
    on_completed: NewJob | None = None
    on_failed: NewJob | None = None
    prefix: str | None = None
    """Where its calls of tasks are at home; None if no job says."""

    @property
    def jobs(self) -> list[GroupJob]:
        """The members that are jobs, or will be."""
        return [member for member in self.members if isinstance(member, GroupJob)]

    @property
    def ends(self) -> list[tuple[str, Any]]:
        """The jobs that are added when the group ends, and when."""
        found = (("on_completed", self.on_completed), ("on_failed", self.on_failed))
        return [(when, job) for when, job in found if job is not None]

    def compensation_of(self, job: NewMember) -> Compensation | None:
        """How a member is undone, if it can be."""
        if isinstance(job, GroupSignal):
            return None
        return job.compensation or self.compensation.get(job.name)

    def compensation_queue_of(self, queue_name: str) -> str:
        """The queue in which the members that are in ``queue_name`` are undone."""
        return self.compensation_queue.replace("{queue}", queue_name)


def new_group(
    name: str,
    jobs: Any,
    compensation: Any,
    *,
    queue_name: str | None = None,
    compensation_queue: str = COMPENSATION_QUEUE,
    order: str | None = None,
    late: bool = True,
    keep: bool | int | Keep | None = None,
    remember: Duration | None = None,
    timeout: Duration | None = None,
    undo_timeout: Duration | None = None,
    on_completed: Any = None,
    on_failed: Any = None,
) -> NewGroup:
    """Check everything that can be checked without the server."""
    given = _listed(name, jobs)
    members = _members(name, given, compensation)
    mapping = {key: _compensation(key, value) for key, value in (compensation or {}).items()}
    _check_compensations(members, mapping)
    jobs_of = [member for member in members if isinstance(member, GroupJob)]
    if queue_name is None and not jobs_of:
        raise GroupValidationError(
            f"group {name!r} has signals only; give it a queue_name: the queue that owns it"
        )
    _refuse_equal_ids(jobs_of)
    graph = graph_of(members)
    group = NewGroup(
        name=name,
        members=members,
        graph=graph,
        compensation=mapping,
        owner=queue_name if queue_name is not None else jobs_of[0].queue_name,
        compensation_queue=compensation_queue,
        order=_order(order, graph),
        late=late,
        keep=RETENTION if keep is None else Keep.of(keep),
        remember_ms=(
            None
            if remember is None
            else milliseconds(remember, "remember", least=LEAST_REMEMBER_MS)
        ),
        timeout_ms=None if timeout is None else milliseconds(timeout, "timeout", least=1),
        undo_timeout_ms=(
            None if undo_timeout is None else milliseconds(undo_timeout, "undo_timeout", least=1)
        ),
        on_completed=_end(on_completed, "on_completed"),
        on_failed=_end(on_failed, "on_failed"),
        prefix=_prefix_of(name, [*given, on_completed, on_failed]),
    )
    _check_pivot(group)
    _check_queues(group)
    return group


def check_home(name: str, home: str | None, prefix: str) -> None:
    """Refuse calls of an app under one prefix where jobs are added under another.

    Its workers would never see them.
    """
    if home is not None and home != prefix:
        raise InvalidOptionError(
            f"{name!r} is made of calls of an app with prefix={home!r}, and would be added"
            f" under {prefix!r}, where no worker of that app looks; use a FlowProducer, or a Relay,"
            f" with prefix={home!r}"
        )


def _listed(name: Any, jobs: Any) -> list[Any]:
    """What a group is to be made of, as a list."""
    if not isinstance(name, str) or not name or len(name) > MAX_NAME_LENGTH:
        raise GroupValidationError(
            f"group name {name!r} must be a string of 1 to {MAX_NAME_LENGTH} characters"
        )
    if not isinstance(jobs, Iterable) or isinstance(jobs, str | bytes | Mapping):
        raise GroupValidationError(
            f"jobs={shown(jobs)} of group {name!r} must be a list of GroupJob(name, queue_name=…)"
        )
    return list(jobs)


def _prefix_of(name: str, jobs: Sequence[Any]) -> str | None:
    """The prefix that ``jobs`` say, such as calls do; a group is under one."""
    said = [job.prefix for job in jobs if isinstance(job, FlowJob | GroupJob)]
    found = {prefix for prefix in said if prefix is not None}
    if len(found) > 1:
        raise GroupValidationError(
            f"group {name!r} has calls of apps with different prefixes"
            f" ({', '.join(map(repr, sorted(found)))}); a group is under one prefix"
        )
    return min(found, default=None)


def _members(name: str, jobs: Sequence[Any], compensation: Any) -> tuple[NewMember, ...]:
    """The members of a group, if it can have these."""
    if compensation is not None and not isinstance(compensation, Mapping):
        raise GroupValidationError(
            f"compensation={shown(compensation)} of group {name!r} must be a dict of"
            f" Compensation(name, data) by the names of the jobs that they undo"
        )
    members = tuple(_member(job) for job in jobs)
    if not members:
        raise GroupValidationError("Group must contain at least one job")
    if len(members) > MOST_MEMBERS:
        raise GroupValidationError(
            f"group {name!r} has {len(members)} jobs, and {MOST_MEMBERS} is the most"
            f" ({members[MOST_MEMBERS].name!r} is one too many); split it, or combine"
            f" several jobs into one"
        )
    return members


def check_group_id(group_id: Any) -> str:
    """Refuse an id that a new group cannot have."""
    if not isinstance(group_id, str) or not _GROUP_ID.fullmatch(group_id):
        raise InvalidNameError(
            f"group id {shown(group_id)} cannot be used: it must be a string of 1 to 255 characters"
            f" without ':', braces and white space; join parts with '-' instead"
        )
    check_text(group_id, "group_id")
    return group_id


def may_be_group_id(group_id: str) -> bool:
    """Can there be a group with this id?"""
    return isinstance(group_id, str) and _KNOWN_ID.fullmatch(group_id) is not None


_KNOWN_ID = re.compile(r"[^:\x00-\x1f\ud800-\udfff]{1,255}")


def _order(order: str | None, graph: Graph) -> str:
    if order is None:
        return "graph" if graph.is_staged else "parallel"
    if order not in ORDERS:
        raise InvalidOptionError(f"compensation_order={order!r} is not one of {', '.join(ORDERS)}")
    return order if graph.is_staged or order != "graph" else "parallel"


def _check_compensations(members: Sequence[NewMember], mapping: Mapping[str, Compensation]) -> None:
    names = {member.name for member in members if isinstance(member, GroupJob)}
    for key in mapping:
        if key in names:
            continue
        if any(member.name == key for member in members):
            raise GroupValidationError(
                f"signal {key!r} has a compensation, and nothing runs for a signal; put what can"
                f" be undone into a job after it"
            )
        raise GroupValidationError(f'Compensation key "{key}" does not match any job name')


def _check_pivot(group: NewGroup) -> None:
    """Behind a pivot nothing is undone, and nothing is undone before it is known how it ended."""
    pivot = group.graph.pivot
    if pivot is None:
        return
    name = group.members[pivot].name
    for place, member in enumerate(group.members):
        if group.compensation_of(member) is None:
            continue
        if place == pivot or group.graph.comes_before(pivot, place):
            raise GroupValidationError(
                f"member {member.name!r} has a compensation, and after the pivot {name!r} nothing"
                f" is undone"
            )
    if group.order == "parallel" or not group.late:
        raise GroupValidationError(
            f"group {group.name!r} has the pivot {name!r}: what was done before it waits until it"
            f" is known how the pivot ended, so compensation_order='parallel' and"
            f" compensate_late=False cannot be"
        )


def _check_place(member: NewMember) -> None:
    """Refuse a key, or an ``after``, that cannot be."""
    key = member.key
    if key is not None and (not isinstance(key, str) or not key or len(key) > MAX_NAME_LENGTH):
        raise GroupValidationError(
            f"key={shown(key)} of member {member.name!r} must be a string of 1 to {MAX_NAME_LENGTH}"
            f" characters"
        )
    if key is not None:
        check_text(key, "key")
    after: Any = member.after
    if isinstance(after, str) or not isinstance(after, Iterable):
        raise GroupValidationError(
            f"after={shown(after)} of member {member.name!r} must be a list of members' keys"
        )
    keys = tuple(after)
    for one in keys:
        if not isinstance(one, str):
            raise GroupValidationError(
                f"after={shown(after)} of member {member.name!r} names {shown(one)}, which is not"
                f" a string; name members by their keys"
            )
        check_text(one, "after")
    # A copy: the list may be changed later, or can be read only once.
    msgspec.structs.force_setattr(member, "after", keys)


def _check_room_for_inputs(job: GroupJob) -> None:
    """Results go into an object, under names that are free."""
    data = {} if job.data is None else codec.decode(codec.encode(job.data, "data"))
    if not isinstance(data, dict):
        raise GroupValidationError(
            f"member {job.name!r} has inputs, so its data must be an object, and it is"
            f" {shown(job.data)}"
        )
    for name in job.inputs:
        if name in data:
            raise GroupValidationError(
                f"member {job.name!r} has {name!r} in its data and in its inputs; give one"
            )


def _end(job: Any, option: str) -> NewJob | None:
    """A job that is added when a group ends."""
    if job is None:
        return None
    if isinstance(job, Mapping):
        job = _member_of_mapping(job)
    if not isinstance(job, GroupJob | FlowJob):
        raise GroupValidationError(
            f"{option}={shown(job)} must be a job with a queue: GroupJob(name, data, queue_name=…)"
        )
    has_place = isinstance(job, GroupJob) and (
        job.after or job.inputs or job.pivot or job.key or job.compensation
    )
    if has_place or getattr(job, "children", ()) or job.deduplication is not None:
        raise GroupValidationError(
            f"{option}: job {job.name!r} is added when the group ends and is not a member of it;"
            f" it cannot have after, inputs, pivot, key, compensation, children or deduplication"
        )
    check_queue_name(job.queue_name)
    data = {} if job.data is None else codec.decode(codec.encode(job.data, "data"))
    if not isinstance(data, dict) or TOLD in data:
        raise GroupValidationError(
            f"{option}: the data of job {job.name!r} must be an object without {TOLD!r}: how the"
            f" group ended is stored there"
        )
    return job


def _member(job: Any) -> NewMember:
    if isinstance(job, GroupSignal):
        return job
    if isinstance(job, StoredJob):
        if job.opts.group is not None:
            raise GroupValidationError(
                f"job {job.id!r} already belongs to group {job.opts.group.id!r};"
                f" a job can belong to one group only"
            )
        raise GroupValidationError(f"{job!r} exists already; a group creates its jobs itself")
    if isinstance(job, Mapping):
        job = _member_of_mapping(job)
    if isinstance(job, FlowJob):
        job = member_of(job)
    if not isinstance(job, GroupJob):
        raise GroupValidationError(
            f"{job!r} is neither a GroupJob, a GroupSignal or a call of a task nor a mapping that"
            f" describes one"
        )
    if getattr(job, "parent", None) is not None:
        raise GroupValidationError("A job cannot belong to both a group and a flow")
    if job.deduplication is not None:
        raise GroupValidationError(
            f"job {job.name!r} has a deduplication; a member that is dropped as a duplicate would"
            f" leave its group incomplete"
        )
    return job


def member_of(job: FlowJob, **place: Any) -> GroupJob:
    """A job with a queue, such as a call of a task, as a member of a group."""
    if job.children:
        raise GroupValidationError("A job cannot belong to both a group and a flow")
    fields = {name: getattr(job, name) for name in NewJob.__struct_fields__}
    fields |= {"prefix": job.prefix, **job.membership, **place}
    name, data = fields.pop("name"), fields.pop("data")
    return GroupJob(name, data, queue_name=job.queue_name, **fields)


def _member_of_mapping(described: Mapping[str, Any]) -> GroupJob:
    fields = codec.python_names(described)
    options = codec.python_names(fields.pop("opts", None) or {})
    name = fields.pop("name", None)
    if options.pop("parent", None) is not None or fields.pop("parent", None) is not None:
        raise GroupValidationError("A job cannot belong to both a group and a flow")
    if options.pop("group", None) is not None or fields.pop("group", None) is not None:
        raise GroupValidationError(
            f"job {name!r} already belongs to a group; a job can belong to one group only"
        )
    if fields.get("children") or options.get("children"):
        raise GroupValidationError("A job cannot belong to both a group and a flow")
    own = fields.pop("compensation", None)
    options.update(fields)
    refuse_unknown(options, OPTION_NAMES | _OF_MEMBERS, f"member {name!r} of a group")
    if not isinstance(options.get("queue_name"), str):
        raise GroupValidationError(f"job {name!r} of a group needs a queue_name")
    return GroupJob(
        name,
        options.pop("data", None),
        compensation=None if own is None else _compensation(str(name), own),
        **options,
    )


_OF_MEMBERS = frozenset({"queue_name", "data", "key", "after", "inputs", "pivot"})


def _compensation(key: str, value: Compensation | Mapping[str, Any]) -> Compensation:
    if isinstance(value, Compensation):
        return value
    if not isinstance(value, Mapping):
        raise GroupValidationError(
            f"the compensation of {key!r} is {value!r}; give a Compensation or a mapping"
        )
    fields = codec.python_names(value)
    options = {**codec.python_names(fields.pop("opts", None) or {}), **fields}
    known = frozenset(Compensation.__struct_fields__)
    refuse_unknown(options, known, f"the compensation of {key!r}")
    if "name" not in options:
        raise GroupValidationError(f"the compensation of {key!r} has no name")
    return Compensation(options.pop("name"), options.pop("data", None), **options)


def _refuse_equal_ids(members: Sequence[GroupJob]) -> None:
    seen: set[tuple[str, str]] = set()
    for job in members:
        if job.job_id is None:
            continue
        place = (job.queue_name, job.job_id)
        if place in seen:
            raise GroupValidationError(
                f"two jobs of the group have the id {job.job_id!r} in queue {job.queue_name!r}"
            )
        seen.add(place)


def _check_queues(group: NewGroup) -> None:
    check_queue_name(group.owner)
    for queue_name in {job.queue_name for job in group.jobs if group.compensation_of(job)}:
        target = group.compensation_queue_of(queue_name)
        check_queue_name(target)
        # A word in braces that no queue of the group has is no hash tag: it is a slip.
        for word in re.findall(r"\{[^}]*\}", target):
            if word not in queue_name and word not in group.owner:
                raise InvalidOptionError(
                    f"compensation_queue={group.compensation_queue!r} has {word!r} in it, but only"
                    f" '{{queue}}' is replaced; write {COMPENSATION_QUEUE!r} or a name of its own"
                )
        if target == queue_name:
            raise InvalidOptionError(
                f"compensation_queue={group.compensation_queue!r} is the queue of the members"
                f" themselves; use a queue of its own, such as {COMPENSATION_QUEUE!r}"
            )


def queues_of(group: NewGroup, prefix: str) -> list[Keys]:
    """Every queue that the group touches, its owner first: they must share a slot."""
    names = [group.owner]
    for job in group.jobs:
        names.append(job.queue_name)
        if group.compensation_of(job):
            names.append(group.compensation_queue_of(job.queue_name))
    names += [job.queue_name for _, job in group.ends]
    return [Keys(prefix, name) for name in dict.fromkeys(names)]
