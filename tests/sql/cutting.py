"""Cutting connections, as a server does with those that were idle for too long."""

from __future__ import annotations

from sqlalchemy import URL, Connection, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

_CUT_ON_POSTGRESQL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
)
_OTHERS_ON_MARIADB = (
    "SELECT id FROM information_schema.processlist WHERE user = 'root' AND id <> CONNECTION_ID()"
)
_NO_SUCH_CONNECTION = 1094


def cut_all_connections(url: URL) -> int:
    """Cut those of everybody else; returns how many that were."""
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            return len(connection.execute(text(_CUT_ON_POSTGRESQL)).all())
        others = connection.execute(text(_OTHERS_ON_MARIADB)).scalars().all()
        return sum(_cut(connection, number) for number in others)


def _cut(connection: Connection, number: int) -> bool:
    """False if it has ended by itself since it was listed."""
    try:
        connection.execute(text(f"KILL CONNECTION {number}"))
    except OperationalError as error:
        if error.orig is None or error.orig.args[0] != _NO_SUCH_CONNECTION:
            raise
        return False
    return True
