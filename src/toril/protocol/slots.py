"""Which node of a cluster serves which slot, as far as it is known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from toril.protocol.command import Command, plain
from toril.protocol.keys import slot

Node = tuple[str, int]
"""Host and port."""

MOST_REDIRECTIONS = 8

SLOTS: Command[Any] = plain("CLUSTER", "SLOTS", parse=lambda reply: reply)
"""Ask a node who serves what."""


def cluster_mode() -> Command[bool]:
    """Whether the server is a node of a cluster."""
    return plain("INFO", "cluster", parse=lambda reply: b"cluster_enabled:1" in reply, near="any")


def slot_of(command: Command[Any]) -> int:
    """The slot that ``command`` belongs to."""
    words = command.words
    if command.near is not None:
        return slot(command.near)
    if command.keys:
        return slot(command.keys[0])
    if words[0] == "XREAD":
        return slot(str(words[words.index("STREAMS") + 1]))
    return slot(str(words[1]))


class SlotMap:
    """Begins with the nodes that the user named, and learns from what the cluster says.

    All keys of a queue share a slot, so a connection needs one entry of it most of the time.
    """

    def __init__(self, seeds: Iterable[Node]) -> None:
        self._seeds = list(seeds)
        self._ranges: list[tuple[int, int, Node]] = []
        self._moved: dict[int, Node] = {}

    def owner(self, number: int) -> Node | None:
        """The node that serves slot ``number``; None if that is not known yet."""
        moved = self._moved.get(number)
        if moved is not None:
            return moved
        for low, high, node in self._ranges:
            if low <= number <= high:
                return node
        return None

    def nodes(self) -> list[Node]:
        """Whom to ask: those known to serve, then those that the user named."""
        known = [node for _, _, node in self._ranges]
        return list(dict.fromkeys([*known, *self._seeds]))

    def learn(self, reply: Sequence[Any], told_by: Node) -> None:
        """What ``CLUSTER SLOTS`` said."""
        self._moved.clear()
        self._ranges = [
            (int(low), int(high), _address(master[0], master[1], told_by))
            for low, high, master, *_ in reply
        ]

    def move(self, number: int, host: str | bytes, port: int, told_by: Node) -> Node:
        """A node said that slot ``number`` is served by another; returns that one."""
        node = self._moved[number] = _address(host, port, told_by)
        return node

    def forget(self, doubtful: Node | None = None) -> None:
        """A node does not answer or is cut off: its slots may be served by others now.

        It is asked last: one that is cut off from the others would say that it serves them.
        """
        self._seeds = sorted(self.nodes(), key=lambda node: node == doubtful)
        self._ranges = []
        self._moved.clear()


def _address(host: str | bytes | None, port: int, told_by: Node) -> Node:
    """A node that does not know its own name is where the one is that told of it."""
    if isinstance(host, bytes):
        host = host.decode()
    return (host or told_by[0], int(port))
