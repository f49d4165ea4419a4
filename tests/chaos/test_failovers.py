"""What waited for a replica survives its primary; ``python -m tests.chaos.failovers`` does many."""

from __future__ import annotations

import asyncio

from tests.chaos.failovers import ADDERS, Adders, _cut_off, _wait_for_link
from tests.helpers import wait_until
from tests.servers import Server
from toril import Queue
from toril.client.connection import Connection


async def lost_by_a_death(replicas: int) -> tuple[int, int]:
    """How many adds returned, and how many of them are gone when the replica has taken over."""
    at_once = {"repl-diskless-sync-delay": "0"}
    with Server(at_once, tcp=True) as primary, Server(at_once, tcp=True) as replica:
        with replica.client() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", primary.port)
        _wait_for_link(replica)
        connection = Connection(primary.url, patience_s=0.1)
        options = {"replicas": replicas, "replicas_timeout": 50}
        queue = Queue("q", connection=connection, **options)
        async with queue, Adders(queue, "j") as adders:
            while len(adders.acknowledged) < 100:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(_cut_off, primary, replica)
            tried = len(adders.acknowledged) + adders.refused
            # So many that each of the adders has begun another one since then.
            enough = tried + 2 * ADDERS
            await wait_until(lambda: len(adders.acknowledged) + adders.refused >= enough)
            await asyncio.to_thread(primary.kill)
            replica.thaw()
        await connection.close()
        with replica.client() as client:
            client.execute_command("REPLICAOF", "NO", "ONE")
            there = [client.exists(f"bull:q:{job_id}") for job_id in adders.acknowledged]
        return len(there), there.count(0)


async def test_what_waited_for_a_replica_survives_its_primary():
    acknowledged, lost = await lost_by_a_death(replicas=1)

    assert acknowledged >= 100
    assert lost == 0


async def test_what_did_not_wait_may_not():
    """Or the test above would prove nothing."""
    _, lost = await lost_by_a_death(replicas=0)

    assert lost > 0
