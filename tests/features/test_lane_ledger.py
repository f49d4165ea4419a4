"""The judge of the stress on lanes is itself judged: every kind of fault must be found."""

from __future__ import annotations

import pytest

from tests.features.lane_ledger import Fault, Inquest, Ledgers, ServerLog

LOCK_S = 1.5


@pytest.fixture
def judge(tmp_path):
    """Judges events (ms, event, job, previous), the lines of processes, and faults."""

    def judge(events, lines, faults=(), pulses=()):
        log = ServerLog()
        for at_s, event, job, *previous in events:
            log.read(round(at_s * 1000), event, job, previous[0] if previous else "")
        for pid in (1, 2):
            beats = [f"pulse {at_s}" for at_s in pulses] or [f"pulse {n / 10}" for n in range(200)]
            (tmp_path / str(pid)).write_text("\n".join([*beats, *lines.get(pid, ())]) + "\n")
        inquest = Inquest(log, Ledgers(tmp_path), list(faults), lock_s=LOCK_S)
        return inquest.problems(), inquest.seen

    return judge


def swept(at_s: float, job: str):
    return [(at_s, "waiting", job, "active"), (at_s, "stalled", job)]


IN_ORDER = [
    (1, "active", "a.0"), (2, "completed", "a.0"), (3, "active", "a.1"), (4, "completed", "a.1"),
]  # fmt: skip
ZOMBIE = [
    (1, "active", "a.0"), *swept(3, "a.0"), (4, "active", "a.0"), (5, "completed", "a.0"),
]  # fmt: skip
STOPPED = Fault("stop", 1, 1.2, 4.2)


def test_a_lane_in_order_is_fine(judge):
    problems, seen = judge(
        IN_ORDER, {1: ["start a.0 1 1 1.1", "end 1 1.9"], 2: ["start a.1 1 2 3.1", "end 2 3.9"]}
    )
    assert (problems, seen["overlaps"]) == ([], 0)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        pytest.param(
            [(1, "active", "a.0"), (2, "active", "a.1")], "a.1 was given a while a.0 held it",
            id="two holders",
        ),
        pytest.param([(1, "active", "a.1")], "while number 0 was the next", id="out of order"),
        pytest.param(
            [(1, "active", "a.0"), *swept(2, "a.0"), (3, "completed", "a.0")],
            "a.0 is completed while None held its lane", id="a zombie completes",
        ),
        pytest.param([(1, "active", "a.0"), (2, "failed", "a.0")], "failed for good", id="failed"),
    ],
)  # fmt: skip
def test_what_the_server_must_not_do(events, said, judge):
    problems, _ = judge(events, {1: ["start a.0 1 1 1.1", "end 1 1.2"]}, [STOPPED])
    assert any(said in problem for problem in problems), problems


def test_a_stopped_process_explains_an_overlap(judge):
    lines = {
        1: ["start a.0 1 1 1.1", "end 1 4.3", "lost 1 4.3"],
        2: ["start a.0 2 2 4.1", "end 2 4.9"],
    }
    problems, seen = judge(ZOMBIE, lines, [STOPPED])
    assert (problems, seen["overlaps"]) == ([], 1)
    assert seen["overlap: its process was stopped"] == 1

    # The fault of another process, or of another time, explains nothing.
    for fault in (Fault("stop", 2, 1.2, 4.2), Fault("stop", 1, 10, 13)):
        problems, _ = judge(ZOMBIE, lines, [fault])
        assert any("was swept for no reason" in problem for problem in problems)


def test_a_request_may_outlive_its_process(judge):
    """Nobody began the handler; the server had read the request when its process was dead."""
    lines = {2: ["start a.0 2 2 4.1", "end 2 4.9"]}
    problems, seen = judge(ZOMBIE, lines, [Fault("kill", 1, 0.9, 0.95)])
    assert (problems, seen["swept: its process was killed while it asked"]) == ([], 1)

    problems, _ = judge(ZOMBIE, lines, [Fault("kill", 1, 0.5, 0.55)])
    assert [problem for problem in problems if "was swept for no reason" in problem]


def test_a_request_outlives_its_process_for_longer_if_the_server_serves_nobody(judge):
    lines = {2: ["start a.0 2 2 4.1", "end 2 4.9"]}
    killed = [Fault("kill", 1, 0.6, 0.65)]
    steady = [1.2 + n / 10 for n in range(50)]
    problems, seen = judge(ZOMBIE, lines, killed, [0.6, 0.99, 1.1, *steady])
    assert (problems, seen["swept: its process was killed while it asked"]) == ([], 1)

    problems, _ = judge(ZOMBIE, lines, killed, [0.6, 0.7, 0.8, 0.9, 1.0, 1.1, *steady])
    assert [problem for problem in problems if "was swept for no reason" in problem]


def test_a_process_that_got_no_time_explains_a_sweep(judge):
    lines = {
        1: ["start a.0 1 1 1.1", "end 1 4.3", "lost 1 4.3"],
        2: ["start a.0 2 2 4.1", "end 2 4.9"],
    }
    problems, seen = judge(ZOMBIE, lines, pulses=[1.0, 1.1, 4.2, 4.3])
    assert (problems, seen["overlap: its process got no time"]) == ([], 1)


def test_whoever_overlaps_must_have_been_told(judge):
    lines = {1: ["start a.0 1 1 1.1", "end 1 4.3"], 2: ["start a.0 2 2 4.1", "end 2 4.9"]}
    problems, _ = judge(ZOMBIE, lines, [STOPPED])
    assert [problem for problem in problems if "was never told" in problem]

    killed = Fault("kill", 1, 4.4, 4.4)
    problems, _ = judge(ZOMBIE, lines, [STOPPED, killed])
    assert problems == []


def test_an_overlap_without_a_sweep_is_a_fault(judge):
    lines = {1: ["start a.0 1 1 1.1", "end 1 3.5"], 2: ["start a.1 1 2 3.1", "end 2 3.9"]}
    problems, _ = judge(IN_ORDER, lines, [STOPPED])
    assert [problem for problem in problems if "nobody had taken its lane away" in problem]


def test_a_refusal_without_a_sweep_is_a_fault(judge):
    lines = {1: ["start a.0 1 1 1.1", "end 1 1.9", "lost 1 1.9"]}
    problems, _ = judge(IN_ORDER, lines)
    assert [problem for problem in problems if "though nobody had taken the job" in problem]


def test_numbers_that_are_equal_or_inverted_are_faults(judge):
    lines = {1: ["start a.1 1 1 3.1", "end 1 3.2"], 2: ["start a.0 1 2 3.3", "end 2 3.4"]}
    problems, _ = judge(IN_ORDER, lines)
    assert [problem for problem in problems if "by its number" in problem]

    lines = {1: ["start a.0 1 1 1.1", "end 1 1.2"], 2: ["start a.1 1 1 3.3", "end 1 3.4"]}
    problems, _ = judge(IN_ORDER, lines)
    assert [problem for problem in problems if "was given twice" in problem]


def test_a_run_without_an_end_was_cut_off_by_a_kill(judge):
    lines = {1: ["start a.0 1 1 1.1"], 2: ["start a.1 1 2 3.1", "end 2 3.9"]}
    problems, _ = judge(IN_ORDER, lines)
    assert [problem for problem in problems if "has no end" in problem]

    problems, _ = judge(IN_ORDER, lines, [Fault("kill", 1, 1.5, 1.6)])
    assert problems == []
