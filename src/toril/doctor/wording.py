"""How the doctor speaks of numbers and times."""

from __future__ import annotations

_UNITS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000))


def counted(count: int, noun: str, verb: str = "") -> str:
    """``1 job waits``, ``2 jobs wait``; the verb only if one is given."""
    is_one = count == 1
    nouns = noun if is_one else f"{noun}s"
    if not verb:
        return f"{count} {nouns}"
    return f"{count} {nouns} {verb}{'s' if is_one else ''}"


def lasting(ms: int) -> str:
    """A duration in its largest unit: ``3 hours``, ``40 seconds``, ``less than a second``."""
    for unit, size in _UNITS:
        if ms >= size:
            return counted(ms // size, unit)
    return "less than a second"
