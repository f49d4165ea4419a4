"""The connections that rows can be written through, each recognized by its package.

Nothing is imported for this: a program with a driver's connection has the driver.  You can pass a
connection or a cursor; the rows belong to whatever transaction is open on it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from toril.errors import InvalidOptionError
from toril.outbox.statements import Dialect, Statement

if TYPE_CHECKING:
    from sqlalchemy import Table


class BlockingConnection(Protocol):
    """A connection as PEP 249 describes it: of sqlite3, psycopg, PyMySQL, Django, …"""

    def cursor(self) -> Any: ...

    def commit(self) -> None: ...


class BlockingCursor(Protocol):
    """A cursor of such a connection."""

    def executemany(self, text: Any, parameters: Any, /) -> Any: ...

    def close(self) -> None: ...


class AsyncConnection(Protocol):
    """The same with coroutines: of psycopg, aiosqlite, aiomysql, …"""

    def cursor(self) -> Any: ...

    def commit(self) -> Coroutine[Any, Any, None]: ...


class AsyncCursor(Protocol):
    """A cursor of such a connection."""

    def executemany(self, text: Any, parameters: Any, /) -> Any: ...

    def close(self) -> Coroutine[Any, Any, None]: ...


class AsyncpgConnection(Protocol):
    """A connection of asyncpg."""

    def is_in_transaction(self) -> bool: ...


class Line(msgspec.Struct, frozen=True):
    """A way to the database: which SQL it takes, and how a statement is run there.

    ``run`` must be awaited if opening the line was.
    """

    dialect: Dialect
    run: Callable[[Statement], Any]
    schema_of: Callable[[str | None], str | None] = lambda schema: schema


Opened = Line | Awaitable[Line]


def open_line(target: Any, table: Callable[[], Table]) -> Opened:
    """The line through a session, a connection or a cursor; await it if that is async."""
    # Not type(): tracing tools wrap a connection in an object that passes for it.
    for kind in target.__class__.__mro__:
        opening = _OPENINGS.get(kind.__module__.partition(".")[0])
        if opening is not None:
            return opening(target, table)
    raise InvalidOptionError(
        f"{target!r} is not a session or connection that the outbox knows; pass the one whose"
        f" transaction the job belongs to: of SQLAlchemy, Django, or one of the drivers"
        f" {', '.join(sorted(_OPENINGS.keys() - {'sqlalchemy', 'django'}))}"
    )


# ---------------------------------------------------------------------------- SQLAlchemy


def _open_sqlalchemy(target: Any, table: Callable[[], Table]) -> Opened:
    from sqlalchemy import Connection
    from sqlalchemy.ext import asyncio
    from sqlalchemy.orm import Session, scoped_session

    match target:
        case asyncio.AsyncSession() | asyncio.async_scoped_session() | asyncio.AsyncConnection():
            return _open_async_sqlalchemy(target, table)
        case Session() | scoped_session():
            return _sqlalchemy_line(target.connection({"clause": table()}))
        case Connection():
            return _sqlalchemy_line(target)
    raise InvalidOptionError(
        f"{target!r} is not an SQLAlchemy session or connection; pass the one whose transaction"
        f" the job belongs to"
    )


async def _open_async_sqlalchemy(target: Any, table: Callable[[], Table]) -> Line:
    from sqlalchemy.ext.asyncio import AsyncConnection

    if isinstance(target, AsyncConnection):
        return _sqlalchemy_line(target)
    return _sqlalchemy_line(await target.connection({"clause": table()}))


def _sqlalchemy_line(connection: Any) -> Line:
    options = connection.sync_connection if hasattr(connection, "sync_connection") else connection
    schemas = options.get_execution_options().get("schema_translate_map") or {}

    def run(statement: Statement) -> Any:
        return connection.exec_driver_sql(statement.text, statement.parameters)

    dialect = connection.dialect
    return Line(
        # The driver's own style: an engine may be told to use another one.
        Dialect.of(dialect.name, dialect.default_paramstyle),
        run,
        lambda schema: schemas.get(schema, schema),
    )


# ---------------------------------------------------------------------------- blocking drivers


def _blocking(name: str, paramstyle: str) -> Callable[..., Line]:
    dialect = Dialect.of(name, paramstyle)

    def open_it(target: Any, _: object) -> Line:
        return Line(dialect, _runner(target))

    return open_it


def _runner(target: Any) -> Callable[[Statement], None]:
    def run(statement: Statement) -> None:
        if not callable(getattr(target, "cursor", None)):
            _execute(target, statement)
            return
        cursor = target.cursor()
        try:
            _execute(cursor, statement)
        finally:
            cursor.close()

    return run


def _execute(cursor: Any, statement: Statement) -> Any:
    execute = cursor.executemany if statement.is_many else cursor.execute
    return execute(statement.text, statement.parameters)


def _open_django(target: Any, _: object) -> Line:
    """A connection of Django, ``django.db.connection`` or one of ``connections``, or its cursor."""
    vendor = getattr(target, "vendor", None)
    if vendor is not None:
        return Line(Dialect.of(vendor, "format"), _runner(target))
    owner: Any = getattr(target, "db", None)
    if not hasattr(owner, "vendor"):
        raise InvalidOptionError(f"{target!r} is not a Django connection; use django.db.connection")
    return Line(Dialect.of(owner.vendor, "format"), lambda statement: _execute(target, statement))


# ---------------------------------------------------------------------------- async drivers


def _open_psycopg(target: Any, _: object) -> Opened:
    cursor = getattr(target, "cursor_factory", target.__class__)
    is_raw = any(kind.__module__ == "psycopg.raw_cursor" for kind in cursor.__mro__)
    dialect = Dialect.of("postgresql", "numeric_dollar" if is_raw else "format")
    if iscoroutinefunction(cursor.execute):
        return _async_line(dialect, _async_runner(target))
    return Line(dialect, _runner(target))


def _async(name: str, paramstyle: str) -> Callable[..., Opened]:
    dialect = Dialect.of(name, paramstyle)

    def open_it(target: Any, _: object) -> Opened:
        return _async_line(dialect, _async_runner(target))

    return open_it


def _open_asyncpg(target: Any, _: object) -> Opened:
    if not hasattr(target, "is_in_transaction"):
        raise InvalidOptionError(
            f"{target!r} is not an asyncpg connection; take one, as with: async with pool.acquire()"
        )

    async def run(statement: Statement) -> None:
        await target.execute(statement.text, *statement.parameters)

    return _async_line(Dialect.of("postgresql", "numeric_dollar"), run)


async def _async_line(dialect: Dialect, run: Callable[[Statement], Awaitable[None]]) -> Line:
    return Line(dialect, run)


def _async_runner(target: Any) -> Callable[[Statement], Awaitable[None]]:
    async def run(statement: Statement) -> None:
        if not callable(getattr(target, "cursor", None)):
            await _execute(target, statement)
            return
        cursor = target.cursor()
        if isawaitable(cursor):
            cursor = await cursor
        try:
            await _execute(cursor, statement)
        finally:
            closing = cursor.close()
            if isawaitable(closing):
                await closing

    return run


_OPENINGS: dict[str, Callable[[Any, Callable[[], Any]], Opened]] = {
    "sqlalchemy": _open_sqlalchemy,
    "django": _open_django,
    "sqlite3": _blocking("sqlite", "qmark"),
    "psycopg": _open_psycopg,
    "psycopg2": _blocking("postgresql", "format"),
    "pymysql": _blocking("mysql", "format"),
    "MySQLdb": _blocking("mysql", "format"),
    "mysql": _blocking("mysql", "format"),
    "mariadb": _blocking("mysql", "qmark"),
    "asyncpg": _open_asyncpg,
    "aiosqlite": _async("sqlite", "qmark"),
    "aiomysql": _async("mysql", "format"),
    "asyncmy": _async("mysql", "format"),
}
