"""Finding the queues of a server, without ever asking it for all of its keys at once.

A queue has a ``meta`` hash from its first job on.  ``SCAN`` walks through the whole key space to
find those, a slice at a time; whoever knows the names should not search.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from toril.errors import InvalidNameError
from toril.protocol import codec
from toril.protocol.command import Command, Plan, plain
from toril.protocol.keys import check_prefix, check_queue_name

KEYS_PER_SCAN = 1000
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


def look(prefix: str, cursor: str = BEGINNING, *, keys: int = KEYS_PER_SCAN) -> Command[Found]:
    """The queues in the next slice of about ``keys`` keys.

    On a cluster this sees one node: all queues if the prefix has a hash tag, else some of them.
    """
    check_prefix(prefix)

    def parse(reply: list[Any]) -> Found:
        names = [_queue_of(prefix, codec.text(key)) for key in reply[1]]
        return Found([name for name in names if name is not None], codec.text(reply[0]))

    literal = _GLOB.sub(r"\\\1", prefix)
    pattern = f"{literal}:*{_META}"
    return plain("SCAN", cursor, "MATCH", pattern, "COUNT", keys, parse=parse, near=f"{prefix}:")


def queue_names(prefix: str) -> Plan[list[str]]:
    """The names of all queues under ``prefix``, in order."""
    names: set[str] = set()
    cursor = BEGINNING
    while True:
        found: Found = yield look(prefix, cursor)
        names.update(found.names)
        if found.is_last:
            return sorted(names)
        cursor = found.cursor


def _queue_of(prefix: str, key: str) -> str | None:
    """The queue whose meta hash this is; None for a key that only looks like one."""
    name = key[len(prefix) + 1 : -len(_META)]
    try:
        check_queue_name(name)
    except InvalidNameError:
        return None
    return name
