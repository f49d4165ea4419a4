"""Reading a server, or all nodes of a cluster, through a ``Connection``.

What may not be read is None.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from toril.client.connection import Connection
from toril.errors import ServerRefusalError, ServerUnavailableError
from toril.protocol.command import Command, plain
from toril.protocol.discovering import ClusterNode, cluster_nodes

_KEYS_PER_SCAN = 1000
SLOT_COUNT = 16384
_ALL_SLOTS = ((0, SLOT_COUNT - 1),)
_NODES_TO_TRY = 8


class ConnectionReader:
    """Asks read-only questions; answers are text.

    ``nodes`` are the servers that answer: all masters of a cluster, or the one there is.
    """

    def __init__(
        self,
        connection: Connection,
        nodes: Sequence[ClusterNode] = (ClusterNode("", "any", _ALL_SLOTS),),
        silent: Sequence[ClusterNode] = (),
    ) -> None:
        self._connection = connection
        self.nodes = nodes
        self.silent = silent

    @property
    def slots_without_node(self) -> int:
        """How many slots nobody is there for, neither a node that answers nor one that does not."""
        ranges = [one for node in (*self.nodes, *self.silent) for one in node.ranges]
        return SLOT_COUNT - sum(high - low + 1 for low, high in ranges)

    @classmethod
    async def open(cls, connection: Connection) -> ConnectionReader:
        """A reader that knows which nodes of a cluster there are, and which of them answer."""
        await connection.meet()
        if not connection.is_cluster:
            return cls(connection)
        nodes = await _find_nodes(connection)
        answers = await asyncio.gather(*(_answers(connection, node) for node in nodes))
        return cls(
            connection,
            [node for node, is_there in zip(nodes, answers, strict=True) if is_there],
            [node for node, is_there in zip(nodes, answers, strict=True) if not is_there],
        )

    def node_of(self, key: str) -> ClusterNode | None:
        """The node that has ``key``, if it answers."""
        return next((node for node in self.nodes if node.serves(key)), None)

    async def scan(self, pattern: str) -> list[str]:
        """The keys that match, on every node."""
        found = await asyncio.gather(*(self._scan(pattern, node) for node in self.nodes))
        return [key for keys in found for key in keys]

    async def _scan(self, pattern: str, node: ClusterNode) -> list[str]:
        keys: list[str] = []
        cursor = "0"
        while True:
            words = ("SCAN", cursor, "MATCH", pattern, "COUNT", _KEYS_PER_SCAN)
            cursor, found = await self._connection.run(plain(*words, parse=_text, near=node.near))
            keys += found
            if cursor == "0":
                return keys

    async def ask(self, commands: Sequence[tuple[str, ...]]) -> list[Any]:
        """The answers to commands whose first argument is a key, each from the key's node."""
        by_node: dict[str, list[int]] = defaultdict(list)
        for index, words in enumerate(commands):
            node = self.node_of(words[1])
            by_node["" if node is None else node.near].append(index)
        answers: list[Any] = [None] * len(commands)

        async def ask_one(indexes: list[int]) -> None:
            part = await self._connection.run_all([_command(commands[index]) for index in indexes])
            for index, answer in zip(indexes, part, strict=True):
                answers[index] = answer

        await asyncio.gather(*map(ask_one, by_node.values()))
        return answers

    async def ask_node(self, node: ClusterNode, *words: str) -> Any:
        """The answer of one node to a command without keys."""
        return await self._connection.run(plain(*words, parse=_text, near=node.near))

    async def try_to_ask_node(self, node: ClusterNode, *words: str) -> Any:
        """The answer, or None when it is refused, as by an ACL."""
        try:
            return await self.ask_node(node, *words)
        except ServerRefusalError:
            return None


async def _find_nodes(connection: Connection) -> list[ClusterNode]:
    """Any node knows the others, so it is enough that one of them answers."""
    for number in range(_NODES_TO_TRY):
        try:
            return await connection.run(cluster_nodes(f"near-{number}"))
        except ServerUnavailableError:
            continue
    return await connection.run(cluster_nodes())


async def _answers(connection: Connection, node: ClusterNode) -> bool:
    try:
        await connection.run(plain("PING", parse=_text, near=node.near))
    except ServerUnavailableError:
        return False
    return True


def _command(words: tuple[str, ...]) -> Command[Any]:
    return plain(*words, parse=_pairs if words[0] == "HGETALL" else _text)


def _text(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return reply.decode("utf-8", "replace")
    if isinstance(reply, list):
        return [_text(item) for item in reply]
    return reply


def _pairs(reply: Any) -> dict[str, str]:
    words = iter(_text(reply))
    return dict(zip(words, words, strict=True))
