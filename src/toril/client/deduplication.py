"""The part of a queue that knows who owns a deduplication id."""

from __future__ import annotations

from toril.client.connection import Connection
from toril.protocol import deduplicating
from toril.protocol.keys import Keys


class QueueDeduplication:
    """Looking up deduplication ids, and giving them free before their time."""

    keys: Keys
    _connection: Connection

    async def get_deduplication_job_id(self, deduplication_id: str) -> str | None:
        """The id of the job that keeps others with this deduplication id out, or None."""
        return await self._connection.run(deduplicating.owner(self.keys, deduplication_id))

    async def remove_deduplication_key(
        self, deduplication_id: str, *, job_id: str | None = None
    ) -> bool:
        """Let the next job with this deduplication id in; True when one had owned it.

        With ``job_id`` only if that job owns it.
        """
        return await self._connection.run(
            deduplicating.free(self.keys, deduplication_id, owner_id=job_id)
        )
