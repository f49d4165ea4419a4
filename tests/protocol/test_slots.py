"""Who serves which slot, as far as one was told."""

from __future__ import annotations

from toril.protocol.command import plain
from toril.protocol.editing import add_log
from toril.protocol.keys import Keys, slot
from toril.protocol.slots import SLOTS, SlotMap, slot_of

ONE, TWO = ("10.0.0.1", 7000), ("10.0.0.2", 7001)


def test_nobody_is_known_before_somebody_was_asked():
    slots = SlotMap([ONE])

    assert slots.owner(5) is None
    assert slots.nodes() == [ONE]


def test_what_the_cluster_says_is_learned():
    slots = SlotMap([ONE])
    slots.learn([[0, 99, [b"10.0.0.2", 7001, b"id"]], [100, 199, [b"", 7002]]], ONE)

    assert slots.owner(99) == TWO
    assert slots.owner(100) == ("10.0.0.1", 7002)
    assert slots.owner(200) is None
    assert slots.nodes() == [TWO, ("10.0.0.1", 7002), ONE]


def test_a_slot_that_moved_is_remembered_until_all_is_asked_anew():
    slots = SlotMap([ONE])
    slots.learn([[0, 99, ["10.0.0.1", 7000]]], ONE)

    assert slots.move(5, "10.0.0.2", 7001, ONE) == TWO
    assert (slots.owner(5), slots.owner(6)) == (TWO, ONE)
    slots.learn([[0, 99, ["10.0.0.1", 7000]]], ONE)
    assert slots.owner(5) == ONE


def test_nodes_that_were_known_are_asked_again():
    slots = SlotMap([ONE])
    slots.learn([[0, 99, ["10.0.0.2", 7001]]], ONE)
    slots.forget()

    assert slots.owner(5) is None
    assert slots.nodes() == [TWO, ONE]


def test_a_node_that_is_in_doubt_is_asked_last():
    slots = SlotMap([ONE])
    slots.learn([[0, 99, ["10.0.0.1", 7000]], [100, 199, ["10.0.0.2", 7001]]], ONE)
    slots.forget(ONE)

    assert slots.nodes() == [TWO, ONE]
    slots.forget(("10.0.0.3", 7002))
    assert slots.nodes() == [TWO, ONE]


def test_the_slot_of_a_command():
    keys = Keys("bull", "{q}")

    assert slot_of(add_log(keys, "41", "row")) == slot("q")
    assert slot_of(plain("GET", "{q}:x", parse=str)) == slot("q")
    assert slot_of(plain("CLIENT", "LIST", parse=str, near="{q}")) == slot("q")
    words = ("XREAD", "BLOCK", 5, "STREAMS", "{q}:events", "$")
    assert slot_of(plain(*words, parse=str)) == slot("q")
    assert SLOTS.parse([1]) == [1]
