"""What users are told to expect of waits and of load holds for the numbers in the code.

A wait that is longer, or a call that is bigger, breaks nothing that a test could see in its time,
and a promise of the documentation all the same.
"""

from __future__ import annotations

import importlib
import re

import pytest

from toril.protocol import scripts

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
    ("client.connection", "MOVING_S", 10, "a slot that stays on the move is given up"),
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


IN_SCRIPTS = [
    ("MOST_UNHEARD", [3], "a job that kills whoever reads it is given up"),
    ("MOST_BROUGHT_BACK", [100], "a call of a sweep is short"),
    ("MORE_REMOVED", [50], "a call that buries removes a few old letters more"),
    ("MOST_LOGS", [1000, 1000], "a letter takes the end of a long log"),
    ("MOST_DUE", [200], "a call lets a few due jobs in"),
    ("MOST_DUE_IN_LANES", [100], "a call lets a few due jobs of lanes in"),
    ("NEAR", [300], "a call looks at a few jobs that another program put next to lanes"),
    ("MOST_BYTES", [2000, 500_000, 500_000], "a history and what a call takes are short"),
    ("MOST_OF_A_NAME", [60], "the history of a job is short"),
    ("LONGEST_HISTORY", [8192], "a letter that is replayed again and again stays small"),
    ("MOST_SLOTS", [32], "a schedule that lags behind is caught up in steps"),
    ("MOST_ROUND", [1000], "a call turns a part of a long list"),
    ("MOST_ARRIVED", [2000], "a call looks at a part of a long list"),
    ("LONGEST_FENCE", [20], "the record of a run is small"),
    ("LONGEST_WINDOW_APART", [60_000], "a window that a wrong clock set ends within a minute"),
    ("TURN_IS_STALE_MS", [60_000], "a run whose program died is taken over after a minute"),
    ("TURN_EXPIRES_MS", [604_800_000], "what a run left is gone after a week"),
    ("KEEP_NUMBER_MS", [300_000], "producers that come and go leave nothing"),
    ("REMEMBER_CALL_MS", [60_000], "the memory of a change is short"),
    ("OLDEST_MS", [82_800_000], "its target remembers a delivery for an hour longer"),
    ("MOST_SEARCHED", [100], "a search among parcels is short"),
    ("MOST_IN_REPLY", [100], "a reply brings no more than a courier fetches"),
    ("MOST_BYTES_IN_REPLY", [500_000], "a reply with parcels is short"),
    ("DAY_MS", [86_400_000], "what was done elsewhere is forgotten after a day"),
    ("EXPIRE_MS", [86_400_000], "what dead workers left is gone after a day"),
]


@pytest.mark.parametrize(("name", "most", "why"), IN_SCRIPTS)
def test_scripts_do_no_more_and_remember_no_longer_than_promised(name, most, why):
    found = re.findall(rf'\blocal {name} = "?(\d+)', scripts.load("add").library)

    assert len(found) == len(most)
    assert all(
        0 < int(value) <= limit for value, limit in zip(sorted(found, key=int), most, strict=True)
    ), why
