"""Queues with partitions: jobs beside them that nobody takes."""

from __future__ import annotations

from collections.abc import Sequence

from toril.client.connection import Connection
from toril.doctor import ailments
from toril.doctor.finding import Finding
from toril.protocol import partitioning, reading
from toril.protocol.keys import Keys


async def examine_partitions(
    connection: Connection, prefix: str, names: Sequence[str]
) -> list[Finding]:
    """Plain queues that have the name of one with partitions, and unfinished jobs."""
    stems = {found[0] for name in names if (found := partitioning.whole_of(name)) is not None}
    beside = [Keys(prefix, stem) for stem in sorted(stems.intersection(names))]
    if not beside:
        return []
    known = await connection.run_all([partitioning.read(keys) for keys in beside])
    counts = await connection.run_all([reading.counts(keys, reading.UNFINISHED) for keys in beside])
    return [
        ailments.JOBS_BESIDE_PARTITIONS.of(
            f"queue {keys.name}", jobs=sum(jobs.values()), partitions=numbers.now, queue=keys.name
        )
        for keys, numbers, jobs in zip(beside, known, counts, strict=True)
        if numbers.now and any(jobs.values())
    ]
