"""The outbox table: plain columns, so that any migration tool and any language can use it.

seq           the order in which rows were written; never used as a watermark, because rows
              become visible in the order of their commits
id            the job's id, such as a UUID or "order-17", but no number; several rows may have the
              same one, and the queue decides
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

This module does not depend on any driver or toolkit: SQLAlchemy's table and the text of
``table_sql`` are both made from the columns below.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from toril.checking import checked_call
from toril.errors import InvalidOptionError

DEFAULT_NAME = "toril_outbox"
LONGEST_KEY = 255
LONGEST_NAME = 1024

PENDING = "pending"
DISPATCHED = "dispatched"
DONE = "done"
PARKED = "parked"
STATUSES = (PENDING, DISPATCHED, DONE, PARKED)

Kind = Literal["serial", "key", "word", "text", "number", "large"]
"""A ``key`` is compared character by character, a ``word`` is one of ours, a ``text`` is unlimited;
a ``large`` number counts ms."""


class ColumnOf(msgspec.Struct, frozen=True):
    """A column of the table."""

    name: str
    kind: Kind
    length: int = 0
    is_nullable: bool = False
    default: str | None = None


COLUMNS = (
    ColumnOf("seq", "serial"),
    ColumnOf("id", "key", LONGEST_KEY),
    ColumnOf("queue", "key", LONGEST_KEY),
    ColumnOf("name", "key", LONGEST_NAME),
    ColumnOf("data", "text"),
    # MySQL only accepts the default of a long text in parentheses.
    ColumnOf("options", "text", default="('{}')"),
    ColumnOf("lane", "key", LONGEST_KEY, is_nullable=True),
    ColumnOf("key", "key", LONGEST_KEY),
    ColumnOf("status", "word", 16, default=f"'{PENDING}'"),
    ColumnOf("attempts", "number", default="0"),
    ColumnOf("error", "text", is_nullable=True),
    ColumnOf("due_at", "large", default="0"),
    ColumnOf("claimed_by", "word", 64, is_nullable=True),
    ColumnOf("claimed_until", "large", default="0"),
    ColumnOf("created_at", "large"),
    ColumnOf("dispatched_at", "large", is_nullable=True),
)
INDEXES = {
    "ix_{table}_status_seq": ("status", "seq"),
    "ix_{table}_status_due_at": ("status", "due_at"),
    "ix_{table}_lane": ("lane", "queue", "status", "seq"),
}

_TYPES: dict[str, dict[Kind, str]] = {
    "postgresql": {
        "serial": "BIGSERIAL",
        "key": "VARCHAR({length})",
        "word": "VARCHAR({length})",
        "text": "TEXT",
        "number": "INTEGER",
        "large": "BIGINT",
    },
    "mysql": {
        "serial": "BIGINT AUTO_INCREMENT",
        # Its defaults compare case-insensitively, and truncate texts at 64 KB.
        "key": "VARCHAR({length}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "word": "VARCHAR({length})",
        "text": "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "number": "INTEGER",
        "large": "BIGINT",
    },
    "sqlite": {
        "serial": "INTEGER",
        "key": "VARCHAR({length})",
        "word": "VARCHAR({length})",
        "text": "TEXT",
        "number": "INTEGER",
        "large": "BIGINT",
    },
}
_NOW = {
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
    # Not UNIX_TIMESTAMP(NOW(3)): local time repeats an hour when daylight saving time ends.
    "mysql": "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}


def family_of(dialect: str) -> str:
    """Which SQL a database understands; MariaDB and MySQL are one family."""
    family = "mysql" if dialect == "mariadb" else dialect
    if family not in _TYPES:
        raise InvalidOptionError(
            f"the outbox supports PostgreSQL, MySQL, MariaDB and SQLite, not {dialect!r}"
        )
    return family


def now_sql(dialect: str) -> str:
    """The database's clock in ms since the epoch, which relays on several hosts share."""
    return _NOW[family_of(dialect)]


def quoted(dialect: str, *names: str | None) -> str:
    """A quoted name in SQL, preceded by its qualifiers: a schema, or None."""
    mark = "`" if family_of(dialect) == "mysql" else '"'
    return ".".join(f"{mark}{name.replace(mark, mark * 2)}{mark}" for name in names if name)


@checked_call
def table_sql(dialect: str, name: str = DEFAULT_NAME, *, schema: str | None = None) -> list[str]:
    """The statements that create the table and its indexes, for migrations without SQLAlchemy.

    ``dialect`` is "postgresql", "mysql", "mariadb" or "sqlite".
    """
    types = _TYPES[family_of(dialect)]
    lines = [_column_sql(dialect, column, types) for column in COLUMNS]
    lines.append(f"PRIMARY KEY ({quoted(dialect, 'seq')})")
    table = quoted(dialect, schema, name)
    body = ",\n  ".join(lines)
    statements = [f"CREATE TABLE {table} (\n  {body}\n)"]
    for pattern, columns in INDEXES.items():
        index = pattern.format(table=name)
        # On SQLite the index name has the schema, and the table name must not.
        is_sqlite = family_of(dialect) == "sqlite"
        at = quoted(dialect, schema, index) if is_sqlite else quoted(dialect, index)
        on = quoted(dialect, name) if is_sqlite else table
        parts = ", ".join(quoted(dialect, column) for column in columns)
        statements.append(f"CREATE INDEX {at} ON {on} ({parts})")
    return statements


def _column_sql(dialect: str, column: ColumnOf, types: dict[Kind, str]) -> str:
    words = [quoted(dialect, column.name), types[column.kind].format(length=column.length)]
    if column.default is not None:
        words.append(f"DEFAULT {column.default}")
    if not column.is_nullable:
        words.append("NOT NULL")
    return " ".join(words)
