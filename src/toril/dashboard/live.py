"""One look at all queues a second, for everybody who has a page open; none when nobody has.

What is told is small: for each queue a number that changes when the queue does.  A page that shows
the queue then asks for its own content, which all who ask within a second share (``sharing``).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from toril.client.connection import Connection
from toril.client.finder import Finder
from toril.errors import TorilError
from toril.protocol import glancing, partitioning
from toril.protocol.glancing import Glance
from toril.protocol.keys import Keys

EVERY_S = 1.0
EVENTS_PER_LOOK = 200
SAMPLE_S = 5.0
MOST_SAMPLES = 720
LOOKED_AT_ONCE = 500
"""Of more queues than these, some are looked at each second, the others in the seconds after."""
MOST_WATCHED = 5000


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
            if len(self.samples) > 1 and not any(
                one.is_busy for one in (self.samples[-2], self.samples[-1], sample)
            ):
                self.samples.pop()  # of a rest only its beginning and its end are kept
            self.samples.append(sample)
            while self.samples[0].at_s < now_s - MOST_SAMPLES * SAMPLE_S:
                self.samples.popleft()
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
        before_news: Callable[[], object] = lambda: None,
    ) -> None:
        self._connection = connection
        self._prefix = prefix
        self._finder = finder
        self._every_s = every_s
        self._clock = clock
        self._before_news = before_news
        """Called before pages are told that something has changed."""
        self._task: asyncio.Task[None] | None = None
        self._listeners: set[asyncio.Event] = set()
        self._told = ""
        self._next = 0
        self._past = 0
        """Higher than any version of a queue that has vanished: where one that comes begins."""
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
                    async with asyncio.timeout(15.0):
                        await awake.wait()
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
                    self._tell("tick", json.dumps(self._versions()))
                except TorilError:
                    self._tell("gone", "{}")
                await asyncio.sleep(self._every_s)
        finally:
            self._task = None

    async def _look(self) -> None:
        self.looks += 1
        known: Sequence[str] = (await self._finder.names())[:MOST_WATCHED]
        for name in set(self.queues) - set(known):
            self._past += self.queues.pop(name).version + 1
        names = self._next_of(known)
        watched = [self.queues.setdefault(name, Watched(version=self._past)) for name in names]
        commands = [
            glancing.look(Keys(self._prefix, name), after=one.last_event, most=EVENTS_PER_LOOK)
            for name, one in zip(names, watched, strict=True)
        ]
        answers = await self._connection.run_all(commands) if commands else []
        now_s = self._clock()
        for one, glance in zip(watched, answers, strict=True):
            one.note(glance, now_s)

    def _next_of(self, known: Sequence[str]) -> Sequence[str]:
        """The queues whose turn it is."""
        if self._next >= len(known):
            self._next = 0
        first, self._next = self._next, self._next + LOOKED_AT_ONCE
        return known[first : self._next]

    def _versions(self) -> dict[str, int]:
        """A number for each queue that changed; a whole changes with each partition.

        None comes twice, though queues vanish and return: a page takes the same one for no change.
        Under no name stands how many queues there are: pages of all show a new one at once.
        """
        changed = {name: one.version for name, one in self.queues.items() if one.version}
        wholes: Counter[str] = Counter()
        for name, version in changed.items():
            if (found := partitioning.whole_of(name)) is not None:
                wholes[found[0]] += version
        # What a partition that vanished takes from the sum is less than what it added to the past.
        versions = Counter(changed) + Counter({one: n + self._past for one, n in wholes.items()})
        return versions | {"": len(self.queues)}

    def _tell(self, event: str, data: str) -> None:
        news = f"event: {event}\ndata: {data}\n\n"
        if news != self._told:
            self._before_news()
        self._told = news
        for awake in self._listeners:
            awake.set()
