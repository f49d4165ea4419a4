"""One reader of a queue's events, shared by everybody in this process who waits for something."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque

from toril.client.background import Background, is_set_within
from toril.client.connection import Connection
from toril.client.event_cursor import EventCursor
from toril.errors import ServerUnavailableError
from toril.protocol import events, groups
from toril.protocol.events import ENDS, Event
from toril.protocol.keys import Keys

LINGER_S = 10.0
"""How long the reader continues when nobody waits: somebody often waits again soon."""

_TOLD = ENDS | {"drained"}
"""The events worth decoding; for any other it is enough to know that something happened."""


class Waiter:
    """Waits for the end of one job or group, or for anything to happen when ``job_id`` is None."""

    def __init__(self, job_id: str | None) -> None:
        self.job_id = job_id
        self.seen = ""
        """The newest event before its last look, which found no end: those up to it are of earlier
        runs of the job, however late they are read."""
        self._signal = asyncio.Event()
        # The first end of a job counts: it may complete, and then be removed at once.
        self._told: deque[Event] = deque(maxlen=1 if job_id is None else None)

    def tell(self, event: Event | None) -> None:
        """Wake it with ``event``, or with None if nobody reads events any more."""
        if event is not None:
            self._told.append(event)
        self._signal.set()

    async def wait(self, timeout_s: float) -> Event | None:
        """The event that came, or None after ``timeout_s`` or if it was an old one."""
        if not await is_set_within(self._signal, timeout_s):
            return None
        self._signal.clear()
        new = None
        while self._told:
            event = self._told.popleft()
            if new is None and _place(event.id) > _place(self.seen):
                new = event
        return new


class Listening:
    """Reads the events of a queue while somebody waits, and passes them to those concerned."""

    def __init__(self, connection: Connection, keys: Keys) -> None:
        self._origin = connection
        self._connection: Connection | None = None
        self._keys = keys
        self._waiters: dict[str | None, list[Waiter]] = {}
        self._starting = asyncio.Lock()
        # Never held while waiting for anything.
        self._guard = threading.Lock()
        self._background: Background | None = None
        self._is_reading = False
        self._is_closed = False
        self._idle_since = 0.0

    @property
    def is_reading(self) -> bool:
        return self._is_reading

    async def add(self, job_id: str | None) -> Waiter:
        """Register a new waiter, which hears of everything from now on."""
        waiter = Waiter(job_id)
        async with self._starting:
            with self._guard:
                self._waiters.setdefault(job_id, []).append(waiter)
            if not self._is_reading:
                try:
                    await self._start()
                except BaseException:
                    self.remove(waiter)
                    raise
        return waiter

    def remove(self, waiter: Waiter) -> None:
        """Tell it nothing more."""
        with self._guard:
            others = self._waiters[waiter.job_id]
            others.remove(waiter)
            if not others:
                del self._waiters[waiter.job_id]
            self._idle_since = time.monotonic()

    async def close(self) -> None:
        """Stop reading, and wake those who still wait."""
        self._is_closed = True
        if self._background is not None:
            await self._background.stop()
        elif self._connection is not None:
            await self._connection.close()
        with self._guard:
            waiters = [waiter for some in self._waiters.values() for waiter in some]
        for waiter in waiters:
            waiter.tell(None)

    def abandon(self) -> None:
        """Close the sockets of a reader whose loop is gone."""
        if self._connection is not None:
            self._connection.interrupt()

    def refuse_if_closed(self) -> None:
        if self._is_closed:
            raise ServerUnavailableError(f"queue {self._keys.name!r} was closed while waiting")

    async def _start(self) -> None:
        self.refuse_if_closed()
        if self._connection is None:
            listener = events.client_name(self._keys)
            self._connection = self._origin.twin(client_name=listener)
        cursor = EventCursor(self._connection, self._keys, only=_TOLD)
        await cursor.start()
        self._is_reading = True
        self._background = Background(
            lambda: self._read(cursor),
            self._connection,
            f"the listener of queue {self._keys.name!r}",
        )
        self._background.start()

    async def _read(self, cursor: EventCursor) -> None:
        try:
            while not self._is_closed and self._is_wanted():
                for event in await cursor.read():
                    self._tell(event)
        except BaseException:
            self._is_reading = False
            raise

    def _tell(self, event: Event) -> None:
        with self._guard:
            concerned = list(self._waiters.get(None, ()))
            if event.job_id is not None and event.name in ENDS:
                concerned += self._waiters.get(event.job_id, ())
            elif (group := groups.concerned_by(event)) is not None:
                concerned += self._waiters.get(group, ())
        for waiter in concerned:
            waiter.tell(event)

    def _is_wanted(self) -> bool:
        with self._guard:
            if self._waiters or time.monotonic() - self._idle_since < LINGER_S:
                return True
            self._is_reading = False
            return False


def _place(event_id: str) -> tuple[int, ...]:
    """An event's id, to be compared with others."""
    return tuple(map(int, event_id.split("-"))) if event_id else ()
