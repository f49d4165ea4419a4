"""How rows get into the outbox: the SQL for each family of databases and each parameter style.

One statement per batch.  On PostgreSQL the columns are sent as arrays, so that the statement is the
same for one row and for a thousand, and a commit wakes the relays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import msgspec

from toril.errors import DuplicateRowError, InvalidOptionError
from toril.outbox.schema import family_of, now_sql, quoted

ROWS_PER_STATEMENT = 1000
MOST_CHARACTERS = 1_000_000
"""Of data and options in one statement: servers refuse long ones, MariaDB above 16 MB."""

WRITTEN = ("id", "queue", "name", "data", "options", "lane", "key")

LaneOrder = Literal["write", "commit"]
Row = Mapping[str, Any]


class Statement(msgspec.Struct, frozen=True):
    """SQL and its parameters; with ``is_many`` they are a list of rows, and it is run for each."""

    text: str
    parameters: Sequence[Any]
    is_many: bool = False


class Place(msgspec.Struct, frozen=True):
    """Where rows are written: the table, and what its columns are called there."""

    name: str
    schema: str | None
    columns: tuple[str, ...]
    """The names of ``WRITTEN`` and of ``created_at``."""
    lane_order: LaneOrder

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name

    @property
    def channel(self) -> str:
        """The channel that PostgreSQL notifies when rows are committed."""
        return f"{self.name}_wakes"


class Dialect(msgspec.Struct, frozen=True):
    """A family of databases, and how a driver wants parameters marked: ``?``, ``%s``, ``$1``."""

    family: str
    paramstyle: str

    @classmethod
    def of(cls, name: str, paramstyle: str) -> Dialect:
        return cls(family_of(name), paramstyle)

    def quoted(self, *names: str | None) -> str:
        words = quoted(self.family, *names)
        return words.replace("%", "%%") if self.paramstyle in ("format", "pyformat") else words

    def mark(self, number: int) -> str:
        match self.paramstyle:
            case "qmark":
                return "?"
            case "numeric_dollar":
                return f"${number}"
            case "numeric":
                return f":{number}"
            case "format" | "pyformat":
                return "%s"
        raise InvalidOptionError(
            f"the outbox does not support parameters of style {self.paramstyle!r}"
        )


def statements_for(place: Place, dialect: Dialect, rows: Sequence[Row]) -> Iterator[Statement]:
    """The statements to run, in order, so that ``rows`` enter the table in their order."""
    if place.lane_order == "commit":
        yield from _hold_lanes(place, dialect, rows)
    insert = _INSERTS[dialect.family]
    for part in _parts(rows):
        yield insert(place, dialect, part)


def _parts(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    start = size = 0
    for index, row in enumerate(rows):
        length = len(row["data"]) + len(row["options"])
        is_full = index - start == ROWS_PER_STATEMENT or size + length > MOST_CHARACTERS
        if is_full and index > start:
            yield rows[start:index]
            start, size = index, 0
        size += length
    if start < len(rows):
        yield rows[start:]


# ---------------------------------------------------------------------------- inserting


def _into(place: Place, dialect: Dialect) -> str:
    columns = ", ".join(map(dialect.quoted, place.columns))
    return f"INSERT INTO {dialect.quoted(place.schema, place.name)} ({columns})"


def _insert_arrays(place: Place, dialect: Dialect, rows: Sequence[Row]) -> Statement:
    """Insert the contents of arrays, in order, and notify the relays at the commit."""
    arrays = ", ".join(f"CAST({dialect.mark(n)} AS text[])" for n in range(1, len(WRITTEN) + 1))
    names = ", ".join(map(dialect.quoted, WRITTEN))
    channel = f"CAST({dialect.mark(len(WRITTEN) + 1)} AS text)"
    # With RETURNING it would notify once per row. A statement in WITH runs even if nothing reads
    # from it.
    text = (
        f"WITH written AS ({_into(place, dialect)}"
        f" SELECT {names}, {now_sql(dialect.family)}"
        f" FROM unnest({arrays}) WITH ORDINALITY AS given({names}, n) ORDER BY given.n)"
        f" SELECT pg_notify({channel}, '')"
    )
    columns = [[row[name] for row in rows] for name in WRITTEN]
    return Statement(text, (*columns, place.channel))


def _insert_values(place: Place, dialect: Dialect, rows: Sequence[Row]) -> Statement:
    """All rows in one statement: not every MySQL driver combines many into one by itself."""
    width = len(WRITTEN)
    values = ", ".join(_values(dialect, start) for start in range(1, len(rows) * width + 1, width))
    parameters = tuple(row[name] for row in rows for name in WRITTEN)
    return Statement(f"{_into(place, dialect)} VALUES {values}", parameters)


def _insert_each(place: Place, dialect: Dialect, rows: Sequence[Row]) -> Statement:
    """SQLite runs one statement many times without a round trip, and limits its parameters."""
    parameters = [tuple(row[name] for name in WRITTEN) for row in rows]
    return Statement(
        f"{_into(place, dialect)} VALUES {_values(dialect, 1)}", parameters, is_many=True
    )


def _values(dialect: Dialect, start: int) -> str:
    marks = ", ".join(dialect.mark(start + n) for n in range(len(WRITTEN)))
    return f"({marks}, {now_sql(dialect.family)})"


_INSERTS: dict[str, Callable[[Place, Dialect, Sequence[Row]], Statement]] = {
    "postgresql": _insert_arrays,
    "mysql": _insert_values,
    "sqlite": _insert_each,
}


# ---------------------------------------------------------------------------- the order of lanes


def _hold_lanes(place: Place, dialect: Dialect, rows: Sequence[Row]) -> Iterator[Statement]:
    """Let nobody else write to these lanes until this transaction has ended."""
    lanes = {f"{row['queue']}:{row['lane']}" for row in rows if row["lane"] is not None}
    # SQLite has one writer at a time, whatever it writes to.
    if not lanes or dialect.family == "sqlite":
        return
    if dialect.family != "postgresql":
        raise InvalidOptionError(
            "lane_order='commit' is for PostgreSQL and SQLite: MariaDB and MySQL have no named"
            " lock that ends with the transaction; use lane_order='write'"
        )
    # The same order everywhere, so that two transactions with the same lanes do not deadlock.
    text = (
        "SELECT pg_advisory_xact_lock(numbers.number) FROM (SELECT DISTINCT"
        " hashtextextended(lane.name, 0) AS number"
        f" FROM unnest(CAST({dialect.mark(1)} AS text[])) AS lane(name) ORDER BY number)"
        " AS numbers"
    )
    yield Statement(text, ([f"{place.full_name}:{lane}" for lane in sorted(lanes)],))


# ---------------------------------------------------------------------------- the version before


@contextmanager
def explained(place: Place, rows: Sequence[Row]) -> Iterator[None]:
    """Say what to do if the table is that of an earlier version."""
    try:
        yield
    except Exception as error:
        constraint = f"uq_{place.name}_queue_id"
        # SQLAlchemy's own message also shows the parameters, which may contain anything.
        words = str(getattr(error, "orig", error))
        if constraint not in words and f"{place.name}.queue, {place.name}.id" not in words:
            raise
        ids = ", ".join(repr(row["id"]) for row in rows[:3])
        raise DuplicateRowError(
            f"a row of job id {ids} is in table {place.full_name!r} already, which still has the"
            f" constraint of an earlier version, one row for each id; drop {constraint}, as the"
            f" guide of the outbox shows"
        ) from error
