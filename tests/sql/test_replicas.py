"""A relay that waits for replicas: a row is done when they have its job."""

from __future__ import annotations

import pytest
from sqlalchemy import MetaData, create_engine, select

from tests.helpers import wait_until_sync
from tests.servers import Server
from toril.errors import NotReplicatedError
from toril.outbox import Outbox, Relay

OPTIONS = {"repl-diskless-sync-delay": "0"}


async def test_a_row_is_done_when_a_replica_has_its_job(tmp_path):
    metadata = MetaData()
    outbox = Outbox(metadata)
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    metadata.create_all(engine)
    with engine.begin() as connection:
        for n in range(3):
            outbox.add(connection, "payments", "charge", {"n": n})

    def statuses() -> list[str]:
        with engine.connect() as connection:
            return sorted(connection.execute(select(outbox.table.c.status)).scalars())

    with Server(OPTIONS, tcp=True) as primary, Server(OPTIONS, tcp=True) as replica:
        with replica.client() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", primary.port)
            wait_until_sync(lambda: client.info("replication")["master_link_status"] == "up", 30)
        waiting = {"connection": primary.url, "replicas": 1}
        before = statuses()
        replica.freeze()
        relay = Relay(engine, outbox, replicas_timeout=100, **waiting)
        with pytest.raises(NotReplicatedError):
            await relay.run_once()
        await relay.close()
        assert statuses() == before

        replica.thaw()
        relay = Relay(engine, outbox, replicas_timeout=60_000, **waiting)
        assert await relay.run_once() == 3
        await relay.close()

        assert statuses() != before
        assert relay.metrics.duplicates == 3
        with replica.client() as client:
            assert client.llen("bull:payments:wait") == 3
    engine.dispose()
