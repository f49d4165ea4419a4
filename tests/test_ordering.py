"""The order of a run that several processes share."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ordering import in_order


class Item:
    """As much of a test as its order depends on."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def get_closest_marker(self, name: str) -> bool | None:
        assert name == "first"
        return True if self.name.isupper() else None


def ordered(names: str, processes: int) -> str:
    items: list[Any] = [Item(name) for name in names]
    return "".join(map(repr, in_order(items, processes)))


@pytest.mark.parametrize(
    ("names", "processes", "expected"),
    [
        ("abcdeF", 1, "Fabcde"),
        ("abcdeF", 2, "Fabcde"),
        ("abcDeF", 2, "DabFce"),
        ("aBcdEfGh", 3, "BaEcdGfh"),
        ("abc", 6, "abc"),
        ("ABCDE", 2, "ACEBD"),
        ("", 6, ""),
    ],
)
def test_what_takes_long_begins_each_part(names, processes, expected):
    assert ordered(names, processes) == expected


@pytest.mark.parametrize("processes", [1, 2, 5, 6, 40])
def test_no_test_is_lost_and_neighbours_stay_in_order(processes):
    names = "abcdEfghijkLmnopqRstuvWxyz"

    found = ordered(names, processes)

    assert sorted(found) == sorted(names)
    assert [one for one in found if one.islower()] == [one for one in names if one.islower()]
