"""Options that a Node program wrote; tests/interop/test_odd_options.py holds them against Node."""

from __future__ import annotations

import math

import pytest

from toril.options import MAX_DELAY_MS, Backoff
from toril.protocol.codec import JobOpts
from toril.protocol.codec import foreign_options as foreign
from toril.protocol.codec.foreign_options import MOST


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3),
        (2.5, 2.5),
        (True, 1),
        (None, 0),
        ("", 0),
        (" 3 ", 3),
        ("-2.5e1", -25),
        (".5", 0.5),
        ("0x10", 16),
        ("0b11", 3),
        ("0o17", 15),
        ("Infinity", MOST),
        ("+Infinity", MOST),
        ("-Infinity", -MOST),
        (math.inf, MOST),
        (10**400, MOST),
        ("9" * 390, MOST),
        ("9" * 500, None),
        ("0x" + "f" * 300, MOST),
        (math.nan, None),
        ("1_000", None),
        ("\u0663", None),
        ("nan", None),
        ("inf", None),
        ([7], 7),
        ([[7]], None),
        ([], None),
        ({}, None),
    ],
)
def test_a_number_as_javascript_takes_it(value, expected):
    assert foreign.number(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, {"count": 0}),
        (False, None),
        (-1, None),
        (0, {"count": 0}),
        (0.5, {"count": 1}),
        ("2", {"count": 0}),
        ("", None),
        ([], None),
        ({"age": "3600"}, {"age": 3600}),
        ({"age": 0.5, "limit": -1}, {"age": 0.5}),
        ({"age": -5}, {"age": 0}),
        ({"age": math.inf}, {"age": MOST}),
        ({"age": math.nan, "count": True}, None),
        ({"count": "x", "limit": "3"}, {"limit": 3}),
    ],
)
def test_a_retention(value, expected):
    assert foreign.retention(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (400, Backoff("fixed", 400)),
        ("400", Backoff("fixed", 400)),
        (0, None),
        (-7, None),
        (True, None),
        ({"type": "exponential", "delay": "400"}, Backoff("exponential", 400)),
        ({"type": "fixed", "delay": 1, "jitter": "0.5"}, Backoff("fixed", 1, 0.5)),
        ({"type": "fixed", "delay": 1, "jitter": 7}, Backoff("fixed", 1)),
        ({"delay": "400"}, Backoff("fixed", 400)),
        ({"type": "own"}, Backoff("own", 0)),
        (2**53 - 1, Backoff("fixed", MAX_DELAY_MS)),
    ],
)
def test_a_backoff(value, expected):
    assert foreign.backoff(value) == expected


def test_a_wait_of_minus_one_ends_the_attempts():
    assert JobOpts({"attempts": "5"}).attempts == 5
    assert JobOpts({"attempts": 5, "backoff": -1}).attempts == 1
    assert JobOpts({"attempts": 5, "backoff": {"type": "exponential", "delay": "-1"}}).attempts == 1
    assert JobOpts({"attempts": 5, "backoff": {"type": "own", "delay": -1}}).attempts == 5
    assert JobOpts({"attempts": 5, "backoff": "-1"}).attempts == 5


def test_the_small_options():
    opts = JobOpts({"kl": "7", "stackTraceLimit": "2", "delay": "5", "priority": "x"})

    assert (opts.keep_logs, opts.stack_trace_limit, opts.delay, opts.priority) == (7, 2, 5, 0)
    assert JobOpts({"stackTraceLimit": 0}).stack_trace_limit == 0
    assert JobOpts({"stackTraceLimit": "0"}).stack_trace_limit is None
