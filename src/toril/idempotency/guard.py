"""``once``: a block that runs once per key, in the caller's transaction."""

from __future__ import annotations

import time
from typing import Any, Self

from sqlalchemy import Connection, Table, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from toril.errors import InvalidOptionError, UnfinishedWorkError
from toril.idempotency.record import KeyedJob, fitting, scope_of
from toril.idempotency.table import DEFAULT_TABLE
from toril.options import Duration, milliseconds
from toril.protocol import codec
from toril.sql import MOST_TRIES, MYSQL, is_duplicate_key

DEFAULT_TTL_MS = 30 * 24 * 3600 * 1000

Blocking = Session | Connection
Async = AsyncSession | AsyncConnection


class Once:
    """The guard of one piece of work.

    ``is_repeat`` says that the work was done before, and ``result`` is what it returned.  Otherwise
    do the work and set ``result``, which is stored at the end of the block and commits with it.
    """

    def __init__(
        self, target: Blocking | Async, table: Table, scope: str, key: str, job_id: str, ttl_ms: int
    ) -> None:
        self._target = target
        self._table = table
        self._scope = scope
        self._key = key
        self._job_id = job_id
        self._ttl_ms = ttl_ms
        self.is_repeat = False
        self.has_begun = False
        self.result: Any = None

    def __enter__(self) -> Self:
        if isinstance(self._target, AsyncSession | AsyncConnection):
            raise InvalidOptionError("an async session needs 'async with once(…)'")
        self._begin(self._target)
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        assert isinstance(self._target, Session | Connection)
        if error_type is None and not self.is_repeat:
            self._end(self._target)

    async def __aenter__(self) -> Self:
        if not isinstance(self._target, AsyncSession | AsyncConnection):
            raise InvalidOptionError("a blocking session needs 'with once(…)'")
        await self._target.run_sync(self._begin)
        return self

    async def __aexit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        assert isinstance(self._target, AsyncSession | AsyncConnection)
        if error_type is None and not self.is_repeat:
            await self._target.run_sync(self._end)

    def _begin(self, target: Blocking) -> None:
        """Insert the record, or find that it exists; waits for a transaction about to commit it."""
        now_ms = time.time_ns() // 1_000_000
        values = {
            "scope": self._scope,
            "key": self._key,
            "job_id": self._job_id,
            "created_at": now_ms,
            "expires_at": now_ms + self._ttl_ms,
        }
        query = self._recorded(_dialect(target))
        for _ in range(MOST_TRIES):
            self.is_repeat = not _insert_unless_there(target, self._table, values)
            record = target.execute(query).first() if self.is_repeat else None
            if record is not None:
                self.result = self._result_in(record[0])
            if record is not None or not self.is_repeat:
                break
            # It expired, and was deleted after it was in the way.
        else:
            raise self._unfinished("cannot be read")
        self.has_begun = True

    def _result_in(self, text: str | None) -> Any:
        """What the first run returned; a block that ended has written at least "null"."""
        if text is None:
            raise self._unfinished("was committed before its block had ended")
        return codec.decode(text.encode())

    def _unfinished(self, what: str) -> UnfinishedWorkError:
        return UnfinishedWorkError(
            f"the record {self._key!r} of {self._scope!r} in {self._table.name!r} {what}, so the"
            f" work may not have been done: its connection is in autocommit mode, or the block's"
            f" error was caught and the transaction committed. Mend that, find out whether the work"
            f" was done, and if it was not, delete the record and run the job again"
        )

    def _recorded(self, dialect: Dialect) -> Any:
        """The result of the first run, even if it committed after this transaction began."""
        query = select(self._table.c.result).where(self._is_it())
        # REPEATABLE READ, the default there, shows an old snapshot except to locking reads.
        return query.with_for_update(read=True) if dialect.name in MYSQL else query

    def _end(self, target: Blocking) -> None:
        text = codec.encode(self.result, f"the result of job {self._job_id!r}").decode()
        target.execute(update(self._table).where(self._is_it()).values(result=text))

    def _is_it(self) -> Any:
        return (self._table.c.scope == self._scope) & (self._table.c.key == self._key)


def once(
    target: Blocking | Async,
    job: KeyedJob,
    *,
    key: str | None = None,
    scope: str | None = None,
    ttl: Duration = DEFAULT_TTL_MS,
    table: Table = DEFAULT_TABLE,
) -> Once:
    """Guard a block by the job's idempotency key, inside the transaction of ``target``.

    ``with once(session, job) as run:`` or ``async with`` with an async session.  The record is
    inserted at the beginning and commits with the work; a second run, even one at the same time,
    finds it.  If the block raises, let the error roll back the transaction.
    """
    if not isinstance(target, Session | Connection | AsyncSession | AsyncConnection):
        raise InvalidOptionError(
            f"{target!r} is not an SQLAlchemy session or connection; pass the one that does"
            f" the work"
        )
    return Once(
        target,
        table,
        scope_of(job, scope),
        fitting(key or job.idempotency_key),
        job.id,
        milliseconds(ttl, "ttl", least=1),
    )


def _insert_unless_there(target: Blocking, table: Table, values: dict[str, Any]) -> bool:
    """Insert the record; False if there is one already."""
    dialect = _dialect(target)
    match dialect.name:
        case "postgresql":
            on_postgresql = postgresql.insert(table).values(values).on_conflict_do_nothing()
            return target.execute(on_postgresql.returning(table.c.key)).first() is not None
        case "sqlite":
            on_sqlite = sqlite.insert(table).values(values).on_conflict_do_nothing()
            return target.execute(on_sqlite.returning(table.c.key)).first() is not None
        case "mysql" | "mariadb":
            return _insert_on_mysql(target, table, values)
    raise InvalidOptionError(
        f"idempotency supports PostgreSQL, MySQL, MariaDB and SQLite, not {dialect.name!r}"
    )


def _insert_on_mysql(target: Blocking, table: Table, values: dict[str, Any]) -> bool:
    """MySQL only undoes the statement that it refuses, so the transaction can continue.

    IGNORE would also ignore other errors, and the row count of an upsert does not tell.
    """
    try:
        target.execute(insert(table).values(values))
    except IntegrityError as error:
        if not is_duplicate_key(error):
            raise
        return False
    return True


def _dialect(target: Blocking) -> Dialect:
    return target.get_bind().dialect if isinstance(target, Session) else target.dialect


__all__ = ["DEFAULT_TTL_MS", "Once", "once"]
