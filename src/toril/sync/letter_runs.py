# Written by tools/unasync.py from src/toril/client/letter_runs.py: change that file instead.
"""What a walk through many dead letters needs: reporting its progress, and limiting its rate."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from typing import Any, Self

from toril.errors import InvalidOptionError
from toril.protocol.dead_letters import DeadLetterProgress, Filter, Interrupted, Slice, Walk


class Leg(str):
    """The part of a run in one partition: the run's name, and where it goes on there.

    In place of ``resume``: all partitions know the run by one name.
    """

    __slots__ = ("found",)

    found: Interrupted | None

    def __new__(cls, run: str, found: Interrupted | None) -> Self:
        leg = super().__new__(cls, run)
        leg.found = found
        return leg


def check_resumed(
    queue: str, verb: str, wanted: Filter, resume: bool | str, found: Interrupted | None
) -> None:
    """Refuse to resume by its name a run that is not there, or with other filters than its own."""
    if not isinstance(resume, str):
        return
    if wanted.args():
        raise InvalidOptionError(
            f"resume={resume!r} names a {verb}, which has its own filters; leave yours out"
        )
    if found is None:
        raise InvalidOptionError(
            f"queue {queue!r} has no interrupted {verb} {resume!r}: it has finished, or nothing"
            f" continued it for a week; call it with its filters instead"
        )


class Sums:
    """Adds up what a bulk operation tells of one partition after another.

    ``left`` says how many letters each has.
    """

    def __init__(
        self, on_progress: Callable[[DeadLetterProgress], Any], left: Sequence[int]
    ) -> None:
        self._on_progress = on_progress
        self._left = list(left)
        self._last = DeadLetterProgress(done=0, examined=0, held=0, left=sum(left))

    def of_part(self, number: int) -> Callable[[DeadLetterProgress], Any]:
        """What the partition is to tell, once those before it have told everything."""
        before = self._last

        def tell(now: DeadLetterProgress) -> Any:
            self._left[number] = now.left
            self._last = DeadLetterProgress(
                done=before.done + now.done,
                examined=before.examined + now.examined,
                held=before.held + now.held,
                left=sum(self._left),
                held_by_group=before.held_by_group + now.held_by_group,
                resumed=before.resumed + now.resumed,
                run=now.run,
            )
            return self._on_progress(self._last)

        return tell


class Fate(Enum):
    """What has become of a letter that a script left to the client."""

    SENT = auto()
    HELD = auto()
    """It came back too often."""
    HELD_BY_GROUP = auto()
    """Its group, which is elsewhere, does not take it."""
    LEFT = auto()
    """It does not pass the filter, somebody was faster, or it does not say where it came from."""


class Told:
    """Tells the ``progress`` callback of a bulk operation how far it has got, slice by slice."""

    def __init__(
        self, progress: Callable[[DeadLetterProgress], Any] | None, run: str, resumed: int
    ) -> None:
        self._progress = progress
        self._run = run
        self._resumed = resumed
        self._examined = self._held = self._grouped = 0

    def slice(self, walk: Walk, result: Slice, asked: Iterable[Fate] = ()) -> None:
        fates = Counter(asked)
        self._examined += result.examined
        self._held += result.held + fates[Fate.HELD] + fates[Fate.HELD_BY_GROUP]
        self._grouped += result.grouped + fates[Fate.HELD_BY_GROUP]
        if self._progress is None:
            return
        _told = self._progress(
            DeadLetterProgress(
                done=walk.done,
                examined=self._examined,
                held=self._held,
                left=result.length - fates[Fate.SENT],
                held_by_group=self._grouped,
                resumed=self._resumed,
                run=self._run,
            )
        )


def check_rate(rate: float | None) -> None:
    """Refuse what is not a number of jobs per second."""
    if rate is not None and not (isinstance(rate, (int, float)) and rate > 0):
        raise InvalidOptionError(f"rate={rate!r} must be a number of jobs per second above 0")


class Pace:
    """Limits a run to so many jobs a second, counted from its start."""

    def __init__(self, rate: float | None, done: int) -> None:
        self._rate = rate
        self._before = done
        self._began = time.monotonic()

    def most_at_once(self, most: int) -> int:
        """How large a slice may be: a tenth of a second's jobs, so that they arrive evenly."""
        return most if self._rate is None else min(most, max(1, math.ceil(self._rate / 10)))

    def keep(self, done: int) -> None:
        """Wait if the run is too fast."""
        if self._rate is None:
            return
        ahead_s = (done - self._before) / self._rate - (time.monotonic() - self._began)
        if ahead_s > 0:
            time.sleep(ahead_s)
