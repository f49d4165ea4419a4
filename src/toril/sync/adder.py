# Written by tools/unasync.py from src/toril/client/adder.py: change that file instead.
"""Adding jobs to one queue, for queues and for tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from toril.client.ids import new_job_id
from toril.options import NewJob, Replicas
from toril.protocol import adding, flows
from toril.protocol.adding import Added, Prepared
from toril.protocol.flows import PreparedNode
from toril.protocol.keys import Keys, is_away, split_job_key
from toril.sync.batching import Batcher
from toril.sync.connection import Connection

T = TypeVar("T")


class Adder:
    """Checks and encodes jobs, and sends those that are added at the same time together.

    The caller gets the server's answer and turns it into what it needs: a queue into a job, a task
    into a handle.
    """

    def __init__(
        self, connection: Connection, keys: Keys, replicas: Replicas | None = None
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._replicas = replicas
        self._batcher = Batcher(connection, keys, replicas)
        self.close = self._batcher.close

    @property
    def is_away(self) -> bool:
        """Is a call in flight, which new jobs have to wait for?"""
        return self._batcher.is_away

    def prepare(self, job: NewJob, suffix: str = "") -> Prepared:
        """The job as it is sent; refuses what the server could not accept.

        ``suffix`` is added to an id that is chosen here.
        """
        if job.parent is None:
            return adding.prepare(job, new_job_id() + suffix)
        keys, parent_id = adding.parent_of(job, self._keys.prefix)
        self._connection.check_slots(self._keys, keys)
        return adding.prepare(job, new_job_id() + suffix, (parent_id, keys.base))

    def send(self, job: Prepared) -> Added:
        """Add one job, alone or together with others that are added at the same time."""
        parent = self._parent_elsewhere(job)
        if parent is None:
            return self._batcher.add(job)
        return self._send_by(parent, job)

    def send_all(self, jobs: list[Prepared], each: Callable[[Prepared, Added], T]) -> list[T]:
        """Add many jobs, in slices; answers go through ``each``."""
        if not self._connection.is_cluster:
            return self._batcher.add_all(jobs, each)
        parents = [self._parent_elsewhere(job) for job in jobs]
        sent = iter(
            self._batcher.add_all(
                [job for job, parent in zip(jobs, parents, strict=True) if parent is None], each
            )
        )
        answers = []
        for job, parent in zip(jobs, parents, strict=True):
            answers.append(next(sent) if parent is None else each(job, self._send_by(parent, job)))
        return answers

    def _parent_elsewhere(self, job: Prepared) -> Keys | None:
        """The queue of the job's parent, if that is in another slot."""
        if "parent_key" not in job.entry or not self._connection.is_cluster:
            return None
        prefix, name, _ = split_job_key(job.entry["parent_key"], self._keys.prefix)
        keys = Keys(prefix, name)
        return keys if is_away(self._keys, keys) else None

    def _send_by(self, parent: Keys, job: Prepared) -> Added:
        """Add a job through the slot of its parent, which must start waiting for it first."""
        command = flows.add([PreparedNode(self._keys, job, None)], self._replicas, parent)
        (added,) = self._connection.run(command)
        assert added is not None, "it has no parent"
        return added
