"""A relay or a worker as a process of its own, which may be told where to die.

    python -m tests.sql.program relay|worker DATABASE REDIS PREFIX TABLE [STEP]

At STEP the process kills itself with SIGKILL, as if somebody had pulled the plug; at "slow" it only
takes its time, so that others can kill it in the middle of something.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from typing import Any

from sqlalchemy import (
    Column,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    insert,
)

import toril
from tests.forked import Forked
from toril.idempotency import SqlStore, idempotency_table, idempotent
from toril.outbox import Outbox, Relay
from toril.worker.active_job import ActiveJob

RELAY_STEPS = ("claimed", "sent", "marked", "committed")
WORKER_STEPS = ("begun", "worked", "committed")
QUEUE = "payments"


class Tables:
    """The tables of one run: the outbox, the records, and one row per effect."""

    def __init__(self, name: str) -> None:
        self.metadata = MetaData()
        self.outbox = Outbox(self.metadata, name=name)
        self.records = idempotency_table(self.metadata, f"{name}_records")
        self.effects = Table(
            f"{name}_effects",
            self.metadata,
            Column("id", Integer, primary_key=True),
            Column("key", String(255)),
        )


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class MortalRelay(Relay):
    """Dies at one step of its first batch that has rows."""

    dies_at = ""

    async def _send(self, rows: Any) -> Any:
        if rows and self.dies_at == "claimed":
            die()
        sent = await super()._send(rows)
        if rows and self.dies_at == "slow":
            await asyncio.sleep(random.uniform(0, 0.05))
        if rows and self.dies_at == "sent":
            die()
        return sent

    def _write_down(self, connection: Any, sent: Any) -> None:
        super()._write_down(connection, sent)
        if sent and self.dies_at == "marked":
            die()

    def _count(self, sent: Any) -> None:
        if sent and self.dies_at == "committed":
            die()
        super()._count(sent)


def make_relay(engine: Engine, tables: Tables, redis: str, prefix: str, step: str = "") -> Relay:
    relay = MortalRelay(
        *(engine, tables.outbox), connection=redis, prefix=prefix, poll_interval=50, lease=1000
    )
    relay.dies_at = step
    return relay


def make_worker(
    engine: Engine, tables: Tables, redis: str, prefix: str, step: str = ""
) -> toril.Worker:
    @idempotent(SqlStore(engine, table=tables.records))
    def charge(job: ActiveJob, session: Any) -> str:
        if step == "begun":
            die()
        if step == "slow":
            time.sleep(random.uniform(0, 0.03))
        session.execute(insert(tables.effects).values(key=job.idempotency_key))
        if step == "slow":
            time.sleep(random.uniform(0, 0.03))
        if step == "worked":
            die()
        return job.id

    if step == "committed":
        event.listen(engine, "commit", _die_after(engine))
    return toril.Worker(
        QUEUE,
        charge,
        connection=redis,
        prefix=prefix,
        concurrency=5,
        lock_duration=1000,
        stalled_interval=300,
        max_stalled_count=1000,
    )


def _die_after(engine: Engine) -> Any:
    """The event comes before the commit: do it, and then die."""

    def on_commit(connection: Any) -> None:
        connection.connection.driver_connection.commit()
        die()

    return on_commit


def main() -> None:
    kind, database, redis, prefix, name, *steps = sys.argv[1:]
    engine = create_engine(database)
    tables = Tables(name)
    make = make_relay if kind == "relay" else make_worker
    toril.run(make(engine, tables, redis, prefix, *steps), timeout=2000)


def start(*arguments: str) -> Forked:
    """Start this program as a child of a test."""
    return Forked("-m", "tests.sql.program", *arguments)


if __name__ == "__main__":
    main()
