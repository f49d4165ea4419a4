"""Flows: trees of jobs over any number of queues, added in one atomic step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from toril.errors import InvalidOptionError
from toril.options import FlowJob, Replicas
from toril.protocol import adding, codec
from toril.protocol.adding import Added, Prepared
from toril.protocol.command import Command, Resend, script
from toril.protocol.job import Job
from toril.protocol.keys import Keys
from toril.protocol.replicating import Short, replicated

MOST_JOBS = 5000
"""A flow is one call of a script, and nobody else is served meanwhile."""

MOST_IN_ORDER = 1000
"""The order of more children with ids of their own is not remembered: every take reads it."""

_LEFT_OUT = 2

Place = Callable[[FlowJob, str | None], tuple[str, str]]
"""The plain queue of a job, by that of the job above it, and how an id that is made up ends."""


class FlowNode(msgspec.Struct, frozen=True):
    """A job of a flow and those it waits for."""

    job: Job
    children: tuple[FlowNode, ...] = ()


class PreparedNode(msgspec.Struct, frozen=True):
    """A job of a flow, ready to be sent; ``above`` is the index of its parent in the flow."""

    keys: Keys
    job: Prepared
    above: int | None


def prepare(
    roots: Sequence[FlowJob],
    prefix: str,
    new_id: Callable[[], str],
    *,
    once_ms: int | None = None,
    place: Place | None = None,
) -> list[PreparedNode]:
    """Check and encode whole trees; parents come before their children.

    ``place`` chooses among the partitions of a job's queue.
    With ``once_ms`` the server remembers for that long that a tree with the id and the idempotency
    key of its root was added.
    """
    nodes: list[PreparedNode] = []
    queues: dict[tuple[str, str], Keys] = {}
    stack: list[tuple[FlowJob, int | None]] = [(root, None) for root in reversed(roots)]
    seen: set[str] = set()
    while stack:
        job, above = stack.pop()
        _check(job, is_child=above is not None)
        name, suffix = job.queue_name, ""
        if place is not None and job.prefix in (None, prefix):
            name, suffix = place(job, None if above is None else nodes[above].keys.name)
        queue = (prefix if job.prefix is None else job.prefix, name)
        keys = queues.get(queue) or queues.setdefault(queue, Keys(*queue))
        prepared = adding.prepare(
            job,
            new_id() + suffix,
            _parent(job, keys, above, nodes),
            once_ms=once_ms if above is None else None,
        )
        if job.children:
            prepared.entry["has_children"] = True
        key = keys.job(prepared.id)
        if key in seen:
            raise InvalidOptionError(
                f"job id {prepared.id!r} of queue {keys.name!r} is in the flow twice"
            )
        seen.add(key)
        nodes.append(PreparedNode(keys, prepared, above))
        if len(nodes) > MOST_JOBS:
            raise InvalidOptionError(
                f"a flow may have up to {MOST_JOBS} jobs, because it is added in one step; let the"
                f" handler of a parent add its children in parts, and raise WaitingChildrenError"
            )
        here = len(nodes) - 1
        stack.extend((child, here) for child in reversed(job.children))
    _remember_order(nodes)
    return nodes


def _remember_order(nodes: list[PreparedNode]) -> None:
    """Let a parent know its children in order if some have ids of their own.

    Ids that clients choose sort by themselves.
    """
    children: dict[int, list[PreparedNode]] = {}
    for node in nodes:
        if node.above is not None:
            children.setdefault(node.above, []).append(node)
    for above, below in children.items():
        has_own_ids = any("custom" in node.job.entry for node in below)
        if not 1 < len(below) <= MOST_IN_ORDER or not has_own_ids:
            continue
        parent = nodes[above]
        order = [node.keys.job(node.job.id) for node in below]
        opts = codec.with_children(parent.job.opts, order)
        job = msgspec.structs.replace(parent.job, opts=opts)
        nodes[above] = msgspec.structs.replace(parent, job=job)


def _check(job: FlowJob, *, is_child: bool) -> None:
    if not isinstance(job, FlowJob):
        raise InvalidOptionError(f"{job!r} is not a FlowJob; a flow is made of FlowJob(name, …)")
    if is_child and job.parent is not None:
        raise InvalidOptionError(
            f"job {job.name!r} is a child in this flow and also names another parent"
        )
    if is_child and job.deduplication is not None:
        raise InvalidOptionError(
            f"job {job.name!r} has both a parent and a deduplication; the parent would wait for"
            f" a job that is never added"
        )


def _parent(
    job: FlowJob, keys: Keys, above: int | None, nodes: list[PreparedNode]
) -> tuple[str, str] | None:
    if above is not None:
        return nodes[above].job.id, nodes[above].keys.base
    if job.parent is None:
        return None
    parent_keys, parent_id = adding.parent_of(job, keys.prefix)
    return parent_id, parent_keys.base


def queues_of(roots: Sequence[FlowJob], nodes: Sequence[PreparedNode]) -> list[Keys]:
    """Every queue that the flow touches, those of its roots' parents too."""
    queues = {node.keys.base: node.keys for node in nodes}
    for root in roots:
        if root.parent is not None:
            keys, _ = adding.parent_of(root, nodes[0].keys.prefix)
            queues.setdefault(keys.base, keys)
    return list(queues.values())


def home_of(roots: Sequence[FlowJob], nodes: Sequence[PreparedNode]) -> Keys:
    """The queue in whose slot a flow begins: that of the parent if the first root has one."""
    if roots[0].parent is None:
        return nodes[0].keys
    return adding.parent_of(roots[0], nodes[0].keys.prefix)[0]


def add(
    nodes: Sequence[PreparedNode], replicas: Replicas | None = None, home: Keys | None = None
) -> Command[list[Added | None]]:
    """Add the prepared trees, all or nothing.

    None stands for a job that was left out, because the one above it exists already.  On a cluster
    all or nothing holds for what is in the slot of ``home``; the rest is sent to other slots then.
    """
    bases = {node.keys.base: node.keys for node in nodes}
    places = {base: index for index, base in enumerate(bases, 1)}
    entries = []
    payloads: list[bytes] = []
    for node in nodes:
        entry = {**node.job.entry, "queue": places[node.keys.base]}
        if node.above is not None:
            entry["above"] = node.above + 1
        entries.append(entry)
        payloads += (node.job.data, node.job.opts)

    def parse(reply: list[Any]) -> list[Added | None]:
        if reply[0] < 0:
            raise adding.refusal(nodes[reply[1] - 1].job, reply[0])
        now_ms = reply[0]
        return [_answer(node, code, now_ms) for node, code in zip(nodes, reply[1:], strict=True)]

    command = script(
        "addFlow",
        home or nodes[0].keys,
        {"queues": list(bases), "nodes": entries},
        parse,
        payloads=payloads,
        resend=Resend.NUMBERED,
    )
    return replicated(command, replicas, _tell)


def _tell(answers: list[Added | None], short: Short) -> list[Added | None]:
    raise short([added.id for added in answers if added is not None])


def _answer(node: PreparedNode, code: int | bytes, now_ms: int) -> Added | None:
    if code == _LEFT_OUT:
        return None
    if isinstance(code, bytes):
        return Added(codec.name(code), now_ms, is_duplicate=True)
    return Added(node.job.id, now_ms, is_duplicate=code == 1)


def grow(nodes: Sequence[PreparedNode], jobs: Sequence[Job | None]) -> list[FlowNode]:
    """The trees of the jobs that are there, in the order of the roots."""
    below: list[list[FlowNode]] = [[] for _ in nodes]
    roots: list[FlowNode] = []
    for index in range(len(nodes) - 1, -1, -1):
        job = jobs[index]
        if job is None:
            continue
        above = nodes[index].above
        node = FlowNode(job, tuple(reversed(below[index])))
        (roots if above is None else below[above]).append(node)
    return roots[::-1]
