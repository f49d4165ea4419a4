"""Starting a group: one call that creates all of it, or nothing, and a second one that finds it.

What members become when their turn comes travels with the call and stays with the group
(``docs/internals/groups.md``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from toril.errors import GroupExistsError, GroupValidationError
from toril.options import NewJob
from toril.protocol import adding, codec, groups
from toril.protocol.adding import Added, Prepared
from toril.protocol.command import Command, Resend, script
from toril.protocol.groups import GroupNode
from toril.protocol.job import Job
from toril.protocol.keys import Keys
from toril.protocol.new_group import Compensation, GroupJob, GroupSignal, NewGroup, NewMember
from toril.protocol.refusals import Refusal
from toril.protocol.replicating import Short


def create(
    prefix: str,
    group: NewGroup,
    group_id: str,
    job_ids: Sequence[str],
    *,
    seed: str | None = None,
) -> Command[GroupNode]:
    """Create the group with all of its jobs, or nothing; ``job_ids`` are for those without one.

    With a ``seed`` the id was chosen by the caller, and ``job_ids`` are ``ids_of(group, seed)``.
    If there is such a group its node is returned; if that group is another one,
    ``GroupExistsError`` says what differs.
    """
    owner = Keys(prefix, group.owner)
    encoded = _Encoded(prefix, group, group_id, job_ids)
    args = _args(prefix, group, group_id, encoded)
    if seed is not None:
        args["seed"] = seed
        args["definition"] = fingerprint(group, encoded)
    record = groups.record_key(owner, group_id)
    return script(
        "addGroup",
        owner,
        args,
        lambda reply: _created(prefix, group, group_id, encoded, reply, args.get("definition", "")),
        extra={
            "groups": f"{owner.base}:groups",
            "group": record,
            "members": f"{record}:jobs",
            "plan": f"{record}:plan",
            "open": groups.open_key(owner),
            "gone": groups.gone_key(owner, group_id),
        },
        payloads=encoded.payloads,
        resend=Resend.NUMBERED,
    )


def _args(prefix: str, group: NewGroup, group_id: str, encoded: _Encoded) -> dict[str, Any]:
    args: dict[str, Any] = {
        "id": group_id,
        "name": group.name,
        "queues": [queue.base for queue in encoded.queues],
        "jobs": encoded.entries,
        "definitions": encoded.undoing.packed,
        "targets": {
            queue.base: Keys(prefix, group.compensation_queue_of(queue.name)).base
            for queue in encoded.queues
            if queue.name in encoded.undoing.queues
        },
        "order": group.order,
        "late": group.late,
        "look_again_ms": groups.LOOK_AGAIN_MS,
    }
    if group.graph.is_staged or group.undo_timeout_ms is not None:
        args["gates"] = [[list(gate.after), list(gate.members)] for gate in group.graph.gates]
    if group.graph.pivot is not None:
        args["pivot"] = group.graph.pivot
    if group.keep is not None:
        args["keep"] = codec.keep_args(group.keep) or {}
    if group.remember_ms is not None:
        args["remember_ms"] = group.remember_ms
    if group.timeout_ms is not None:
        args["timeout_ms"] = group.timeout_ms
    if group.undo_timeout_ms is not None:
        args["undo_ms"] = group.undo_timeout_ms
    if group.ends:
        args["ends"] = {when: _end(prefix, job, group_id, when) for when, job in group.ends}
    return args


def _created(
    prefix: str, group: NewGroup, group_id: str, encoded: _Encoded, reply: Any, definition: str
) -> GroupNode:
    """The node of a group that was created now or before; raises why it was not."""
    if isinstance(reply, int):
        return _node(prefix, group, group_id, encoded, reply, is_new=True)
    first, second = reply
    if first == Refusal.LANE_FULL:
        raise adding.refusal(encoded.prepared_at(second - 1), first)
    if first == Refusal.OTHER_GROUP:
        raise exists(group_id, _differences(definition, codec.text(second)))
    if isinstance(first, int):
        again = _Encoded(prefix, group, group_id, ids_of(group, codec.text(second)))
        return _node(prefix, group, group_id, again, first, is_new=False)
    raise GroupValidationError(
        f"group {group.name!r} was not created: job id {codec.text(first)!r} exists"
        f" already in {codec.text(second)!r}"
    )


def ids_of(group: NewGroup, seed: str) -> list[str]:
    """The ids of a group's jobs, made of one id: whoever knows it knows them all."""
    return [f"{seed}-{place}" for place in range(len(group.members))]


def exists(group_id: str, differences: Sequence[str]) -> GroupExistsError:
    """The error for a group whose id another group has."""
    words = ", ".join(differences) or "it was made without a group_id"
    return GroupExistsError(
        f"group {group_id!r} exists, and is another one; what differs: {words}", differences
    )


def _node(
    prefix: str, group: NewGroup, group_id: str, encoded: _Encoded, now_ms: int, *, is_new: bool
) -> GroupNode:
    jobs = [
        Job(prefix, member.queue_name, ready.id, adding.fields_of(ready, Added(ready.id, now_ms)))
        for member, ready in zip(group.members, encoded.prepared, strict=True)
        if isinstance(member, GroupJob) and ready is not None
    ]
    return GroupNode(group_id, group.name, jobs, is_new)


class _Encoded:
    """The members of a group as they travel: an entry for each, and the payloads of jobs."""

    def __init__(self, prefix: str, group: NewGroup, group_id: str, job_ids: Sequence[str]) -> None:
        self.queues = [
            Keys(prefix, name) for name in dict.fromkeys(job.queue_name for job in group.jobs)
        ]
        self._group = group
        self._group_id = group_id
        self._numbers = {queue.name: number for number, queue in enumerate(self.queues, 1)}
        self.undoing = _Undoing(group)
        self.prepared: list[Prepared | None] = []
        self.entries: list[dict[str, Any]] = []
        for place, (member, job_id) in enumerate(zip(group.members, job_ids, strict=True)):
            if isinstance(member, GroupSignal):
                self._add_signal(place, member)
            else:
                self._add_job(place, member, job_id)
        self.payloads = [codec.encode_compensations(self.undoing.stored)]
        for ready in self.prepared:
            if ready is not None:
                self.payloads += [ready.data, ready.opts]

    def prepared_at(self, place: int) -> Prepared:
        ready = self.prepared[place]
        assert ready is not None
        return ready

    def _add_job(self, place: int, member: GroupJob, job_id: str) -> None:
        ready = adding.prepare(member, job_id)
        opts = codec.encode_options_of_member(member, self._group_id, self._group.name)
        self.prepared.append(msgspec.structs.replace(ready, opts=opts))
        undo = self.undoing.of(place, member)
        entry = {
            **ready.entry,
            "queue": self._numbers[member.queue_name],
            "kind": _kind(undo, self.undoing),
        }
        if undo:
            entry["undo"] = undo
        inputs = self._group.graph.inputs[place]
        if inputs:
            entry["inputs"] = [
                [codec.encode(name, "the name of an input").decode(), source]
                for name, source in inputs.items()
            ]
        self._place(place, member, entry)

    def _add_signal(self, place: int, signal: GroupSignal) -> None:
        self.prepared.append(None)
        entry: dict[str, Any] = {
            "id": f"{self._group_id}-s{place}",
            "name": signal.name,
            "kind": "s",
        }
        if signal.timeout_ms is not None:
            entry["timeout_ms"] = signal.timeout_ms
        if signal.default is not msgspec.UNSET:
            what = f"the default of signal {signal.name!r}"
            entry["default"] = codec.encode(signal.default, what).decode()
        self._place(place, signal, entry)

    def _place(self, place: int, member: NewMember, entry: dict[str, Any]) -> None:
        label = self._group.graph.labels[place]
        if label is None:
            label = entry["id"]
        if label != member.name:
            entry["label"] = label
        behind = self._group.graph.gates_behind(place)
        if behind:
            entry["behind"] = behind
        if self._group.graph.after[place]:
            entry["waits"] = True
        self.entries.append(entry)


class _Undoing:
    """The compensations of a group, each written once however many members it undoes."""

    def __init__(self, group: NewGroup) -> None:
        self._group = group
        self._numbers: dict[str, int] = {}
        self.packed: list[dict[str, Any]] = []
        self.stored: dict[str, msgspec.Raw] = {}
        self.undoes_failures: set[int] = set()
        self.queues: set[str] = set()
        for key, compensation in group.compensation.items():
            self._write(key, compensation)

    def of(self, place: int, job: GroupJob) -> int:
        """The number of the definition that undoes this member; 0 for none."""
        if self._group.compensation_of(job) is None:
            return 0
        self.queues.add(job.queue_name)
        if job.compensation is None:
            return self._numbers[job.name]
        return self._write(f"{job.name}#{place}", job.compensation, is_own=True)

    def _write(self, key: str, compensation: Compensation, *, is_own: bool = False) -> int:
        while key in self.stored:
            key += "#"
        data = codec.encode(compensation.data, f"the data of compensation {compensation.name!r}")
        job = compensation.as_job()
        options = codec.wire_options(job)
        told = {name: value for name, value in options.items() if name != "tm"}
        self.stored[key] = codec.encode_compensation(compensation.name, data, told)
        packed: dict[str, Any] = {
            "name": compensation.name,
            "opts": codec.encode_wire_options(options).decode(),
            "data": data.decode(),
        }
        how = {name: value for name in _PLACING if (value := getattr(job, name))}
        if how:
            packed["how"] = how
        self.packed.append(packed)
        number = len(self.packed)
        if not is_own:
            self._numbers[key] = number
        if compensation.compensate_failed:
            self.undoes_failures.add(number)
        return number


_PLACING = ("delay", "priority", "lane")


def _kind(undo: int, undoing: _Undoing) -> str:
    if not undo:
        return "u"
    return "f" if undo in undoing.undoes_failures else "m"


def _end(prefix: str, job: Any, group_id: str, when: str) -> dict[str, Any]:
    """A job that is added when the group ends, as it is kept until then."""
    ready = adding.prepare(job, f"{group_id}-{when.removeprefix('on_')}")
    return {
        **ready.entry,
        "queue": Keys(prefix, job.queue_name).base,
        "data": ready.data.decode(),
        "opts": ready.opts.decode(),
    }


# ---------------------------------------------------------------------------- comparing


def fingerprint(group: NewGroup, encoded: _Encoded) -> str:
    """What a group is made of, part by part, so that two can be compared without their payloads.

    The ids that Toril chose and the trace of the call are no part of it.
    """
    parts: dict[str, str] = {
        "name": group.name,
        "queue_name": group.owner,
        "compensation_order": group.order,
        "compensate_late": str(group.late),
        "timeout": str(group.timeout_ms),
        "undo_timeout": str(group.undo_timeout_ms),
        "group_retention": repr(group.keep),
    }
    if group.remember_ms is not None:  # earlier versions did not know it
        parts["remember"] = str(group.remember_ms)
    hashed = {name: _digest(value.encode()) for name, value in parts.items()}
    hashed["compensation"] = _digest(
        group.compensation_queue.encode(), codec.encode_compensations(encoded.undoing.stored)
    )
    for when, job in group.ends:
        hashed[when] = _digest(job.queue_name.encode(), *_words(job))
    for place, member in enumerate(group.members):
        label = encoded.entries[place].get("label", member.name)
        if group.graph.labels[place] is None:
            label = f"{member.name} ({place + 1})"
        hashed[f"member {label!r}"] = _member_digest(group, place, member)
    return msgspec.json.encode(hashed).decode()


def _member_digest(group: NewGroup, place: int, member: NewMember) -> str:
    graph = group.graph
    rest: list[bytes] = [
        repr((graph.after[place], sorted(graph.inputs[place].items()), member.pivot)).encode()
    ]
    if isinstance(member, GroupSignal):
        default = (
            b"" if member.default is msgspec.UNSET else codec.encode(member.default, "default")
        )
        return _digest(
            b"signal", member.name.encode(), str(member.timeout_ms).encode(), default, *rest
        )
    undo = member.compensation
    if undo is not None:
        rest += [codec.encode(undo.data, "data"), *_words(undo.as_job())]
    return _digest(member.queue_name.encode(), *_words(member), *rest)


def _words(job: NewJob) -> list[bytes]:
    options = {name: value for name, value in codec.wire_options(job).items() if name != "tm"}
    data = b"{}" if job.data is None else codec.encode(job.data, f"the data of job {job.name!r}")
    return [job.name.encode(), data, codec.encode_wire_options(options), str(job.run_at).encode()]


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()[:12]


def _differences(wanted: str, found: str) -> list[str]:
    """The parts in which two definitions differ."""
    try:
        there: Mapping[str, str] = msgspec.json.decode(found, type=dict[str, str])
    except msgspec.DecodeError:
        return []
    ours: dict[str, str] = msgspec.json.decode(wanted, type=dict[str, str])
    differing = [part for part in ours if part in there and ours[part] != there[part]]
    differing += [f"{part} (new)" for part in ours if part not in there]
    differing += [f"{part} (missing)" for part in there if part not in ours]
    return differing


def tell_of_members(group: GroupNode, short: Short) -> GroupNode:
    """Raise that too few replicas have the group."""
    raise short([job.id for job in group.jobs])
