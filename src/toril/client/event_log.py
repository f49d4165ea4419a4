"""The part of a queue that writes the user's own events, and trims the event log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toril.client.connection import Connection
from toril.options import whole
from toril.protocol import publishing
from toril.protocol.keys import Keys


class QueueEventLog:
    """The log of what happens in the queue, which ``QueueEvents`` reads."""

    keys: Keys
    _connection: Connection

    async def publish_event(
        self, name: str, data: Mapping[str, Any] | None = None, *, job_id: str | None = None
    ) -> str:
        """Send an event to all listeners of this queue, in any language; returns its id.

        ``data`` holds the event's fields.  Text values are sent as they are, anything else is
        written as JSON.  Names that the queue itself uses are refused.
        """
        return await self._connection.run(publishing.publish(self.keys, name, data, job_id=job_id))

    async def trim_events(self, max_length: int) -> int:
        """Remove all events except the newest ``max_length``; returns how many."""
        return await self._connection.run(
            publishing.trim(self.keys, whole(max_length, "max_length"))
        )
