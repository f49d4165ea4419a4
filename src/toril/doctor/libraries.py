"""Libraries of functions that other versions of Toril have left on a server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

from toril.client.connection import Connection
from toril.doctor import ailments
from toril.doctor.finding import Finding
from toril.doctor.reader import ConnectionReader
from toril.errors import ServerRefusalError
from toril.protocol import scripts
from toril.protocol.discovering import ClusterNode

_OURS = "toril_*"
_IN_USE = re.compile(r"toril_v[^+)\s]*\+(\w+)")
"""How a client says in ``CLIENT LIST`` which library it calls."""


async def examine_libraries(reader: ConnectionReader) -> list[Finding]:
    """Those that nobody who is connected to their server calls."""
    unused = await asyncio.gather(*(_unused(reader, node) for node in reader.nodes))
    findings = []
    for node, names in zip(reader.nodes, unused, strict=True):
        if names:
            subject = f"server {node.address}".rstrip()
            findings.append(ailments.UNUSED_LIBRARIES.of(subject, names=", ".join(names)))
    return findings


async def remove_unused_libraries(connection: Connection) -> list[str]:
    """Remove them from every server; returns their names.

    A program that comes back and calls one loads it again.
    """
    reader = await ConnectionReader.open(connection)
    unused = [(node, name) for node in reader.nodes for name in await _unused(reader, node)]
    return [name for node, name in unused if await _remove(reader, node, name)]


async def _remove(reader: ConnectionReader, node: ClusterNode, name: str) -> bool:
    """False when somebody else has removed it meanwhile."""
    try:
        await reader.ask_node(node, "FUNCTION", "DELETE", name)
    except ServerRefusalError as error:
        if "not found" not in str(error):
            raise
        return False
    return True


async def _unused(reader: ConnectionReader, node: ClusterNode) -> list[str]:
    """None at all where the server does not tell who is connected."""
    libraries = await reader.try_to_ask_node(node, "FUNCTION", "LIST", "LIBRARYNAME", _OURS)
    clients = await reader.try_to_ask_node(node, "CLIENT", "LIST")
    if not libraries or clients is None:
        return []
    in_use = {f"toril_{version}" for version in _IN_USE.findall(clients)}
    in_use.add(scripts.library().name)
    return sorted(set(_names(libraries)) - in_use)


def _names(libraries: list[list[object]]) -> Iterator[str]:
    for words in libraries:
        yield str(words[words.index("library_name") + 1])
