"""What sentinels publish, read without one."""

from __future__ import annotations

import pytest

from toril.protocol.failovers import LONGEST_HOLD_S, Told, read

REPLICA = "slave 10.0.0.2:6379 10.0.0.2 6379 @ main 10.0.0.1 6379"


@pytest.mark.parametrize(
    ("channel", "data", "told"),
    [
        ("+switch-master", "main 10.0.0.1 6379 10.0.0.2 6380", ("10.0.0.2", 6380)),
        ("+switch-master", "other 10.0.0.1 6379 10.0.0.2 6380", Told.NOTHING),
        ("+failover-state-send-slaveof-noone", REPLICA, Told.ABOUT_TO_SWITCH),
        ("+failover-state-send-slaveof-noone", REPLICA.replace("main", "other"), Told.NOTHING),
        ("-failover-abort-slave-timeout", "master main 10.0.0.1 6379", ("10.0.0.1", 6379)),
        ("-failover-abort-slave-timeout", "master other 10.0.0.1 6379", Told.NOTHING),
        ("+switch-master", "main and nonsense", Told.NOTHING),
        ("+switch-master", "", Told.NOTHING),
    ],
)
def test_only_what_concerns_the_own_primary_is_heard(channel, data, told):
    message = {"type": "message", "channel": channel, "data": data}

    assert read(message, "main") == told


@pytest.mark.parametrize("message", [None, {"type": "pong", "channel": None, "data": ""}])
def test_silence_is_no_news(message):
    assert read(message, "main") is Told.NOTHING


def test_writes_are_held_back_for_three_seconds_at_most():
    """docs/guides/production.md promises it."""
    assert LONGEST_HOLD_S == 3
