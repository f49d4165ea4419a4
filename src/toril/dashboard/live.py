"""One look at all queues a second, for everybody who has a page open; none when nobody has.

What is told is small: for each queue a number that changes when the queue does.  A page that shows
the queue then asks for its own content, which all who ask within a second share (``sharing``).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from toril.client.connection import Connection
from toril.errors import TorilError
from toril.protocol import discovering, glancing
from toril.protocol.glancing import Glance
from toril.protocol.keys import Keys

EVERY_S = 1.0
EVENTS_PER_LOOK = 200
SAMPLE_S = 5.0
MOST_SAMPLES = 720
MOST_WATCHED = 500
FIRST_WALK_S = 0.25
WALK_AGAIN_S = 5.0
WALK_SHARE = 20
"""A walk through the key space that took a second is not begun again before this many."""


class Finder:
    """Finds the queues under a prefix, by walking through the key space beside the pages."""

    def __init__(self, connection: Connection, prefix: str) -> None:
        self._connection = connection
        self._prefix = prefix
        self._names: frozenset[str] = frozenset()
        self._walk: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self.is_searching = True
        """Has a part of the key space never been looked at?"""

    async def names(self) -> list[str]:
        """The queues known by now, in order; the first to ask waits a moment for them."""
        if self._walk is None and time.monotonic() >= self._not_before:
            self._walk = asyncio.create_task(self._go())
            self._walk.add_done_callback(_heard)
        if self.is_searching and self._walk is not None:
            done, _ = await asyncio.wait([self._walk], timeout=FIRST_WALK_S)
            for walk in done:
                walk.result()
        return sorted(self._names)

    def forget(self) -> None:
        """Look again soon: somebody made a queue."""
        self._not_before = 0.0

    async def _go(self) -> None:
        began = time.monotonic()
        try:
            found: set[str] = set()
            nodes = [f"{self._prefix}:"]
            if self._connection.is_cluster:
                nodes = await self._connection.run(discovering.nodes_of_cluster())
            for near in nodes:
                cursor = discovering.BEGINNING
                while True:
                    look = discovering.look(self._prefix, cursor, near=near)
                    part = await self._connection.run(look)
                    found.update(part.names)
                    self._names |= frozenset(part.names)
                    cursor = part.cursor
                    if part.is_last:
                        break
            self._names = frozenset(found)
            self.is_searching = False
            now = time.monotonic()
            self._not_before = now + max(WALK_AGAIN_S, WALK_SHARE * (now - began))
        finally:
            self._walk = None

    async def close(self) -> None:
        if self._walk is not None:
            self._walk.cancel()
            await asyncio.gather(self._walk, return_exceptions=True)


def _heard(walk: asyncio.Task[None]) -> None:
    """Whoever waited was told of its error; a walk beside the pages is begun again."""
    if not walk.cancelled():
        walk.exception()


@dataclass(frozen=True)
class Sample:
    """How many jobs came, were done and failed per second, at one time."""

    at_s: float
    added: float
    completed: float
    failed: float

    @property
    def is_busy(self) -> bool:
        return bool(self.added or self.completed or self.failed)


@dataclass
class Watched:
    """What is known of one queue."""

    glance: Glance | None = None
    version: int = 0
    last_event: str = glancing.BEGINNING
    looked_at_s: float = 0.0
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=MOST_SAMPLES))
    _since: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])

    def note(self, glance: Glance, now_s: float) -> None:
        before, self.glance = self.glance, glance
        if glance.events:
            self.last_event = glance.events[-1].id
        if before is None:
            self.looked_at_s = now_s
            return
        told = max(glance.events_added - before.events_added, len(glance.events))
        # When more happened than was read, what was read stands for the rest.
        weight = told / len(glance.events) if glance.events else 0.0
        for index, name in enumerate(("added", "completed", "failed"), 1):
            self._since[index] += weight * sum(one.name == name for one in glance.events)
        self._since[0] += max(now_s - self.looked_at_s, 0.001)
        self.looked_at_s = now_s
        if self._since[0] >= SAMPLE_S:
            seconds, *counts = self._since
            sample = Sample(now_s, *(count / seconds for count in counts))
            if any(counts) or (self.samples and self.samples[-1].is_busy):
                self.version += 1
            self.samples.append(sample)
            self._since = [0.0, 0.0, 0.0, 0.0]
        if _figures(before) != _figures(glance):
            self.version += 1

    @property
    def rate(self) -> Sample | None:
        """The last sample, if it is not old."""
        if self.samples and time.time() - self.samples[-1].at_s < 4 * SAMPLE_S:
            return self.samples[-1]
        return None


def _figures(glance: Glance) -> tuple[Any, ...]:
    counts = (glance.waiting, glance.active, glance.delayed, glance.completed, glance.failed)
    return (*counts, glance.events_added, glance.is_paused, glance.lanes, glance.groups)


class Pulse:
    """Looks at all queues while somebody listens, and tells all listeners the same."""

    def __init__(
        self,
        connection: Connection,
        prefix: str,
        finder: Finder,
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._connection = connection
        self._prefix = prefix
        self._finder = finder
        self._every_s = every_s
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._listeners: set[asyncio.Event] = set()
        self._told = ""
        self.looks = 0
        """How often the server was asked."""
        self.queues: dict[str, Watched] = {}

    async def listen(self) -> AsyncIterator[str]:
        """What to tell one page, each time it changes: ``event`` and ``data`` as SSE has them."""
        awake = asyncio.Event()
        self._listeners.add(awake)
        if self._task is None:
            self._task = asyncio.create_task(self._go())
        try:
            told = ""
            if self._told:
                awake.set()
            while True:
                try:
                    await asyncio.wait_for(awake.wait(), 15.0)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                awake.clear()
                if told != self._told:
                    told = self._told
                    yield told
                # One update a second, however often something happens.
                await asyncio.sleep(self._every_s)
        finally:
            self._listeners.discard(awake)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _go(self) -> None:
        try:
            while self._listeners:
                try:
                    await self._look()
                    versions = {name: one.version for name, one in self.queues.items()}
                    self._tell("tick", json.dumps(versions))
                except TorilError:
                    self._tell("gone", "{}")
                await asyncio.sleep(self._every_s)
        finally:
            self._task = None

    async def _look(self) -> None:
        self.looks += 1
        names: Sequence[str] = (await self._finder.names())[:MOST_WATCHED]
        for name in set(self.queues) - set(names):
            del self.queues[name]
        watched = [self.queues.setdefault(name, Watched()) for name in names]
        commands = [
            glancing.look(Keys(self._prefix, name), after=one.last_event, most=EVENTS_PER_LOOK)
            for name, one in zip(names, watched, strict=True)
        ]
        answers = await self._connection.run_all(commands) if commands else []
        now_s = self._clock()
        for one, glance in zip(watched, answers, strict=True):
            one.note(glance, now_s)

    def _tell(self, event: str, data: str) -> None:
        self._told = f"event: {event}\ndata: {data}\n\n"
        for awake in self._listeners:
            awake.set()
