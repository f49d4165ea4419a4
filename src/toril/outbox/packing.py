"""Which rows go to the server in which call.

Several calls are sent at once, and each may fail on its own.  If the rows of a lane need more than
one call, each call names the last row before it, so that no row of a lane can overtake an earlier
one.
"""

from __future__ import annotations

from toril.outbox.rows import OutboxRow
from toril.protocol.adding import MOST_BYTES_PER_CALL, MOST_JOBS_PER_CALL, Prepared


class Parcel:
    """The rows of one call, their jobs, and the jobs of other calls that must go before them."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.rows: list[OutboxRow] = []
        self.jobs: list[Prepared] = []
        self.behind: list[Prepared] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= MOST_JOBS_PER_CALL or self._bytes >= MOST_BYTES_PER_CALL

    def put(self, row: OutboxRow, job: Prepared) -> None:
        self.rows.append(row)
        self.jobs.append(job)
        self._bytes += len(job.data)


class Packing:
    """Fills parcels with rows that come in order."""

    def __init__(self) -> None:
        self.parcels: list[Parcel] = []
        self._open: dict[str, Parcel] = {}
        self._last: dict[tuple[str, str], tuple[Parcel, Prepared]] = {}
        """The last row of each lane so far, and where it is."""

    def put(self, row: OutboxRow, job: Prepared, queue: str) -> None:
        """Put it into the open parcel of its queue, or of its partition."""
        parcel = self._parcel_for(queue)
        if row.lane is not None:
            lane = (row.queue, row.lane)
            before = self._last.get(lane)
            if before is not None and before[0] is not parcel:
                parcel.behind.append(before[1])
            self._last[lane] = (parcel, job)
        parcel.put(row, job)

    def _parcel_for(self, queue: str) -> Parcel:
        parcel = self._open.get(queue)
        if parcel is None or parcel.is_full:
            parcel = self._open[queue] = Parcel(queue)
            self.parcels.append(parcel)
        return parcel
