"""The keyspace audit that users get with ``toril doctor``, over the tests' raw clients."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import hiredis
import redis
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


class BlockingReader:
    """Reads on a connection that stays, and holds up the event loop meanwhile.

    For the audit after each test, when nothing else runs: a loop takes ten times as long.
    """

    def __init__(self, url: str) -> None:
        self.client = redis.Redis.from_url(
            url, decode_responses=True, encoding_errors="backslashreplace", protocol=3
        )

    async def scan(self, pattern: str) -> list[str]:
        return list(self.client.scan_iter(match=pattern, count=5000))

    async def ask(self, commands: Sequence[tuple[str, ...]]) -> list[Any]:
        pool = self.client.connection_pool
        connection = pool.get_connection()
        try:
            connection.send_packed_command([b"".join(map(hiredis.pack_command, commands))])
            return [connection.read_response() for _ in commands]
        except BaseException:
            connection.disconnect()  # what was not read is not for the next one
            raise
        finally:
            pool.release(connection)

    def delete(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), 1000):
            self.client.unlink(*keys[start : start + 1000])


@functools.cache
def reader_of(url: str) -> BlockingReader:
    return BlockingReader(url)


async def audit(
    client: Client | BlockingReader, prefix: str, *, expects_marker: bool = False
) -> list[str]:
    return await keyspace.audit(_reader(client), prefix, expects_marker=expects_marker)


async def keys_under(client: Client | BlockingReader, prefix: str) -> list[str]:
    return await keyspace.keys_under(_reader(client), prefix)


async def dump(client: Client | BlockingReader, prefix: str) -> str:
    return await keyspace.dump(_reader(client), prefix)


def _reader(client: Client | BlockingReader) -> ClientReader | BlockingReader:
    return client if isinstance(client, BlockingReader) else ClientReader(client)


async def lasting_keys(client: Client, prefix: str) -> list[str]:
    """The keys under ``prefix`` without what is remembered of calls for a few minutes."""
    return [key for key in await keys_under(client, prefix) if ":toril:adds:" not in key]


__all__ = ["BlockingReader", "audit", "classify", "dump", "keys_under", "lasting_keys", "reader_of"]
