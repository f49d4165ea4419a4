"""A new group: its jobs, how each is undone, and the check of it all before anything is sent.

A group (a saga) is a set of jobs that all succeed, or what was done is undone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from toril.checking import shown
from toril.errors import GroupValidationError, InvalidOptionError
from toril.options import (
    MAX_NAME_LENGTH,
    OPTION_NAMES,
    Backoff,
    Duration,
    Keep,
    NewJob,
    milliseconds,
    refuse_unknown,
)
from toril.protocol import codec
from toril.protocol.job import StoredJob
from toril.protocol.keys import COMPENSATION_SUFFIX, Keys, check_queue_name

MOST_MEMBERS = 1000
"""So that no step of a group holds the server for longer than a few milliseconds."""

COMPENSATION_QUEUE = "{queue}" + COMPENSATION_SUFFIX
ORDERS = ("parallel", "reverse")


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
    remove_on_complete: bool | int | Keep | None = None
    remove_on_fail: bool | int | Keep | None = None
    compensate_failed: bool = False

    def __post_init__(self) -> None:
        self.as_job()

    def as_job(self) -> NewJob:
        """The same as a job: the check of its options is that of any job."""
        return NewJob(
            self.name,
            attempts=self.attempts,
            backoff=self.backoff,
            timeout=self.timeout,
            remove_on_complete=self.remove_on_complete,
            remove_on_fail=self.remove_on_fail,
        )


class GroupJob(NewJob, frozen=True, kw_only=True):
    """A job that is to be a member of a group: what ``NewJob`` takes, and the queue.

    ``compensation`` undoes this job alone; it goes before the group's entry for its name.
    """

    queue_name: str
    compensation: Compensation | None = None

    def __post_init__(self) -> None:
        NewJob.__post_init__(self)
        check_queue_name(self.queue_name)


class NewGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group that is to be created."""

    name: str
    jobs: tuple[GroupJob, ...]
    compensation: Mapping[str, Compensation] = {}
    owner: str
    compensation_queue: str = COMPENSATION_QUEUE
    order: str = "parallel"
    late: bool = True
    keep: Keep | None = None
    timeout_ms: int | None = None

    def compensation_of(self, job: GroupJob) -> Compensation | None:
        """How a member is undone, if it can be."""
        return job.compensation or self.compensation.get(job.name)

    def compensation_queue_of(self, queue_name: str) -> str:
        """The queue in which the members that are in ``queue_name`` are undone."""
        return self.compensation_queue.replace("{queue}", queue_name)


def new_group(
    name: str,
    jobs: Any,
    compensation: Any,
    *,
    queue_name: str | None,
    compensation_queue: str,
    order: str,
    late: bool,
    keep: bool | int | Keep | None,
    timeout: Duration | None,
) -> NewGroup:
    """Check everything that can be checked without the server."""
    if not isinstance(name, str) or not name or len(name) > MAX_NAME_LENGTH:
        raise GroupValidationError(
            f"group name {name!r} must be a string of 1 to {MAX_NAME_LENGTH} characters"
        )
    if not isinstance(jobs, Iterable) or isinstance(jobs, str | bytes | Mapping):
        raise GroupValidationError(
            f"jobs={shown(jobs)} of group {name!r} must be a list of GroupJob(name, queue_name=…)"
        )
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
            f"group {name!r} has {len(members)} jobs, and {MOST_MEMBERS} is the most;"
            f" split it, or let one job stand for several"
        )
    mapping = {key: _compensation(key, value) for key, value in (compensation or {}).items()}
    names = {job.name for job in members}
    for key in mapping:
        if key not in names:
            raise GroupValidationError(f'Compensation key "{key}" does not match any job name')
    _refuse_equal_ids(members)
    if order not in ORDERS:
        raise InvalidOptionError(f"compensation_order={order!r} is not one of {', '.join(ORDERS)}")
    group = NewGroup(
        name=name,
        jobs=members,
        compensation=mapping,
        owner=queue_name if queue_name is not None else members[0].queue_name,
        compensation_queue=compensation_queue,
        order=order,
        late=late,
        keep=None if keep is None else Keep.of(keep),
        timeout_ms=None if timeout is None else milliseconds(timeout, "timeout", least=1),
    )
    _check_queues(group)
    return group


def _member(job: GroupJob | Mapping[str, Any]) -> GroupJob:
    if isinstance(job, StoredJob):
        if job.opts.group is not None:
            raise GroupValidationError(
                f"job {job.id!r} already belongs to group {job.opts.group.id!r};"
                f" a job can belong to one group only"
            )
        raise GroupValidationError(f"{job!r} exists already; a group creates its jobs itself")
    if isinstance(job, Mapping):
        job = _member_of_mapping(job)
    if not isinstance(job, GroupJob):
        raise GroupValidationError(
            f"{job!r} is neither a GroupJob nor a mapping that describes one"
        )
    if getattr(job, "parent", None) is not None:
        raise GroupValidationError("A job cannot belong to both a group and a flow")
    if job.deduplication is not None:
        raise GroupValidationError(
            f"job {job.name!r} has a deduplication; a member that is dropped as a duplicate would"
            f" leave its group incomplete"
        )
    return job


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
    refuse_unknown(options, OPTION_NAMES | {"queue_name", "data"}, f"member {name!r} of a group")
    if not isinstance(options.get("queue_name"), str):
        raise GroupValidationError(f"job {name!r} of a group needs a queue_name")
    return GroupJob(
        name,
        options.pop("data", None),
        compensation=None if own is None else _compensation(str(name), own),
        **options,
    )


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


def _refuse_equal_ids(members: tuple[GroupJob, ...]) -> None:
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
                    f"compensation_queue={group.compensation_queue!r} has {word!r} in it, and only"
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
    return [Keys(prefix, name) for name in dict.fromkeys(names)]
