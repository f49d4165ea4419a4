"""Which queue causes most of each cluster node's load: the one to move or partition first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from toril.client.connection import Connection
from toril.doctor import ailments
from toril.doctor.finding import Finding
from toril.doctor.reader import ConnectionReader
from toril.protocol import codec
from toril.protocol.command import plain
from toril.protocol.discovering import ClusterNode
from toril.protocol.keys import Keys

LOOK_FOR_S = 0.5
MOST_QUEUES = 2000
_LEAST_PER_S = 1.0


async def examine_heat(
    connection: Connection, reader: ConnectionReader, prefix: str, names: Sequence[str]
) -> list[Finding]:
    """What the queues on each node have to do, by the events that they write in half a second."""
    if len(reader.nodes) < 2 or not names:
        return []
    queues = [Keys(prefix, name) for name in names[:MOST_QUEUES]]
    before = await _events_ever(connection, queues)
    began = asyncio.get_running_loop().time()
    await asyncio.sleep(LOOK_FOR_S)
    after = await _events_ever(connection, queues)
    elapsed_s = asyncio.get_running_loop().time() - began
    rates = {
        name: (count - before[name]) / elapsed_s for name, count in after.items() if name in before
    }
    nodes = {keys.name: reader.node_of(keys.events) for keys in queues}
    return list(check_heat(rates, nodes))


async def _events_ever(connection: Connection, queues: Sequence[Keys]) -> dict[str, int]:
    commands = [
        plain("XINFO", "STREAM", keys.events, parse=_entries_added, near=keys.events)
        for keys in queues
    ]
    answers = await connection.run_each(commands)
    return {
        keys.name: answer
        for keys, answer in zip(queues, answers, strict=True)
        if isinstance(answer, int)
    }


def _entries_added(reply: list[Any]) -> int:
    words = dict(zip(reply[::2], reply[1::2], strict=False))
    return codec.number(words.get(b"entries-added")) or 0


def check_heat(
    rates: Mapping[str, float], nodes: Mapping[str, ClusterNode | None]
) -> Iterator[Finding]:
    """The hottest queue of each node that has something to do."""
    for node in dict.fromkeys(nodes.values()):
        here = {name: rate for name, rate in rates.items() if nodes[name] == node}
        total = sum(here.values())
        if node is None or total < _LEAST_PER_S:
            continue
        name = max(here, key=lambda one: here[one])
        share = round(100 * here[name] / total)
        yield ailments.HOTTEST_QUEUE.of(
            f"server {node.address}",
            queue=repr(name),
            queues=len(here),
            rate=round(here[name]),
            share=share,
        )
