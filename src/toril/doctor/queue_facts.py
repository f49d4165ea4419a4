"""What there is to see of a queue: read once, judged elsewhere."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import msgspec

from toril.client.connection import Connection
from toril.doctor import ailments
from toril.doctor.finding import Finding
from toril.doctor.reader import ConnectionReader
from toril.doctor.standstills import Standstills, read_standstills
from toril.errors import ServerUnavailableError
from toril.protocol import dead_letters, reading
from toril.protocol.codec import JobOpts
from toril.protocol.command import Plan
from toril.protocol.discovering import ClusterNode
from toril.protocol.job import Job
from toril.protocol.keys import Keys

_SAMPLE = 20
_HASH = re.compile(r"[0-9a-f]{32}")


class WorkerFacts(msgspec.Struct, frozen=True):
    """A worker's connection: which library speaks there."""

    library: str
    version: str

    @property
    def is_toril(self) -> bool:
        return "toril" in self.library


class QueueFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of one queue."""

    name: str
    counts: dict[str, int]
    is_paused: bool = False
    in_lists: tuple[int, int] = (0, 0)
    """How many jobs are in `wait`, and in `paused`."""
    has_groups: bool = False
    has_lanes: bool = False
    repeating_by_add: Sequence[str] = ()
    """What recurs because a job was added with ``repeat``, and not by a scheduler."""
    concurrency: int | None = None
    """How many jobs may run at once, over all workers."""
    rate: tuple[int, int] | None = None
    """How many may start, in how many ms."""
    workers: Sequence[WorkerFacts] | None = None
    waiting: Sequence[Job] = ()
    failed: Sequence[Job] = ()
    stands: Standstills = Standstills()
    now_ms: int = 0

    @property
    def to_do(self) -> int:
        return sum(self.counts.get(state, 0) for state in ("waiting", "prioritized", "delayed"))

    @property
    def oldest_at(self) -> int | None:
        """When the oldest job was added that might run now."""
        times = [job.timestamp for job in self.waiting[:1]]
        if self.stands.oldest_prioritized is not None:
            times.append(self.stands.oldest_prioritized)
        return min(times, default=None)

    @property
    def is_for_dead_letters(self) -> bool:
        return any(_is_letter(job) for job in self.waiting)

    @property
    def subject(self) -> str:
        return f"queue {self.name}"


def _is_letter(job: Job) -> bool:
    try:
        return job.dead_letter is not None
    except (ValueError, RecursionError):
        return False  # its data are no JSON, so nothing was put into them


class NodeFacts(msgspec.Struct, frozen=True):
    """What a server says of its clients, if it may, and what time it has."""

    clients: str | None
    now_ms: int


async def read_queues(
    connection: Connection, reader: ConnectionReader, prefix: str, names: Sequence[str]
) -> tuple[list[QueueFacts], list[Finding]]:
    """What there is to see of these queues, and which of them cannot be looked at.

    Those on a node that does not answer are left out.
    """
    facts = await asyncio.gather(*(_read_node(reader, node) for node in reader.nodes))
    by_node = {node.near: of_node for node, of_node in zip(reader.nodes, facts, strict=True)}
    queues = [Keys(prefix, name) for name in names]
    read = await asyncio.gather(
        *(
            _try_to_read(connection, reader, keys, by_node[node.near])
            for keys in queues
            if (node := reader.node_of(keys.marker)) is not None
        )
    )
    return (
        [one for one in read if isinstance(one, QueueFacts)],
        [one for one in read if isinstance(one, Finding)],
    )


async def _try_to_read(
    connection: Connection, reader: ConnectionReader, keys: Keys, node: NodeFacts
) -> QueueFacts | Finding:
    """One queue that cannot be read says nothing of the others."""
    try:
        return await _read_queue(connection, reader, keys, node)
    except ServerUnavailableError:
        raise
    except Exception as error:  # noqa: BLE001 (the doctor examines what is broken)
        return ailments.NOT_EXAMINED.of(
            f"queue {keys.name}", error=f"{type(error).__name__}: {error}"
        )


async def _read_node(reader: ConnectionReader, node: ClusterNode) -> NodeFacts:
    clients = await reader.try_to_ask_node(node, "CLIENT", "LIST", "TYPE", "normal")
    seconds, micros = await reader.ask_node(node, "TIME")
    return NodeFacts(clients, int(seconds) * 1000 + int(micros) // 1000)


async def _read_queue(
    connection: Connection, reader: ConnectionReader, keys: Keys, node: NodeFacts
) -> QueueFacts:
    counts = await connection.run(reading.counts(keys, reading.STATES))
    (is_paused, concurrency, rate, rate_ms), groups, lanes, schedulers, *lists = await reader.ask(
        [
            ("HMGET", keys.meta, "paused", "concurrency", "max", "duration"),
            ("EXISTS", f"{keys.base}:groups"),
            ("EXISTS", f"{keys.base}:lanes:index"),
            ("ZRANGE", keys.repeat, "0", "200"),
            ("LLEN", keys.wait),
            ("LLEN", keys.paused),
        ]
    )
    repeating = await _repeating_by_add(reader, keys, schedulers)
    newest_failed = reading.heads(keys, ("failed",), 0, _SAMPLE - 1, newest_first=True)
    return QueueFacts(
        name=keys.name,
        counts=counts,
        is_paused=is_paused is not None,
        in_lists=(lists[0], lists[1]),
        has_groups=bool(groups),
        has_lanes=bool(lanes),
        repeating_by_add=repeating,
        concurrency=_number(concurrency),
        rate=None if _number(rate) is None else (_number(rate) or 0, _number(rate_ms) or 0),
        workers=None if node.clients is None else _workers_in(node.clients, keys),
        waiting=await connection.follow(_oldest(keys)),
        failed=await connection.follow(newest_failed),
        stands=await read_standstills(connection, reader, keys, counts),
        now_ms=node.now_ms,
    )


def _oldest(keys: Keys) -> Plan[list[Job]]:
    """Some jobs that wait; of dead letters the metadata, and of no job the payload."""
    ids = yield from reading.ids(keys, ("waiting",), 0, _SAMPLE - 1, newest_first=False)
    return (yield from dead_letters.heads(keys, ids))


async def _repeating_by_add(
    reader: ConnectionReader, keys: Keys, names: Sequence[str]
) -> list[str]:
    """Their names are hashes and no record counts their iterations, or they tell it all."""
    old = [name for name in names if name.count(":") >= 4]
    hashes = [name for name in names if _HASH.fullmatch(name)]
    counted = await reader.ask([("HEXISTS", f"{keys.repeat}:{name}", "ic") for name in hashes])
    return old + [name for name, is_counted in zip(hashes, counted, strict=True) if not is_counted]


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _workers_in(clients: str, keys: Keys) -> list[WorkerFacts]:
    whole = reading.worker_names(keys)
    found = []
    for line in clients.splitlines():
        fields = dict(pair.split("=", 1) for pair in line.split(" ") if "=" in pair)
        name = fields.get("name", "")
        if name == whole or name.startswith(f"{whole}:w:"):
            library, version = fields.get("lib-name", ""), fields.get("lib-ver", "")
            found.append(WorkerFacts(library, version))
    return found


def longest_options(queue: QueueFacts) -> list[JobOpts]:
    """The options that are in use in a queue, for what depends on them."""
    return [job.opts for job in queue.waiting]
