"""The tables of the monitor: what is known, as rows of text."""

from __future__ import annotations

import json
from collections import deque
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from toril.cli.monitor.letters import LetterSurvey
from toril.cli.monitor.pace import sparkline, time_of
from toril.cli.monitor.watcher import QueueWatch
from toril.cli.printing import age, shortened, span
from toril.protocol.glancing import ActiveJob, LaneGlance
from toril.protocol.groups import GroupInfo, GroupMember

Rows = dict[str, list[Text]]
"""The cells of each row, by a key that stays the same from tick to tick."""

SPARK_WIDTH = 10
_NARROW = 100

QUEUE_COLUMNS = (
    *("queue", "wait", "run", "later", "done", "fail", "jobs/s"),
    *("lately".ljust(SPARK_WIDTH), "waited", "ran"),
)
ACTIVE_COLUMNS = ("job", "name", "running for", "try", "progress", "lane", "worker")
LANE_COLUMNS = ("lane", "state", "waiting", "held by", "next")
GROUP_COLUMNS = ("group", "name", "state", "done", "failed", "cancelled", "of", "changed")
LETTER_COLUMNS = ("count", "fingerprint", "first", "last", "example")
EVENT_COLUMNS = ("time", "event", "job", "what")

_STYLES = {
    "completed": "green",
    "failed": "red",
    "deadLettered": "red",
    "stalled": "red",
    "active": "cyan",
    "delayed": "yellow",
    "COMPLETED": "green",
    "FAILED": "red",
    "FAILED_COMPENSATION": "bold red",
    "COMPENSATING": "yellow",
    "ACTIVE": "cyan",
    "running": "cyan",
    "paused": "yellow",
    "halted": "red",
    "cancelled": "yellow",
}
_MARKS = {"completed": "✓", "failed": "✗", "cancelled": "-", "active": "▶", "pending": "·"}


def queue_rows(watches: list[QueueWatch], width: int) -> Rows:
    """How each queue is; on a narrow screen long names are cut."""
    longest = 14 if width < _NARROW else 40
    return {watch.name: _queue_row(watch, longest) for watch in watches}


def _queue_row(watch: QueueWatch, longest: int) -> list[Text]:
    glance, pace = watch.glance, watch.pace
    if glance is None:
        return [Text(watch.name), *(Text("") for _ in QUEUE_COLUMNS[1:])]
    name = Text(shortened(watch.name, longest))
    if glance.is_paused:
        name.append(" ⏸", "yellow")
    rate = pace.per_second[-1] if pace.per_second else 0.0
    return [
        name,
        _number(glance.waiting + glance.prioritized),
        _number(glance.active, "cyan"),
        _number(glance.delayed + glance.waiting_children, "yellow"),
        _number(glance.completed),
        _number(glance.failed, "red"),
        Text(f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}", justify="right"),
        Text(sparkline(pace.per_second, SPARK_WIDTH), "green"),
        _last(pace.waits_ms),
        _last(pace.runs_ms),
    ]


def active_rows(jobs: list[ActiveJob], now_ms: int) -> Rows:
    """The jobs that run, the longest running first."""
    return {
        job.id: _texts(
            job.id,
            job.name,
            span(max(now_ms - job.processed_on, 0)) if job.processed_on else "",
            job.attempts_started,
            "" if job.progress is None else shortened(job.progress, 20),
            job.lane,
            job.worker,
        )
        for job in jobs
    }


def lane_rows(lanes: list[LaneGlance]) -> Rows:
    """The lanes, those that are held first."""
    return {
        lane.name: _texts(lane.name, lane.state, lane.depth, " ".join(lane.holders), lane.head)
        for lane in sorted(lanes, key=lambda lane: not lane.holders)
    }


def group_rows(groups: list[GroupInfo]) -> Rows:
    """The newest groups."""
    return {
        group.id: _texts(
            group.id[:8],
            group.name,
            group.state.value,
            group.completed_count,
            group.failed_count,
            group.cancelled_count,
            group.total_jobs,
            age(group.updated_at),
        )
        for group in groups
    }


def member_line(members: list[GroupMember]) -> Text:
    """The jobs of a group in one line: ``charge ✓  reserve ✗  mail -``."""
    line = Text()
    for member in members:
        line.append(f"{member.name} ")
        mark = _MARKS.get(member.status, "?")
        line.append(f"{mark} {member.status}   ", _STYLES.get(member.status, ""))
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
            f"{datetime.fromtimestamp(time_of(event) / 1000, UTC).astimezone():%H:%M:%S}",
            event.name,
            event.job_id or "",
            shortened(event.data, 60) if event.data else "",
        )
        for event in reversed(watch.events)
    }


def summary_line(watch: QueueWatch | None) -> Text:
    """The counts of the chosen queue in words."""
    if watch is None or watch.glance is None:
        return Text()
    glance = watch.glance
    line = Text(watch.name, "bold")
    return line.append(
        f"  active {glance.active:,}  waiting {glance.waiting:,}  delayed {glance.delayed:,}"
        f"  total {glance.total:,}  unique lanes {glance.lanes:,}  groups {glance.groups:,}",
        "not bold",
    )


def _number(value: int, style: str = "") -> Text:
    return Text(f"{value:,}", style if value else "dim", justify="right")


def _last(values: deque[float]) -> Text:
    return Text(span(values[-1]) if values else "", justify="right")


def _texts(*values: Any) -> list[Text]:
    return [_text(value) for value in values]


def _text(value: Any) -> Text:
    if isinstance(value, int):
        return Text(f"{value:,}", justify="right")
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return Text(text, _STYLES.get(text, ""))
