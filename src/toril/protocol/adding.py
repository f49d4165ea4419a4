"""Adding jobs: one script call for any number of them, each with its own answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

import msgspec

from toril.errors import (
    InvalidOptionError,
    LaneFullError,
    NotReplicatedError,
    ParentConflictError,
    ParentNotFoundError,
    RefusedError,
)
from toril.options import Deduplication, NewJob, Parent, Replicas
from toril.protocol import codec, deduplicating
from toril.protocol.command import Command, Resend, script
from toril.protocol.job import Fields
from toril.protocol.keys import Keys, check_job_id, check_known_id
from toril.protocol.refusals import Refusal
from toril.protocol.replicating import Short, replicated

MOST_JOBS_PER_CALL = 200
MOST_BYTES_PER_CALL = 500_000
"""Of data. Jobs beyond that go with the next call, so that the server has time for others."""
"""So that no script holds the server for longer than a few milliseconds."""

_EMPTY = b"{}"

T = TypeVar("T")


NotAdded = RefusedError | NotReplicatedError
"""Why a job was not added, or not as safely as was asked for."""
_NOT_ADDED = (RefusedError, NotReplicatedError)


def raise_worst(answers: Iterable[Any]) -> None:
    """Raise the first refusal of a bulk, or else an error for jobs that too few replicas have."""
    troubles = [answer for answer in answers if isinstance(answer, _NOT_ADDED)]
    for trouble in troubles:
        if isinstance(trouble, RefusedError):
            raise trouble
    short = [trouble for trouble in troubles if isinstance(trouble, NotReplicatedError)]
    if short:
        raise short[0].of_all(short)


class Prepared(msgspec.Struct, frozen=True):
    """A new job, checked and encoded, ready to be sent."""

    id: str
    entry: dict[str, Any]
    data: bytes
    opts: bytes


def count_for_one_call(jobs: Iterable[Prepared]) -> int:
    """How many of ``jobs`` may be added by one call: at least one, and not too many bytes.

    A large one goes alone: if it is too large for the server, that refuses the whole call.
    """
    count = size = 0
    for job in islice(jobs, MOST_JOBS_PER_CALL):
        if count and len(job.data) >= MOST_BYTES_PER_CALL:
            break
        count += 1
        size += len(job.data)
        if size >= MOST_BYTES_PER_CALL:
            break
    return count


class Added(msgspec.Struct, frozen=True):
    """The answer for one job: when it was added, or which existing job it is a duplicate of."""

    id: str
    timestamp: int
    is_duplicate: bool = False


def prepare(
    job: NewJob,
    generated_id: str,
    parent: tuple[str, str] | None = None,
    *,
    once_ms: int | None = None,
) -> Prepared:
    """Check and encode ``job``; its own id, if it has one, takes precedence over the generated one.

    ``parent`` is the id and the qualified queue of the job that this one is a child of.
    With ``once_ms`` the server remembers for that long that a job with this id and this idempotency
    key was added, and adds it no second time although it has run and was removed since.
    """
    if job.data is None:
        data = _EMPTY
    else:
        data = codec.encode_limited(job.data, job.size_limit, f"the data of job {job.name!r}")
    entry: dict[str, Any] = {"id": generated_id, "name": job.name}
    if job.is_bare and parent is None and once_ms is None:
        return Prepared(generated_id, entry, data, codec.PLAIN_OPTIONS)
    if job.job_id:
        check_job_id(job.job_id)
        entry["id"] = job.job_id
        entry["custom"] = True
    if job.delay:
        entry["delay"] = job.normalised("delay")
    if job.run_at:
        entry["run_at"] = job.normalised("run_at")
    if job.priority:
        entry["priority"] = job.priority
    if job.lifo:
        entry["lifo"] = True
    if job.timestamp is not None:
        entry["timestamp"] = job.normalised("timestamp")
    if job.deduplication is not None:
        entry["de"] = deduplicating.entry(Deduplication.of(job.deduplication))
    if job.lane is not None:
        entry["lane"] = job.lane
        for option in ("order_ms", "ordering_delay", "max_lane_size"):
            if getattr(job, option) is not None:
                entry[option] = job.normalised(option)
    if parent is not None:
        entry["parent_key"] = f"{parent[1]}:{parent[0]}"
        entry["parent"] = codec.encode_parent(job, parent).decode()
    elif (
        job.fail_parent_on_failure
        or job.continue_parent_on_failure
        or job.ignore_dependency_on_failure
        or job.remove_dependency_on_failure
    ):
        raise InvalidOptionError(f"job {job.name!r} has {job.child_policy} and no parent")
    if once_ms is not None:
        entry["once"] = {"key": job.idempotency_key or entry["id"], "ms": once_ms}
    return Prepared(entry["id"], entry, data, codec.encode_options(job, parent))


def parent_of(job: NewJob, prefix: str) -> tuple[Keys, str]:
    """The queue and the id of the parent that ``job`` names; ``prefix`` is the child's own."""
    parent = Parent.of(job.parent)
    check_known_id(parent.id)
    return Keys(prefix if parent.prefix is None else parent.prefix, parent.queue_name), parent.id


def add(
    keys: Keys,
    jobs: Sequence[Prepared],
    *,
    keeps_order: bool = False,
    behind: Sequence[Prepared] = (),
    replicas: Replicas | None = None,
) -> Command[list[Added | NotAdded]]:
    """Add up to ``MOST_JOBS_PER_CALL`` jobs; each gets its own answer or its own error.

    A job that is there and that too few ``replicas`` have gets an error as well.
    With ``keeps_order`` nothing is added to a lane after a job that had no room in it.  ``behind``
    are jobs of calls that were sent before this one, each with ``once``: if they were not added,
    nothing is added to their lanes.
    """
    payloads: list[bytes] = []
    for job in jobs:
        payloads.append(job.data)
        payloads.append(job.opts)

    def parse(reply: list[Any]) -> list[Added | NotAdded]:
        now_ms = reply[0]
        return [_answer(job, code, now_ms) for job, code in zip(jobs, reply[1:], strict=True)]

    args: dict[str, Any] = {"jobs": [job.entry for job in jobs]}
    if keeps_order:
        args["keeps_order"] = True
    if behind:
        args["behind"] = [
            {"lane": job.entry["lane"], "id": job.id, "key": job.entry["once"]["key"]}
            for job in behind
        ]
    command = script(
        "add",
        keys,
        args,
        parse,
        payloads=payloads,
        resend=Resend.NUMBERED,
    )
    return replicated(command, replicas, _tell_each)


def _tell_each(answers: list[Added | NotAdded], short: Short) -> list[Added | NotAdded]:
    return [short([one.id]) if isinstance(one, Added) else one for one in answers]


def add_each(
    keys: Keys,
    jobs: Sequence[Prepared],
    each: Callable[[Prepared, Added], T],
    replicas: Replicas | None = None,
) -> Command[list[T | NotAdded]]:
    """Add jobs like ``add``; ``each`` makes of a job and its answer what is given back."""
    command = add(keys, jobs, replicas=replicas)

    def parse(reply: Any) -> list[T | NotAdded]:
        return [
            answer if isinstance(answer, _NOT_ADDED) else each(job, answer)
            for job, answer in zip(jobs, command.parse(reply), strict=True)
        ]

    return msgspec.structs.replace(command, parse=parse)  # type: ignore[arg-type]


def fields_of(job: Prepared, added: Added) -> Fields:
    """The stored fields of a job that was just added, without asking the server for them."""
    entry = job.entry
    fields: Fields = {
        b"name": entry["name"].encode(),
        b"data": job.data,
        b"opts": job.opts,
        b"timestamp": entry.get("timestamp", added.timestamp),
    }
    for name in ("priority", "delay"):
        if name in entry:
            fields[name.encode()] = entry[name]
    if "de" in entry:
        fields[b"deid"] = entry["de"]["id"].encode()
    if "parent_key" in entry:
        fields[b"parentKey"] = entry["parent_key"].encode()
        fields[b"parent"] = entry["parent"].encode()
    return fields


def _answer(job: Prepared, code: int | bytes, now_ms: int) -> Added | RefusedError:
    if isinstance(code, bytes):
        return Added(codec.name(code), now_ms, is_duplicate=True)
    if code >= 0:
        return Added(job.id, now_ms, is_duplicate=code == 1)
    return refusal(job, code)


def refusal(job: Prepared, code: int) -> RefusedError:
    """The error for a refusal's code."""
    if code == Refusal.NO_PARENT:
        return ParentNotFoundError(
            f"job {job.id!r} was not added: its parent {job.entry['parent_key']!r} does not exist"
        )
    if code == Refusal.LANE_FULL and "max_lane_size" not in job.entry:
        return LaneFullError(
            f"job {job.id!r} was not added: there was no room in lane {job.entry['lane']!r} for"
            f" one before it; add it after that"
        )
    if code == Refusal.LANE_FULL:
        return LaneFullError(
            f"job {job.id!r} was not added: lane {job.entry['lane']!r} would have more than"
            f" {job.entry['max_lane_size']} waiting jobs, its max_lane_size; add it later"
        )
    return ParentConflictError(
        f"job {job.id!r} exists and belongs to another parent; give the child another id"
    )
