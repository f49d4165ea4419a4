"""The outbox in a Django database: rows that no relay has sent yet, and the relay's engine."""

from __future__ import annotations

from typing import Any

from django.db import connections

from toril.outbox import Outbox, OutboxRow
from toril.outbox.rows import prepare
from toril.outbox.schema import DEFAULT_NAME, PARKED, PENDING
from toril.protocol import adding
from toril.protocol.adding import Added
from toril.protocol.job import Job

VENDORS = ("postgresql", "mysql", "sqlite")
outbox = Outbox()
_USUAL_DRIVERS = {"postgresql": "psycopg", "mysql": "mysqldb"}

_READ = f"""
SELECT {{columns}}, created_at FROM {DEFAULT_NAME}
WHERE status IN ('{PENDING}', '{PARKED}') AND id = %s
"""  # noqa: S608 (our own words)


def find_unsent(database: str, job_id: str, prefix: str) -> Job | None:
    """The job that a row of the outbox will be, unless a relay has sent it."""
    connection = connections[database]
    columns = ", ".join(map(connection.ops.quote_name, OutboxRow.__struct_fields__))
    with connection.cursor() as cursor:
        cursor.execute(_READ.format(columns=columns), [job_id])
        found = cursor.fetchone()
    if found is None:
        return None
    row = OutboxRow(*found[:-1])
    prepared = prepare(row, once_ms=1)
    return Job(prefix, row.queue, row.id, adding.fields_of(prepared, Added(row.id, found[-1])))


def open_engine(database: str) -> Any:
    """A SQLAlchemy engine whose connections are opened by Django, with all of Django's settings."""
    from sqlalchemy import create_engine
    from sqlalchemy.pool import QueuePool

    return create_engine(
        f"{_dialect(database)}://",
        creator=lambda: _connect(database),
        poolclass=QueuePool,
    )


def _dialect(database: str) -> str:
    """SQLAlchemy's name for the database and for the driver that Django uses."""
    connection = connections[database]
    if connection.vendor == "sqlite":
        return "sqlite"
    package = getattr(connection, "Database", None)
    driver = getattr(package, "__name__", _USUAL_DRIVERS[connection.vendor])
    return f"{connection.vendor}+{driver.lower()}"


def _connect(database: str) -> Any:
    """A separate connection that is not shared with Django's threads or pools."""
    wrapper = connections.create_connection(database)
    options = dict(wrapper.settings_dict["OPTIONS"])
    options.pop("pool", None)
    wrapper.settings_dict = {**wrapper.settings_dict, "OPTIONS": options}
    wrapper.connect()
    wrapper.set_autocommit(False)
    return wrapper.connection
