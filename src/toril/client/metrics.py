"""The part of a queue that knows how many jobs ended, minute by minute."""

from __future__ import annotations

from toril.client.connection import Connection
from toril.protocol import measuring
from toril.protocol.keys import Keys
from toril.protocol.measuring import Metrics


class QueueMetrics:
    """Counts of workers with ``metrics_points``."""

    keys: Keys
    _connection: Connection

    async def get_metrics(self, kind: str, start: int = 0, end: int = -1) -> Metrics:
        """How many jobs ``"completed"`` or ``"failed"``, in all and in each minute, newest first.

        ``start`` and ``end`` choose minutes, both included.
        """
        return await self._connection.follow(measuring.metrics(self.keys, kind, start, end))
