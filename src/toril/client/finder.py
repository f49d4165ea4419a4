"""Finds the queues under a prefix, in the background of whatever shows them."""

from __future__ import annotations

import asyncio
import time

from toril.client.connection import Connection
from toril.errors import ServerRefusalError
from toril.protocol import discovering, reading
from toril.protocol.keys import Keys
from toril.protocol.reading import WorkerInfo

PATIENCE_S = 0.25
"""How long the first callers wait for an answer."""
AGAIN_S = 1.0
SHARE = 20
"""A search that took a second is repeated after this many seconds at the earliest."""


class Finder:
    """Searches while somebody asks, and returns what is known so far.

    Queues that have a worker come first: one command finds them, whatever else the server holds.
    All others are found by walking through the key space, as fast as the server answers: a million
    keys take about half a second.  Later searches use at most a twentieth of the time.
    """

    def __init__(self, connection: Connection, prefix: str) -> None:
        self._connection = connection
        self._prefix = prefix
        self._nodes = [f"{prefix}:"]
        self._names: frozenset[str] = frozenset()
        self._search: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self.is_searching = True
        """Has some part of the key space not been searched yet?"""

    async def names(self, *, patience_s: float = PATIENCE_S) -> list[str]:
        """The queues known so far, sorted; the first callers wait a moment for them."""
        if self._search is None and time.monotonic() >= self._not_before:
            self._search = asyncio.create_task(self._go())
            self._search.add_done_callback(_heard)
        if self.is_searching and self._search is not None:
            done, _ = await asyncio.wait([self._search], timeout=patience_s)
            for search in done:
                search.result()
        return sorted(self._names)

    async def workers(self) -> dict[str, list[WorkerInfo]]:
        """The workers that are connected now, by queue; one command for each node."""
        commands = [reading.workers_by_queue(self._prefix, near=near) for near in self._nodes]
        found: dict[str, list[WorkerInfo]] = {}
        for answer in await self._connection.run_all(commands):
            for name, workers in answer.items():
                found.setdefault(name, []).extend(workers)
        return found

    def forget(self) -> None:
        """Search again soon: somebody created a queue."""
        self._not_before = 0.0

    async def close(self) -> None:
        """Stop searching."""
        if self._search is not None:
            self._search.cancel()
            await asyncio.gather(self._search, return_exceptions=True)

    async def _go(self) -> None:
        began = time.monotonic()
        try:
            await self._connection.meet()
            if self._connection.is_cluster:
                self._nodes = await self._connection.run(discovering.nodes_of_cluster())
            self._names |= await self._with_workers()
            walks = [asyncio.create_task(self._walk(near)) for near in self._nodes]
            try:
                found = await asyncio.gather(*walks)
            finally:
                for walk in walks:
                    walk.cancel()
            self._names = frozenset().union(*found)
            self.is_searching = False
            now = time.monotonic()
            self._not_before = now + max(AGAIN_S, SHARE * (now - began))
        finally:
            self._search = None

    async def _with_workers(self) -> set[str]:
        try:
            names = sorted(await self.workers())
        except ServerRefusalError:
            return set()  # not every user may list the clients
        there = [discovering.is_there(Keys(self._prefix, name)) for name in names]
        answers = await self._connection.run_all(there) if there else []
        return {name for name, exists in zip(names, answers, strict=True) if exists}

    async def _walk(self, near: str) -> set[str]:
        found: set[str] = set()
        cursor = discovering.BEGINNING
        while True:
            part = await self._connection.run(discovering.look(self._prefix, cursor, near=near))
            found.update(part.names)
            self._names |= found
            cursor = part.cursor
            if part.is_last:
                return found


def _heard(search: asyncio.Task[None]) -> None:
    """Callers that waited got the error; otherwise the search is simply repeated later."""
    if not search.cancelled():
        search.exception()
