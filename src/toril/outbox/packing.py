"""Which rows go to the server in which call.

Several calls are sent at once, and each may fail on its own.  So the rows of one lane travel in one
call: what comes first in it cannot be overtaken by what comes after.
"""

from __future__ import annotations

from toril.outbox.rows import OutboxRow
from toril.protocol.adding import MOST_BYTES_PER_CALL, MOST_JOBS_PER_CALL, Prepared


class Parcel:
    """The rows of one call, and their jobs."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.rows: list[OutboxRow] = []
        self.jobs: list[Prepared] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= MOST_JOBS_PER_CALL or self._bytes >= MOST_BYTES_PER_CALL

    def put(self, row: OutboxRow, job: Prepared) -> None:
        self.rows.append(row)
        self.jobs.append(job)
        self._bytes += len(job.data)


class Packing:
    """Fills parcels with rows that come in their order."""

    def __init__(self) -> None:
        self.parcels: list[Parcel] = []
        self._open: dict[str, Parcel] = {}
        self._lanes: dict[tuple[str, str], Parcel] = {}

    def put(self, row: OutboxRow, job: Prepared) -> bool:
        """False when the parcel of its lane is full: the row has to wait until that was sent."""
        if row.lane is None:
            self._parcel_for(row.queue).put(row, job)
            return True
        lane = (row.queue, row.lane)
        if lane not in self._lanes:
            self._lanes[lane] = self._parcel_for(row.queue)
        elif self._lanes[lane].is_full:
            return False
        self._lanes[lane].put(row, job)
        return True

    def _parcel_for(self, queue: str) -> Parcel:
        parcel = self._open.get(queue)
        if parcel is None or parcel.is_full:
            parcel = self._open[queue] = Parcel(queue)
            self.parcels.append(parcel)
        return parcel
