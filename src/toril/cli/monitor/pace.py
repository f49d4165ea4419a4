"""How fast a queue is, told from its events: pure, so that it can be tested without a server."""

from __future__ import annotations

import statistics
from collections import OrderedDict, deque

from toril.protocol.events import Event
from toril.protocol.glancing import Glance

HISTORY = 60
_MOST_KNOWN = 2000
_BLOCKS = "▁▂▃▄▅▆▇█"


class Pace:
    """Throughput and times of one queue, look by look.

    A look shows only the newest events; where there were more, those seen stand for all.
    """

    def __init__(self) -> None:
        self.per_second: deque[float] = deque(maxlen=HISTORY)
        """Jobs finished per second, look by look."""
        self.waits_ms: deque[float] = deque(maxlen=HISTORY)
        """How long jobs waited before they were taken: the median of each look that saw some."""
        self.runs_ms: deque[float] = deque(maxlen=HISTORY)
        self._added: int | None = None
        self._looked_at_s = 0.0
        self._waiting_since: OrderedDict[str, int] = OrderedDict()
        self._active_since: OrderedDict[str, int] = OrderedDict()

    def note(self, glance: Glance, now_s: float) -> None:
        """Take in one more look."""
        finished = self._read(glance.events)
        passed_s = now_s - self._looked_at_s
        if self._added is not None and passed_s > 0:
            happened = max(glance.events_added - self._added, len(glance.events))
            share = happened / len(glance.events) if glance.events else 0.0
            self.per_second.append(finished * share / passed_s)
        self._added = glance.events_added
        self._looked_at_s = now_s

    def _read(self, events: list[Event]) -> int:
        finished = 0
        waits: list[float] = []
        runs: list[float] = []
        for event in events:
            job_id, at_ms = event.job_id, time_of(event)
            if job_id is None:
                continue
            if event.name == "waiting":
                _remember(self._waiting_since, job_id, at_ms)
            elif event.name == "active":
                since = self._waiting_since.pop(job_id, None)
                if since is not None:
                    waits.append(at_ms - since)
                _remember(self._active_since, job_id, at_ms)
            elif event.name in ("completed", "failed"):
                finished += 1
                since = self._active_since.pop(job_id, None)
                if since is not None:
                    runs.append(at_ms - since)
        if waits:
            self.waits_ms.append(statistics.median(waits))
        if runs:
            self.runs_ms.append(statistics.median(runs))
        return finished


def time_of(event: Event) -> int:
    """When it happened, in ms since the epoch."""
    return int(event.id.partition("-")[0])


def sparkline(values: deque[float], width: int) -> str:
    """The last values as a row of bars, the highest as high as the line."""
    shown = list(values)[-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return _BLOCKS[0] * len(shown)
    last = len(_BLOCKS) - 1
    return "".join(_BLOCKS[min(last, round(value / top * last))] for value in shown)


def _remember(since: OrderedDict[str, int], job_id: str, at_ms: int) -> None:
    since[job_id] = at_ms
    if len(since) > _MOST_KNOWN:
        since.popitem(last=False)
