"""Rows and transactions: RULES-13, and what is refused before it is written."""

from __future__ import annotations

import io
import json
from datetime import timedelta

import pytest
import sqlalchemy
from alembic import command
from alembic.config import Config
from sqlalchemy import (
    Column,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    create_engine,
    event,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from tests.helpers import wait_until
from toril import Backoff, Deduplication, Keep, NewJob, Parent, Queue
from toril.errors import (
    DuplicateRowError,
    InvalidNameError,
    InvalidOptionError,
    PayloadError,
    UnknownOptionError,
)
from toril.idempotency import SqlStore, idempotency_table
from toril.outbox import Outbox, Relay, outbox_table
from toril.outbox.rows import OutboxRow, prepare, values_of
from toril.protocol import adding
from toril.protocol.keys import check_job_id


@pytest.fixture
def orders(metadata, table_name):
    return Table(
        f"{table_name}_orders",
        metadata,
        Column("id", Integer, primary_key=True),
        Column("n", String(100)),
    )


async def test_a_committed_row_becomes_a_job_and_a_rolled_back_one_never_does(
    orders, engine, outbox, relay, queue
):
    """RULES-13: the job exists if, and only if, the transaction did."""
    orders.create(engine, checkfirst=True)
    with Session(engine) as session, session.begin():
        session.execute(insert(orders).values(id=1))
        kept = outbox.add(session, "payments", "charge", {"order": 1}, attempts=5)
    with Session(engine) as session:
        session.execute(insert(orders).values(id=2))
        outbox.add(session, "payments", "charge", {"order": 2})
        session.rollback()

    assert await relay.drain() == 1

    (job,) = await queue.get_waiting()
    assert (job.id, job.name, job.data, job.opts.attempts) == (kept, "charge", {"order": 1}, 5)
    with engine.connect() as connection:
        assert [row.id for row in connection.execute(select(orders))] == [1]
    assert await relay.drain() == 0


async def test_a_connection_does_as_well_as_a_session(engine, outbox, relay, queue):
    with engine.begin() as connection:
        ids = outbox.add_bulk(connection, "payments", [NewJob("n", {"n": n}) for n in range(120)])

    await relay.drain()

    assert [job.id for job in await queue.get_waiting()] == ids


@pytest.mark.parametrize("count", [1, 1000])
def test_a_batch_is_one_statement(count, engine, outbox):
    """Where it can be always the same one: to make it was most of the time it took."""
    statements = []
    event.listen(engine, "before_cursor_execute", lambda *told: statements.append(told[2]))
    jobs = [NewJob("charge", {"n": n}, attempts=5) for n in range(count)]

    with engine.begin() as connection:
        outbox.add_bulk(connection, "payments", jobs)

    (statement,) = statements
    assert len(statement) < (1500 if engine.dialect.name != "mariadb" else 500 + 200 * count)
    with engine.connect() as connection:
        table = outbox.table
        data = list(connection.execute(select(table.c.data).order_by(table.c.seq)).scalars())
    assert data == [json.dumps({"n": n}, separators=(",", ":")) for n in range(count)]


async def test_async_sessions_and_connections(async_engine, table_name, url, prefix, queue):
    """RULES-13 on async engines."""
    metadata = MetaData()
    outbox = Outbox(metadata, name=table_name)
    async with async_engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    async with Relay(async_engine, outbox, connection=url, prefix=prefix) as relay:
        async with AsyncSession(async_engine) as session, session.begin():
            first = await outbox.add(session, "payments", "charge", {"n": 1})
        async with async_engine.begin() as connection:
            (second,) = await outbox.add_bulk(connection, "payments", [NewJob("charge", {"n": 2})])
        async with AsyncSession(async_engine) as session:
            await outbox.add(session, "payments", "charge", {"n": 3})
            await session.rollback()

        await relay.drain()

        assert [job.id for job in await queue.get_waiting()] == [first, second]
        assert (await relay.stats()).dispatched == 2
    async with async_engine.begin() as connection:
        await connection.run_sync(metadata.drop_all)


async def test_every_option_reaches_the_job_as_if_it_were_added_directly(
    engine, outbox, relay, queue
):
    options = {
        "attempts": 5,
        "backoff": Backoff.exponential(1000, jitter=0.5),
        "remove_on_complete": Keep(count=10, age=timedelta(hours=1)),
        "remove_on_fail": 7,
        "priority": 3,
        "keep_logs": 4,
        "timeout": 500,
        "idempotency_key": "order-1",
        "deduplication": Deduplication("d", ttl=timedelta(seconds=60)),
    }
    direct = await queue.add("charge", {"a": 1}, **{**options, "deduplication": None})
    with engine.begin() as connection:
        job_id = outbox.add(connection, "payments", "charge", {"a": 1}, **options)

    await relay.drain()

    job = await queue.get_job(job_id)
    raw = dict(job.opts.raw)
    assert raw.pop("de") == {"id": "d", "ttl": 60_000}
    assert raw == direct.opts.raw
    assert job.idempotency_key == "order-1"
    assert await queue.get_state(job_id) == "prioritized"


async def test_the_row_id_is_the_job_id_and_the_idempotency_key(engine, outbox, relay, queue):
    """RULES-01, C-28: the key is mandatory, and the row's id when none is given."""
    with engine.begin() as connection:
        job_id = outbox.add(connection, "payments", "charge")

    await relay.drain()

    check_job_id(job_id)
    job = await queue.get_job(job_id)
    assert job.idempotency_key == job_id
    assert job.opts.raw["idempotencyKey"] == job_id


async def test_a_job_id_of_ones_own_decides_at_the_queue(engine, outbox, relay, queue):
    """RULES-12: a row per call; the id decides where it does with ``queue.add``."""
    with engine.begin() as connection:
        outbox.add(connection, "payments", "charge", {"n": 1}, job_id="order-1")
        outbox.add(connection, "payments", "charge", {"n": 2}, job_id="order-1")
        outbox.add(connection, "refunds", "refund", {"n": 3}, job_id="order-1")

    assert await relay.drain() == 3

    (job,) = await queue.get_waiting()
    assert (job.id, job.data) == ("order-1", {"n": 1})
    assert relay.metrics.duplicates == 1


async def test_an_id_whose_job_is_gone_is_added_again(engine, outbox, relay, queue):
    """The row of before is still in the table, but ``queue.add`` would add the job."""
    for n in (1, 2):
        with engine.begin() as connection:
            outbox.add(connection, "payments", "charge", {"n": n}, job_id="user-42")
        await relay.drain()
        (job,) = await queue.get_waiting()
        assert job.data == {"n": n}
        await queue.remove("user-42")


async def test_rows_with_one_id_are_each_remembered(engine, outbox, make_relay, queue):
    """RULES-15: the first of two is sent again, after the jobs of both have run and gone."""
    for n in (1, 2):
        with engine.begin() as connection:
            outbox.add(connection, "payments", "charge", {"n": n}, job_id="user-42")
        await make_relay().drain()
        await queue.remove("user-42")
    with engine.begin() as connection:
        connection.execute(update(outbox.table).values(status="pending", due_at=0))

    relay = make_relay()
    await relay.drain()

    assert relay.metrics.duplicates == 2
    assert await queue.get_waiting() == []


async def test_a_row_whose_id_was_taken_is_not_taken_for_lost(
    engine, outbox, make_relay, queue, url, prefix
):
    """With ``confirm``: its job never was, since another had its id, and must not come later."""
    relay = make_relay(confirm=True, confirm_interval=1)
    with engine.begin() as connection:
        for n in (1, 2):
            outbox.add(connection, "payments", "charge", {"n": n}, job_id="user-42")
    await relay.drain()
    await queue.remove("user-42")

    await wait_until(lambda: _are_done(relay, 2))

    assert relay.metrics.dispatched_again == 0


async def _are_done(relay, count):
    await relay.confirm_once()
    return (await relay.stats()).done == count


def test_a_table_of_the_version_before_says_what_to_drop(engine, metadata, table_name):
    """Its constraint allows one row per id; without the error a job would be missing."""
    outbox = Outbox(metadata, name=table_name)
    outbox.table.append_constraint(
        UniqueConstraint("queue", "id", name=f"uq_{table_name}_queue_id")
    )
    metadata.create_all(engine)
    with engine.begin() as connection:
        outbox.add(connection, "payments", "charge", job_id="user-42")
        outbox.add(connection, "payments", "charge")

    with engine.connect() as connection, pytest.raises(DuplicateRowError, match="drop") as caught:
        outbox.add(connection, "payments", "charge", job_id="user-42")

    assert f"uq_{table_name}_queue_id" in str(caught.value)
    metadata.drop_all(engine)


async def test_ids_queues_and_lanes_are_told_apart_by_case(
    engine, outbox, relay, queue, url, prefix
):
    """RULES-12: some databases would take 'Order-1' for 'order-1', and drop the second job."""
    with engine.begin() as connection:
        for job_id in ("order-1", "Order-1", "örder-1", "Örder-1"):
            outbox.add(connection, "payments", "charge", {"id": job_id}, job_id=job_id)
        outbox.add(connection, "Payments", "charge", job_id="order-1")
        first = outbox.add(connection, "payments", "charge", lane="user-a")
        outbox.add(connection, "payments", "charge", lane="user-A", job_id="other-lane")
        is_first = outbox.table.c.id == first
        connection.execute(update(outbox.table).where(is_first).values(due_at=2**52))

    await relay.drain()

    ids = {job.id for job in await queue.get_waiting()}
    assert {"order-1", "Order-1", "örder-1", "Örder-1"} <= ids
    assert await queue.get_job("other-lane") is not None, "another lane's head held it up"
    async with Queue("Payments", connection=url, prefix=prefix) as other:
        assert [job.id for job in await other.get_waiting()] == ["order-1"]


async def test_data_may_be_longer_than_64_kilobytes(engine, outbox, relay, queue):
    """A text that the database cut off would be no job any more."""
    data = {"text": "ü☃" * 100_000}
    with engine.begin() as connection:
        job_id = outbox.add(connection, "payments", "charge", data, job_id="large")

    await relay.drain()

    assert (await queue.get_job(job_id)).data == data
    assert (await relay.stats()).parked == 0


async def test_data_keeps_its_bytes(engine, outbox, relay, queue):
    data = {"big": 12345678901234567890123, "empty": [], "text": "ключ \u2028 ☃", "n": 0.1}
    data["half"] = "cut in the middle of an emoji: \ud83d"
    with engine.begin() as connection:
        job_id = outbox.add(connection, "payments", "charge", data)

    await relay.drain()

    assert (await queue.get_job(job_id)).data == data


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (("a:b", "charge"), {}, InvalidNameError),
        (("q", ""), {}, InvalidNameError),
        (("q", "n", {"x": float("nan")}), {}, PayloadError),
        (("q", "n"), {"atempts": 3}, UnknownOptionError),
        (("q", "n"), {"attempts": -1}, InvalidOptionError),
        (("q", "n"), {"job_id": "12"}, InvalidNameError),
        (("q", "n"), {"lane": ""}, InvalidOptionError),
        (("q", "n"), {"lane": "x" * 256}, InvalidOptionError),
        (("q" * 256, "n"), {}, InvalidOptionError),
        (("q", "n" * 1025), {}, InvalidNameError),
        (("q", "n"), {"parent": Parent("p", "q")}, InvalidOptionError),
        (("q", "n"), {"idempotency_key": "x" * 256}, InvalidOptionError),
    ],
)
def test_what_could_not_become_a_job_is_refused_at_once(
    arguments, options, error, tmp_path, metadata
):
    outbox = Outbox(metadata)
    engine = create_engine(f"sqlite:///{tmp_path}/x.db")
    metadata.create_all(engine)

    with engine.begin() as connection:
        with pytest.raises(error):
            outbox.add(connection, *arguments, **options)
        assert connection.execute(select(outbox.table)).all() == []


def test_something_that_is_no_session_is_refused(metadata):
    with pytest.raises(InvalidOptionError, match="not a session or connection"):
        Outbox(metadata).add(object(), "q", "n")


def test_a_table_of_ones_own_needs_the_columns(metadata):
    good = outbox_table(metadata, "mine")
    bad = Table("bad", metadata, Column("id", String, primary_key=True))

    assert Outbox(good).table is good
    with pytest.raises(InvalidOptionError, match="no column seq"):
        Outbox(bad)


@pytest.mark.parametrize("lane", [None, "user-1"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"remove_on_complete": True, "remove_on_fail": Keep(count=3), "backoff": 500},
        {"attempts": 5, "backoff": Backoff.exponential(1000, jitter=0.5), "delay": 70},
        {"keep_logs": 4, "timeout": 500, "expires": 1000, "size_limit": 100},
        {"telemetry": "{}", "deduplication": Deduplication("d", ttl=60), "run_at": 2**41},
        {"job_id": "mine", "timestamp": 17, "idempotency_key": "order-1"},
    ],
)
def test_options_survive_the_table(options, lane):
    """Whether they are common to many rows, and encoded once, or those of one row alone."""
    if lane is not None:
        options = {**options, "lane": lane, "max_lane_size": 7, "ordering_delay": 9}
    for n in range(3):
        values = values_of("q", f"n{n}", {"a": n}, options, generated_id=f"j{n}")
        row = OutboxRow(seq=1, status="pending", attempts=0, **values)

        prepared = prepare(row, once_ms=1000 + n)
        job = NewJob(f"n{n}", {"a": n}, **{**options, "idempotency_key": values["key"]})
        direct = adding.prepare(job, f"j{n}", once_ms=1000 + n)

        assert json.loads(prepared.opts) == json.loads(direct.opts)
        assert (prepared.id, prepared.data) == (direct.id, direct.data)
        assert prepared.entry == direct.entry


ENV = """
from alembic import context

attributes = context.config.attributes
context.configure(
    connection=attributes["connection"],
    target_metadata=attributes["metadata"],
    version_table=attributes["name"] + "_version",
    include_name=lambda name, kind, _: kind != "table" or name == attributes["name"],
)
with context.begin_transaction():
    context.run_migrations()
"""


@pytest.mark.parametrize("define", [outbox_table, idempotency_table], ids=["outbox", "idempotency"])
def test_alembic_finds_the_table_and_then_nothing_more(
    define, engine, metadata, table_name, tmp_path
):
    """The table is one of yours: the migration that Alembic writes for it runs as it stands."""
    define(metadata, table_name)
    config = Config(attributes={"metadata": metadata, "name": table_name}, stdout=io.StringIO())
    config.set_main_option("script_location", str(tmp_path / "migrations"))
    config.set_main_option("path_separator", "os")
    config.config_file_name = str(tmp_path / "alembic.ini")
    command.init(config, str(tmp_path / "migrations"))
    (tmp_path / "migrations" / "env.py").write_text(ENV)
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.revision(config, autogenerate=True, message="the table")
        command.upgrade(config, "head")
        connection.commit()

        assert table_name in inspect(connection).get_table_names()
        command.check(config)  # raises if there were anything left to migrate
        command.downgrade(config, "base")
        connection.commit()
        assert table_name not in inspect(connection).get_table_names()
        connection.execute(sqlalchemy.text(f"DROP TABLE {table_name}_version"))
        connection.commit()


async def test_no_table_is_created_behind_your_back(engine, metadata, url, prefix):
    """Without its table nothing works, and nobody makes one."""
    outbox = Outbox(metadata, name="never_created")
    store = SqlStore(engine, table=idempotency_table(metadata, "never_created_either"))
    with engine.connect() as connection, pytest.raises(SQLAlchemyError, match="never_created"):
        outbox.add(connection, "payments", "charge")
    async with Relay(engine, outbox, connection=url, prefix=prefix) as relay:
        with pytest.raises(SQLAlchemyError, match="never_created"):
            await relay.run_once()
    with pytest.raises(SQLAlchemyError, match="never_created_either"):
        await store.prune()

    assert not {"never_created", "never_created_either"} & set(inspect(engine).get_table_names())


async def test_a_row_written_by_hand_needs_only_the_documented_columns(
    engine, outbox, relay, queue
):
    with engine.begin() as connection:
        connection.execute(
            insert(outbox.table).values(
                id="by-hand", queue="payments", name="n", data="{}", key="k", created_at=0
            )
        )

    await relay.drain()

    assert (await queue.get_job("by-hand")).idempotency_key == "k"
    with engine.begin() as connection:
        connection.execute(update(outbox.table).values(status="done"))
