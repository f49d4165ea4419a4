"""What is on its way between slots of a cluster, and does not arrive."""

from __future__ import annotations

from collections.abc import Sequence

from toril.client.connection import Connection
from toril.doctor import ailments
from toril.doctor.finding import Finding
from toril.doctor.reader import ConnectionReader
from toril.doctor.wording import counted, lasting
from toril.protocol import parceling
from toril.protocol.discovering import ClusterNode
from toril.protocol.keys import Keys

LONG_ON_THE_WAY_MS = 60_000
_SAMPLE = 1000


async def examine_parcels(
    connection: Connection, reader: ConnectionReader, prefix: str, names: Sequence[str]
) -> list[Finding]:
    """Which queues have parcels that wait for long, or that were refused."""
    if not connection.is_cluster:
        return []
    findings: list[Finding] = []
    for keys in (Keys(prefix, name) for name in names):
        node = reader.node_of(keys.marker)
        if node is not None:
            findings += await _examine(reader, node, keys)
    return findings


async def _examine(reader: ConnectionReader, node: ClusterNode, keys: Keys) -> list[Finding]:
    waiting, refused = keys.own("parcels-due"), keys.own("refused")
    count, ids, set_aside, one = await reader.ask(
        [
            ("ZCARD", waiting),
            ("ZRANGE", waiting, "0", str(_SAMPLE - 1)),
            ("HLEN", refused),
            ("HRANDFIELD", refused),
        ]
    )
    findings = []
    subject = f"queue {keys.name}"
    if ids:
        seconds, _ = await reader.ask_node(node, "TIME")
        age_ms = int(seconds) * 1000 - min(map(parceling.sent_at, ids))
        if age_ms > LONG_ON_THE_WAY_MS:
            findings.append(
                ailments.PARCELS_WAIT.of(
                    subject, parcels=counted(count, "parcel"), age=lasting(age_ms)
                )
            )
    if set_aside:
        (why,) = await reader.ask([("HGET", refused, one)])
        findings.append(
            ailments.PARCELS_REFUSED.of(subject, parcels=counted(set_aside, "parcel"), why=why)
        )
    return findings


async def offer_refused(connection: Connection, prefix: str, names: Sequence[str]) -> int:
    """Let workers carry refused parcels again; returns how many there were."""
    offered = 0
    if connection.is_cluster:
        for name in names:
            offered += await connection.follow(parceling.offer_again(Keys(prefix, name)))
    return offered
