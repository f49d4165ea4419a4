"""What a worker does first on the connection that waits for jobs."""

from __future__ import annotations

import contextlib

from toril.client.connection import Connection
from toril.errors import TorilError
from toril.logs import get_logger
from toril.protocol import eviction
from toril.protocol.command import plain
from toril.protocol.keys import Keys

logger = get_logger("toril.worker")


async def introduce(connection: Connection, keys: Keys) -> None:
    """List the worker among the queue's workers from the start, even if it never waits for jobs.

    The connection that carries the worker's name is the one that waits.
    """
    with contextlib.suppress(TorilError):
        await connection.run(plain("PING", parse=bool, near=keys.marker))
        await _warn_of_eviction(connection, keys)


async def _warn_of_eviction(connection: Connection, keys: Keys) -> None:
    """A job that is acknowledged and then evicted is lost, and nothing else would report it."""
    policy = await connection.run(eviction.policy(keys))
    if harm := eviction.harm(policy):
        logger.warning(
            "the server of queue %r has maxmemory-policy %r: when its memory is full %s;"
            " set it to noeviction, and keep caches on another server",
            keys.name,
            policy,
            harm,
        )
