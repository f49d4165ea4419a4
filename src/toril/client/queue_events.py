"""The events of a queue, whoever caused them: any worker or producer, in any language."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, cast

from toril.checking import checked
from toril.client.background import Background, call
from toril.client.connection import Connection, Target
from toril.client.event_cursor import EventCursor
from toril.client.places import PerPlace
from toril.errors import InvalidOptionError
from toril.logs import get_logger
from toril.protocol import events
from toril.protocol.events import Event
from toril.protocol.keys import Keys

logger = get_logger("toril.client")

Callback = Callable[[Event], Any]


@checked
class QueueEvents:
    """What happens in queue ``name``, as it happens.

    Iterate over it, or register callbacks with ``on``: both receive every event once, from the
    moment ``async with`` begins (or from the first use without it), or after ``last_event_id``;
    ``"0"`` means from the oldest event the server still has.  After a lost connection, reading
    resumes where it stopped.  ``partitions`` must match the ``Queue``: the events of all of them
    are received.
    """

    def __new__(cls, *args: Any, partitions: int = 1, **options: Any) -> Self:
        if partitions == 1 or cls is not QueueEvents:
            return super().__new__(cls)
        from toril.client.partitioned_events import PartitionedEvents

        return cast(Self, object.__new__(PartitionedEvents))

    def __init__(
        self,
        name: str,
        *,
        connection: Target = None,
        prefix: str = "bull",
        last_event_id: str | None = None,
        partitions: int = 1,
    ) -> None:
        if partitions != 1:
            raise InvalidOptionError(
                f"a subclass of QueueEvents cannot have partitions={partitions!r}"
            )
        if last_event_id is not None and not events.is_event_id(last_event_id):
            raise InvalidOptionError(
                f"last_event_id={last_event_id!r} is not an event id; give one"
                f" ('1700000000000-0'), '0' for the oldest event, or None for new ones"
            )
        self.name = name
        self.keys = Keys(prefix, name)
        listener = events.client_name(self.keys)
        self._connection = (
            connection.twin(client_name=listener)
            if isinstance(connection, Connection)
            else Connection(connection, client_name=listener)
        )
        self._connection.check_slots(self.keys)
        self._start = EventCursor(self._connection, self.keys, position=last_event_id)
        self._iterated = EventCursor(self._connection, self.keys, origin=self._start)
        self._called = EventCursor(self._connection, self.keys, origin=self._start)
        self._page: deque[Event] = deque()
        self._turns = PerPlace(asyncio.Lock)
        self._callbacks: dict[str, list[Callback]] = {}
        self._background = Background(
            self._call_back, self._connection, f"the listener of queue {name!r}"
        )

    def __repr__(self) -> str:
        return f"<QueueEvents of {self.name!r} on {self._connection!r}>"

    async def __aenter__(self) -> Self:
        await self._start.start()
        if self._callbacks:
            self._listen()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def on(self, event: str, callback: Callback) -> None:
        """Call ``callback(event)`` for each event of this name, ``"*"`` for all of them.

        ``"completed:41"`` is the completion of job 41.  Callbacks are called one at a time, in the
        order of the events; if one fails, that is logged and nothing else is affected.
        """
        self._callbacks.setdefault(event, []).append(callback)
        self._listen()

    def off(self, event: str, callback: Callback) -> None:
        """Remove a callback."""
        if callback in self._callbacks.get(event, ()):
            self._callbacks[event].remove(callback)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        async with self._turns.here():
            while not self._page and not self._connection.is_closed:
                self._page.extend(await self._iterated.read())
            if self._connection.is_closed:
                raise StopAsyncIteration
            return self._page.popleft()

    async def close(self) -> None:
        """Stop listening; iteration ends."""
        await self._background.stop()

    def _listen(self) -> None:
        if not self._background.is_running and not self._connection.is_closed:
            self._background.start()

    async def _call_back(self) -> None:
        while not self._connection.is_closed:
            for event in await self._called.read():
                for name in ("*", event.name, f"{event.name}:{event.job_id}"):
                    for callback in tuple(self._callbacks.get(name, ())):
                        await self._call(callback, event)

    async def _call(self, callback: Callback, event: Event) -> None:
        try:
            await call(callback, event)
        except Exception:
            logger.exception("a callback for %r of queue %r failed", event.name, self.name)
