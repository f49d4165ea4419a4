"""The pace of a queue, told from its events, without a server."""

from __future__ import annotations

from collections import deque

import pytest

from toril.cli.monitor.pace import Pace, sparkline
from toril.protocol.events import Event
from toril.protocol.glancing import Glance


def glance(added: int, *events: tuple[str, str, int]) -> Glance:
    return Glance(
        **dict.fromkeys(("waiting", "active", "prioritized", "delayed", "waiting_children"), 0),
        completed=0,
        failed=0,
        lanes=0,
        groups=0,
        is_paused=False,
        events_added=added,
        events=[Event(name, f"{ms}-0", job_id) for name, job_id, ms in events],
    )


def test_jobs_per_second_and_times_come_from_the_events_between_two_looks():
    pace = Pace()
    pace.note(glance(10, ("waiting", "a", 100), ("waiting", "b", 100)), 0.0)

    pace.note(
        glance(
            14,
            ("active", "a", 150),
            ("active", "b", 250),
            ("completed", "a", 350),
            ("failed", "b", 650),
        ),
        2.0,
    )

    assert list(pace.per_second) == [1.0]
    assert list(pace.waits_ms) == [100]
    assert list(pace.runs_ms) == [300]


def test_what_was_seen_stands_for_what_was_not():
    pace = Pace()
    pace.note(glance(0), 0.0)

    pace.note(glance(4000, ("completed", "a", 1), ("active", "b", 1)), 1.0)
    pace.note(glance(4000), 2.0)

    assert list(pace.per_second) == [2000.0, 0.0]


def test_jobs_whose_end_was_not_seen_are_forgotten_in_time():
    pace = Pace()
    for number in range(3):
        pace.note(glance(0, *(("active", f"{number}-{n}", 1) for n in range(1500))), number)

    assert len(pace._active_since) == 2000


@pytest.mark.parametrize(
    ("values", "line"),
    [([], ""), ([0, 0], "▁▁"), ([0, 4, 8], "▁▅█"), ([9, 1, 2, 8], "▂▃█")],
)
def test_a_sparkline_shows_the_last_values_by_their_share_of_the_highest(values, line):
    assert sparkline(deque(values), 3) == line
