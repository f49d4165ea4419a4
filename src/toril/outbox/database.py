"""Transactions from a coroutine, with any kind of engine."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.pool import NullPool, QueuePool

from toril.errors import InvalidOptionError
from toril.outbox.storing import has_row_locks
from toril.sql import MOST_TRIES, only_reads

_ENOUGH_CONNECTIONS = 3

Ask = Callable[..., Awaitable[Any]]
"""Calls a blocking function of a connection, with more arguments after it."""


class Database(Protocol):
    """Where the outbox is."""

    dialect: Dialect
    most_transactions: int
    """How many transactions the relay may have at the same time."""

    def transaction(self) -> AbstractAsyncContextManager[Ask]:
        """A transaction: committed at the end, rolled back on an error."""

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``function`` in its own transaction, which the loop cannot hold open."""

    async def close(self) -> None: ...


def open_database(engine: Engine | AsyncEngine) -> Database:
    if isinstance(engine, AsyncEngine):
        return AsyncDatabase(engine)
    if isinstance(engine, Engine):
        return ThreadDatabase(engine)
    raise InvalidOptionError(f"{engine!r} is not an SQLAlchemy engine; use create_engine(…)")


def _most_transactions(engine: Engine) -> int:
    """Two if rows can be locked and there are enough connections, with one for the listener."""
    pool = engine.pool
    if not has_row_locks(engine.dialect.name):
        return 1
    if isinstance(pool, QueuePool):
        return 2 if pool.size() == 0 or pool.size() >= _ENOUGH_CONNECTIONS else 1
    return 2 if isinstance(pool, NullPool) else 1


def _isolate(connection: Connection) -> None:
    """Row locks mean nothing under autocommit, which an engine may have as its default."""
    if has_row_locks(connection.dialect.name):
        raw: Any = connection.connection.dbapi_connection
        connection.dialect.set_isolation_level(raw, "READ COMMITTED")


def _give_back(connection: Connection) -> None:
    """Return it to the pool in its original state.

    Not by an option of the connection: if it has died by now, SQLAlchemy would pass on the driver's
    error and count it as in use forever.
    """
    dialect = connection.dialect
    if has_row_locks(dialect.name) and not connection.invalidated:
        try:
            raw: Any = connection.connection.dbapi_connection
            dialect.reset_isolation_level(raw)
        except dialect.loaded_dbapi.Error as error:
            connection.invalidate(error)
    connection.close()


def _put_aside(connection: Connection, error: Exception) -> None:
    """A connection that has died since it was last used."""
    connection.invalidate(error)
    connection.close()


def _cut_off(error: Exception) -> OperationalError:
    return OperationalError("SET TRANSACTION ISOLATION LEVEL", None, error)


def _roll_back(connection: Connection, error: BaseException) -> None:
    """Undo what was done; what leads to a server that only reads now is not used again.

    After a failover the pool has such connections, while new ones find the new primary.  A rollback
    that fails hides nothing: a cancellation, above all, must reach whoever asked.
    """
    with contextlib.suppress(SQLAlchemyError):
        if isinstance(error, DBAPIError) and only_reads(error):
            connection.invalidate(error)
            error.connection_invalidated = True
        connection.rollback()


class ThreadDatabase:
    """A blocking engine, used from a separate thread for each transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.dialect = engine.dialect
        self.most_transactions = _most_transactions(engine)
        self._threads = ThreadPoolExecutor(
            self.most_transactions, thread_name_prefix="toril-outbox"
        )

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Ask]:
        connection = await self._open()
        turn = threading.Lock()

        def in_turn(function: Callable[..., Any], *arguments: Any) -> Any:
            # A call that was cancelled goes on in its thread, and drivers serve one at a time.
            with turn:
                return function(connection, *arguments)

        def ask(function: Callable[..., Any], *arguments: Any) -> Awaitable[Any]:
            return self._call(in_turn, function, *arguments)

        try:
            yield ask
            await ask(Connection.commit)
        except BaseException as error:
            await ask(_roll_back, error)
            raise
        finally:
            await ask(_give_back)

    async def _open(self) -> Connection:
        """A connection; if nobody waits for it any more, it is given back as it was."""
        turn = threading.Lock()
        opened: list[Connection] = []
        is_wanted = True

        def connect() -> None:
            connection = self._connect()
            with turn:
                if is_wanted:
                    opened.append(connection)
                    return
            _give_back(connection)

        try:
            await self._call(connect)
        except asyncio.CancelledError:
            with turn:
                is_wanted = False
            for connection in opened:
                await self._call(_give_back, connection)
            raise
        return opened[0]

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await self._call(self._run, function, arguments)

    def _run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        connection = self._connect()
        try:
            result = function(connection, *arguments)
            connection.commit()
        except BaseException as error:
            _roll_back(connection, error)
            raise
        finally:
            _give_back(connection)
        return result

    async def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _connect(self) -> Connection:
        """A connection that is alive."""
        tries = 0
        while True:
            tries += 1
            connection = self._engine.connect()
            try:
                _isolate(connection)
            except self.dialect.loaded_dbapi.Error as error:
                _put_aside(connection, error)
                if tries == MOST_TRIES:
                    raise _cut_off(error) from error
                continue
            return connection

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*arguments))


class AsyncDatabase:
    """An async engine."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self.dialect = engine.dialect
        self.most_transactions = _most_transactions(engine.sync_engine)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Ask]:
        connection = await self._connect()

        def ask(function: Callable[..., Any], *arguments: Any) -> Awaitable[Any]:
            return connection.run_sync(function, *arguments)

        try:
            yield ask
            await connection.commit()
        except BaseException as error:
            if not connection.closed:
                await ask(_roll_back, error)
            raise
        finally:
            await connection.run_sync(_give_back)

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        async with self.transaction() as ask:
            return await ask(function, *arguments)

    async def close(self) -> None:
        """The engine's owner disposes of it."""

    async def _connect(self) -> AsyncConnection:
        tries = 0
        while True:
            tries += 1
            connection = await self._engine.connect()
            try:
                await connection.run_sync(_isolate)
            except self.dialect.loaded_dbapi.Error as error:
                await connection.run_sync(_put_aside, error)
                if tries == MOST_TRIES:
                    raise _cut_off(error) from error
                continue
            return connection
