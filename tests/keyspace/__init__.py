"""The keyspace audit that users get with ``toril doctor``, over the tests' raw clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis.asyncio

from toril.doctor import keyspace
from toril.doctor.keyspace import classify

Client = redis.asyncio.Redis


class ClientReader:
    """Reads through a client that decodes responses."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def scan(self, pattern: str) -> list[str]:
        return [key async for key in self._client.scan_iter(match=pattern, count=5000)]

    async def ask(self, commands: Sequence[tuple[str, ...]]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        return await pipeline.execute()


async def audit(client: Client, prefix: str, *, expects_marker: bool = False) -> list[str]:
    return await keyspace.audit(ClientReader(client), prefix, expects_marker=expects_marker)


async def keys_under(client: Client, prefix: str) -> list[str]:
    return await keyspace.keys_under(ClientReader(client), prefix)


async def dump(client: Client, prefix: str) -> str:
    return await keyspace.dump(ClientReader(client), prefix)


async def lasting_keys(client: Client, prefix: str) -> list[str]:
    """The keys under ``prefix`` without what is remembered of calls for a few minutes."""
    return [key for key in await keys_under(client, prefix) if ":toril:adds:" not in key]


__all__ = ["audit", "classify", "dump", "keys_under", "lasting_keys"]
