"""Looks at a queue: what is asked, and how the answers are read."""

from __future__ import annotations

import pytest

from toril.protocol import glancing, groups
from toril.protocol.keys import Keys

KEYS = Keys("bull", "q")


def test_a_look_adds_up_what_waits_wherever_it_waits():
    command = glancing.look(KEYS, after="5-1", most=7)
    entries = [
        [b"9-0", [b"event", b"completed", b"jobId", b"a", b"returnvalue", b"1"]],
        [b"8-0", [b"event", b"active", b"jobId", b"a"]],
    ]

    glance = command.parse([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 1, 40, entries])

    assert command.args == {"after": "5-1", "most": 7}
    assert (glance.waiting, glance.active, glance.delayed) == (1 + 2 + 9, 3, 5 + 10)
    assert (glance.completed, glance.failed, glance.lanes, glance.groups) == (7, 8, 11, 12)
    assert glance.in_transit == 13
    assert glance.total == 12 + 3 + 4 + 15 + 6
    assert glance.is_paused
    assert glance.events_added == 40
    assert [event.name for event in glance.events] == ["active", "completed"]


def test_active_jobs_are_read_with_and_without_what_is_optional():
    full = [b"a", b"charge", b"2", b"1000", b'{"done": 5}', b"w1", b"0" * 32 + b"user%2042"]
    bare = [b"b", b"", b"", b"", b"", b"", b""]

    jobs = glancing.active(KEYS, most=5).parse([full, bare])

    assert jobs[0] == glancing.ActiveJob("a", "charge", 2, 1000, {"done": 5}, "w1", "user 42")
    assert jobs[1] == glancing.ActiveJob("b", "", 0, 0, None, "", "")


def test_a_lane_says_what_keeps_it():
    rows = [
        [b"one", 3, b"h", b"x\ny", b""],
        [b"two", 3, b"h", b"", b'{"paused": true}'],
        [b"three", 3, b"h", b"", b'{"halted": "j9"}'],
        [b"four", 0, b"", b"", b""],
    ]

    lanes = glancing.lanes_at_work(KEYS, most=5).parse(rows)

    assert [lane.state for lane in lanes] == ["running", "paused", "halted", "waiting"]
    assert lanes[0].holders == ("x", "y")
    assert lanes[3].head == ""


def test_groups_that_vanish_meanwhile_are_left_out():
    command = glancing.newest_groups(KEYS, most=2)
    known = [b"order", b"ACTIVE", b"1", b"2", b"3", b"1", b"0", b"0", None, None, None, None]
    gone = [None] * 12

    found = command.parse([[b"g1", known], [b"g2", gone]])

    assert len(command.args["fields"]) == 12
    assert [(group.id, group.name, group.total_jobs) for group in found] == [("g1", "order", 3)]


def test_failed_jobs_are_read_without_their_data():
    plan = glancing.failed(KEYS, most=3)
    first = next(plan)
    assert first.words == ("ZREVRANGE", "bull:q:failed", 0, 2)

    reads = plan.send(first.parse([b"a", b"b"]))
    assert [read.words[1] for read in reads] == ["bull:q:a", "bull:q:b"]
    assert "data" not in reads[0].words
    full = reads[0].parse([b"charge", b"ValueError: no", b"2", b"1000", b"w1"])
    bare = reads[1].parse([None] * 5)
    with pytest.raises(StopIteration) as end:
        plan.send([full, bare])

    assert end.value.value == [
        glancing.FailedJob("a", "charge", "ValueError: no", 2, 1000, "w1"),
        glancing.FailedJob("b", "", "", 0, 0, ""),
    ]


def test_where_nothing_failed_nothing_is_read():
    plan = glancing.failed(KEYS, most=3)
    first = next(plan)
    with pytest.raises(StopIteration) as end:
        plan.send(first.parse([]))
    assert end.value.value == []


def test_groups_need_a_person_when_they_cannot_go_on_by_themselves():
    plan = groups.needing_a_person(KEYS, most=2)
    first = next(plan)
    assert first.words == ("ZREVRANGE", "bull:q:toril:groups-asking", 0, 1)
    reads = plan.send(first.parse([b"g1", b"g2", b"g3", b"g4"]))

    def read(index: int, state: bytes, asks: bytes | None) -> object:
        fields = [b"order", state, b"1", b"2", b"3", b"1", b"0", b"0", None, None, None, asks]
        return reads[index].parse(fields)

    with pytest.raises(StopIteration) as end:
        plan.send(
            [
                read(0, b"FAILED_COMPENSATION", None),
                read(1, b"ACTIVE", b"charge"),
                read(2, b"FAILED", b"charge"),
                None,
            ]
        )

    assert [group.id for group in end.value.value] == ["g1", "g2"]
    assert groups.count_asking(KEYS).words == ("ZCARD", "bull:q:toril:groups-asking")
    plan = groups.needing_a_person(KEYS, most=2)
    first = next(plan)
    with pytest.raises(StopIteration) as end:
        plan.send(first.parse([]))
    assert end.value.value == []


def test_stuck_groups_of_all_queues_are_counted_in_one_message():
    """Those that a worker of the previous version could not undo are in no index."""
    plan = groups.count_stuck([Keys("bull", "a"), Keys("bull", "b")])

    commands = next(plan)
    with pytest.raises(StopIteration) as end:
        plan.send([9, 4, 3, 5, 7, 1, 5, 0])

    assert [command.words[1] for command in commands[4:]] == [
        "bull:b:groups",
        "bull:b:toril:groups-open",
        "bull:b:toril:groups-ended",
        "bull:b:toril:groups-asking",
    ]
    assert end.value.value == [groups.Stuck(2, 5), groups.Stuck(1, 1)]
