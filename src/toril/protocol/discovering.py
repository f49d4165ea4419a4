"""Finding the queues of a server, without ever asking it for all of its keys at once.

A queue has a ``meta`` hash from its first job on.  ``SCAN`` walks through the whole key space to
find those, a slice at a time; whoever knows the names should not search.  Queues with a worker are
known before that: the connection of every worker, BullMQ's too, is called after its queue.
"""

from __future__ import annotations

import re
from itertools import count
from typing import Any

import msgspec

from toril.errors import InvalidNameError
from toril.protocol import codec
from toril.protocol.command import Command, Plan, plain
from toril.protocol.keys import Keys, check_prefix, check_queue_name, slot

KEYS_PER_SCAN = 2000
"""A million keys are 500 slices, of less than a millisecond of the server's time each."""
BEGINNING = "0"

_META = ":meta"
_GLOB = re.compile(r"([*?\[\]\\^])")


class Found(msgspec.Struct, frozen=True):
    """The queues in one slice of the key space, and where the next slice begins."""

    names: list[str]
    cursor: str

    @property
    def is_last(self) -> bool:
        return self.cursor == BEGINNING


def look(
    prefix: str, cursor: str = BEGINNING, *, near: str | None = None, keys: int = KEYS_PER_SCAN
) -> Command[Found]:
    """The queues in the next slice of about ``keys`` keys.

    On a cluster this sees the node that has the key ``near``; without it, the one that has all
    queues if the prefix has a hash tag.
    """
    check_prefix(prefix)

    def parse(reply: list[Any]) -> Found:
        names = [_queue_of(prefix, codec.text(key)) for key in reply[1]]
        return Found([name for name in names if name is not None], codec.text(reply[0]))

    literal = _GLOB.sub(r"\\\1", prefix)
    pattern = f"{literal}:*{_META}"
    # Where most keys are no hashes, as in a cache, the type is cheaper to look at than the name.
    words = ("SCAN", cursor, "MATCH", pattern, "COUNT", keys, "TYPE", "hash")
    return plain(*words, parse=parse, near=near or f"{prefix}:")


def is_there(keys: Keys) -> Command[bool]:
    """Would a search find this queue?"""
    return plain("EXISTS", keys.meta, parse=bool)


def queue_names(prefix: str, *, is_cluster: bool = False) -> Plan[list[str]]:
    """The names of all queues under ``prefix``, in order."""
    nodes: list[str] = (yield nodes_of_cluster()) if is_cluster else [f"{prefix}:"]
    names: set[str] = set()
    for near in nodes:
        cursor = BEGINNING
        while True:
            found: Found = yield look(prefix, cursor, near=near)
            names.update(found.names)
            if found.is_last:
                break
            cursor = found.cursor
    return sorted(names)


class ClusterNode(msgspec.Struct, frozen=True):
    """A node of a cluster that has slots, and a key near which it answers."""

    address: str
    near: str
    ranges: tuple[tuple[int, int], ...]

    def serves(self, key: str) -> bool:
        number = slot(key)
        return any(low <= number <= high for low, high in self.ranges)


def cluster_nodes(near: str = "any") -> Command[list[ClusterNode]]:
    """The nodes of a cluster that have slots, as the one ``near`` a key knows them."""

    def parse(reply: list[Any]) -> list[ClusterNode]:
        ranges: dict[str, list[tuple[int, int]]] = {}
        for low, high, master, *_ in reply:
            address = f"{codec.text(master[0] or b'')}:{int(master[1])}"
            ranges.setdefault(address, []).append((int(low), int(high)))
        return [
            ClusterNode(address, _key_between(*found[-1]), tuple(found))
            for address, found in sorted(ranges.items())
        ]

    return plain("CLUSTER", "SLOTS", parse=parse, near=near)


def nodes_of_cluster() -> Command[list[str]]:
    """A key near which each node of a cluster that has slots answers."""
    command = cluster_nodes()

    def parse(reply: list[Any]) -> list[str]:
        return [node.near for node in command.parse(reply)]

    return plain(*command.words, parse=parse, near=command.near)


def _key_between(low: int, high: int) -> str:
    return next(key for number in count() if low <= slot(key := f"near-{number}") <= high)


def _queue_of(prefix: str, key: str) -> str | None:
    """The queue whose meta hash this is; None for a key that only looks like one."""
    name = key[len(prefix) + 1 : -len(_META)]
    try:
        check_queue_name(name)
    except InvalidNameError:
        return None
    return name
