# Written by tools/unasync.py from src/toril/client/deduplication.py: change that file instead.
"""The part of a queue that knows who owns a deduplication id."""

from __future__ import annotations

from toril.protocol import deduplicating
from toril.protocol.keys import Keys
from toril.sync.connection import Connection


class QueueDeduplication:
    """Looking up deduplication ids, and freeing them early."""

    keys: Keys
    _connection: Connection

    def get_deduplication_job_id(self, deduplication_id: str) -> str | None:
        """The id of the job that owns this deduplication id, or None."""
        return self._connection.run(deduplicating.owner(self.keys, deduplication_id))

    def remove_deduplication_key(self, deduplication_id: str, *, job_id: str | None = None) -> bool:
        """Free this deduplication id for the next job; True if a job owned it.

        With ``job_id``, only if that job owns it.
        """
        return self._connection.run(
            deduplicating.free(self.keys, deduplication_id, owner_id=job_id)
        )
