"""A node of a cluster that is cut off from the others, while its clients can reach all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import hiredis
import pytest

from tests.client.test_lines import InThreads
from toril.client.connection import Connection
from toril.protocol.command import Command, Resend, plain


class Node:
    """As much of a node as a client asks for: who serves the slots, and one command."""

    def __init__(self) -> None:
        self.owner = self
        """Who serves all slots, as this node knows it."""
        self.is_cut_off = False
        self.answered = 0
        self.port = 0
        self._lines: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._lines.append(writer)
        requests = hiredis.Reader()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                requests.feed(data)
                while (words := requests.gets()) is not False:
                    writer.write(self._answer(words))

    def _answer(self, words: list[bytes]) -> bytes:
        if words[:2] == [b"CLUSTER", b"SLOTS"]:
            where = b"*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % self.owner.port
            return b"*1\r\n*3\r\n:0\r\n:16383\r\n" + where
        if words[0] != b"INCR":
            return b"+OK\r\n"
        if self.is_cut_off:
            return b"-CLUSTERDOWN The cluster is down\r\n"
        if self.owner is not self:
            return b"-MOVED 1 127.0.0.1:%d\r\n" % self.owner.port
        self.answered += 1
        return b":%d\r\n" % self.answered

    def close(self) -> None:
        for line in self._lines:
            line.close()


@pytest.fixture
async def nodes() -> AsyncIterator[tuple[Node, Node]]:
    """One that serves all slots, and its replica."""
    primary, replica = Node(), Node()
    replica.owner = primary
    listeners = []
    for node in (primary, replica):
        listeners.append(await asyncio.start_server(node.serve, "127.0.0.1", 0))
        node.port = listeners[-1].sockets[0].getsockname()[1]
    yield primary, replica
    for listener in listeners:
        listener.close()
    for node in (primary, replica):
        node.close()


def increment() -> Command[int]:
    return plain("INCR", "x", parse=int, resend=Resend.NEVER)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("connect", [Connection, InThreads], ids=["async", "blocking"])
async def test_a_node_that_is_cut_off_is_left_for_the_one_that_took_its_place(
    connect: Any, count: int, nodes
):
    """Regression: it was asked again and again, until it had heard of the others again."""
    primary, replica = nodes
    where = f"127.0.0.1:{primary.port},127.0.0.1:{replica.port}"
    connection = connect(f"redis+cluster://{where}", patience_s=30.0)
    assert await connection.run(increment()) == 1

    primary.is_cut_off = True
    replica.owner = replica
    answers = await connection.run_all([increment() for _ in range(count)])

    assert answers == list(range(1, count + 1))
    assert (primary.answered, replica.answered) == (1, count)
    await connection.close()
