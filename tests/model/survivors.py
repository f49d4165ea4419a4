"""Planted bugs that the explorer does not find, by name."""

from __future__ import annotations

from tests.model.tested import ARGUED
from tests.model.tested.outside import OPEN

# ruff: noqa: E501

EQUIVALENT: dict[str, str] = {
    **ARGUED,
    "changePriority: without places.wake(queue, gate)": "a job that waits was announced when it began to",
    "rooms/places: without places.wake(queue, gate)": "who lets due jobs in takes one and wakes the next worker, or a limit holds him back and he looks again when it ends; who waits was told when they are due",
}
"""Those that change nothing that anybody can see, and why; they do not count."""

SURVIVORS: frozenset[str] = frozenset(OPEN)
"""Those that no check finds."""
