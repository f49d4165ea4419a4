"""One queue per name in a process, and one connection per server."""

from __future__ import annotations

from typing import Any

from toril.checking import checked_call
from toril.client.connection import Connection, Target
from toril.client.queue import Queue
from toril.errors import InvalidOptionError
from toril.logs import get_logger
from toril.options import JobOptions

logger = get_logger("toril.steps")

DEFAULT_PREFIX = "bull"
_DEFAULTS = {"prefix": DEFAULT_PREFIX, "replicas": 0}


class QueueCache:
    """Creates each queue once; queues on one server share a connection."""

    def __init__(self) -> None:
        self._queues: dict[str, Queue] = {}
        self._configurations: dict[str, dict[str, Any]] = {}
        self._connections: dict[str | None, Connection] = {}

    def get(self, name: str, **configuration: Any) -> Queue:
        given = {option: value for option, value in configuration.items() if value is not None}
        if name in self._queues:
            self._refuse_another(name, given)
            return self._queues[name]
        queue = self._make(name, given)
        self._queues[name] = queue
        self._configurations[name] = given
        return queue

    async def close(self) -> None:
        """Close and forget all queues; one that cannot be closed does not stop the rest."""
        closing: list[Queue | Connection] = [*self._queues.values(), *self._connections.values()]
        self._queues.clear()
        self._configurations.clear()
        self._connections.clear()
        for item in closing:
            try:
                await item.close()
            except Exception:
                logger.exception("%r could not be closed", item)

    def _make(self, name: str, given: dict[str, Any]) -> Queue:
        target = given.get("connection")
        if target is None or isinstance(target, str):
            if target not in self._connections:
                self._connections[target] = Connection(target)
            target = self._connections[target]
        return Queue(
            name,
            connection=target,
            prefix=given.get("prefix", DEFAULT_PREFIX),
            default_job_options=given.get("default_job_options"),
            replicas=given.get("replicas", 0),
        )

    def _refuse_another(self, name: str, given: dict[str, Any]) -> None:
        """A second caller may pass fewer options than the first, but no different ones."""
        known = {**_DEFAULTS, **self._configurations[name]}
        for option, value in given.items():
            if known.get(option) != value:
                raise InvalidOptionError(
                    f"queue {name!r} was created with another {option} in this process; give it the"
                    f" same one everywhere, or none, or call close_all_queues() in between"
                )


_cache = QueueCache()


@checked_call
def get_queue(
    name: str,
    *,
    connection: Target = None,
    prefix: str | None = None,
    default_job_options: JobOptions | None = None,
    replicas: int | None = None,
) -> Queue:
    """The queue of this name, created by the first call and shared by all later ones.

    A later call may leave out the configuration; one that contradicts the first is refused.
    """
    return _cache.get(
        name,
        connection=connection,
        prefix=prefix,
        default_job_options=default_job_options,
        replicas=replicas,
    )


async def close_all_queues() -> None:
    """Close every queue that ``get_queue`` created; the next call creates new ones."""
    await _cache.close()
