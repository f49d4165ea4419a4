"""The tables of the monitor: what is known, as rows of text."""

from __future__ import annotations

import json
from collections import deque
from typing import Any, NamedTuple

from toril.cli.monitor.letters import LetterSurvey
from toril.cli.monitor.pace import sparkline, time_of
from toril.cli.monitor.watcher import QueueWatch
from toril.cli.printing import EVENT_COLOURS, age, local, shortened, span
from toril.cli.shown import Shown
from toril.protocol.events import Event
from toril.protocol.glancing import ActiveJob, FailedJob, LaneGlance
from toril.protocol.groups import GroupInfo, GroupMember

Rows = dict[str, list[Shown]]
"""The cells of each row, by a key that stays the same from tick to tick."""

QUEUE_COLUMNS = (
    *("queue", "wait", "run", "later", "done", "fail", "jobs/s", "lately", "waited", "ran"),
)
ACTIVE_COLUMNS = ("job", "name", "running", "try", "progress", "lane", "worker")
FAILED_COLUMNS = ("job", "name", "failed", "tries", "reason")
LANE_COLUMNS = ("lane", "state", "waiting", "held by", "next")
GROUP_COLUMNS = ("group", "name", "state", "done", "failed", "cancelled", "of", "changed")
LETTER_COLUMNS = ("count", "fingerprint", "first", "last", "example")
EVENT_COLUMNS = ("time", "event", "job", "what")

ASKS = "ASKS YOU"
"""A group that cannot go on before somebody says how a member ended."""

_STYLES = {
    **EVENT_COLOURS,
    ASKS: "bold red",
    "COMPLETED": "green",
    "FAILED": "red",
    "FAILED_COMPENSATION": "bold red",
    "BLOCKED": "bold red",
    "COMPENSATING": "yellow",
    "ACTIVE": "cyan",
    "running": "cyan",
    "paused": "yellow",
    "halted": "red",
    "cancelled": "yellow",
    "awaited": "bold yellow",
}
_MARKS = {"completed": "✓", "failed": "✗", "cancelled": "-", "active": "▶", "pending": "·"}
_MARKS |= {"planned": "…", "awaited": "?"}
_UNDOING = {
    "pending": ("to be undone", "yellow"),
    "completed": ("undone", "green"),
    "failed": ("NOT UNDONE", "bold red"),
    "cancelled": ("NOT UNDONE", "bold red"),
}


class Room(NamedTuple):
    """How much of everything fits on a screen."""

    queue_name: int
    job_name: int
    bars: int
    is_narrow: bool

    @classmethod
    def on(cls, width: int) -> Room:
        return cls(12, 14, 6, True) if width < 100 else cls(40, 60, 10, False)

    def number(self, value: int) -> str:
        """Where there is no room, 123,456 is 123k."""
        if not self.is_narrow or value < 10_000:
            return f"{value:,}"
        return f"{value / 1e6:.1f}M" if value >= 999_500 else f"{value / 1e3:.0f}k"

    def span(self, ms: float) -> str:
        return span(ms).partition(" ")[0] if self.is_narrow else span(ms)


def queue_rows(watches: list[QueueWatch], width: int) -> Rows:
    """How each queue is; on a narrow screen long names are cut and large numbers short."""
    room = Room.on(width)
    return {watch.label: _queue_row(watch, room) for watch in watches}


def _queue_row(watch: QueueWatch, room: Room) -> list[Shown]:
    glance, pace = watch.glance, watch.pace
    beside = watch.label.removeprefix(f"{watch.name}: ")
    marks = [(f"({beside})", "yellow")] if beside != watch.name else []
    if glance and glance.is_paused:
        marks.append(("⏸", "yellow"))
    if watch.needing_a_person:
        marks.append(("!", "bold red"))
    if glance and glance.in_transit:
        marks.append((f"⇢{room.number(glance.in_transit)}", "yellow"))
    taken = sum(1 + len(mark) for mark, _ in marks)
    name = Shown(shortened(watch.name, room.queue_name - taken))
    for mark, style in marks:
        name.append(f" {mark}", style)
    if glance is None:
        return [name, *(Shown("") for _ in QUEUE_COLUMNS[1:])]
    rate = pace.per_second[-1] if pace.per_second else 0.0

    def number(value: int, style: str = "") -> Shown:
        return Shown(room.number(value), style if value else "dim", justify="right")

    def last(values: deque[float]) -> Shown:
        return Shown(room.span(values[-1]) if values else "", justify="right")

    return [
        name,
        number(glance.waiting + glance.prioritized),
        number(glance.active, "cyan"),
        number(glance.delayed + glance.waiting_children, "yellow"),
        number(glance.completed),
        number(glance.failed, "red"),
        Shown(room.number(round(rate)) if rate >= 10 else f"{rate:.1f}", justify="right"),
        Shown(sparkline(pace.per_second, room.bars).ljust(room.bars), "green"),
        last(pace.waits_ms),
        last(pace.runs_ms),
    ]


def active_rows(jobs: list[ActiveJob], now_ms: int, width: int) -> Rows:
    """The jobs that run, the longest running first."""
    room = Room.on(width)
    return {
        job.id: _texts(
            job.id,
            shortened(job.name, room.job_name),
            span(max(now_ms - job.processed_on, 0)) if job.processed_on else "",
            job.attempts_started,
            "" if job.progress is None else shortened(job.progress, 20),
            job.lane,
            job.worker,
        )
        for job in jobs
    }


def failed_rows(jobs: list[FailedJob], width: int) -> Rows:
    """The jobs that failed, the last one first; as much of the reason as there is room for."""
    room = Room.on(width)
    rows = {
        job.id: _texts(
            job.id, shortened(job.name, room.job_name), age(job.finished_on), job.attempts_made
        )
        for job in jobs
    }
    columns = zip(*rows.values(), strict=True)
    used = [max(cell.cell_len for cell in column) for column in columns]
    left = max(width - sum(used) - 2 * len(FAILED_COLUMNS) - 2, 24)
    for job in jobs:
        rows[job.id].append(Shown(shortened(job.reason, left), "red"))
    return rows


def lane_rows(lanes: list[LaneGlance]) -> Rows:
    """The lanes, those that are held first."""
    return {
        lane.name: _texts(lane.name, lane.state, lane.depth, " ".join(lane.holders), lane.head)
        for lane in sorted(lanes, key=lambda lane: not lane.holders)
    }


def group_rows(groups: list[GroupInfo]) -> Rows:
    """Those that need a person, then the newest."""
    return {
        group.id: _texts(
            group.id[:8],
            group.name,
            ASKS if group.asks and group.needs_a_person else group.state.value,
            group.completed_count,
            group.failed_count,
            group.cancelled_count,
            group.total_jobs,
            age(group.updated_at),
        )
        for group in groups
    }


def member_line(members: list[GroupMember]) -> Shown:
    """The jobs of a group in one line: ``charge ✓  reserve ✗  mail -``."""
    line = Shown()
    for member in members:
        line.append(f"{member.name or member.key} ")
        mark = _MARKS.get(member.status, "?")
        line.append(f"{mark} {member.status}", _STYLES.get(member.status, ""))
        if member.compensation_status:
            words, style = _UNDOING.get(member.compensation_status, ("?", ""))
            line.append(f", {words}", style)
        line.append("   ")
    return line


def letter_rows(survey: LetterSurvey | None) -> Rows:
    """The dead letters by what went wrong, the most frequent first."""
    if survey is None:
        return {}
    groups = sorted(survey.groups.items(), key=lambda item: -item[1].count)
    return {
        fingerprint: _texts(
            group.count, fingerprint or "(none)", age(group.first), age(group.last), group.example
        )
        for fingerprint, group in groups
    }


def event_rows(watch: QueueWatch | None) -> Rows:
    """What happened, the newest first."""
    if watch is None:
        return {}
    return {
        event.id: _texts(
            _clock(event),
            event.name,
            event.job_id or "",
            shortened(event.data, 60) if event.data else "",
        )
        for event in reversed(watch.events)
    }


def _clock(event: Event) -> str:
    moment = local(time_of(event))
    return event.id if moment is None else f"{moment:%H:%M:%S}"


def summary_line(watch: QueueWatch | None, width: int) -> Shown:
    """The counts of the chosen queue in words; of a long name as much as the line has room for."""
    if watch is None or watch.glance is None:
        return Shown()
    glance = watch.glance
    counts = (
        f"  active {glance.active:,}  waiting {glance.waiting:,}  delayed {glance.delayed:,}"
        f"  total {glance.total:,}  unique lanes {glance.lanes:,}  groups {glance.groups:,}"
    )
    stuck = watch.needing_a_person
    person = f"  {stuck:,} NEED{'S' if stuck == 1 else ''} A PERSON" if stuck else ""
    line = Shown(shortened(watch.label, max(width - len(counts + person) - 2, 8)), "bold")
    return line.append(counts, "not bold").append(person, "bold red")


def _texts(*values: Any) -> list[Shown]:
    return [_text(value) for value in values]


def _text(value: Any) -> Shown:
    if isinstance(value, int):
        return Shown(f"{value:,}", justify="right")
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return Shown(text, _STYLES.get(text, ""))
