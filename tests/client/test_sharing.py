"""One pool of sockets for all queues of a process (RULES-09, C-33)."""

from __future__ import annotations

import socket
import time

import pytest

import toril.sync
from toril import Connection, Queue
from toril.client.connection import PATIENCE_S
from toril.errors import ServerUnavailableError


async def test_queues_that_share_a_connection_share_its_sockets(url, prefix, client):
    shared = Connection(url, client_name=prefix)

    async with (
        Queue("a", connection=shared, prefix=prefix) as a,
        Queue("b", connection=shared, prefix=prefix) as b,
    ):
        await a.add("x")
        await b.add("x")
    # The queues are closed, what they share is not.
    async with Queue("c", connection=shared, prefix=prefix) as c:
        await c.add("x")

    sockets = [row for row in await client.client_list() if row["name"] == prefix]
    assert len(sockets) == 1
    await shared.close()


def test_blocking_queues_share_as_well(url, prefix):
    shared = toril.sync.Connection(url)

    with toril.sync.Queue("a", connection=shared, prefix=prefix) as queue:
        queue.add("x")

    assert queue.get_job_counts()["waiting"] == 1
    shared.close()


async def test_a_producer_fails_fast_when_nobody_listens():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{taken.getsockname()[1]}"
        begun = time.monotonic()
        connection = Connection(url, patience_s=0.3)

        async with Queue("q", connection=connection) as queue:
            with pytest.raises(ServerUnavailableError, match="is the server up"):
                await queue.add("x")

    assert time.monotonic() - begun < 30
    await connection.close()
    assert PATIENCE_S <= 3, "of a producer that says nothing else"
