"""What the relay asks of the database: blocking functions of one connection.

PostgreSQL and MySQL hold a claimed row by its row lock, which goes with the relay's connection when
the relay dies.  SQLite has no row locks, so a claim there is a lease in the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Connection,
    FromClause,
    Select,
    Table,
    and_,
    delete,
    func,
    literal,
    not_,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.elements import ColumnElement

from toril.outbox.rows import OutboxRow
from toril.outbox.schema import DISPATCHED, DONE, PARKED, PENDING, STATUSES
from toril.outbox.table import now_ms
from toril.sql import MYSQL

LONGEST_ERROR = 4000


class OutboxStats(msgspec.Struct, frozen=True, kw_only=True):
    """How the outbox is doing: rows by status, and how long the oldest pending one has waited."""

    pending: int = 0
    dispatched: int = 0
    done: int = 0
    parked: int = 0
    lag_ms: int = 0


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Who claims, how many rows, on SQLite for how long, and whether parked rows stop a lane."""

    relay: str
    limit: int
    lease_ms: int
    halts: bool = True

    @property
    def stopping(self) -> tuple[str, ...]:
        """What a row has to be so that its lane does not go on behind it."""
        return (PENDING, PARKED) if self.halts else (PENDING,)


def has_row_locks(dialect_name: str) -> bool:
    return dialect_name != "sqlite"


def claim_pending(connection: Connection, table: Table, claim: Claim) -> list[OutboxRow]:
    """The next rows to dispatch, in order, and of each lane only what is next in it."""
    _read_in_order(connection)
    now = now_ms(connection.dialect)
    is_head = _is_head(table, connection.dialect, claim)
    heads = _claim(connection, table, claim, _is_due(table, now), is_head)
    lanes = {(row.queue, row.lane) for row in heads if row.lane is not None}
    rest = claim.limit - len(heads)
    if not lanes or rest <= 0:
        return heads
    # Whoever holds the head of a lane holds the lane: nobody else claims what comes after it.
    in_lanes = or_(*(and_(table.c.queue == q, table.c.lane == lane) for q, lane in lanes))
    is_reachable = _is_before_what_waits(connection, table, in_lanes, now, claim)
    more = msgspec.structs.replace(claim, limit=rest)
    known = {row.seq for row in heads}
    is_new = table.c.seq.not_in(known)
    rows = _claim(connection, table, more, _is_due(table, now), in_lanes, is_reachable, is_new)
    if rows and has_row_locks(connection.dialect.name):
        rows = _without_gaps(connection, table, in_lanes, known, rows)
    return sorted([*heads, *rows], key=lambda row: row.seq)


def _is_before_what_waits(
    connection: Connection,
    table: Table,
    in_lanes: ColumnElement[bool],
    now: ColumnElement[int],
    claim: Claim,
) -> ColumnElement[bool]:
    """Behind a row that is parked or whose time has not come a lane does not go on.

    Asked once per lane: asked of every row, a long lane would take the square of its length.
    """
    is_parked = table.c.status == PARKED
    waits = or_(table.c.due_at > now, is_parked) if claim.halts else table.c.due_at > now
    query = select(table.c.queue, table.c.lane, func.min(table.c.seq)).where(
        in_lanes, table.c.status.in_(claim.stopping), waits
    )
    waiting = connection.execute(query.group_by(table.c.queue, table.c.lane)).all()
    is_behind = [
        and_(table.c.queue == queue, table.c.lane == lane, table.c.seq > seq)
        for queue, lane, seq in waiting
    ]
    return not_(or_(*is_behind)) if is_behind else true()


def _without_gaps(
    connection: Connection,
    table: Table,
    in_lanes: ColumnElement[bool],
    known: set[int],
    rows: list[OutboxRow],
) -> list[OutboxRow]:
    """Of each lane only what follows on what was claimed.

    A row in the middle may have been passed over: MySQL locks what it looks at for a moment, and
    somebody may be mending a row by hand.
    """
    claimed = known | {row.seq for row in rows}
    is_before_last = table.c.seq < rows[-1].seq
    query = select(table.c.queue, table.c.lane, func.min(table.c.seq)).where(
        in_lanes, table.c.status == PENDING, is_before_last, table.c.seq.not_in(claimed)
    )
    passed_over = connection.execute(query.group_by(table.c.queue, table.c.lane))
    gaps: dict[tuple[str, str], int] = {(queue, lane): seq for queue, lane, seq in passed_over}
    return [row for row in rows if row.seq < gaps.get((row.queue, row.lane or ""), row.seq + 1)]


def claim_dispatched(connection: Connection, table: Table, claim: Claim) -> list[OutboxRow]:
    """Rows whose jobs are to be looked at again."""
    _read_in_order(connection)
    is_due = table.c.due_at <= now_ms(connection.dialect)
    is_dispatched = table.c.status == DISPATCHED
    return _claim(connection, table, claim, is_dispatched, is_due, order="due_at")


def mark_dispatched(
    connection: Connection, table: Table, seqs: Sequence[int], confirm_ms: int
) -> None:
    """The jobs of these rows are in their queues."""
    now = now_ms(connection.dialect)
    _set(
        connection,
        table,
        seqs,
        PENDING,
        {"status": DISPATCHED, "dispatched_at": now, "due_at": now + confirm_ms, "error": None},
    )


def put_off(
    connection: Connection, table: Table, seq: int, *, error: str, wait_ms: int, parks: bool
) -> None:
    """A row could not be dispatched: try again later, or never."""
    values = {
        "attempts": table.c.attempts + 1,
        "error": error[:LONGEST_ERROR],
        "due_at": now_ms(connection.dialect) + wait_ms,
    }
    if parks:
        values["status"] = PARKED
    _set(connection, table, [seq], PENDING, values)


def let_wait(
    connection: Connection, table: Table, seqs: Sequence[int], *, error: str, wait_ms: int
) -> None:
    """There is no room for the jobs of these rows yet; that counts as no attempt."""
    due_at = now_ms(connection.dialect) + wait_ms
    _set(connection, table, seqs, PENDING, {"error": error[:LONGEST_ERROR], "due_at": due_at})


def let_go(connection: Connection, table: Table, seqs: Sequence[int], *, wait_ms: int = 0) -> None:
    """Nothing came of the claim of these rows, through no fault of theirs."""
    values = {"due_at": now_ms(connection.dialect) + wait_ms} if wait_ms else {}
    _set(connection, table, seqs, PENDING, values)


def mark_done(connection: Connection, table: Table, seqs: Sequence[int]) -> None:
    """The jobs of these rows are finished."""
    _set(connection, table, seqs, DISPATCHED, {"status": DONE})


def look_again(connection: Connection, table: Table, seqs: Sequence[int], confirm_ms: int) -> None:
    """The jobs of these rows are still to run."""
    due_at = now_ms(connection.dialect) + confirm_ms
    _set(connection, table, seqs, DISPATCHED, {"due_at": due_at})


def dispatch_again(connection: Connection, table: Table, seqs: Sequence[int]) -> None:
    """The server lost the jobs of these rows."""
    values = {"status": PENDING, "due_at": 0, "attempts": 0}
    _set(connection, table, seqs, DISPATCHED, values)


def unpark(connection: Connection, table: Table, ids: Sequence[str]) -> int:
    """Give parked rows another chance: those with these job ids, or all."""
    statement = (
        update(table)
        .where(table.c.status == PARKED)
        .values(status=PENDING, attempts=0, due_at=0, error=None)
    )
    if ids:
        statement = statement.where(table.c.id.in_(ids))
    return connection.execute(statement).rowcount


def discard(connection: Connection, table: Table, ids: Sequence[str]) -> int:
    """Delete parked rows with these job ids."""
    statement = delete(table).where(table.c.status == PARKED, table.c.id.in_(ids))
    return connection.execute(statement).rowcount


def get_parked(connection: Connection, table: Table, limit: int) -> list[OutboxRow]:
    """Parked rows, the oldest first."""
    query = _rows(table).where(table.c.status == PARKED).order_by(table.c.seq).limit(limit)
    return _read(connection.execute(query))


def prune(
    connection: Connection, table: Table, statuses: Sequence[str], *, keep_ms: int, limit: int
) -> int:
    """Delete rows with one of ``statuses`` whose jobs were dispatched long ago."""
    is_old = table.c.dispatched_at <= now_ms(connection.dialect) - keep_ms
    query = select(table.c.seq).where(table.c.status.in_(statuses), is_old).limit(limit)
    if has_row_locks(connection.dialect.name):
        query = query.with_for_update(skip_locked=True, of=table)
    seqs = list(connection.execute(query).scalars())
    if not seqs:
        return 0
    return connection.execute(delete(table).where(table.c.seq.in_(seqs))).rowcount


def stats(connection: Connection, table: Table, statuses: Sequence[str] = STATUSES) -> OutboxStats:
    """How many rows have each of these statuses, and the age of the oldest pending one."""
    is_wanted = table.c.status.in_(statuses)
    query = select(table.c.status, func.count()).where(is_wanted).group_by(table.c.status)
    counts: dict[str, int] = {row[0]: row[1] for row in connection.execute(query)}
    oldest = select(now_ms(connection.dialect) - func.min(table.c.created_at)).where(
        table.c.status == PENDING
    )
    lag_ms = connection.execute(oldest).scalar()
    return OutboxStats(**counts, lag_ms=max(0, int(lag_ms or 0)))


def _read_in_order(connection: Connection) -> None:
    """Let PostgreSQL walk along the index until it has enough, for the rest of the transaction.

    While it knows nothing of a table that has just grown, it would read and sort all that waits for
    every batch.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(_READ_IN_ORDER)


_READ_IN_ORDER = select(
    *(func.set_config(f"enable_{way}", "off", True) for way in ("sort", "bitmapscan", "seqscan"))
)


def _claim(
    connection: Connection,
    table: Table,
    claim: Claim,
    *conditions: ColumnElement[bool],
    order: str = "seq",
) -> list[OutboxRow]:
    if has_row_locks(connection.dialect.name):
        query = _rows(table).where(*conditions).order_by(table.c[order]).limit(claim.limit)
        # MySQL locks what it reads, so it must not read everything in order to sort it. It would
        # for a small table, and one relay would hold all rows.
        query = _by_index(query, table, table, ["status", order], connection.dialect)
        query = query.with_for_update(skip_locked=True, of=table)
        return _read(connection.execute(query))
    now = now_ms(connection.dialect)
    free = select(table.c.seq).where(*conditions, table.c.claimed_until <= now)
    statement = (
        update(table)
        .where(table.c.seq.in_(free.order_by(table.c[order]).limit(claim.limit)))
        .values(claimed_by=claim.relay, claimed_until=now + claim.lease_ms)
        .returning(*_columns(table))
    )
    return sorted(_read(connection.execute(statement)), key=lambda row: row.seq)


def _by_index(
    query: Select[Any],
    table: Table,
    alias: FromClause,
    columns: list[str],
    dialect: Dialect,
) -> Select[Any]:
    """Tell MySQL to read ``alias`` by the index of ``columns``: it often chooses another one."""
    if dialect.name not in MYSQL:
        return query
    for index in table.indexes:
        if index.name and [column.name for column in index.columns] == columns:
            name = dialect.identifier_preparer.quote(index.name)
            return query.with_hint(alias, f"FORCE INDEX ({name})")
    return query


def _is_due(table: Table, now: ColumnElement[int]) -> ColumnElement[bool]:
    return and_(table.c.status == PENDING, table.c.due_at <= now)


def _is_head(table: Table, dialect: Dialect, claim: Claim) -> ColumnElement[bool]:
    # Each status is asked for on its own: for a list of them MariaDB reads the whole lane.
    are_none = [~_has_earlier(table, dialect, status) for status in claim.stopping]
    return or_(table.c.lane.is_(None), and_(*are_none))


def _has_earlier(table: Table, dialect: Dialect, status: str) -> ColumnElement[bool]:
    """Is there an earlier row of the same lane with this status?"""
    earlier = table.alias("earlier")
    query = select(literal(1)).where(
        earlier.c.lane == table.c.lane,
        earlier.c.queue == table.c.queue,
        earlier.c.status == status,
        earlier.c.seq < table.c.seq,
    )
    # By any other index every row is compared with all that the queue ever had.
    query = _by_index(query, table, earlier, ["lane", "queue", "status", "seq"], dialect)
    return query.correlate(table).exists()


def _set(
    connection: Connection,
    table: Table,
    seqs: Sequence[int],
    status: str,
    values: Mapping[str, Any],
) -> None:
    """Write to rows that still have the status they were claimed with, and let them go."""
    if not seqs:
        return
    is_one: ColumnElement[bool] = table.c.seq.in_(seqs)
    if connection.dialect.name == "postgresql":
        # One parameter, however many rows: a list of them would be written out each time.
        is_one = table.c.seq == func.any(literal(list(seqs), ARRAY(BigInteger)))
    statement = update(table).where(is_one, table.c.status == status)
    connection.execute(statement.values({**values, "claimed_by": None, "claimed_until": 0}))


def _columns(table: Table) -> list[Any]:
    return [table.c[name] for name in OutboxRow.__struct_fields__]


def _rows(table: Table) -> Select[Any]:
    return select(*_columns(table))


def _read(rows: Iterable[Any]) -> list[OutboxRow]:
    return [OutboxRow(*row) for row in rows]
