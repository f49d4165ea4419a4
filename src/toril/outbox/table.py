"""The outbox table: plain columns, so that any migration tool and any language can deal with it.

seq           the order in which rows were written; never used as a watermark, because rows
              become visible in the order of their commits
id            the job's id; several rows may have the same, and the queue decides
queue, name   where the job goes and what it is called
data          its data, as JSON text
options       its options, as a JSON object with the names of ``Queue.add``
lane          rows of one queue and one lane are dispatched in the order of ``seq``
key           its idempotency key
status        pending → dispatched → done (``confirm`` only), or parked
attempts      how often dispatching it failed
error         why, the last time
due_at        when to look at it next, in ms since the epoch by the database's clock
claimed_by    on SQLite, which relay holds the row …
claimed_until … and until when
created_at    when it was written
dispatched_at when its job was added
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    cast,
    func,
    literal_column,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.elements import ColumnElement

from toril.checking import checked_call
from toril.errors import InvalidOptionError
from toril.sql import key_text, long_text

DEFAULT_NAME = "toril_outbox"
LONGEST_KEY = 255
LONGEST_NAME = 1024

PENDING = "pending"
DISPATCHED = "dispatched"
DONE = "done"
PARKED = "parked"
STATUSES = (PENDING, DISPATCHED, DONE, PARKED)

_COLUMNS = (
    "seq",
    "id",
    "queue",
    "name",
    "data",
    "options",
    "lane",
    "key",
    "status",
    "attempts",
    "error",
    "due_at",
    "claimed_by",
    "claimed_until",
    "created_at",
    "dispatched_at",
)


@checked_call
def outbox_table(
    metadata: MetaData, name: str = DEFAULT_NAME, *, schema: str | None = None
) -> Table:
    """Define the outbox table in ``metadata``; creating it is left to you or your migrations."""
    number = BigInteger().with_variant(Integer, "sqlite")
    return Table(
        name,
        metadata,
        Column("seq", number, primary_key=True, autoincrement=True),
        Column("id", key_text(LONGEST_KEY), nullable=False),
        Column("queue", key_text(LONGEST_KEY), nullable=False),
        Column("name", key_text(LONGEST_NAME), nullable=False),
        Column("data", long_text(), nullable=False),
        # MySQL takes the default of a long text only in parentheses.
        Column("options", long_text(), nullable=False, server_default=text("('{}')")),
        Column("lane", key_text(LONGEST_KEY)),
        Column("key", key_text(LONGEST_KEY), nullable=False),
        Column("status", String(16), nullable=False, server_default=text("'pending'")),
        Column("attempts", Integer, nullable=False, server_default=text("0")),
        Column("error", long_text()),
        Column("due_at", BigInteger, nullable=False, server_default=text("0")),
        Column("claimed_by", String(64)),
        Column("claimed_until", BigInteger, nullable=False, server_default=text("0")),
        Column("created_at", BigInteger, nullable=False),
        Column("dispatched_at", BigInteger),
        Index(f"ix_{name}_status_seq", "status", "seq"),
        Index(f"ix_{name}_status_due_at", "status", "due_at"),
        Index(f"ix_{name}_lane", "lane", "queue", "status", "seq"),
        schema=schema,
    )


def check_table(table: Table) -> Table:
    """Refuse a table of yours that lacks a column."""
    missing = [name for name in _COLUMNS if name not in table.c]
    if missing:
        raise InvalidOptionError(
            f"table {table.name!r} cannot be an outbox: it has no column {', '.join(missing)};"
            f" see toril.outbox.outbox_table"
        )
    return table


def now_ms(dialect: Dialect) -> ColumnElement[int]:
    """The database's clock in ms since the epoch: relays on several hosts compare by it."""
    match dialect.name:
        case "postgresql":
            seconds: Any = func.extract("epoch", func.clock_timestamp())
            return cast(seconds * 1000, BigInteger)
        case "sqlite":
            return literal_column("CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)")
        case "mysql" | "mariadb":
            # Not UNIX_TIMESTAMP(NOW(3)): local time repeats an hour when summer ends.
            since_epoch = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3))"
            return literal_column(f"({since_epoch} DIV 1000)")
    raise InvalidOptionError(
        f"the outbox knows PostgreSQL, MySQL, MariaDB and SQLite, not {dialect.name!r}"
    )
