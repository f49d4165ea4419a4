"""The outbox as a SQLAlchemy table; its columns are described in ``toril.outbox.schema``."""

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
    literal_column,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.elements import ColumnElement

from toril.checking import checked_call
from toril.errors import InvalidOptionError
from toril.outbox.schema import COLUMNS, DEFAULT_NAME, INDEXES, ColumnOf, now_sql
from toril.sql import key_text, long_text


@checked_call
def outbox_table(
    metadata: MetaData, name: str = DEFAULT_NAME, *, schema: str | None = None
) -> Table:
    """Define the outbox table in ``metadata``; creating it is left to you or your migrations."""
    return Table(
        name,
        metadata,
        *map(_column, COLUMNS),
        *(Index(pattern.format(table=name), *columns) for pattern, columns in INDEXES.items()),
        schema=schema,
    )


def _column(column: ColumnOf) -> Column[Any]:
    is_serial = column.kind == "serial"
    return Column(
        column.name,
        _type_of(column),
        primary_key=is_serial,
        autoincrement=is_serial,
        nullable=column.is_nullable,
        server_default=None if column.default is None else text(column.default),
    )


def _type_of(column: ColumnOf) -> Any:
    match column.kind:
        case "serial":
            return BigInteger().with_variant(Integer, "sqlite")
        case "key":
            return key_text(column.length)
        case "word":
            return String(column.length)
        case "text":
            return long_text()
        case "number":
            return Integer()
        case "large":
            return BigInteger()


def check_table(table: Table) -> Table:
    """Refuse a table of yours that lacks a column."""
    missing = [column.name for column in COLUMNS if column.name not in table.c]
    if missing:
        raise InvalidOptionError(
            f"table {table.name!r} cannot be an outbox: it has no column {', '.join(missing)};"
            f" see toril.outbox.outbox_table"
        )
    return table


def now_ms(dialect: Dialect) -> ColumnElement[int]:
    """The database's clock in ms since the epoch, which relays on several hosts share."""
    return literal_column(now_sql(dialect.name), BigInteger)
