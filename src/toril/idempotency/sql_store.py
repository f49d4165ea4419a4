"""Records in the database in which the work is done."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, Table, bindparam, delete, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from toril.checking import by_hand, checked
from toril.errors import InvalidOptionError
from toril.idempotency.guard import DEFAULT_TTL_MS, Once, once
from toril.idempotency.table import DEFAULT_TABLE
from toril.logs import get_logger
from toril.options import Duration, milliseconds
from toril.sql import MOST_TRIES, is_passing

logger = get_logger("toril.idempotency")

_PRUNE_EVERY_S = 3600.0
_PRUNE_ON_S = 1.0
"""While more records have expired than one prune deletes."""
_ROWS_PER_PRUNE = 1000

Sessions = Engine | AsyncEngine | sessionmaker[Session] | async_sessionmaker[AsyncSession]


@checked
class SqlStore:
    """Runs a handler in a transaction that begins with the record of its key.

    ``engine`` is an engine or a sessionmaker; ``async def`` handlers need an async one.  Records
    are kept for ``ttl`` and deleted afterwards: about once an hour a thousand, and the next ones a
    second later, after another job, while there are more.

    If the record cannot be written because of other transactions, or because the connection has
    died since it was last used, nothing has been done yet and the transaction is restarted: this
    costs the job no attempt.
    """

    gives_session = True
    prefix = ""

    @by_hand
    def __init__(
        self,
        engine: Sessions,
        *,
        ttl: Duration = DEFAULT_TTL_MS,
        scope: str | None = None,
        table: Table = DEFAULT_TABLE,
    ) -> None:
        self.ttl_ms = milliseconds(ttl, "ttl", least=1)
        self.table = table
        self._scope = scope
        self._is_async = isinstance(engine, AsyncEngine | async_sessionmaker)
        self._open = _opener(engine)
        self._next_prune = time.monotonic() + _PRUNE_EVERY_S

    def wrap(self, function: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
        """``function(job, session)`` as a handler of a job."""
        if inspect.iscoroutinefunction(function) != self._is_async:
            kind, needed = (
                ("a def", "a blocking") if self._is_async else ("an async def", "an async")
            )
            raise InvalidOptionError(
                f"{function!r} is {kind} and needs {needed} engine or sessionmaker"
            )
        return self._wrap_async(function) if self._is_async else self._wrap_blocking(function)

    def _wrap_async(self, function: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(function)
        async def handler(job: Any) -> Any:
            tries = 0
            while True:
                tries += 1
                async with self._open() as session:
                    run = self._once(session, job)
                    try:
                        async with session.begin(), run:
                            if not run.is_repeat:
                                run.result = await function(job, session)
                        break
                    except DBAPIError as error:
                        if _is_final(run, error, tries):
                            raise
            if self._should_prune():
                await self._prune_quietly()
            return run.result

        return handler

    def _wrap_blocking(self, function: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(function)
        def handler(job: Any) -> Any:
            tries = 0
            while True:
                tries += 1
                with self._open() as session:
                    run = self._once(session, job)
                    try:
                        with session.begin(), run:
                            if not run.is_repeat:
                                run.result = function(job, session)
                        break
                    except DBAPIError as error:
                        if _is_final(run, error, tries):
                            raise
            if self._should_prune():
                self._prune_blocking_quietly()
            return run.result

        return handler

    def _once(self, session: Any, job: Any) -> Once:
        return once(session, job, scope=self._scope, ttl=self.ttl_ms, table=self.table)

    async def prune(self) -> int:
        """Delete expired records, at most a thousand; returns how many."""
        if not self._is_async:
            return await asyncio.to_thread(self._prune_blocking)
        async with self._open() as session, session.begin():
            count: int = await session.run_sync(self._prune_in)
            return count

    def _prune_blocking(self) -> int:
        with self._open() as session, session.begin():
            return self._prune_in(session)

    def _prune_in(self, session: Session) -> int:
        table = self.table
        is_old = table.c.expires_at < time.time_ns() // 1_000_000
        query = select(table.c.scope, table.c.key).where(is_old).limit(_ROWS_PER_PRUNE)
        old = [{"old_scope": row[0], "old_key": row[1]} for row in session.execute(query)]
        if old:
            # One by one: MariaDB reads, and locks, the whole table for a list of pairs.
            # Only if it is still old: another process may have deleted it, and a job done it anew.
            is_it = (table.c.scope == bindparam("old_scope")) & (
                table.c.key == bindparam("old_key")
            )
            session.connection().execute(delete(table).where(is_it, is_old), old)
        return len(old)

    def _should_prune(self) -> bool:
        if time.monotonic() < self._next_prune:
            return False
        self._next_prune = time.monotonic() + _PRUNE_EVERY_S
        return True

    def _note_pruned(self, count: int) -> None:
        if count >= _ROWS_PER_PRUNE:
            self._next_prune = time.monotonic() + _PRUNE_ON_S

    async def _prune_quietly(self) -> None:
        try:
            self._note_pruned(await self.prune())
        except SQLAlchemyError as error:
            logger.warning("old idempotency records could not be deleted: %s", error)

    def _prune_blocking_quietly(self) -> None:
        try:
            self._note_pruned(self._prune_blocking())
        except SQLAlchemyError as error:
            logger.warning("old idempotency records could not be deleted: %s", error)


def _is_final(run: Once, error: DBAPIError, tries: int) -> bool:
    return run.has_begun or tries >= MOST_TRIES or not is_passing(error)


def _opener(engine: Sessions) -> Callable[[], Any]:
    if isinstance(engine, AsyncEngine):
        return async_sessionmaker(_with_transactions(engine), expire_on_commit=False)
    if isinstance(engine, Engine):
        return sessionmaker(_with_transactions(engine), expire_on_commit=False)
    if isinstance(engine, sessionmaker | async_sessionmaker):
        bind = engine.kw.get("bind")
        if not isinstance(bind, Engine | AsyncEngine):
            return engine
        return functools.partial(engine, bind=_with_transactions(bind))
    raise InvalidOptionError(f"{engine!r} is not an SQLAlchemy engine or sessionmaker")


def _with_transactions(engine: Any) -> Any:
    """The same engine; if it commits each statement by itself, one whose sessions do not.

    Otherwise the record would stay although the work failed.
    """
    options, dialect = engine.get_execution_options(), engine.dialect
    if options.get("isolation_level") == "AUTOCOMMIT":  # it would prevail over ours
        raise InvalidOptionError(
            f"{engine!r} commits each statement by itself, so the record would stay although the"
            f" work failed; pass an engine without isolation_level='AUTOCOMMIT' in its"
            f" execution_options"
        )
    # SQLAlchemy has no other way to ask what create_engine(isolation_level=…) was told.
    level = getattr(dialect, "_on_connect_isolation_level", None)
    if "isolation_level" in options or level != "AUTOCOMMIT":
        return engine
    wanted = "SERIALIZABLE" if dialect.name == "sqlite" else "READ COMMITTED"
    return engine.execution_options(isolation_level=wanted)
