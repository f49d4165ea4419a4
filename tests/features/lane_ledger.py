"""The two ledgers of the stress on lanes, and what they must say of each other.

The server's log, read from the queue's events, has the order in which the server did things: who
was given a lane, and how that ended. The processes' ledgers have the times at which handlers
really ran. A take is the same in both by the job and the number of its start.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

UNDER_WAY_S = 0.25
"""How long after the death of a process the server may still serve what it asked for; longer only
if it serves nobody else meanwhile."""

Take = tuple[str, int]
"""A job's id, and which start of it this is."""


def job_id(lane: int, number: int) -> str:
    return f"lane{lane}.{number}"


def place_of(job: str) -> tuple[str, int]:
    lane, _, number = job.partition(".")
    return lane, int(number)


class Stall(NamedTuple):
    """A sweep took a job from whoever had it: its lock had expired."""

    taken_s: float
    swept_s: float


class ServerLog:
    """Follows the lanes through the server's events, and notes what must not be."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.stalls: dict[Take, Stall] = {}
        self.starts: Counter[str] = Counter()
        self.completed = 0
        self._holder: dict[str, str] = {}
        self._next: dict[str, int] = defaultdict(int)
        self._taken_s: dict[str, float] = {}

    def read(self, at_ms: int, event: str, job: str, previous: str) -> None:
        if event == "active":
            self._taken(at_ms / 1000, job)
        elif event == "completed":
            self._left(job, event)
            self.completed += 1
            self._next[place_of(job)[0]] += 1
        elif event == "waiting" and previous == "active":
            self._left(job, event)
        elif event == "stalled":
            take = (job, self.starts[job])
            self.stalls[take] = Stall(self._taken_s[job], at_ms / 1000)
        elif event == "failed":
            self._wrong(f"{job} failed for good")
        # A job that is put off to be tried again goes on holding its lane: no change.

    def _taken(self, at_s: float, job: str) -> None:
        lane, number = place_of(job)
        holder = self._holder.get(lane)
        if holder is not None and holder != job:
            self._wrong(f"{job} was given {lane} while {holder} held it")
        if number != self._next[lane]:
            self._wrong(f"{job} was given {lane} while number {self._next[lane]} was the next")
        self._holder[lane] = job
        self.starts[job] += 1
        self._taken_s[job] = at_s

    def _left(self, job: str, event: str) -> None:
        holder = self._holder.pop(place_of(job)[0], None)
        if holder != job:
            self._wrong(f"{job} is {event} while {holder} held its lane")

    def _wrong(self, problem: str) -> None:
        if len(self.problems) < 50:
            self.problems.append(problem)


class Run(NamedTuple):
    """A handler that ran, as its process saw it; without an end it was cut off."""

    take: Take
    fence: int
    pid: int
    start_s: float
    end_s: float | None
    is_lost: bool


class Fault(NamedTuple):
    """What was done to a process, and from when until when it could do nothing."""

    kind: str
    pid: int
    at_s: float
    until_s: float


class Ledgers:
    """What all processes wrote down, those of the dead included."""

    def __init__(self, directory: Path) -> None:
        self.runs: list[Run] = []
        self.pulses: dict[int, list[float]] = {}
        for path in sorted(directory.iterdir()):
            self._read(path, int(path.name))

    def _read(self, path: Path, pid: int) -> None:
        starts: dict[int, tuple[Take, float]] = {}
        ends: dict[int, float] = {}
        lost: set[int] = set()
        pulses = self.pulses[pid] = []
        for line in path.read_text().splitlines():
            kind, *words = line.split()
            if kind == "pulse":
                pulses.append(float(words[0]))
            elif kind == "start":
                starts[int(words[2])] = ((words[0], int(words[1])), float(words[3]))
            elif kind == "end":
                ends[int(words[0])] = float(words[1])
            else:
                lost.add(int(words[0]))
        for fence, (take, start_s) in starts.items():
            self.runs.append(Run(take, fence, pid, start_s, ends.get(fence), fence in lost))


def _meets(fault: Fault, stall: Stall) -> bool:
    return fault.at_s <= stall.swept_s and fault.until_s >= stall.taken_s


class Inquest:
    """Holds both ledgers and the faults against each other."""

    def __init__(
        self, log: ServerLog, ledgers: Ledgers, faults: list[Fault], *, lock_s: float
    ) -> None:
        self._log = log
        self._ledgers = ledgers
        self._faults = faults
        self._lock_s = lock_s
        self._pulses = list(ledgers.pulses.values())
        self._runner = {run.take: run.pid for run in ledgers.runs}
        self._killed_s = {fault.pid: fault.until_s for fault in faults if fault.kind == "kill"}
        self.seen: Counter[str] = Counter()

    def problems(self) -> list[str]:
        """Everything that has no explanation."""
        by_lane: dict[str, list[Run]] = defaultdict(list)
        for run in self._ledgers.runs:
            by_lane[place_of(run.take[0])[0]].append(run)
        self.seen["runs"] = len(self._ledgers.runs)
        problems = list(self._log.problems)
        problems += self._unexplained_stalls()
        problems += self._wrongly_lost()
        for lane, runs in by_lane.items():
            runs.sort(key=lambda run: run.fence)
            problems += self._inversions(lane, runs)
            problems += self._overlaps(lane, runs)
        return problems

    # ------------------------------------------------------------------ why a lock was lost

    def _unexplained_stalls(self) -> Iterator[str]:
        """Every job that was taken from its worker was so for a fault of that very process."""
        for take, stall in self._log.stalls.items():
            cause = self._cause(take, stall)
            self.seen[f"swept: {cause or 'for no reason'}"] += 1
            if cause is None:
                yield f"{take} was swept for no reason: {stall}, process {self._runner.get(take)}"

    def _cause(self, take: Take, stall: Stall) -> str | None:
        pid = self._runner.get(take)  # None: its process ended, or knew better, before the handler
        for fault in self._faults:
            if pid in (None, fault.pid) and _meets(fault, stall):
                return f"its process was {'killed' if fault.kind == 'kill' else 'stopped'}"
        for one, pulses in self._ledgers.pulses.items():
            if pid in (None, one) and self._has_gap(pulses, stall):
                return "its process got no time"
        if pid is None and any(self._left_a_request(fault, stall) for fault in self._faults):
            return "its process was killed while it asked"
        return None

    def _left_a_request(self, fault: Fault, stall: Stall) -> bool:
        """The server read the request of a process that was dead by then: nobody hears the answer.

        It reads it before what anybody asked for later: a ping is sent after the one before it.
        """
        if fault.kind != "kill" or stall.taken_s < fault.at_s:
            return False
        later = [pulses[bisect.bisect_left(pulses, fault.until_s) :] for pulses in self._pulses]
        served_s = min((pulses[1] for pulses in later if len(pulses) > 1), default=float("inf"))
        return stall.taken_s <= max(fault.at_s + UNDER_WAY_S, served_s)

    def _has_gap(self, pulses: list[float], stall: Stall) -> bool:
        """Renewals come every third of the lock: none can be missed without a gap that long."""
        first = max(bisect.bisect_left(pulses, stall.taken_s) - 1, 0)
        last = bisect.bisect_right(pulses, stall.swept_s) + 1
        return any(
            after - before >= self._lock_s / 3
            for before, after in itertools.pairwise(pulses[first:last])
        )

    def _wrongly_lost(self) -> Iterator[str]:
        """A worker is refused only when the server took the job from it."""
        for run in self._ledgers.runs:
            self.seen["refused"] += run.is_lost
            if run.is_lost and run.take not in self._log.stalls:
                yield f"{run} was refused, though nobody had taken the job from it"

    # ------------------------------------------------------------------ order and overlaps

    def _inversions(self, lane: str, runs: list[Run]) -> Iterator[str]:
        fences = Counter(run.fence for run in runs)
        yield from (f"{lane}: {fence} was given twice" for fence, n in fences.items() if n > 1)
        for earlier, later in itertools.pairwise(runs):
            if place_of(earlier.take[0])[1] > place_of(later.take[0])[1]:
                yield f"{lane}: {later} came after {earlier} by its number"

    def _overlaps(self, lane: str, runs: list[Run]) -> Iterator[str]:
        """Who still runs when a later one has begun lost the lane before, and is refused."""
        next_start_s = float("inf")
        for run in reversed(runs):
            over_s = self._over_s(run)
            if over_s is None:
                yield f"{lane}: {run} has no end, and its process was not killed"
            elif over_s > next_start_s:
                self.seen["overlaps"] += 1
                yield from self._stale(lane, run, over_s)
            next_start_s = min(next_start_s, run.start_s)

    def _over_s(self, run: Run) -> float | None:
        return run.end_s if run.end_s is not None else self._killed_s.get(run.pid)

    def _stale(self, lane: str, run: Run, over_s: float) -> Iterator[str]:
        stall = self._log.stalls.get(run.take)
        if stall is None:
            yield f"{lane}: {run} overlaps with a later one, and nobody had taken its lane away"
            return
        cause = self._cause(run.take, stall)
        self.seen[f"overlap: {cause}"] += 1
        # The server's log has no other end of this take than the sweep: nothing it wrote counted.
        # Its worker knows, unless it was killed before it could ask.
        killed_s = self._killed_s.get(run.pid)
        if not run.is_lost and (killed_s is None or killed_s - over_s > 2 * self._lock_s):
            yield f"{lane}: {run} overlaps with a later one and was never told"
