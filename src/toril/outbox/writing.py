"""How rows get into the outbox: one statement per batch, compiled once.

On PostgreSQL the columns travel as arrays, so that the statement is the same for one row and for a
thousand; elsewhere the driver repeats one statement for all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    Connection,
    Table,
    Text,
    bindparam,
    column,
    func,
    insert,
    literal,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from toril.errors import DuplicateRowError, InvalidOptionError
from toril.outbox.table import now_ms
from toril.sql import MYSQL

ROWS_PER_STATEMENT = 1000
WRITTEN = ("id", "queue", "name", "data", "options", "lane", "key")

Blocking = Session | Connection
LaneOrder = Literal["write", "commit"]


class Writing:
    """Writes rows of one table inside transactions of others."""

    def __init__(self, table: Table, channel: str, lane_order: LaneOrder) -> None:
        self._table = table
        self._channel = channel
        self._lane_order = lane_order
        self._statements: dict[str, Any] = {}

    def write(self, target: Blocking, rows: Sequence[dict[str, Any]]) -> None:
        """Insert ``rows``, whose numbers are in their order."""
        dialect = target.get_bind().dialect if isinstance(target, Session) else target.dialect
        if self._lane_order == "commit":
            self._hold_lanes(target, dialect, rows)
        for start in range(0, len(rows), ROWS_PER_STATEMENT):
            part = rows[start : start + ROWS_PER_STATEMENT]
            try:
                self._insert(target, dialect, part)
            except IntegrityError as error:
                if self._is_of_the_version_before(error):
                    raise self._explain(part) from error
                raise

    def _insert(self, target: Blocking, dialect: Dialect, rows: Sequence[dict[str, Any]]) -> None:
        if dialect.name == "postgresql":
            arrays: dict[str, Any] = {name: [row[name] for row in rows] for name in WRITTEN}
            target.execute(self._statement(dialect, "arrays"), arrays)
        elif len(rows) > 1 and dialect.name in MYSQL:
            # Its drivers send many rows as one statement only where all values are parameters.
            now = target.execute(select(now_ms(dialect))).scalar()
            many: list[dict[str, Any]] = [{**row, "created_at": now} for row in rows]
            target.execute(self._statement(dialect, "plain"), many)
        else:
            target.execute(self._statement(dialect, "dated"), list(rows))

    def _statement(self, dialect: Dialect, kind: str) -> Any:
        if kind not in self._statements:
            self._statements[kind] = self._make_statement(dialect, kind)
        return self._statements[kind]

    def _make_statement(self, dialect: Dialect, kind: str) -> Any:
        match kind:
            case "arrays":
                return _insert_arrays(self._table, self._channel, dialect)
            case "dated":
                return insert(self._table).values(created_at=now_ms(dialect))
        return insert(self._table)

    # ------------------------------------------------------------------ the order of lanes

    def _hold_lanes(
        self, target: Blocking, dialect: Dialect, rows: Sequence[dict[str, Any]]
    ) -> None:
        """Let nobody else write to these lanes until this transaction has ended."""
        lanes = {f"{row['queue']}:{row['lane']}" for row in rows if row["lane"] is not None}
        # SQLite has one writer at a time, whatever it writes to.
        if not lanes or dialect.name == "sqlite":
            return
        if dialect.name != "postgresql":
            raise InvalidOptionError(
                f"lane_order='commit' is for PostgreSQL and SQLite: {dialect.name} has no lock of a"
                f" name that ends with the transaction; use lane_order='write'"
            )
        names = [f"{self._table.fullname}:{lane}" for lane in lanes]
        target.execute(_LOCK_LANES, {"names": names})

    # ------------------------------------------------------------------ the version before

    def _is_of_the_version_before(self, error: IntegrityError) -> bool:
        name = self._table.name
        text = str(error.orig)
        return self._old_constraint in text or f"{name}.queue, {name}.id" in text

    @property
    def _old_constraint(self) -> str:
        return f"uq_{self._table.name}_queue_id"

    def _explain(self, rows: Sequence[dict[str, Any]]) -> DuplicateRowError:
        ids = ", ".join(repr(row["id"]) for row in rows[:3])
        return DuplicateRowError(
            f"a row of job id {ids} is in table {self._table.fullname!r} already, which still has"
            f" the constraint of an earlier version, one row for each id; drop"
            f" {self._old_constraint}, as the guide of the outbox shows"
        )


def _insert_arrays(table: Table, channel: str, dialect: Dialect) -> Any:
    """Insert what arrays hold, in their order, and tell the relays when it is committed."""
    arrays = [bindparam(name, type_=ARRAY(Text)) for name in WRITTEN]
    names = [column(name, Text) for name in WRITTEN]
    given = func.unnest(*arrays).table_valued(*names, with_ordinality="n", name="given")
    rows = given.render_derived()
    source = select(*(rows.c[name] for name in WRITTEN), now_ms(dialect)).order_by(rows.c.n)
    written = insert(table).from_select([*WRITTEN, "created_at"], source).cte("written")
    # Not for every row, which RETURNING would mean. A statement in WITH runs whoever reads of it.
    return select(func.pg_notify(channel, "")).add_cte(written)


def _lock_lanes() -> Any:
    """The same order everywhere, so that two transactions with the same lanes do not deadlock."""
    name = func.unnest(bindparam("names", type_=ARRAY(Text))).table_valued(
        column("name", Text), name="lane"
    )
    number = func.hashtextextended(name.render_derived().c.name, literal(0, BigInteger))
    numbers = select(number.label("number")).distinct().order_by("number").subquery()
    return select(func.pg_advisory_xact_lock(numbers.c.number))


_LOCK_LANES = _lock_lanes()
