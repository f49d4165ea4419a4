"""Finding queues: what is asked, and how the answers are read."""

from __future__ import annotations

import pytest

from toril.errors import InvalidNameError
from toril.protocol import discovering
from toril.protocol.keys import slot


def test_the_whole_key_space_is_walked_in_slices_and_names_come_in_order():
    plan = discovering.queue_names("bull")

    first = next(plan)
    words = ("SCAN", "0", "MATCH", "bull:*:meta", "COUNT", discovering.KEYS_PER_SCAN)
    assert first.words == (*words, "TYPE", "hash")
    second = plan.send(first.parse([b"17", [b"bull:payments:meta", b"bull:mail:meta"]]))
    assert second.words[1] == "17"
    with pytest.raises(StopIteration) as end:
        plan.send(second.parse([b"0", [b"bull:mail:meta", b"bull:mail:compensation:meta"]]))

    assert end.value.value == ["mail", "mail:compensation", "payments"]


def test_on_a_cluster_every_node_that_has_slots_is_searched():
    plan = discovering.queue_names("bull", is_cluster=True)
    slots = next(plan)
    assert slots.words == ("CLUSTER", "SLOTS")
    master_a, master_b = [b"h", 1, b"id-a"], [b"h", 2, b"id-b"]

    first = plan.send(slots.parse([[0, 99, master_a], [100, 16383, master_b], [1, 1, master_a]]))
    assert slot(first.near) == 1
    second = plan.send(first.parse([b"0", [b"bull:{a}:meta"]]))
    assert 100 <= slot(second.near) <= 16383
    with pytest.raises(StopIteration) as end:
        plan.send(second.parse([b"0", [b"bull:{b}:meta"]]))

    assert end.value.value == ["{a}", "{b}"]


def test_keys_that_only_look_like_a_queue_are_left_out():
    found = discovering.look("bull").parse([b"0", [b"bull:q:some-job:meta", b"bull::meta"]])

    assert found.names == []
    assert found.is_last


def test_a_prefix_is_taken_literally_and_a_bad_one_refused():
    assert discovering.look("a*[b]").words[3] == r"a\*\[b\]:*:meta"
    assert discovering.look("{bull}").near == "{bull}:"
    with pytest.raises(InvalidNameError):
        discovering.look("")
