"""Which partition a row's job goes to, and where it may be from before its queue grew."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

import msgspec

from toril.client.agreeing import Agreeing
from toril.client.connection import Connection
from toril.options import Deduplication
from toril.outbox.rows import OutboxRow
from toril.outbox.starts import FLOW, GROUP, fates_of_groups, kind_of, names_of, root_of
from toril.protocol import partitioning
from toril.protocol.command import Command
from toril.protocol.confirming import Fate, confirm
from toril.protocol.keys import Keys, hash_tag
from toril.protocol.new_group import may_be_group_id
from toril.protocol.partitioning import Numbers
from toril.protocol.placing import Placing


class Homes(msgspec.Struct, frozen=True):
    """Where the rows of a batch go."""

    numbers: Mapping[str, Numbers] = {}
    """The numbers of the queues that have partitions."""
    refused: Mapping[str, Exception] = {}
    """Why nothing can be added to a queue now."""

    def queue_of(self, row: OutboxRow) -> str:
        """The plain queue of a row's job."""
        known = self.numbers.get(row.queue)
        if known is None:
            return row.queue
        return partitioning.name_of(row.queue, _home(row, known.now))

    def queues_before(self, row: OutboxRow) -> list[str]:
        """Where its job was added if that happened before the queue grew."""
        known = self.numbers.get(row.queue)
        if known is None:
            return []
        now = _home(row, known.now)
        before = dict.fromkeys(_home(row, count) for count in reversed(known.earlier))
        return [partitioning.name_of(row.queue, home) for home in before if home != now]

    def placing(self, row: OutboxRow) -> Placing | None:
        """For a row that starts a flow or a group: where its jobs go."""
        if not self.numbers:
            return None
        return Placing(self.numbers, crc32(row.id.encode()), names_partition=False)


async def find_homes(agreeing: Agreeing, rows: Iterable[OutboxRow]) -> Homes:
    """Ask for the numbers of partitions of these rows' queues, including those in groups."""
    names: set[str] = set()
    for row in rows:
        names.add(row.queue)
        if kind_of(row) is not None:
            names |= _names_in(row)
    answers = await agreeing.each(names)
    return Homes(
        {name: one for name, one in answers.items() if isinstance(one, Numbers) and one.now},
        {name: one for name, one in answers.items() if isinstance(one, Exception)},
    )


async def sent_before(
    connection: Connection, homes: Homes, prefix: str, rows: Iterable[OutboxRow], remember_ms: int
) -> set[int]:
    """The rows whose jobs or groups are known to an earlier partition of a queue that has grown."""
    by_queue: dict[str, list[OutboxRow]] = defaultdict(list)
    groups: dict[str, list[OutboxRow]] = defaultdict(list)
    for row in rows:
        for name in homes.queues_before(row):
            if kind_of(row) != GROUP:
                by_queue[name].append(row)
            elif may_be_group_id(row.id):
                groups[name].append(row)
    if not by_queue and not groups:
        return set()
    commands: list[Command[list[Fate]]] = [
        confirm(Keys(prefix, name), _jobs(part), remember_ms=remember_ms)
        for name, part in by_queue.items()
    ]
    found = await connection.run_all(commands)
    for name, part in groups.items():
        plan = fates_of_groups(Keys(prefix, name), [row.id for row in part])
        found.append(await connection.follow(plan))
    return {
        row.seq
        for part, fates in zip((*by_queue.values(), *groups.values()), found, strict=True)
        for row, fate in zip(part, fates, strict=True)
        if fate is not Fate.LOST
    }


def _jobs(rows: Sequence[OutboxRow]) -> list[tuple[str, str]]:
    return [(row.id, row.key) for row in rows]


def _names_in(row: OutboxRow) -> set[str]:
    try:
        return {name for name in names_of(row) if isinstance(name, str)}
    except Exception:  # noqa: BLE001 (told when it is opened)
        return set()


def _home(row: OutboxRow, count: int) -> int:
    """Where it goes by what its job has, or else by the row's id, so that it goes there again."""
    kind = kind_of(row) if row.lane is None else None
    if kind == GROUP:
        home = None
    elif kind == FLOW:
        home = _home_of_root(row, count)
    else:
        home = partitioning.home_by(row.lane, _deduplication_id(row), row.id, count)
    return partitioning.home_of(row.id, count) if home is None else home


def _home_of_root(row: OutboxRow, count: int) -> int | None:
    try:
        return partitioning.home_of_job(root_of(row), count, hash_tag(row.queue) or row.queue)
    except Exception:  # noqa: BLE001 (told when it is opened)
        return None


def _deduplication_id(row: OutboxRow) -> str | None:
    if '"deduplication"' not in row.options:
        return None
    try:
        return Deduplication(**msgspec.json.decode(row.options)["deduplication"]).id
    except Exception:  # noqa: BLE001 (told when the row is read)
        return None
