"""A storm that is interrupted can be judged by what it wrote down until then."""

from __future__ import annotations

import time

import pytest

from tests.chaos.ledger import Ledger
from tests.chaos.report import problems_so_far
from tests.chaos.storm import NOTES, Fault, Storm


@pytest.fixture
def storm(tmp_path):
    return Storm(jobs=0, kills=0, directory=tmp_path)


def ran(storm, label, *, kind="plain", pid=1, fence=1, ends=True, lane=None):
    ledger = Ledger(storm.directory / f"{pid}.db", pid)
    row = ledger.begin(label, kind, lane, fence)
    if ends:
        ledger.end(row)
    return ledger, row


def test_what_was_noted_is_known_again(storm):
    storm.note("added", {"j1": "plain", "j2": "fails"})
    storm.note("lane", "lane-1", ["j1"])
    storm.note("lane", "lane-1", ["j2"])
    storm.note("group", "group-j3", "fails")
    storm.note("tried again", ["j2"])
    storm.note("doubtful", ["j4"])
    storm.note("fault", "kill", 1.0, 2.0, 42)

    again = Storm(jobs=0, kills=0, directory=storm.directory)
    again.read_notes()

    assert again == storm
    assert again.lane_order == {"lane-1": ["j1", "j2"]}
    assert again.faults == [Fault("kill", 1.0, 2.0, 42)]


def test_a_last_line_that_is_torn_takes_nothing_with_it(storm):
    storm.note("doubtful", ["j4"])
    with (storm.directory / NOTES).open("a") as file:
        file.write('["doubtful", ["j')

    again = Storm(jobs=0, kills=0, directory=storm.directory)
    again.read_notes()

    assert again.doubtful == {"j4"}


@pytest.mark.parametrize(
    ("note", "is_explained"),
    [
        (("added", {"j1": "plain"}), False),
        (("doubtful", ["j1"]), True),
        (("tried again", ["j1"]), False),
        (("fault", "kill", time.time(), time.time() + 86_400, 1), True),
        (("fault", "kill", time.time(), time.time() + 86_400, 2), False),
    ],
)
def test_a_second_run_is_explained_by_a_note_or_not_at_all(storm, note, is_explained):
    storm.note(*note)
    ran(storm, "j1")
    ran(storm, "j1", pid=2, fence=2)

    problems = problems_so_far(storm.directory)

    assert [problem.partition(":")[0] for problem in problems] == (
        [] if is_explained else ["unexplained"]
    )


@pytest.mark.parametrize(("kind", "wrongs"), [("plain", 2), ("fails", 0)])
def test_an_id_that_failed_may_be_added_again(storm, kind, wrongs):
    """Two jobs then: that they run at the same time is no overlap. One that is there is not added
    again, so nothing excuses it."""
    storm.note("tried again", ["j1"])
    first, row = ran(storm, "j1", kind=kind, ends=False)
    ran(storm, "j1", kind=kind, pid=2, fence=2)
    first.end(row)

    assert len(problems_so_far(storm.directory)) == wrongs


def test_a_lane_that_is_out_of_order_is_seen(storm):
    storm.note("lane", "lane-1", ["j1", "j2"])
    ran(storm, "j2", lane="lane-1", fence=1)
    ran(storm, "j1", lane="lane-1", fence=2)

    (problem,) = problems_so_far(storm.directory)

    assert "j1 ran after j2" in problem
