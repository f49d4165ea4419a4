"""A server that is a primary no more: the socket that told so is left, whoever asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import Server
from toril.client.connection import Connection
from toril.errors import ServerError
from toril.protocol.command import plain
from toril.sync.connection import Connection as BlockingConnection

WHO = plain("CLIENT", "ID", parse=int)
WRITE = plain("SET", "key", "value", parse=bool)


@pytest.fixture(scope="module")
def replica() -> Iterator[str]:
    """A replica whose primary is away: it serves reads and refuses writes."""
    with Server(tcp=True) as server:
        connection = BlockingConnection(server.url)
        connection.run(plain("REPLICAOF", "127.0.0.1", "1", parse=bool))
        connection.close()
        yield server.url


@pytest.mark.parametrize("commands", [[WRITE], [WHO, WRITE, WHO]], ids=["alone", "in a pipeline"])
async def test_a_socket_to_a_replica_is_left(replica, commands):
    """Behind the same address there may be another server now, and a new socket finds it."""
    connection = Connection(replica, patience_s=0.0)
    before = await connection.run(WHO)
    assert await connection.run(WHO) == before

    with pytest.raises(ServerError, match=r"(?i)read only|readonly"):
        await connection.run_all(commands)

    assert await connection.run(WHO) != before
    await connection.close()


@pytest.mark.parametrize("commands", [[WRITE], [WHO, WRITE, WHO]], ids=["alone", "in a pipeline"])
def test_a_blocking_socket_to_a_replica_is_left(replica, commands):
    connection = BlockingConnection(replica, patience_s=0.0)
    before = connection.run(WHO)
    assert connection.run(WHO) == before

    with pytest.raises(ServerError, match=r"(?i)read only|readonly"):
        connection.run_all(commands)

    assert connection.run(WHO) != before
    connection.close()
