"""One examination: read everything once, then judge it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from toril.client.connection import Connection, Target
from toril.doctor import ailments, keyspace
from toril.doctor.configuration import check_configuration, check_relays, sort_out
from toril.doctor.finding import Finding, Report
from toril.doctor.heat import examine_heat
from toril.doctor.libraries import examine_libraries
from toril.doctor.parcels import examine_parcels
from toril.doctor.partitions import examine_partitions
from toril.doctor.presence import check_elsewhere, check_named, find_queues, find_undoing
from toril.doctor.queue_facts import longest_options, read_queues
from toril.doctor.queues import check_queues
from toril.doctor.reader import ConnectionReader
from toril.doctor.server import examine_servers

MOST_PROBLEMS = 50
_AUDITS = 3
_PAUSE_S = 0.5


async def examine(
    connection: Target = None,
    *,
    prefix: str = "bull",
    queues: Sequence[str] = (),
    objects: Iterable[Any] = (),
    audit: bool = True,
    most_keys: int = 200_000,
) -> Report:
    """Look at the server and at the queues under ``prefix``: those named, or all there are.

    On a cluster that is every node that answers.
    ``objects`` are workers, consumers, registrars, queues and relays of a program, whose
    configuration is judged as well.  The keyspace ``audit`` is left out when there are more than
    ``most_keys`` keys.
    """
    parts = sort_out(objects)
    own = connection if isinstance(connection, Connection) else Connection(connection)
    try:
        reader = await ConnectionReader.open(own)
        findings = await examine_servers(reader)
        findings += await examine_libraries(reader)
        if queues:
            names, unusual = await check_named(own, reader, prefix, queues)
        else:
            names, unusual = await find_queues(reader, prefix)
        findings += unusual
        if not names:
            findings += await check_elsewhere(reader, prefix)
        facts, unread = await read_queues(own, reader, prefix, names)
        owners = [one.name for one in facts if one.has_groups]
        undoing = await find_undoing(own, reader, prefix, owners, besides=names)
        beside = (await read_queues(own, reader, prefix, undoing))[0] if undoing else []
        findings += [*unread, *check_queues(facts, beside)]
        findings += await examine_partitions(own, prefix, names)
        findings += await examine_parcels(own, reader, prefix, names)
        findings += await examine_heat(own, reader, prefix, names)
        in_use = {queue.name: longest_options(queue) for queue in facts}
        findings += check_configuration(parts, in_use)
        findings += await check_relays(parts.relays)
        if audit:
            findings += await _audit(reader, prefix, most_keys)
    finally:
        if own is not connection:
            await own.close()
    return Report.of(findings)


async def _audit(reader: ConnectionReader, prefix: str, most_keys: int) -> list[Finding]:
    """The problems that are still there after a second look: jobs move while they are read."""
    if (count := len(await keyspace.keys_under(reader, f"{prefix}:"))) > most_keys:
        return [ailments.NOT_AUDITED.of("keyspace", keys=count)]
    problems = await keyspace.audit(reader, prefix)
    for _ in range(_AUDITS - 1):
        if not problems:
            break
        await asyncio.sleep(_PAUSE_S)
        again = set(await keyspace.audit(reader, prefix))
        problems = [problem for problem in problems if problem in again]
    return [
        ailments.DAMAGED.of("keyspace", problem=problem) for problem in problems[:MOST_PROBLEMS]
    ]
