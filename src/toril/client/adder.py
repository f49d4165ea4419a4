"""What adds jobs to one queue, for the queue and for tasks."""

from __future__ import annotations

from toril.client.batching import Batcher
from toril.client.connection import Connection
from toril.client.ids import new_job_id
from toril.options import NewJob, Replicas
from toril.protocol import adding
from toril.protocol.adding import Prepared
from toril.protocol.keys import Keys


class Adder:
    """Checks and encodes jobs, and sends those of one moment together.

    Whoever sends one is told what the server said and makes of it what is needed: a queue a job, a
    task a handle.
    """

    def __init__(
        self, connection: Connection, keys: Keys, replicas: Replicas | None = None
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._batcher = Batcher(connection, keys, replicas)
        self.send = self._batcher.add
        self.send_all = self._batcher.add_all
        self.close = self._batcher.close

    @property
    def is_away(self) -> bool:
        """Is a call under way, which those that come now have to wait for?"""
        return self._batcher.is_away

    def prepare(self, job: NewJob, suffix: str = "") -> Prepared:
        """The job as it is sent; refuses what the server could not take.

        ``suffix`` is added to an id that is chosen here.
        """
        if job.parent is None:
            return adding.prepare(job, new_job_id() + suffix)
        keys, parent_id = adding.parent_of(job, self._keys.prefix)
        self._connection.check_slots(self._keys, keys)
        return adding.prepare(job, new_job_id() + suffix, (parent_id, keys.base))
