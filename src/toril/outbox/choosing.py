"""Which of the rows in sight a relay may claim: values in, values out.

A relay looks at pending rows in the order of ``seq``, all of them from the first one on, so the
first row it sees of a lane is the head of that lane.  Whoever holds the head holds the lane: rows
behind it are claimed only with it, and only up to the first one that cannot be claimed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import msgspec

Lane = tuple[str, str]
"""A queue, and one of its lanes."""


class Sight(msgspec.Struct, frozen=True):
    """A pending row, as it was when it was looked at."""

    seq: int
    queue: str
    lane: str | None
    is_ready: bool
    """It is due, and no other relay has a lease on it."""

    @property
    def place(self) -> Lane | None:
        return None if self.lane is None else (self.queue, self.lane)


class Choosing:
    """Chooses up to ``limit`` rows, window after window."""

    def __init__(self, limit: int) -> None:
        self.rest = limit
        self.stops: dict[Lane, int] = {}
        """The first parked row of each lane that stops there."""
        self._heads: dict[Lane, int] = {}
        """The heads that were claimed."""
        self._ended: Counter[Lane] = Counter()
        """Lanes that cannot continue, and how many of their rows have been seen since."""

    def note_stops(self, stops: Mapping[Lane, int]) -> None:
        """Where lanes stop by the latest look; a row that was unparked since is not in sight."""
        for lane, seq in stops.items():
            self.stops[lane] = min(seq, self.stops.get(lane, seq))

    def first(self, window: Sequence[Sight]) -> list[Sight]:
        """What can be claimed by itself: rows without a lane, and the heads of lanes."""
        chosen: list[Sight] = []
        for sight in window:
            lane = sight.place
            if lane in self._heads:
                continue
            if lane is not None:
                self._ended[lane] += 1  # unless its head is claimed
                if self._ended[lane] > 1:
                    continue
            if self._may_go(sight) and len(chosen) < self.rest:
                chosen.append(sight)
        return chosen

    def note_first(self, chosen: Sequence[Sight], claimed: Collection[int]) -> list[int]:
        """Which of these are ours now; the others belong to somebody else."""
        kept = [sight for sight in chosen if sight.seq in claimed]
        for sight in kept:
            if sight.place is not None:
                self._heads[sight.place] = sight.seq
                del self._ended[sight.place]
        self.rest -= len(kept)
        return [sight.seq for sight in kept]

    def following(self, window: Sequence[Sight]) -> list[Sight]:
        """The rows behind the heads that are ours, as far as each lane can continue."""
        chosen: list[Sight] = []
        for sight in window:
            lane = sight.place
            if lane is None or sight.seq <= self._heads.get(lane, sight.seq):
                continue
            if lane in self._ended or not self._may_go(sight) or len(chosen) == self.rest:
                self._ended[lane] += 1
            else:
                chosen.append(sight)
        return chosen

    def note_following(self, chosen: Sequence[Sight], claimed: Collection[int]) -> list[int]:
        """Which of these are ours now: those that follow each other without a gap."""
        kept: list[int] = []
        gaps: set[Lane | None] = set()
        for sight in chosen:
            if sight.seq in claimed and sight.place not in gaps:
                kept.append(sight.seq)
            elif sight.place is not None:
                gaps.add(sight.place)
                self._ended[sight.place] += 1
        self.rest -= len(kept)
        return kept

    def in_the_way(self, most: int) -> list[Lane]:
        """Lanes with many visible rows that cannot continue: not worth looking at again."""
        return [lane for lane, count in self._ended.most_common(most) if count > 1]

    def _may_go(self, sight: Sight) -> bool:
        stop = None if sight.place is None else self.stops.get(sight.place)
        return sight.is_ready and (stop is None or sight.seq < stop)
