# Written by tools/unasync.py from src/toril/client/explaining.py: change that file instead.
"""The part of a queue that says why a job is not running."""

from __future__ import annotations

from toril.protocol import codec, explaining, families, reading
from toril.protocol.keys import Keys
from toril.sync.connection import Connection


class QueueExplaining:
    """Turns what the server knows about a job into a sentence for people."""

    keys: Keys
    _connection: Connection

    def explain(self, job_id: str) -> str:
        """Say in a sentence why a job is not running."""
        facts = self._connection.run(explaining.facts_about(self.keys, job_id))
        if not facts and self._connection.is_cluster:
            facts = explaining.coming(
                self._connection.follow(reading.coming_from(self.keys, job_id)), self.keys
            )
        job = self._connection.run(reading.head(self.keys, job_id))
        workers = self._connection.run(reading.workers(self.keys))
        lane = None if job is None else job.lane
        if facts.get("state") == "waiting_children":
            failed = self._connection.follow(families.failed_pending(self.keys, job_id))
            if failed:
                facts = {**facts, "failed_child": failed[0]}
        if job is not None and (doom := job.raw(b"defa")) is not None:
            facts = {**facts, "doom": codec.text(doom)}
        return explaining.sentence(
            job_id, self.keys.name, lane, facts, [one.name for one in workers]
        )
