# Written by tools/unasync.py from src/toril/client/partitioned_events.py: change that file instead.
"""The events of a queue that has partitions, merged as they arrive.

Events of one partition come in order; between partitions they come in order of arrival.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from toril.protocol import partitioning
from toril.protocol.events import Event
from toril.protocol.keys import Keys
from toril.sync.connection import Connection, Target
from toril.sync.places import PerPlace
from toril.sync.queue_events import QueueEvents

MOST_UNREAD = 10_000
"""How many events are read ahead of the iteration."""


class PartitionedEvents(QueueEvents):
    """``QueueEvents(name, partitions=n)``.

    ``last_event_id`` applies to every partition: ids start with the server's time.
    """

    def __init__(
        self,
        name: str,
        *,
        connection: Target = None,
        prefix: str = "bull",
        last_event_id: str | None = None,
        partitions: int = 1,
    ) -> None:
        self.name = name
        self.keys = Keys(prefix, name)
        partitioning.check(self.keys, partitions)
        self._count = partitions
        self._connection = (
            connection if isinstance(connection, Connection) else Connection(connection)
        )
        self._owns_connection = self._connection is not connection

        def hear(number: int) -> QueueEvents:
            return QueueEvents(
                partitioning.name_of(name, number),
                connection=self._connection,
                prefix=prefix,
                last_event_id=last_event_id,
            )

        self._called_parts = [hear(number) for number in range(partitions)]
        self._iterated_parts = [hear(number) for number in range(partitions)]
        self._unread: deque[Event] = deque()
        self._news = PerPlace(threading.Event)
        self._is_iterated = False
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<QueueEvents of {self.name!r} in {self._count} partitions>"

    def __enter__(self) -> Self:
        for part in (*self._called_parts, *self._iterated_parts):
            part.__enter__()
        return self

    def on(self, event: str, callback: Callable[[Event], Any]) -> None:
        for part in self._called_parts:
            part.on(event, callback)

    def off(self, event: str, callback: Callable[[Event], Any]) -> None:
        for part in self._called_parts:
            part.off(event, callback)

    def __next__(self) -> Event:
        if not self._is_iterated:
            self._is_iterated = True
            for part in self._iterated_parts:
                part.on("*", self._keep)
        news = self._news.here()
        while not self._unread:
            if self._is_closed:
                raise StopIteration
            news.clear()
            if not self._unread:
                news.wait()
        return self._unread.popleft()

    def _keep(self, event: Event) -> None:
        while True:
            if len(self._unread) < MOST_UNREAD or self._is_closed:
                break
            time.sleep(0.01)
        self._unread.append(event)
        for news in self._news.values():
            news.set()

    def close(self) -> None:
        """Stop listening; iteration ends."""
        self._is_closed = True
        self._unread.clear()
        for news in self._news.values():
            news.set()
        for part in (*self._called_parts, *self._iterated_parts):
            part.close()
        if self._owns_connection:
            self._connection.close()


__all__ = ["PartitionedEvents"]
