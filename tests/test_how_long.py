"""What users are told to expect of waits and of load holds for the numbers in the code.

A wait that is longer, or a call that is bigger, breaks nothing that a test could see in its time,
and a promise of the documentation all the same.
"""

from __future__ import annotations

import importlib

import pytest

PROMISES = [
    ("worker.pump", "CONFIRM_AFTER_S", 0.05, "a job that kills its worker is known to have begun"),
    ("worker.pump", "LONGEST_HOLD_MS", 60_000, "a limit that was raised is noticed in a minute"),
    ("worker.flight", "LONGEST_PAUSE_S", 3, "work goes on soon after a server is back"),
    ("worker.lease", "_LONGEST_GOODBYE_S", 5, "closing does not wait for a silent server"),
    ("worker.lease", "_SLICE", 1000, "a renewal leaves room for others"),
    ("worker.crew", "GRACE_S", 2, "a deaf handler does not hold up the end of its worker"),
    ("worker.crew", "_MOST_EARLY", 1000, "messages for jobs that never come take little memory"),
    ("client.transport", "MOST_SOCKETS", 32, "a process has few sockets to a server"),
    ("client.transport", "_WATCH_EVERY_S", 1, "a reply that is overdue is noticed in a second"),
    ("client.connection", "PATIENCE_S", 5, "a producer without a server fails in seconds"),
    ("client.connection", "SHORTEST_PAUSE_S", 0.1, "a line that broke is noticed by nobody"),
    ("client.connection", "BLOCKING_MARGIN_S", 5, "a wait that is never answered is given up"),
    ("client.connection", "MOST_AT_ONCE", 100, "replies are read while requests are written"),
    ("client.waiting", "LOOK_AGAIN_S", 5, "an end without an event is found in seconds"),
    ("client.waiting", "LONGEST_LOOK_S", 60, "what came late is found within a minute"),
    ("client.waiting", "SHORTEST_LOOK_S", 0.1, "an empty queue is noticed at once"),
    ("client.batching", "MOST_CALLS_AT_ONCE", 8, "others come between the calls of a bulk"),
    ("protocol.sending", "MOST_LOADS", 100, "a server that forgets its library is not asked on"),
    ("protocol.failovers", "LONGEST_HOLD_S", 5, "a failover that never comes holds nobody up"),
    ("protocol.numbering", "RESEND_WITHIN_S", 75, "four times as long is remembered"),
]


@pytest.mark.parametrize(("module", "name", "most", "why"), PROMISES)
def test_nobody_waits_longer_and_nothing_is_bigger_than_promised(module, name, most, why):
    assert 0 < getattr(importlib.import_module(f"toril.{module}"), name) <= most, why
