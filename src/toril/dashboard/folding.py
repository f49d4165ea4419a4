"""Queues as people know them: the partitions of one are one queue.

How many partitions a queue has is read each time, so one that grows is shown whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from toril.client.agreeing import sizes_of
from toril.client.connection import Connection
from toril.client.finder import Finder
from toril.client.queue import Queue
from toril.errors import InvalidNameError
from toril.protocol import partitioning, reading
from toril.protocol.partitioning import MOST_PARTITIONS, Row

MOST_QUEUES = 200
MOST_PARTS = MOST_PARTITIONS + MOST_QUEUES
"""So many plain queues are asked for one page, however they are folded."""
MOST_NAMES = 5000


class NotFound(Exception):
    """There is no such thing; the text says what."""


@dataclass(frozen=True)
class Folded:
    """The queues that a page shows, and how many it leaves out."""

    rows: list[Row]
    left_out: int

    @property
    def parts(self) -> list[str]:
        """The plain queues of them all."""
        return [name for row in self.rows for name in row.queues]


class Folding:
    """Finds queues by the names that people give them."""

    def __init__(self, connection: Connection, prefix: str, finder: Finder) -> None:
        self._connection = connection
        self._prefix = prefix
        self._finder = finder

    async def all(self, having: str = "") -> Folded:
        """The queues whose names contain ``having``, as many as a page may ask."""
        known = [one for one in await self._finder.names() if having.lower() in one.lower()]
        names = known[:MOST_NAMES]
        rows = partitioning.fold(names, await self._sizes(partitioning.wholes_of(names)))
        taken: list[Row] = []
        room = MOST_PARTS
        for row in rows:
            if len(taken) < MOST_QUEUES and len(row.queues) <= room:
                taken.append(row)
                room -= len(row.queues)
        return Folded(taken, len(rows) - len(taken) + len(known[MOST_NAMES:]))

    async def one(self, name: str) -> Queue:
        """The queue of this name, whole; ``NotFound`` when there is nothing of it."""
        queue = await self.maybe(name)
        is_whole = len(queue.partitions) > 1
        if not is_whole and not await self._connection.run(reading.exists(queue.keys)):
            raise NotFound(f"There is no queue {name!r} under the prefix {self._prefix!r}.")
        return queue

    async def maybe(self, name: str) -> Queue:
        """The same, whether there is something of it or not."""
        queue = self.plain(name)
        size = (await self._sizes([name])).get(name, 1)
        if size == 1:
            return queue
        return Queue(name, connection=self._connection, prefix=self._prefix, partitions=size)

    def plain(self, name: str) -> Queue:
        """The plain queue of this name, which is checked and not looked for."""
        try:
            return Queue(name, connection=self._connection, prefix=self._prefix)
        except InvalidNameError as error:
            raise NotFound(str(error)) from error

    async def whole_of(self, name: str) -> str:
        """The queue that this one is a partition of; empty when it is none."""
        found = partitioning.whole_of(name)
        if found is None:
            return ""
        stem, number = found
        return stem if number < (await self._sizes([stem])).get(stem, 0) else ""

    async def _sizes(self, names: Iterable[str]) -> dict[str, int]:
        return await sizes_of(self._connection, self._prefix, names)
