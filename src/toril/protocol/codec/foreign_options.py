"""Options that a Node program wrote, read as Node reads them.

JavaScript takes `"3"` for a number where it compares and counts, and -1 for "no limit" in places.
Where BullMQ itself stumbles over a value, the reading is the one that removes and repeats least.
The table in tests/interop/test_odd_options.py holds all of this against BullMQ 5 and 6.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from toril.options import MAX_DELAY_MS, Backoff
from toril.protocol.codec.fields import MOST

_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WITH_BASE = re.compile(r"0(?:[xX][0-9a-fA-F]+|[oO][0-7]+|[bB][01]+)")
_LONGEST_NUMBER = 400


Retention = dict[str, float]
"""As scripts have it: ``count``, ``age`` in seconds, ``limit``."""


def number(value: Any) -> float | None:
    """``value`` where JavaScript needs a number, at most ``MOST``; None for what is none there."""
    match value:
        case None:
            return 0
        case bool() | int():
            return max(-MOST, min(MOST, int(value)))
        case float():
            return None if math.isnan(value) else max(-MOST, min(MOST, value))
        case str():
            return _number_in_text(value.strip())
        case [one]:
            return number(one) if isinstance(one, (str, int, float)) else None
    return None


def whole(value: Any, default: int = 0) -> int:
    """A whole number, cut off towards zero."""
    found = number(value)
    return default if found is None else int(found)


def attempts(value: Any) -> int:
    """How often a job is run in all: Node continues while fewer attempts than this were made."""
    found = number(value)
    return 0 if found is None else max(0, math.ceil(found))


def retention(value: Any) -> Retention | None:
    """Which finished jobs stay; None keeps everything."""
    match value:
        case bool() | str():
            return {"count": 0} if value else None
        case int() | float():
            return _retention({"count": value})
        case Mapping():
            return _retention(value)
    return None


def _retention(value: Mapping[str, Any]) -> Retention | None:
    keep: Retention = {}
    count, age, limit = (_given(value.get(name)) for name in ("count", "age", "limit"))
    if count is not None and count >= 0:
        keep["count"] = math.ceil(count)
    if age is not None:
        keep["age"] = max(0, age)
    if limit is not None and limit >= 0:
        keep["limit"] = math.ceil(limit)
    return keep or None


def _given(value: Any) -> float | None:
    """A number that BullMQ's scripts can read, where an empty value is not a number."""
    is_number = isinstance(value, (int, float, str)) and not isinstance(value, bool) and value != ""
    return number(value) if is_number else None


def backoff(value: Any) -> Backoff | None:
    """How long a failed job waits; None for not at all.

    BullMQ fails on a wait without a type, or as text; here it is a fixed one.
    """
    if isinstance(value, Mapping):
        kind, jitter = value.get("type"), number(value.get("jitter")) or 0
        return Backoff(
            kind if isinstance(kind, str) else "fixed",
            _delay(value.get("delay")),
            jitter if 0 <= jitter <= 1 else 0,
        )
    delay = 0 if isinstance(value, (bool, list)) else _delay(value)
    return Backoff("fixed", delay) if delay else None


def never_retries(value: Any) -> bool:
    """Whether this is the backoff that tells Node not to retry."""
    if isinstance(value, Mapping) and value.get("type") in ("fixed", "exponential"):
        value = value.get("delay")
    elif not isinstance(value, (int, float)):
        return False
    return number(value) == -1


def trace_limit(value: Any) -> int | None:
    """How many stack traces stay; None for all of them."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == 0:
        return 0
    return whole(value) or None


def _delay(value: Any) -> int:
    return max(0, min(MAX_DELAY_MS, whole(value)))


def _number_in_text(text: str) -> float | None:
    if not text:
        return 0
    if text.removeprefix("+") == "Infinity" or text == "-Infinity":
        return -MOST if text[0] == "-" else MOST
    if len(text) > _LONGEST_NUMBER:
        return None
    if _WITH_BASE.fullmatch(text):
        return min(MOST, int(text, 0))
    if _DECIMAL.fullmatch(text):
        return max(-MOST, min(MOST, float(text)))
    return None
