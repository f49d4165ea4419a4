"""Rows written without SQLAlchemy: by drivers, in whatever transaction is open there."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys

import aiomysql
import aiosqlite
import asyncpg
import psycopg
import pymysql
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import MetaData, create_engine, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.sql.conftest import url_of
from toril import NewJob
from toril.errors import DuplicateRowError, InvalidOptionError, PayloadError
from toril.outbox import Outbox, Relay, table_sql

BLOCKING = {
    "sqlite": lambda url: sqlite3.connect(url.database),
    "postgresql+psycopg": lambda url: psycopg.connect(**_postgres(url)),
    "mariadb+pymysql": lambda url: pymysql.connect(**_maria(url, "database")),
}
ASYNC = {
    "sqlite+aiosqlite": lambda url: aiosqlite.connect(url.database),
    "postgresql+asyncpg": lambda url: asyncpg.connect(
        host=url.query["host"], user="postgres", database="postgres"
    ),
    "postgresql+psycopg_async": lambda url: psycopg.AsyncConnection.connect(**_postgres(url)),
    "mysql+aiomysql": lambda url: aiomysql.connect(**_maria(url, "db")),
}
SYNC_OF = {
    "sqlite+aiosqlite": "sqlite",
    "postgresql+asyncpg": "postgresql+psycopg",
    "postgresql+psycopg_async": "postgresql+psycopg",
    "mysql+aiomysql": "mariadb+pymysql",
}


def _postgres(url):
    return {"host": url.query["host"], "user": "postgres", "dbname": "postgres"}


def _maria(url, database):
    return {
        "unix_socket": url.query["unix_socket"],
        "user": url.username,
        "password": url.password or "",
        database: url.database,
    }


@pytest.fixture
def queue_name() -> str:
    return "payments"


class Service:
    """A database with an outbox table that no SQLAlchemy made, and the relay's way to it."""

    def __init__(self, kind, request, directory, name):
        self.url = make_url(url_of(kind, request, directory))
        self.engine = create_engine(url_of(SYNC_OF.get(kind, kind), request, directory))
        self.outbox = Outbox(name=name)
        self.name = name
        with self.engine.begin() as connection:
            for statement in table_sql(self.engine.dialect.name, name):
                connection.execute(text(statement))

    def close(self):
        with self.engine.begin() as connection:
            connection.execute(text(f"DROP TABLE {self.name}"))
        self.engine.dispose()

    def rows(self):
        with self.engine.connect() as connection:
            return connection.execute(select(self.outbox.table)).all()

    async def relay(self, url, prefix):
        async with Relay(self.engine, self.outbox, connection=url, prefix=prefix) as relay:
            return await relay.drain()


@pytest.fixture(params=BLOCKING)
def service(request, tmp_path, table_name):
    service = Service(request.param, request, tmp_path, table_name)
    yield service
    service.close()


@pytest.fixture
def connection(service):
    connection = BLOCKING[service.url.drivername](service.url)
    yield connection
    connection.close()


@pytest.mark.parametrize("way", ["connection", "cursor"])
async def test_a_row_belongs_to_the_transaction_of_the_driver(
    way, service, connection, queue, url, prefix
):
    """RULES-13 without SQLAlchemy: committed, it is a job; rolled back, it never was."""
    outbox = service.outbox
    target = connection if way == "connection" else connection.cursor()
    kept = outbox.add(target, "payments", "charge", {"order": "ü%s?$1"}, lane="a", attempts=5)
    more = outbox.add_bulk(target, "payments", [NewJob("n", n, lane="a") for n in range(1200)])
    connection.commit()
    outbox.add(target, "payments", "charge", {"order": 2})
    connection.rollback()

    assert await service.relay(url, prefix) == 1201

    job = await queue.get_job(kept)
    assert (job.data, job.opts.attempts, job.idempotency_key) == ({"order": "ü%s?$1"}, 5, kept)
    seqs = {row.id: row.seq for row in service.rows()}
    assert sorted([kept, *more], key=seqs.get) == [kept, *more]


async def _dispose(connection):
    closing = connection.close()
    if closing is not None:
        await closing


@contextlib.asynccontextmanager
async def _transaction(connection):
    if isinstance(connection, asyncpg.Connection):
        async with connection.transaction():
            yield
        return
    try:
        yield
    except BaseException:
        await connection.rollback()
        raise
    await connection.commit()


@pytest.mark.parametrize("kind", ASYNC)
async def test_async_drivers(kind, request, tmp_path, table_name, queue, url, prefix):
    service = Service(kind, request, tmp_path, table_name)
    connection = await ASYNC[kind](service.url)
    try:
        async with _transaction(connection):
            first = await service.outbox.add(connection, "payments", "charge", {"n": 1})
            jobs = [NewJob("charge", {"n": n}) for n in range(2, 5)]
            rest = await service.outbox.add_bulk(connection, "payments", jobs)
        with contextlib.suppress(ZeroDivisionError):
            async with _transaction(connection):
                await service.outbox.add(connection, "payments", "charge", {"n": 9})
                _ = 1 / 0

        await service.relay(url, prefix)

        assert [job.id for job in await queue.get_waiting()] == [first, *rest]
    finally:
        await _dispose(connection)
        service.close()


@pytest.mark.parametrize("kind", sorted(set(ASYNC) - {"postgresql+asyncpg"}))
async def test_async_cursors(kind, request, tmp_path, table_name):
    service = Service(kind, request, tmp_path, table_name)
    connection = await ASYNC[kind](service.url)
    try:
        cursor = connection.cursor()
        if not isinstance(cursor, psycopg.AsyncCursor):
            cursor = await cursor
        job_id = await service.outbox.add(cursor, "payments", "charge")
        await connection.commit()

        assert [row.id for row in service.rows()] == [job_id]
    finally:
        await _dispose(connection)
        service.close()


async def test_cursors_of_psycopg_that_count_their_parameters(request, tmp_path, table_name):
    """One may have asked for cursors that take $1 and not %s."""
    service = Service("postgresql+psycopg", request, tmp_path, table_name)
    try:
        with psycopg.connect(
            **_postgres(service.url), cursor_factory=psycopg.RawCursor
        ) as connection:
            service.outbox.add(connection, "payments", "charge")
            service.outbox.add(connection.cursor(), "payments", "charge")
            service.outbox.add(psycopg.ClientCursor(connection), "payments", "charge")

        assert len(service.rows()) == 3
    finally:
        service.close()


async def test_a_connection_of_a_pool_of_asyncpg(request, tmp_path, table_name):
    service = Service("postgresql+asyncpg", request, tmp_path, table_name)
    try:
        async with asyncpg.create_pool(
            host=service.url.query["host"], user="postgres", database="postgres", min_size=1
        ) as pool:
            with pytest.raises(InvalidOptionError, match=r"pool\.acquire"):
                await service.outbox.add(pool, "payments", "charge")
            async with pool.acquire() as connection, connection.transaction():
                await service.outbox.add(connection, "payments", "charge")

        assert len(service.rows()) == 1
    finally:
        service.close()


def test_a_class_of_ones_own_is_known_by_what_it_inherits(tmp_path):
    class Mine(sqlite3.Connection):
        pass

    connection = sqlite3.connect(tmp_path / "x.db", factory=Mine)
    for statement in table_sql("sqlite"):
        connection.execute(statement)

    Outbox().add(connection, "payments", "charge")

    assert connection.in_transaction
    assert connection.execute("SELECT count(*) FROM toril_outbox").fetchone() == (1,)
    connection.close()


class Traced:
    """As the tools that trace databases wrap what they watch."""

    def __init__(self, wrapped):
        self._wrapped = wrapped

    __class__ = property(lambda self: self._wrapped.__class__)

    def __getattr__(self, name):
        return getattr(self._wrapped, name)


def test_a_wrapper_that_passes_for_a_connection_is_one(service, connection):
    service.outbox.add(Traced(connection), "payments", "charge")
    service.outbox.add(Traced(connection.cursor()), "payments", "charge")
    connection.commit()

    assert len(service.rows()) == 2


def test_what_could_not_become_a_job_is_refused_before_it_is_written(tmp_path):
    connection = sqlite3.connect(tmp_path / "x.db")

    with pytest.raises(PayloadError):
        Outbox().add(connection, "payments", "charge", {"x": float("nan")})
    with pytest.raises(InvalidOptionError, match="SQLAlchemy, Django, or one of the drivers"):
        Outbox().add(object(), "payments", "charge")
    connection.close()


def test_the_table_of_the_text_is_that_of_sqlalchemy(engine, table_name):
    """Alembic finds nothing to change in a table that ``table_sql`` made."""
    metadata = MetaData()
    Outbox(metadata, name=table_name)
    with engine.begin() as connection:
        for statement in table_sql(engine.dialect.name, table_name):
            connection.execute(text(statement))

    with engine.connect() as connection:
        options = {
            "compare_type": True,
            "include_name": lambda name, kind, _: kind != "table" or name == table_name,
        }
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []
    metadata.drop_all(engine)


def test_both_make_the_same_defaults(engine, table_name, metadata):
    """What Alembic does not look at: a row by hand has the same in a table of either."""
    outbox = Outbox(metadata, name=table_name)
    metadata.create_all(engine)
    other = Outbox(MetaData(), name=f"{table_name}_text")
    with engine.begin() as connection:
        for statement in table_sql(engine.dialect.name, other.table.name):
            connection.execute(text(statement))
        found = []
        for table in (outbox.table, other.table):
            given = {"id": "a", "queue": "q", "name": "n", "data": "{}", "key": "k"}
            connection.execute(table.insert().values(created_at=1, **given))
            found.append(tuple(connection.execute(select(table)).one()))
        other.table.drop(connection)
        metadata.drop_all(connection)

    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["odd 100%s name", 'quo"ted`'])
def test_names_are_quoted(name, service, connection):
    outbox = Outbox(name=name)
    table = outbox.table
    try:
        with service.engine.begin() as there:
            for statement in table_sql(service.engine.dialect.name, name):
                there.execute(text(statement))
        outbox.add(connection, "payments", "charge")
        connection.commit()
        with service.engine.begin() as there:
            outbox.add(there, "payments", "charge")
            assert len(there.execute(select(table)).all()) == 2
    finally:
        with service.engine.begin() as there:
            table.drop(there, checkfirst=True)


def test_a_table_of_the_version_before_says_what_to_drop(service, connection):
    constraint = f"uq_{service.name}_queue_id"
    with service.engine.begin() as there:
        there.execute(text(f"CREATE UNIQUE INDEX {constraint} ON {service.name} (queue, id)"))
    service.outbox.add(connection, "payments", "charge", job_id="user-42")

    with pytest.raises(DuplicateRowError, match=constraint):
        service.outbox.add(connection, "payments", "charge", job_id="user-42")
    connection.rollback()


async def test_large_data_is_split_over_statements(request, tmp_path, table_name):
    """Servers refuse long statements: MariaDB from 16 MB on."""
    service = Service("mariadb+pymysql", request, tmp_path, table_name)
    connection = BLOCKING["mariadb+pymysql"](service.url)
    try:
        jobs = [NewJob("n", "x" * 600_000) for _ in range(30)]
        service.outbox.add_bulk(connection, "payments", jobs)
        connection.commit()

        with connection.cursor() as cursor:
            cursor.execute(f"SELECT count(*) FROM {table_name}")
            assert cursor.fetchone() == (30,)
    finally:
        connection.close()
        service.close()


async def test_sessions_keep_their_schema_and_their_binds(request, tmp_path, table_name):
    """A session may send tables to several databases, and an engine rename their schemas."""
    service = Service("postgresql+psycopg", request, tmp_path, table_name)
    schema = f"s_{table_name}"
    metadata = MetaData()
    outbox = Outbox(metadata, name=table_name, schema="tenant")
    elsewhere = create_engine("sqlite://")
    renaming = {"schema_translate_map": {"tenant": schema}}
    engine = service.engine.execution_options(**renaming)
    with service.engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    metadata.create_all(engine)
    try:
        with Session(binds={outbox.table: engine}) as session, session.begin():
            outbox.add(session, "payments", "charge")
        with Session(elsewhere, binds={outbox.table: engine}) as session, session.begin():
            outbox.add(session, "payments", "charge")
        async_engine = create_async_engine(
            service.url.set(drivername="postgresql+asyncpg"), execution_options=renaming
        )
        async with AsyncSession(async_engine) as session, session.begin():
            await outbox.add(session, "payments", "charge")
        await async_engine.dispose()

        with engine.connect() as connection:
            assert len(connection.execute(select(outbox.table)).all()) == 3
    finally:
        with service.engine.begin() as connection:
            connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
        service.close()


def test_no_sqlalchemy_is_needed_to_write(tmp_path):
    program = f"""
import sqlite3, sys
sys.modules["sqlalchemy"] = None
import toril.outbox
from toril.outbox import Outbox, table_sql

connection = sqlite3.connect({str(tmp_path / "x.db")!r})
for statement in table_sql("sqlite"):
    connection.execute(statement)
Outbox().add(connection, "payments", "charge", {{"order": 1}})
connection.commit()
try:
    toril.outbox.Relay
except ImportError as error:
    print(error)
"""
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)

    assert "toril[outbox]" in ran.stdout
    with sqlite3.connect(tmp_path / "x.db") as connection:
        assert connection.execute("SELECT queue, name, status FROM toril_outbox").fetchall() == [
            ("payments", "charge", "pending")
        ]
