"""A wait at the server with a command right behind it, whatever becomes of the two."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.client.test_lines import Weather
from tests.helpers import wait_until
from toril.client.connection import Connection
from toril.errors import ServerRefusalError, ServerUnavailableError, ServerUnusableError
from toril.protocol.command import Command, plain

BLOCK_MS = 60_000


def wait_for(key: str) -> Command[Any]:
    return plain("BLPOP", key, BLOCK_MS / 1000, parse=bool, block_ms=BLOCK_MS)


def length_of(key: str) -> Command[int]:
    return plain("LLEN", key, parse=int)


@pytest.fixture
async def weather(url):
    weather = Weather(int(url.rpartition(":")[2].partition("/")[0]))
    server = await asyncio.start_server(weather.serve, "127.0.0.1", 0)
    weather.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield weather
    server.close()


@pytest.fixture
def key(prefix) -> str:
    return f"{prefix}:q:wait"


async def waiting(connection: Connection, key: str, landed: Any, client: Any) -> asyncio.Task[None]:
    """A task that waits at the server for ``key``."""
    before = await blocked(client)
    task = asyncio.create_task(connection.run_behind(wait_for(key), length_of(key), landed))

    async def is_blocked() -> bool:
        return bool(await blocked(client) - before)

    await wait_until(is_blocked)
    return task


async def blocked(client: Any) -> set[str]:
    """Who waits at the server; an earlier test may have left somebody there for a while."""
    return {row["id"] for row in await client.client_list() if "b" in row["flags"]}


async def test_the_answer_lands_before_the_waiter_goes_on(url, key, client):
    connection, seen = Connection(url), []
    task = await waiting(connection, key, lambda answer: seen.append((answer, task.done())), client)

    await client.rpush(key, "a", "b")
    await task

    assert seen == [(1, False)]
    await client.delete(key)
    await connection.close()


async def test_replies_may_come_one_by_one_and_byte_by_byte(weather, key, client):
    weather.change = lambda data: [data[i : i + 1] for i in range(len(data))]
    connection, seen = Connection(weather.url), []

    task = await waiting(connection, key, seen.append, client)
    await client.rpush(key, "a")
    await task

    assert seen == [0]
    await connection.close()


async def test_a_lost_wait_is_not_waited_for_again(weather, key, client):
    connection, seen = Connection(weather.url), []
    task = await waiting(connection, key, seen.append, client)

    for line in weather.lines:
        line.transport.abort()
    async with asyncio.timeout(60):
        await task

    assert seen == [0]
    await connection.close()


async def test_a_refused_wait_is_told_and_its_command_counts(url, key, client):
    connection, seen = Connection(url), []
    await client.set(f"{key}:other", "no list")

    with pytest.raises(ServerRefusalError, match="WRONGTYPE"):
        await connection.run_behind(wait_for(f"{key}:other"), length_of(key), seen.append)

    assert seen == [0]
    await client.delete(f"{key}:other")
    await connection.close()


async def test_a_refused_command_is_told_like_any_other(url, key, client):
    connection, seen = Connection(url), []
    await client.set(f"{key}:other", "no list")
    await client.rpush(key, "a")

    with pytest.raises(ServerRefusalError, match="WRONGTYPE"):
        await connection.run_behind(wait_for(key), length_of(f"{key}:other"), seen.append)

    assert seen == []
    await client.delete(f"{key}:other")
    await connection.close()


async def test_an_error_of_whoever_is_told_is_its_own(url, key, client):
    """It is not taken for one of the socket, and nobody is told twice."""
    connection, seen = Connection(url), []
    await client.rpush(key, "a")

    def landed(answer: int) -> None:
        seen.append(answer)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        await connection.run_behind(wait_for(key), length_of(key), landed)

    assert seen == [0]
    await connection.close()


async def test_nothing_lands_after_the_waiter_has_left(url, key, client):
    connection, seen = Connection(url), []
    others = await blocked(client)
    task = await waiting(connection, key, seen.append, client)
    waiter = await blocked(client) - others

    async def has_left() -> bool:
        return not waiter & await blocked(client)

    task.cancel()
    await asyncio.wait([task])
    await wait_until(has_left)  # a server may read a command before the end of another socket
    await client.rpush(key, "a")
    assert await connection.run(length_of(key)) == 1

    assert seen == []
    await client.delete(key)
    await connection.close()


async def test_a_server_that_is_gone_is_told(start_server, prefix):
    server = start_server()
    connection = Connection(server.url, patience_s=0.1)
    task = asyncio.create_task(
        connection.run_behind(wait_for(f"{prefix}:x"), length_of(f"{prefix}:x"), lambda _: None)
    )
    with server.client() as other:
        await wait_until(lambda: other.info("clients")["blocked_clients"] > 0)

    server.kill()

    with pytest.raises(ServerUnavailableError, match="does not serve"):
        await task
    await connection.close()


async def test_the_line_to_a_server_that_became_a_replica_is_left(start_server, prefix):
    """The next lookup may find another server, which a line that is kept would never reach."""
    server, key = start_server(), f"{prefix}:x"
    connection = Connection(server.url, client_name="waits-behind", patience_s=0.1)
    with server.client() as other:
        await connection.run(length_of(key))
        before = {one["id"] for one in other.client_list() if one["name"] == "waits-behind"}
        assert before
        other.replicaof("127.0.0.1", 1)

        with pytest.raises(ServerUnusableError, match="read-only replica"):
            await connection.run_behind(wait_for(key), length_of(key), lambda _: None)

        await wait_until(lambda: not before & {one["id"] for one in other.client_list()})
    await connection.close()
