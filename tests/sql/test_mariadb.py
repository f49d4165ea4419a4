"""What is particular about MariaDB and MySQL, on a real MariaDB."""

from __future__ import annotations

import asyncio
import threading

import pytest
from sqlalchemy import create_engine, event, insert, or_, select, text, update
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from tests.helpers import wait_until, wait_until_sync
from tests.sql.cutting import cut_all_connections
from tests.sql.mariadb import MariaDb
from tests.sql.program import Tables
from toril import NewJob
from toril.idempotency import SqlStore, idempotent, once
from toril.outbox import Relay
from toril.outbox.storing import Claim, claim_pending
from toril.outbox.table import now_ms


class OneJob:
    prefix, queue_name, name, id, fence = "bull", "payments", "charge", "1", 1

    def __init__(self, key: str = "order-1") -> None:
        self.idempotency_key = key


@pytest.fixture(params=["mariadb+pymysql", "mysql+pymysql"])
def engine(request, mariadb):
    engine = create_engine(f"{request.param}://{mariadb}")
    yield engine
    engine.dispose()


@pytest.fixture
def tables(engine, table_name):
    tables = Tables(table_name)
    tables.metadata.create_all(engine)
    yield tables
    engine.dispose()  # its connections may have been cut
    tables.metadata.drop_all(engine)


def write(engine, tables, count=1):
    with engine.begin() as connection:
        return [tables.outbox.add(connection, "payments", "charge") for _ in range(count)]


@pytest.mark.parametrize("hour", range(4))
def test_the_clock_does_not_jump_when_summer_time_ends(hour, engine):
    """The server's local time repeats an hour on 25 October 2026; epoch time does not."""
    seconds = 1_792_886_400 + 3600 * hour - 2 * 3600 + 1800
    with engine.connect() as connection:
        connection.execute(text(f"SET timestamp = {seconds}.125"))
        assert connection.execute(text("SELECT @@system_time_zone")).scalar() != "UTC"

        assert connection.execute(select(now_ms(engine.dialect))).scalar() == seconds * 1000 + 125


def test_the_first_result_is_seen_by_a_transaction_that_had_begun_before(engine, tables):
    """REPEATABLE READ shows the past; the record must be read as it is now."""
    records = tables.records
    with Session(engine) as session, session.begin():
        session.execute(select(tables.effects)).all()
        with Session(engine) as other, other.begin(), once(other, OneJob(), table=records) as run:
            run.result = "first"

        with once(session, OneJob(), table=records) as again:
            pass

    assert (again.is_repeat, again.result) == (True, "first")


def test_a_key_that_is_there_leaves_the_transaction_usable(engine, tables):
    """The refused insert is undone alone: what was written before it is kept."""
    handler = idempotent(SqlStore(engine, table=tables.records))(lambda job, session: "done")
    handler(OneJob())
    with Session(engine) as session, session.begin():
        session.execute(insert(tables.effects).values(key="before"))
        with once(session, OneJob(), table=tables.records) as run:
            assert run.is_repeat
        session.execute(insert(tables.effects).values(key="after"))

    with engine.connect() as connection:
        keys = connection.execute(select(tables.effects.c.key)).scalars().all()
    assert sorted(keys) == ["after", "before"]


def test_a_connection_that_died_while_it_was_idle_costs_no_attempt(engine, tables):
    """ "Server has gone away": nothing was done yet, so the transaction is begun anew."""
    handler = idempotent(SqlStore(engine, table=tables.records))(
        lambda job, session: session.execute(insert(tables.effects).values(key="k")).rowcount
    )
    handler(OneJob("warms the pool"))
    cut_all_connections(engine.url)

    assert handler(OneJob("after")) == 1


async def test_nor_does_it_with_an_async_engine(mariadb, engine, tables):
    async_engine = create_async_engine(f"mysql+aiomysql://{mariadb}")

    @idempotent(SqlStore(async_engine, table=tables.records))
    async def handler(job, session):
        return (await session.execute(insert(tables.effects).values(key="k"))).rowcount

    await handler(OneJob("warms the pool"))
    cut_all_connections(engine.url)

    assert await handler(OneJob("after")) == 1
    await async_engine.dispose()


def test_work_that_has_begun_is_not_begun_anew(engine, tables):
    """What the handler did outside of the database cannot be taken back: the queue decides."""
    runs = []

    @idempotent(SqlStore(engine, table=tables.records))
    def handler(job, session):
        runs.append(job.id)
        cut_all_connections(engine.url)
        session.execute(insert(tables.effects).values(key="k"))

    with pytest.raises(Exception, match=r"2006|2013|gone away|Lost connection"):
        handler(OneJob())
    assert runs == ["1"]


async def _has(queue, count):
    return await queue.get_waiting_count() == count


async def test_a_relay_goes_on_when_the_database_is_restarted(
    mariadb_server, table_name, url, prefix, queue
):
    with MariaDb(mariadb_server.binary) as server:
        engine = create_engine(f"mariadb+pymysql://{server.url}")
        tables = Tables(table_name)
        tables.metadata.create_all(engine)
        relay = Relay(engine, tables.outbox, connection=url, prefix=prefix, poll_interval=20)
        running = asyncio.create_task(relay.run())
        write(engine, tables)
        await wait_until(queue.get_waiting_count)

        await asyncio.to_thread(server.stop)
        await wait_until(lambda: relay.metrics.errors > 0, 30)
        await asyncio.to_thread(server.start)
        fresh = create_engine(engine.url)
        write(fresh, tables)
        fresh.dispose()

        await wait_until(lambda: _has(queue, 2), 30)
        await relay.close(timeout=60_000)
        await running
        engine.dispose()


async def test_a_batch_that_loses_a_deadlock_is_relayed_again_at_once(
    engine, tables, url, prefix, queue
):
    """1213: the jobs were added, the rows not marked; the second time they are the same jobs."""
    first, second = write(engine, tables, 2)
    table = tables.outbox.table
    rival_holds_second, relay_holds_first = threading.Event(), threading.Event()

    def touch(connection, seq):
        connection.execute(update(table).where(table.c.seq == seq).values(claimed_by="x"))

    def be_the_rival():
        with engine.begin() as connection:
            # The one that has written less is the victim.
            for n in range(50):
                connection.execute(insert(tables.effects).values(key=str(n)))
            touch(connection, 2)
            rival_holds_second.set()
            assert relay_holds_first.wait(60)
            touch(connection, 1)

    class Unlucky(Relay):
        tries = 0

        def _write_down(self, connection, sent):
            self.tries += 1
            if self.tries == 1:
                relay_holds_first.set()
                touch(connection, 2)
            super()._write_down(connection, sent)

    rival = threading.Thread(target=be_the_rival)
    rival.start()
    assert rival_holds_second.wait(60)
    errors = []
    event.listen(engine, "handle_error", lambda context: errors.append(context.original_exception))
    async with Unlucky(engine, tables.outbox, connection=url, prefix=prefix) as relay:
        await relay.run_once()
        await asyncio.to_thread(rival.join, 60)
        await relay.drain()

    assert [error.args[0] for error in errors] == [1213]
    assert relay.tries >= 2
    assert relay.metrics.duplicates == 1
    assert {job.id for job in await queue.get_waiting()} == {first, second}


def test_a_claim_does_not_compare_every_row_with_every_other(engine, tables):
    """Long lanes in a table with many rows that are done: not all are read for each that waits."""
    table = tables.outbox.table
    for _ in range(20):
        jobs = [NewJob("charge", lane=f"user-{n % 5}" if n % 2 else None) for n in range(100)]
        with engine.begin() as connection:
            tables.outbox.add_bulk(connection, "payments", jobs)
    is_done = or_(table.c.lane.is_(None), table.c.seq <= 1000)
    with engine.begin() as connection:
        connection.execute(update(table).where(is_done).values(status="dispatched"))
    with engine.begin() as connection:
        before = rows_read(connection)
        rows = claim_pending(connection, table, Claim(relay="a", limit=100, lease_ms=30_000))
        read = rows_read(connection) - before

    assert [row.seq for row in rows] == list(range(1002, 1202, 2))
    assert read < 500


def rows_read(connection):
    counters = connection.execute(text("SHOW SESSION STATUS LIKE 'Handler_read%'"))
    return sum(int(count) for _, count in counters)


def test_a_lock_that_is_waited_for_too_long_is_waited_for_again(mariadb, engine, tables):
    """1205: a first run that takes longer than innodb_lock_wait_timeout."""
    impatient = create_engine(
        f"mariadb+pymysql://{mariadb}",
        connect_args={"init_command": "SET innodb_lock_wait_timeout = 1"},
    )
    timeouts, results = [], []
    event.listen(impatient, "handle_error", lambda context: timeouts.append(context))
    handler = idempotent(SqlStore(impatient, table=tables.records))(lambda job, session: "second")
    guarded = tables.records
    with Session(engine) as session, session.begin(), once(session, OneJob(), table=guarded) as run:
        waiting = threading.Thread(target=lambda: results.append(handler(OneJob())))
        waiting.start()
        wait_until_sync(lambda: timeouts, 30)
        run.result = "first"
    waiting.join(60)

    assert results == ["first"]
    assert timeouts[0].original_exception.args[0] == 1205
    impatient.dispose()
