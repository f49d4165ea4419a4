"""The judge of the log knows what cannot be."""

from __future__ import annotations

import pytest

from tests.chaos.history import disorders


@pytest.mark.parametrize(
    "events",
    [
        ["added", "waiting", "active", "completed"],
        ["added", "waiting", "active", "stalled", "waiting", "active", "completed"],
        ["added", "delayed", "waiting", "active", "delayed", "waiting", "active", "failed"],
        ["added", "waiting", "active", "completed", "removed", "added", "waiting", "active"],
        ["added", "waiting-children", "failed"],
    ],
)
def test_what_may_happen(events):
    assert list(disorders({"j1": events})) == []


@pytest.mark.parametrize(
    ("events", "what"),
    [
        (["added", "waiting", "active", "active", "completed"], "taken twice"),
        (["added", "waiting", "active", "completed", "completed"], "ended twice"),
        (["added", "waiting", "completed"], "without having been taken"),
        (["added", "waiting", "active", "stalled", "completed"], "without having been taken"),
        (["added", "waiting", "active", "completed", "active"], "after its end"),
    ],
)
def test_what_may_not(events, what):
    assert what in "\n".join(disorders({"j1": events}))
