"""The order of a run: what takes long begins first.

Six processes share the tests, each begins with a sixth of them, and who is done early helps the
others. A test of a minute that begins last still leaves one core idle for most of it.
"""

from __future__ import annotations

import pytest


def in_order(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """The tests with those marked ``first`` at the beginning of each process's part, in turn.

    The parts are those that xdist deals out: neighbours stay together, and share what they start.
    """
    long = [item for item in items if item.get_closest_marker("first") is not None]
    others = [item for item in items if item.get_closest_marker("first") is None]
    ordered: list[pytest.Item] = []
    left = len(items)
    for number in range(processes):
        size = left // (processes - number)
        left -= size
        begin = long[number::processes]
        ordered += begin
        few = max(size - len(begin), 0)
        ordered += others[:few]
        del others[:few]
    return ordered + others
