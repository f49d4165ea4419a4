# Written by tools/unasync.py from src/toril/client/lanes.py: change that file instead.
"""The part of a queue that reads its lanes, and lets operators control them."""

from __future__ import annotations

from toril.deprecating import lane_first
from toril.options import RateLimit
from toril.protocol import lanes, reading
from toril.protocol.job import Job
from toril.protocol.keys import Keys
from toril.protocol.lanes import Lane
from toril.sync.connection import Connection


class QueueLanes:
    """The lanes of a queue: jobs with the same ``lane`` run one at a time, in order."""

    keys: Keys
    _connection: Connection

    def get_lanes(self, start: int = 0, end: int = -1, *, state: str | None = None) -> list[str]:
        """The lanes that have jobs: the longest active first, then those with only delayed jobs.

        Both ends are included, -1 is the last.  With ``state``, only lanes that are ``"paused"``,
        ``"halted"`` by a failure, or ``"stopped"`` by either, even if they have no jobs; those that
        have been stopped longest come first.
        """
        if state is not None:
            return self._connection.follow(lanes.stopped(self.keys, state, start, end))
        return self._connection.run(lanes.names(self.keys, start, end))

    def get_lane_count(self) -> int:
        """How many lanes have a job that is waiting, delayed or running."""
        return self._connection.run(lanes.count(self.keys))

    def get_lane(self, lane: str) -> Lane | None:
        """How many jobs wait in a lane, which is next, who holds it and since when.

        None for a lane without jobs and settings.
        """
        return self._connection.run(lanes.read(self.keys, lane))

    def get_lane_jobs(self, lane: str, start: int = 0, end: int = -1) -> list[Job]:
        """The jobs of a lane: those that hold it, those that wait in order, those that are delayed.

        Both ends are included, -1 is the last.
        """
        ids = self._connection.follow(lanes.job_ids(self.keys, lane, start, end))
        return self._connection.follow(reading.jobs_of(self.keys, ids))

    def pause_lane(self, lane: str) -> None:
        """Stop workers from taking jobs of this lane; a running job continues."""
        self._connection.run(lanes.pause(self.keys, lane))

    def resume_lane(self, lane: str) -> bool:
        """Resume a lane that is paused, halted or held by a handler; False for others."""
        return self._connection.run(lanes.resume(self.keys, lane))

    def drain_lane(self, lane: str, *, delayed: bool = False) -> int:
        """Remove the waiting jobs of a lane, with ``delayed`` also delayed ones.

        Returns how many. A running job is not removed.
        """
        return self._connection.follow(lanes.drain(self.keys, lane, delayed=delayed))

    def recover_lanes(self) -> int:
        """Free lanes held by jobs that no longer exist; returns how many.

        Workers do this at every sweep (``stalled_interval``).
        """
        return self._connection.follow(lanes.recover(self.keys))

    @lane_first("concurrency")
    def set_lane_concurrency(self, lane: str | None, concurrency: int | None) -> None:
        """Limit how many jobs of a lane run at once; lane None is the default for all lanes.

        None as the number removes the limit. With more than one, jobs start in order but may end in
        a different order.
        """
        self._connection.follow(lanes.set_concurrency(self.keys, concurrency, lane))

    @lane_first("limit")
    def set_lane_rate_limit(self, lane: str | None, limit: RateLimit | None) -> None:
        """Limit how many jobs of a lane start per time; lane None is the default for all lanes.

        None as the limit removes it.
        """
        self._connection.follow(lanes.set_rate_limit(self.keys, limit, lane))

    def set_lane_weight(self, lane: str, weight: int) -> None:
        """How many turns this lane gets for each turn of another lane."""
        self._connection.run(lanes.set_weight(self.keys, lane, weight))
