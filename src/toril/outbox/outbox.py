"""The producer's side of the outbox."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from toril.checking import by_hand, by_hand_for, checked, shown
from toril.client.ids import new_job_id
from toril.errors import InvalidOptionError
from toril.options import OPTION_NAMES, FlowJob, JobOptions, NewJob
from toril.outbox.lines import Line, open_line
from toril.outbox.rows import values_of
from toril.outbox.schema import DEFAULT_NAME
from toril.outbox.starts import GroupOptions, values_of_flow, values_of_group
from toril.outbox.statements import WRITTEN, LaneOrder, Place, explained, statements_for
from toril.protocol.new_group import Compensation, GroupJob, GroupSignal

if TYPE_CHECKING:
    from sqlalchemy import Connection, MetaData, Table
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

    from toril.outbox import lines

    Async = (
        AsyncSession
        | AsyncConnection
        | lines.AsyncConnection
        | lines.AsyncCursor
        | lines.AsyncpgConnection
    )
    Blocking = Session | Connection | lines.BlockingConnection | lines.BlockingCursor

T = TypeVar("T")


@checked
class Outbox:
    """Writes jobs into a table, inside the transaction that they belong to.

    ``Outbox(metadata)`` defines the table there, for ``create_all`` or your migrations;
    ``Outbox(table)`` uses one of yours with the same columns.  ``Outbox()`` is for programs
    without SQLAlchemy: the table already exists, created with ``table_sql`` or by Django.

    If two transactions write to one lane at the same time, ``lane_order`` says which comes first:
    the one that wrote first, or with ``"commit"`` the one that committed first.  For that, the
    second waits until the first has ended (PostgreSQL; SQLite always does so).
    """

    def __init__(
        self,
        target: MetaData | Table | None = None,
        *,
        name: str = DEFAULT_NAME,
        schema: str | None = None,
        lane_order: LaneOrder = "write",
    ) -> None:
        if lane_order not in ("write", "commit"):
            raise InvalidOptionError(f"lane_order={lane_order!r} must be 'write' or 'commit'")
        columns: tuple[str, ...] = (*WRITTEN, "created_at")
        self._table: Table | None = None
        if target is not None:
            self._table = _table_of(target, name, schema)
            name, schema = self._table.name, self._table.schema
            columns = tuple(self._table.c[column].name for column in columns)
        self._place = Place(name, schema, columns, lane_order)

    def __repr__(self) -> str:
        return f"<Outbox {self._place.full_name!r}>"

    @property
    def table(self) -> Table:
        """The table as a SQLAlchemy ``Table``."""
        if self._table is None:
            from sqlalchemy import MetaData

            self._table = _table_of(MetaData(), self._place.name, self._place.schema)
        return self._table

    @property
    def channel(self) -> str:
        """The channel that PostgreSQL notifies when rows are committed."""
        return self._place.channel

    @overload
    def add(
        self,
        target: Async,
        queue: str,
        name: str,
        data: Any = None,
        **options: Unpack[JobOptions],
    ) -> Awaitable[str]: ...

    @overload
    def add(self, target: Async, queue: FlowJob) -> Awaitable[str]: ...

    @overload
    def add(
        self,
        target: Blocking,
        queue: str,
        name: str,
        data: Any = None,
        **options: Unpack[JobOptions],
    ) -> str: ...

    @overload
    def add(self, target: Blocking, queue: FlowJob) -> str: ...

    @by_hand
    def add(
        self,
        target: Blocking | Async,
        queue: str | FlowJob,
        name: str | None = None,
        data: Any = None,
        **options: Unpack[JobOptions],
    ) -> str | Awaitable[str]:
        """Write a job into the caller's transaction, and return the id that it will have.

        ``target`` is a SQLAlchemy session or connection, Django's connection, or a connection or
        cursor of a driver; if that is async, await the call.
        If the transaction is rolled back, the job never exists; if it commits, a relay enqueues it.
        Rows of one ``lane`` are enqueued in the order in which they were written.

        Instead of a queue and a name you can pass a call of a task:
        ``add(session, charge.call(1))``.
        """
        values = _values(queue, name, data, options)
        return self._write(target, [values], str(values["id"]))

    @overload
    def add_bulk(
        self, target: Async, queue: str, jobs: Iterable[NewJob]
    ) -> Awaitable[list[str]]: ...

    @overload
    def add_bulk(self, target: Blocking, queue: str, jobs: Iterable[NewJob]) -> list[str]: ...

    @by_hand_for("target")
    def add_bulk(
        self, target: Blocking | Async, queue: str, jobs: Iterable[NewJob]
    ) -> list[str] | Awaitable[list[str]]:
        """Write many jobs in a few statements, in order."""
        rows = [_values_of_job(queue, job) for job in jobs]
        return self._write(target, rows, [str(row["id"]) for row in rows])

    @overload
    def add_group(
        self,
        target: Async,
        name: str,
        jobs: Iterable[GroupJob | GroupSignal | FlowJob | Mapping[str, Any]],
        compensation: Mapping[str, Compensation | Mapping[str, Any]] | None = None,
        *,
        group_id: str | None = None,
        **options: Unpack[GroupOptions],
    ) -> Awaitable[str]: ...

    @overload
    def add_group(
        self,
        target: Blocking,
        name: str,
        jobs: Iterable[GroupJob | GroupSignal | FlowJob | Mapping[str, Any]],
        compensation: Mapping[str, Compensation | Mapping[str, Any]] | None = None,
        *,
        group_id: str | None = None,
        **options: Unpack[GroupOptions],
    ) -> str: ...

    @by_hand_for("target", "jobs", "compensation")
    def add_group(
        self,
        target: Blocking | Async,
        name: str,
        jobs: Iterable[GroupJob | GroupSignal | FlowJob | Mapping[str, Any]],
        compensation: Mapping[str, Compensation | Mapping[str, Any]] | None = None,
        *,
        group_id: str | None = None,
        **options: Unpack[GroupOptions],
    ) -> str | Awaitable[str]:
        """Start a group in the caller's transaction, and return the id that it will have.

        Takes what ``FlowProducer.add_group`` takes.  A row that is relayed twice starts one group,
        and so do two rows with the same ``group_id``.
        """
        chosen = str(uuid.uuid4()) if group_id is None else group_id
        values = values_of_group(name, jobs, compensation, options, chosen)
        return self._write(target, [values], chosen)

    @overload
    def add_flow(self, target: Async, flow: FlowJob) -> Awaitable[str]: ...

    @overload
    def add_flow(self, target: Blocking, flow: FlowJob) -> str: ...

    @by_hand_for("target")
    def add_flow(self, target: Blocking | Async, flow: FlowJob) -> str | Awaitable[str]:
        """Start a flow in the caller's transaction, and return the id that its root will have."""
        values = values_of_flow(flow, new_job_id())
        return self._write(target, [values], str(values["id"]))

    def _write(self, target: Any, rows: Sequence[dict[str, Any]], answer: T) -> T | Awaitable[T]:
        """Write ``rows``, and return ``answer``; on an async connection, when awaited."""
        line = open_line(target, lambda: self.table)
        if not isinstance(line, Line):
            return self._write_async(line, rows, answer)
        place = self._place_on(line)
        for statement in statements_for(place, line.dialect, rows):
            with explained(place, rows):
                line.run(statement)
        return answer

    async def _write_async(
        self, opening: Awaitable[Line], rows: Sequence[dict[str, Any]], answer: T
    ) -> T:
        line = await opening
        place = self._place_on(line)
        for statement in statements_for(place, line.dialect, rows):
            with explained(place, rows):
                await line.run(statement)
        return answer

    def _place_on(self, line: Line) -> Place:
        place = self._place
        schema = line.schema_of(place.schema)
        if schema == place.schema:
            return place
        return Place(place.name, schema, place.columns, place.lane_order)


def _table_of(target: MetaData | Table, name: str, schema: str | None) -> Table:
    from sqlalchemy import Table

    from toril.outbox.table import check_table, outbox_table

    if isinstance(target, Table):
        return check_table(target)
    return outbox_table(target, name, schema=schema)


def _values(
    queue: str | FlowJob, name: str | None, data: Any, options: Mapping[str, Any]
) -> dict[str, Any]:
    if isinstance(queue, FlowJob):
        if name is not None or data is not None or options:
            raise InvalidOptionError(
                f"{queue.name!r} already has a name, data and options; do not pass others"
            )
        if queue.children:
            raise InvalidOptionError(f"{queue.name!r} has children; use outbox.add_flow(…)")
        return _values_of_job(queue.queue_name, queue)
    if name is None:
        raise InvalidOptionError(f"a job for queue {queue!r} needs a name")
    return values_of(queue, name, data, options, generated_id=new_job_id())


def _values_of_job(queue: str, job: NewJob) -> dict[str, Any]:
    if not isinstance(job, NewJob):
        raise InvalidOptionError(f"{shown(job)} is not a NewJob; write NewJob(name, data, …)")
    options: Mapping[str, Any] = {
        name: value for name in OPTION_NAMES if (value := getattr(job, name)) is not None
    }
    return values_of(queue, job.name, job.data, options, generated_id=new_job_id())
