"""A position in a queue's event log, kept while connections come and go."""

from __future__ import annotations

import asyncio
import random

from toril.client.connection import Connection
from toril.errors import ServerError, ServerRefusalError
from toril.logs import get_logger
from toril.protocol import events
from toril.protocol.events import Event
from toril.protocol.keys import Keys

logger = get_logger("toril.client")

BLOCK_MS = 10_000


class EventCursor:
    """Reads a queue's events in order, each once.

    ``position`` is the id of the last event read.  If none is given, the cursor starts where its
    ``origin`` started, or else with new events.  With ``only``, other events are skipped, except
    for the last one of those read together.
    """

    def __init__(
        self,
        connection: Connection,
        keys: Keys,
        *,
        position: str | None = None,
        origin: EventCursor | None = None,
        only: frozenset[str] | None = None,
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._origin = origin
        self._only = only
        self.position = position
        self._has_read = False

    async def start(self) -> str:
        """Fix the position to read from: everything that happens from now on will be read."""
        if self.position is None and self._origin is not None:
            self.position = await self._origin.start()
        elif self.position is None:
            self.position = await self._connection.run(events.last_id(self._keys))
        return self.position

    async def read(self) -> list[Event]:
        """The next events; empty if there are none for a while, or the connection was closed.

        Raises ``ServerRefusalError`` if the first read is refused: the server cannot serve it, or
        the log is not a stream.
        """
        while True:
            try:
                position = await self.start()
                command = events.read(self._keys, position, block_ms=BLOCK_MS, only=self._only)
                page = await self._connection.run(command)
            except ServerError as error:
                if self._connection.is_closed:
                    return []
                if isinstance(error, ServerRefusalError) and not self._has_read:
                    raise
                logger.warning("events of queue %r cannot be read: %s", self._keys.name, error)
                await asyncio.sleep(random.uniform(0.1, 0.5))
                continue
            self._has_read = True
            if page:
                self.position = page[-1].id
            return page
