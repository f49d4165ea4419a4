"""The producer's side of the outbox."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Unpack, overload

from sqlalchemy import Connection, MetaData, Table
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from toril.checking import by_hand, checked
from toril.client.ids import new_job_id
from toril.errors import InvalidOptionError
from toril.options import OPTION_NAMES, FlowJob, JobOptions, NewJob
from toril.outbox.rows import values_of
from toril.outbox.table import DEFAULT_NAME, check_table, outbox_table
from toril.outbox.writing import Blocking, LaneOrder, Writing

Async = AsyncSession | AsyncConnection


@checked
class Outbox:
    """Writes jobs into a table, inside the transaction that they belong to.

    ``Outbox(metadata)`` defines the table there, for ``create_all`` or your migrations;
    ``Outbox(table)`` takes one of yours with the same columns.

    ``lane_order`` says which of two transactions that write to one lane at the same time comes
    first: the one that wrote first, or with ``"commit"`` the one that committed first.  For that
    the second waits until the first has ended (PostgreSQL; SQLite always does so).
    """

    def __init__(
        self,
        target: MetaData | Table,
        *,
        name: str = DEFAULT_NAME,
        schema: str | None = None,
        lane_order: LaneOrder = "write",
    ) -> None:
        if lane_order not in ("write", "commit"):
            raise InvalidOptionError(f"lane_order={lane_order!r} must be 'write' or 'commit'")
        if isinstance(target, Table):
            self.table = check_table(target)
        else:
            self.table = outbox_table(target, name, schema=schema)
        self.channel = f"{self.table.name}_wakes"
        self._writing = Writing(self.table, self.channel, lane_order)

    def __repr__(self) -> str:
        return f"<Outbox {self.table.fullname!r}>"

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

        Rolled back, the job never exists; committed, it is enqueued by a relay.  With an async
        session or connection the call is to be awaited.  Rows of one ``lane`` are enqueued in
        the order in which they were written.

        In place of a queue and a name a call of a task will do: ``add(session, charge.call(1))``.
        """
        values = _values(queue, name, data, options)
        if isinstance(target, AsyncSession | AsyncConnection):
            return self._add_async(target, values)
        self._writing.write(_blocking(target), [values])
        return str(values["id"])

    async def _add_async(self, target: Async, values: dict[str, Any]) -> str:
        await target.run_sync(lambda blocking: self._writing.write(blocking, [values]))
        return str(values["id"])

    @overload
    def add_bulk(self, target: Blocking, queue: str, jobs: Iterable[NewJob]) -> list[str]: ...

    @overload
    def add_bulk(
        self, target: Async, queue: str, jobs: Iterable[NewJob]
    ) -> Awaitable[list[str]]: ...

    def add_bulk(
        self, target: Blocking | Async, queue: str, jobs: Iterable[NewJob]
    ) -> list[str] | Awaitable[list[str]]:
        """Write many jobs in a few statements, in their order."""
        rows = [_values_of_job(queue, job) for job in jobs]
        if isinstance(target, AsyncSession | AsyncConnection):
            return self._add_bulk_async(target, rows)
        self._writing.write(_blocking(target), rows)
        return [str(row["id"]) for row in rows]

    async def _add_bulk_async(self, target: Async, rows: list[dict[str, Any]]) -> list[str]:
        await target.run_sync(lambda blocking: self._writing.write(blocking, rows))
        return [str(row["id"]) for row in rows]


def _values(
    queue: str | FlowJob, name: str | None, data: Any, options: Mapping[str, Any]
) -> dict[str, Any]:
    if isinstance(queue, FlowJob):
        if name is not None or data is not None or options:
            raise InvalidOptionError(
                f"{queue.name!r} brings its name, its data and its options along; give no others"
            )
        if queue.children:
            raise InvalidOptionError(f"{queue.name!r} has children; the outbox takes single jobs")
        return _values_of_job(queue.queue_name, queue)
    if name is None:
        raise InvalidOptionError(f"a job for queue {queue!r} needs a name")
    return values_of(queue, name, data, options, generated_id=new_job_id())


def _values_of_job(queue: str, job: NewJob) -> dict[str, Any]:
    options: Mapping[str, Any] = {
        name: value for name in OPTION_NAMES if (value := getattr(job, name)) is not None
    }
    return values_of(queue, job.name, job.data, options, generated_id=new_job_id())


def _blocking(target: object) -> Blocking:
    if not isinstance(target, Session | Connection):
        raise InvalidOptionError(
            f"{target!r} is no session or connection of SQLAlchemy; pass the one whose transaction"
            f" the job belongs to"
        )
    return target
