"""Which rows a relay claims: tables of what is in sight, and what is chosen."""

from __future__ import annotations

import random

import pytest

from toril.outbox.choosing import Choosing, Sight


def see(words):
    """`1a 2 3a!`: row 1 of lane a, row 2 of none, row 3 of lane a whose time has not come."""
    return [
        Sight(int(word[:1]), "q", word[1:].strip("!") or None, "!" not in word)
        for word in words.split()
    ]


def seqs(sights):
    return [sight.seq for sight in sights]


@pytest.mark.parametrize(
    ("words", "stops", "limit", "first", "following"),
    [
        ("1 2 3", {}, 9, [1, 2, 3], []),
        ("1 2! 3", {}, 9, [1, 3], []),
        ("1 2 3", {}, 2, [1, 2], []),
        ("1a 2a 3b 4a", {}, 9, [1, 3], [2, 4]),
        ("1a! 2a 3b 4", {}, 9, [3, 4], []),
        ("1a 2a! 3a 4b 5b", {}, 9, [1, 4], [5]),
        ("1a 2a 3a 4a", {"a": 3}, 9, [1], [2]),
        ("3a 4a", {"a": 1}, 9, [], []),
        ("1a 2a 3a 4a", {}, 3, [1], [2, 3]),
        ("1a 2b 3c 4a", {}, 2, [1, 2], []),
        ("1a 2b 3a 4b 5", {}, 4, [1, 2, 5], [3]),
    ],
)
def test_what_is_chosen(words, stops, limit, first, following):
    choosing = Choosing(limit)
    choosing.stops = {("q", lane): seq for lane, seq in stops.items()}
    window = see(words)

    found = choosing.first(window)
    assert seqs(found) == first
    assert choosing.note_first(found, set(first)) == first
    found = choosing.following(window)
    assert seqs(found) == following
    assert choosing.note_following(found, set(following)) == following
    assert choosing.rest == limit - len(first) - len(following)


def test_a_lane_whose_head_is_another_relays_is_left_alone():
    choosing, window = Choosing(9), see("1a 2a 3 4b 5b")

    assert choosing.note_first(choosing.first(window), {3, 4}) == [3, 4]

    assert seqs(choosing.following(window)) == [5]
    assert seqs(choosing.first(see("6a 7"))) == [7]
    assert choosing.in_the_way(5) == [("q", "a")]


def test_behind_a_gap_a_lane_does_not_go_on():
    choosing, window = Choosing(9), see("1a 2a 3a 4a 5b 6b")
    choosing.note_first(choosing.first(window), {1, 5})

    assert choosing.note_following(choosing.following(window), {2, 4, 6}) == [2, 6]

    assert seqs(choosing.following(see("7a 8b"))) == [8]


def test_lanes_go_on_in_the_next_window():
    choosing = Choosing(9)
    window = see("1a 2a 3b!")
    choosing.note_first(choosing.first(window), {1})
    choosing.note_following(choosing.following(window), {2})

    window = see("4a 5b 6c 7a!")

    assert seqs(choosing.first(window)) == [6]
    choosing.note_first(choosing.first(see("6c")), {6})
    assert seqs(choosing.following(window)) == [4]


def test_a_lane_is_always_claimed_from_its_head_without_gaps():
    """Any windows, any rows that are not ready, any that others have."""
    dice = random.Random(7)
    for _ in range(500):
        rows = [
            Sight(seq, "q", dice.choice([None, "a", "b", "c"]), dice.random() < 0.9)
            for seq in range(dice.randint(1, 40))
        ]
        choosing, claimed, start = Choosing(dice.randint(1, 30)), [], 0
        while start < len(rows) and choosing.rest > 0:
            size = dice.randint(1, 15)
            window, start = rows[start : start + size], start + size
            for choose, note in (
                (choosing.first, choosing.note_first),
                (choosing.following, choosing.note_following),
            ):
                chosen = choose(window)
                assert len(chosen) <= choosing.rest
                claimed += note(chosen, {one.seq for one in chosen if dice.random() < 0.8})

        assert len(claimed) == len(set(claimed))
        for lane in ("a", "b", "c"):
            mine = [row for row in rows if row.lane == lane]
            taken = [row.seq for row in mine if row.seq in claimed]
            assert taken == [row.seq for row in mine[: len(taken)]]
            assert all(row.is_ready for row in mine[: len(taken)])
