"""Rows that start a group or a flow: the request, as JSON, and the call that carries it out.

The row's data are the arguments of ``FlowProducer.add_group``, or the jobs of a flow, under their
Python names, and its options say which: ``{"start": "group"}``.  Its id is the group's, or that of
the flow's root, so a row that is sent twice does not start anything twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from inspect import signature
from typing import Any, TypedDict

import msgspec

from toril.client.groups import GroupProducer
from toril.client.ids import new_job_id
from toril.errors import GroupExistsError, InvalidInputError, InvalidOptionError, PayloadError
from toril.options import (
    Backoff,
    Deduplication,
    Duration,
    FlowJob,
    Keep,
    NewJob,
    Parent,
    Replicas,
    epoch_ms,
    milliseconds,
    refuse_unknown,
)
from toril.outbox.rows import UNREADABLE, OutboxRow, check_length, check_row_id
from toril.outbox.schema import LONGEST_KEY, LONGEST_NAME
from toril.protocol import codec, flows, groups, starting
from toril.protocol.command import Command, Plan
from toril.protocol.confirming import Fate
from toril.protocol.groups import GroupInfo
from toril.protocol.keys import Keys, check_prefix
from toril.protocol.new_group import (
    Compensation,
    GroupJob,
    GroupSignal,
    NewGroup,
    check_group_id,
    check_home,
    new_group,
    queues_of,
)
from toril.protocol.placing import Placing, queues_of_flows, queues_of_group
from toril.protocol.replicating import Short, replicated

GROUP = "group"
FLOW = "flow"

_STRUCTS: dict[str, type[msgspec.Struct]] = {
    kind.__name__: kind
    for kind in (
        *(Backoff, Compensation, Deduplication, FlowJob, GroupJob, GroupSignal, Keep, NewJob),
        Parent,
    )
}
_TAG = "is"
_OF_USERS = frozenset({"data", "default", "inputs"})
"""Fields that hold the user's own values, which are never interpreted."""
_SHORT = {"compensation_order": "order", "compensate_late": "late", "group_retention": "keep"}
_NOT_STORED = frozenset({"self", "group_id"})


class GroupOptions(TypedDict, total=False):
    """The options of ``FlowProducer.add_group``."""

    queue_name: str | None
    compensation_queue: str
    compensation_order: str | None
    compensate_late: bool
    group_retention: bool | int | Keep | None
    remember: Duration | None
    timeout: Duration | None
    undo_timeout: Duration | None
    on_completed: Any
    on_failed: Any


class Start(msgspec.Struct, frozen=True):
    """What a row starts: the queues it touches, and the call, which tells if it already existed."""

    queues: list[Keys]
    command: Command[bool]


def kind_of(row: OutboxRow) -> str | None:
    """What a row starts; None for the row of a single job."""
    return _options_of(row).get("start") if '"start"' in row.options else None


def _options_of(row: OutboxRow) -> dict[str, Any]:
    try:
        options = msgspec.json.decode(row.options)
    except UNREADABLE:
        return {}
    return options if isinstance(options, dict) else {}


def open_start(
    row: OutboxRow,
    prefix: str,
    *,
    once_ms: int,
    replicas: Replicas | None = None,
    placing: Placing | None = None,
) -> Start:
    """The start of a row; raises if a row written by hand is wrong.

    It is done when ``replicas`` have it, even if it already existed.
    """
    check_home(row.name, _options_of(row).get("prefix"), prefix)
    match kind_of(row):
        case "group":
            check_group_id(row.id)
            group = _read_group(row)
            check_home(row.name, group.prefix, prefix)
            if placing is not None:
                group = placing.of_group(group, row.id)
            return _until_replicated(_start_group(group, row.id, prefix), row, replicas)
        case "flow":
            check_row_id(row)
            place = None if placing is None else placing.of_flow_job
            start = _start_flow(_read_flow(row), row.id, prefix, once_ms, place)
            return _until_replicated(start, row, replicas)
    raise InvalidOptionError(
        f"outbox row {row.seq} starts {kind_of(row)!r}, which this version does not know;"
        f" run a newer relay, and unpark it"
    )


def root_of(row: OutboxRow) -> FlowJob:
    """The root of the flow that a row starts."""
    return _read_flow(row)


def names_of(row: OutboxRow) -> set[str]:
    """The queues named in what a row starts; raises if the row is wrong."""
    if kind_of(row) == GROUP:
        return queues_of_group(_read_group(row))
    return queues_of_flows([_read_flow(row)]) if kind_of(row) == FLOW else set()


def _until_replicated(start: Start, row: OutboxRow, replicas: Replicas | None) -> Start:
    def tell(was_there: bool, short: Short) -> bool:
        raise short([row.id])

    command = replicated(start.command, replicas, tell)
    return msgspec.structs.replace(start, command=command)


# ---------------------------------------------------------------------------- groups


def values_of_group(
    name: str, jobs: Any, compensation: Any, options: Mapping[str, Any], group_id: str
) -> dict[str, Any]:
    """The columns of a row that starts a group; refuses now what could not start later."""
    check_group_id(group_id)
    if isinstance(jobs, Iterable) and not isinstance(jobs, str | bytes | Mapping):
        jobs = list(jobs)
    arguments = {"name": name, "jobs": jobs, "compensation": compensation, **options}
    group = _group_of(arguments)
    _start_group(group, group_id, "any")
    stored: dict[str, Any] = {"name": name, "jobs": [_write(job) for job in group.members]}
    if compensation:
        stored["compensation"] = {key: _write(value) for key, value in compensation.items()}
    stored.update({option: _write(value) for option, value in options.items()})
    return _values(group_id, group.owner, name, stored, GROUP, group_id, group.prefix)


def _group_of(arguments: Mapping[str, Any]) -> NewGroup:
    """The group that these arguments of ``add_group`` describe."""
    known = signature(GroupProducer.add_group).parameters
    refuse_unknown(arguments, frozenset(known) - _NOT_STORED, "a group")
    given = {
        _SHORT.get(name, name): arguments.get(name, parameter.default)
        for name, parameter in known.items()
        if name not in _NOT_STORED
    }
    return new_group(**given)


def _start_group(group: NewGroup, group_id: str, prefix: str) -> Start:
    seed = new_job_id()
    ids = starting.ids_of(group, seed)
    command = starting.create(prefix, group, group_id, ids, seed=seed)

    def parse(reply: Any) -> bool:
        try:
            return not command.parse(reply).is_new
        except GroupExistsError as error:
            if error.differences:
                raise
            return True  # a relay of an older version started it

    return Start(queues_of(group, prefix), msgspec.structs.replace(command, parse=parse))  # type: ignore[arg-type]


def fates_of_groups(keys: Keys, group_ids: Sequence[str]) -> Plan[list[Fate]]:
    """The fates of groups that were started."""
    infos = yield [groups.read(keys, group_id) for group_id in group_ids]
    gone = yield [groups.read_gone(keys, group_id) for group_id in group_ids]
    return [_fate(info, end) for info, end in zip(infos, gone, strict=True)]


def _fate(info: GroupInfo | None, end: GroupInfo | None) -> Fate:
    if info is None:
        return Fate.LOST if end is None else Fate.GONE
    return Fate.FINISHED if info.is_finished else Fate.TO_RUN


def _read_group(row: OutboxRow) -> NewGroup:
    stored = _decode(row)
    try:
        compensation = stored.pop("compensation", None) or {}
        arguments = {option: _read(value) for option, value in stored.items()}
        arguments["compensation"] = {key: _read(value) for key, value in compensation.items()}
        return _group_of(arguments)
    except InvalidInputError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise _unreadable(row, error) from error


# ---------------------------------------------------------------------------- flows


def values_of_flow(flow: FlowJob, generated_id: str) -> dict[str, Any]:
    """The columns of a row that starts a flow; refuses now what could not start later."""
    if not isinstance(flow, FlowJob):
        raise InvalidOptionError(f"{flow!r} is not a FlowJob; a flow is made of FlowJob(name, …)")
    if flow.parent is not None:
        raise InvalidOptionError(
            f"flow {flow.name!r} cannot go through the outbox with a parent, which may be gone when"
            f" the row is relayed"
        )
    home, flow = flow.prefix, msgspec.structs.replace(flow, prefix=None)
    if home is not None:
        check_prefix(home)
    root_id = flow.job_id or generated_id
    _start_flow(flow, root_id, "any", 1)
    # Not as a tree: it may be deeper than JSON parsers accept.
    nodes: list[dict[str, Any]] = []
    stack: list[tuple[FlowJob, int | None]] = [(flow, None)]
    while stack:
        job, above = stack.pop()
        node = _write(msgspec.structs.replace(job, children=()))
        stack.extend((child, len(nodes)) for child in reversed(job.children))
        nodes.append(node if above is None else {**node, "above": above})
    # As with a job: a given id may be used again.
    made_up = f"{root_id}-{generated_id}" if flow.job_id else root_id
    key = flow.idempotency_key or made_up
    return _values(root_id, flow.queue_name, flow.name, {"nodes": nodes}, FLOW, key, home)


def _start_flow(
    flow: FlowJob, root_id: str, prefix: str, once_ms: int, place: flows.Place | None = None
) -> Start:
    ids = iter([root_id])
    new_id = lambda: next(ids, None) or new_job_id()  # noqa: E731
    nodes = flows.prepare([flow], prefix, new_id, once_ms=once_ms, place=place)
    command = flows.add(nodes, home=flows.home_of([flow], nodes))
    queues = flows.queues_of([flow], nodes)
    return Start(queues, _told(command, _is_there))


def _is_there(added: list[Any]) -> bool:
    return bool(added[0].is_duplicate)


def _read_flow(row: OutboxRow) -> FlowJob:
    try:
        nodes: list[dict[str, Any]] = list(_decode(row)["nodes"])
        children: list[list[FlowJob]] = [[] for _ in nodes]
        for index in range(len(nodes) - 1, 0, -1):
            node = dict(nodes[index])
            above = node.pop("above")
            job = _read({**node, "children": ()})
            children[above].append(_with_children(job, children[index]))
        root = _with_children(_read(nodes[0]), children[0])
        return msgspec.structs.replace(root, idempotency_key=row.key)
    except InvalidInputError:
        raise
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise _unreadable(row, error) from error


def _with_children(job: FlowJob, children: list[FlowJob]) -> FlowJob:
    return msgspec.structs.replace(job, children=tuple(reversed(children)))


# ---------------------------------------------------------------------------- the row


def _values(
    row_id: str,
    queue: str,
    name: str,
    stored: dict[str, Any],
    kind: str,
    key: str,
    home: str | None,
) -> dict[str, Any]:
    """``home`` is the prefix that the relay must have, if the row names one."""
    options = {"start": kind} if home is None else {"start": kind, "prefix": home}
    check_length("queue", queue, LONGEST_KEY)
    check_length("name", name, LONGEST_NAME)
    check_length("idempotency_key", key, LONGEST_KEY)
    return {
        "id": row_id,
        "queue": queue,
        "name": name,
        "data": codec.encode(stored, f"{kind} {name!r}").decode(),
        "options": codec.encode(options, "options").decode(),
        "lane": None,
        "key": key,
    }


def _decode(row: OutboxRow) -> dict[str, Any]:
    try:
        stored = codec.decode(row.data.encode())
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"the data of outbox row {row.seq} is not JSON: {error}") from error
    if not isinstance(stored, dict):
        raise _unreadable(row, "its data is not an object")
    return stored


def _unreadable(row: OutboxRow, why: object) -> InvalidOptionError:
    return InvalidOptionError(f"what outbox row {row.seq} starts cannot be read: {why}")


def _told(command: Command[Any], tell: Any) -> Command[bool]:
    parse = command.parse
    return msgspec.structs.replace(command, parse=lambda reply: tell(parse(reply)))


def _write(value: Any) -> Any:
    """The value of an argument in a form that JSON accepts; our own Structs carry their type."""
    match value:
        case timedelta():
            return milliseconds(value, "duration")
        case datetime():
            return epoch_ms(value, "time")
        case msgspec.Struct():
            kind = next(kind for kind in type(value).__mro__ if kind.__name__ in _STRUCTS)
            fields = msgspec.structs.fields(kind)
            if kind is GroupJob:  # the row says its prefix; relays of earlier versions refuse it
                fields = tuple(one for one in fields if one.name != "prefix")
            given = {one.name: getattr(value, one.name) for one in fields if _is_given(one, value)}
            return {_TAG: kind.__name__, **_write(given)}
        case Mapping():
            return {key: one if key in _OF_USERS else _write(one) for key, one in value.items()}
        case list() | tuple():
            return [_write(one) for one in value]
    return value


def _is_given(field: msgspec.structs.FieldInfo, value: Any) -> bool:
    default = field.default
    if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    given = getattr(value, field.name)
    return type(given) is not type(default) or bool(given != default)


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(one) for one in value]
    if not isinstance(value, dict):
        return value
    fields = {key: one if key in _OF_USERS else _read(one) for key, one in value.items()}
    tag = value.get(_TAG)
    if not isinstance(tag, str):
        return fields
    del fields[_TAG]
    if tag not in _STRUCTS:
        raise InvalidOptionError(f"{tag!r} is not known to this version; run a newer relay")
    return _STRUCTS[tag](**fields)
