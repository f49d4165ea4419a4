"""What a running handler writes and reads: each write carries the token of the job's lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toril.client.connection import Connection
from toril.protocol import editing, families, leasing
from toril.protocol.command import Plan
from toril.protocol.keys import Keys
from toril.worker.active_job import ActiveJob
from toril.worker.events import Emitter


class JobWriter:
    """Writes the progress, logs and data of running jobs, and reads about their children."""

    def __init__(self, connection: Connection, keys: Keys, emitter: Emitter) -> None:
        self._connection = connection
        self._keys = keys
        self._emitter = emitter

    async def progress(self, job: ActiveJob, value: Any) -> None:
        await self._connection.run(
            editing.update_progress(self._keys, job.id, value, token=job.token)
        )
        self._emitter.emit("progress", job, value)

    async def log(self, job: ActiveJob, row: str) -> int:
        return await self._connection.run(
            editing.add_log(self._keys, job.id, row, keep=job.opts.keep_logs, token=job.token)
        )

    async def update_data(self, job: ActiveJob, data: Any) -> None:
        await self._connection.run(editing.update_data(self._keys, job.id, data, token=job.token))

    async def extend_lock(self, job: ActiveJob, duration_ms: int) -> None:
        await self._connection.run(
            leasing.extend_lock(self._keys, job.id, job.token, lock_ms=duration_ms)
        )

    async def read_family(self, job: ActiveJob, kind: str) -> Any:
        return await self._connection.follow(_FAMILY_READERS[kind](self._keys, job.id))


_FAMILY_READERS: dict[str, Callable[[Keys, str], Plan[Any]]] = {
    "children_values": families.children_values,
    "failed_children": families.failed_children,
    "dependencies": families.dependencies,
    "dependencies_count": families.dependencies_count,
}
