"""The relay's database operations: blocking functions of one connection.

On PostgreSQL and MySQL a claim is a row lock, which is released with the relay's connection when
the relay dies.  SQLite has no row locks, so a claim there is a lease in the row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Connection,
    FromClause,
    Integer,
    Select,
    Table,
    and_,
    delete,
    false,
    func,
    literal,
    literal_column,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.elements import ColumnElement

from toril.errors import InvalidOptionError
from toril.outbox.choosing import Choosing, Lane, Sight
from toril.outbox.rows import OutboxRow
from toril.outbox.schema import DISPATCHED, DONE, PARKED, PENDING, STATUSES
from toril.outbox.table import now_ms
from toril.sql import MYSQL

LONGEST_ERROR = 4000
_LARGEST_WINDOW = 16_000
_MOST_LEFT_OUT = 20


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


def has_row_locks(dialect_name: str) -> bool:
    return dialect_name != "sqlite"


def claim_pending(connection: Connection, table: Table, claim: Claim) -> list[OutboxRow]:
    """The next rows to dispatch, in order, and only those that are next in their lane.

    They are read in windows, without locks, and then claimed by their numbers: so a claim reads
    about as many rows as it takes, however long the lanes are.
    """
    _read_in_order(connection)
    _write_first(connection, table)
    choosing = Choosing(claim.limit)
    rows: list[OutboxRow] = []
    size, last = claim.limit, -1
    while choosing.rest > 0:
        left_out = choosing.in_the_way(_MOST_LEFT_OUT)
        window, stops = _look(connection, table, last, size, left_out, claim.halts)
        choosing.note_stops(stops)
        first = choosing.first(window)
        taken = _take(connection, table, claim, first)
        rows += [taken[seq] for seq in choosing.note_first(first, taken.keys())]
        following = choosing.following(window)
        taken = _take(connection, table, claim, following)
        rows += [taken[seq] for seq in choosing.note_following(following, taken.keys())]
        if len(window) < size:
            break
        last, size = window[-1].seq, min(size * 2, _LARGEST_WINDOW)
    return sorted(rows, key=lambda row: row.seq)


def _look(
    connection: Connection,
    table: Table,
    last: int,
    size: int,
    left_out: Sequence[Lane],
    halts: bool,
) -> tuple[list[Sight], dict[Lane, int]]:
    """The next pending rows, whether they can be claimed or not, and where lanes stop.

    In one statement: between two, a row that is parked or unparked could be missed by both, and be
    overtaken.
    """
    query = _next_pending(connection, table, last, size, left_out)
    if halts:
        query = union_all(select(query.subquery()), _first_parked(connection, table))
    found = connection.execute(query).all()
    window = sorted((Sight(*row[1:]) for row in found if not row[0]), key=lambda sight: sight.seq)
    return window, {(row[2], row[3]): row[1] for row in found if row[0]}


def _next_pending(
    connection: Connection, table: Table, last: int, size: int, left_out: Sequence[Lane]
) -> Any:
    now = now_ms(connection.dialect)
    is_ready = and_(table.c.due_at <= now, table.c.claimed_until <= now)
    if has_row_locks(connection.dialect.name):
        is_ready = table.c.due_at <= now
    columns = (_PENDING, table.c.seq, table.c.queue, table.c.lane, is_ready.label("is_ready"))
    query = select(*columns).where(table.c.status == PENDING, table.c.seq > last)
    for queue, lane in left_out:
        is_other = or_(table.c.lane.is_(None), table.c.lane != lane, table.c.queue != queue)
        if connection.dialect.name in MYSQL:  # it compares without spaces at the end
            is_other = or_(is_other, func.char_length(table.c.lane) != len(lane))
        query = query.where(is_other)
    query = query.order_by(table.c.seq).limit(size)
    return _by_index(query, table, table, ["status", "seq"], connection.dialect)


def _first_parked(connection: Connection, table: Table) -> Any:
    """The first parked row of each lane that has one: the lane stops there."""
    columns = (_PARKED, func.min(table.c.seq), table.c.queue, table.c.lane, false())
    query = select(*columns).where(table.c.status == PARKED, table.c.lane.is_not(None))
    query = _by_index(query, table, table, ["status", "seq"], connection.dialect)
    query = query.group_by(table.c.queue, table.c.lane)
    if connection.dialect.name in MYSQL:
        query = query.group_by(func.char_length(table.c.lane))
    return query


_PENDING: ColumnElement[int] = literal_column("0", Integer).label("is_parked")
_PARKED: ColumnElement[int] = literal_column("1", Integer).label("is_parked")


def _take(
    connection: Connection, table: Table, claim: Claim, sights: Sequence[Sight]
) -> dict[int, OutboxRow]:
    """Claim these rows, except those that somebody else has claimed or changed."""
    if not sights:
        return {}
    is_one = _is_one_of(connection, table, [sight.seq for sight in sights])
    is_due = table.c.due_at <= now_ms(connection.dialect)
    if not has_row_locks(connection.dialect.name):
        rows = _lease(connection, table, claim, is_one, table.c.status == PENDING, is_due)
        return {row.seq: row for row in rows}
    # Not by the status, whose indexes PostgreSQL may prefer; it is checked afterwards.
    query = _rows(table).where(is_one, is_due)
    if connection.dialect.name in MYSQL and list(table.primary_key) == [table.c.seq]:
        # It locks what it reads, and would read all of a small table.
        query = query.with_hint(table, "FORCE INDEX (PRIMARY)")
    locked = connection.execute(query.with_for_update(skip_locked=True, of=table))
    return {row.seq: row for row in _read(locked) if row.status == PENDING}


def _write_first(connection: Connection, table: Table) -> None:
    """Let SQLite start with a write: after a read, it cannot write if another has written since."""
    if not has_row_locks(connection.dialect.name):
        connection.execute(update(table).where(table.c.seq < 0).values(attempts=0))


def claim_dispatched(connection: Connection, table: Table, claim: Claim) -> list[OutboxRow]:
    """Rows whose jobs are due to be checked again."""
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
    """There is no room for the jobs of these rows yet; this does not count as an attempt."""
    due_at = now_ms(connection.dialect) + wait_ms
    _set(connection, table, seqs, PENDING, {"error": error[:LONGEST_ERROR], "due_at": due_at})


def let_go(connection: Connection, table: Table, seqs: Sequence[int], *, wait_ms: int = 0) -> None:
    """These rows were claimed but not dispatched, through no fault of their own."""
    values = {"due_at": now_ms(connection.dialect) + wait_ms} if wait_ms else {}
    _set(connection, table, seqs, PENDING, values)


def mark_done(connection: Connection, table: Table, seqs: Sequence[int]) -> None:
    """The jobs of these rows are finished."""
    _set(connection, table, seqs, DISPATCHED, {"status": DONE})


def look_again(connection: Connection, table: Table, seqs: Sequence[int], confirm_ms: int) -> None:
    """The jobs of these rows have not run yet."""
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


def discard(connection: Connection, table: Table, ids: Sequence[str], queue: str | None) -> int:
    """Delete parked rows with these job ids; without ``queue`` each id must be of one queue."""
    _write_first(connection, table)
    is_meant = and_(table.c.status == PARKED, table.c.id.in_(ids))
    if queue is not None:
        is_meant = and_(is_meant, table.c.queue == queue)
    query = select(table.c.seq, table.c.id, table.c.queue).where(is_meant)
    found = connection.execute(query).all()
    queues: dict[str, set[str]] = defaultdict(set)
    for _, job_id, name in found:
        queues[job_id].add(name)
    for job_id, names in queues.items():
        if len(names) > 1:
            raise InvalidOptionError(
                f"job id {job_id!r} is parked for the queues {', '.join(sorted(names))}; say which"
                f" is meant: relay.discard({job_id!r}, queue={min(names)!r})"
            )
    is_one = _is_one_of(connection, table, [row[0] for row in found])
    return connection.execute(delete(table).where(table.c.status == PARKED, is_one)).rowcount


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
    counts: Counter[str] = Counter()
    for status, count in connection.execute(query):
        counts[_word(status)] += count
    oldest = select(now_ms(connection.dialect) - func.min(table.c.created_at)).where(
        table.c.status == PENDING
    )
    lag_ms = connection.execute(oldest).scalar()
    known = {status: counts[status] for status in STATUSES}
    return OutboxStats(**known, lag_ms=max(0, int(lag_ms or 0)))


def _read_in_order(connection: Connection) -> None:
    """Make PostgreSQL walk the index until it has enough, for the rest of the transaction.

    Without statistics about a table that has just grown, it would read and sort all waiting rows
    for every batch.
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
        # MySQL locks what it reads, so it must not read everything in order to sort it. For a
        # small table it would, and one relay would hold all rows.
        query = _by_index(query, table, table, ["status", order], connection.dialect)
        query = query.with_for_update(skip_locked=True, of=table)
        return _read(connection.execute(query))
    now = now_ms(connection.dialect)
    free = select(table.c.seq).where(*conditions, table.c.claimed_until <= now)
    is_next = table.c.seq.in_(free.order_by(table.c[order]).limit(claim.limit))
    return _lease(connection, table, claim, is_next)


def _lease(
    connection: Connection, table: Table, claim: Claim, *conditions: ColumnElement[bool]
) -> list[OutboxRow]:
    now = now_ms(connection.dialect)
    statement = (
        update(table)
        .where(*conditions, table.c.claimed_until <= now)
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


def _set(
    connection: Connection,
    table: Table,
    seqs: Sequence[int],
    status: str,
    values: Mapping[str, Any],
) -> None:
    """Update rows that still have the status they were claimed with, and release them.

    Locked rows always have it, and a condition on it might make PostgreSQL use another index.
    """
    if not seqs:
        return
    statement = update(table).where(_is_one_of(connection, table, seqs))
    if not has_row_locks(connection.dialect.name):
        statement = statement.where(table.c.status == status)
    connection.execute(statement.values({**values, "claimed_by": None, "claimed_until": 0}))


def _is_one_of(connection: Connection, table: Table, seqs: Sequence[int]) -> ColumnElement[bool]:
    if connection.dialect.name == "postgresql":
        # One parameter, however many rows: a list would be expanded every time.
        return table.c.seq == func.any(literal(list(seqs), ARRAY(BigInteger)))
    return table.c.seq.in_(seqs)


def _columns(table: Table) -> list[Any]:
    return [table.c[name] for name in OutboxRow.__struct_fields__]


def _rows(table: Table) -> Select[Any]:
    return select(*_columns(table))


def _read(rows: Iterable[Any]) -> list[OutboxRow]:
    return [OutboxRow(*map(_as_text, OutboxRow.__struct_fields__, row)) for row in rows]


def _as_text(column: str, value: Any) -> Any:
    """SQLite returns as bytes what was written as bytes, as by Go, whatever the column is.

    Data that are not UTF-8 must not pass for other data, and are refused later.
    """
    if type(value) is bytes:
        value = value.decode("utf-8", "surrogateescape" if column == "data" else "replace")
    return _word(value) if column == "status" else value


def _word(status: str) -> str:
    """MySQL takes "PENDING" for "pending", and so must whoever reads what it found."""
    return status.rstrip().lower()
