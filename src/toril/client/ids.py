"""Job ids, chosen by the client so that an add may be sent again when its reply was lost.

An id sorts by time (strictly within one process), is unique, contains no ``:`` and is never all
digits: ``j``, nine characters of time in ms, two that count within the millisecond, ten random
ones, in Crockford's base 32.
"""

from __future__ import annotations

import os
import random
import time

from toril.protocol.numbering import Flights

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
_TRIPLES = [a + b for a in _ALPHABET for b in _PAIRS]
_MOST_PER_MS = len(_PAIRS)


class IdSource:
    """Generates ids. Two threads may draw the same count; the random part keeps them distinct."""

    def __init__(self) -> None:
        self._ms = 0
        self._count = 0
        self._time_part = ""
        self._dice = random.Random()
        self.reseed()

    def reseed(self) -> None:
        self._dice.seed(os.urandom(32))

    def next(self) -> str:
        ms = time.time_ns() // 1_000_000
        if ms > self._ms or self._count >= _MOST_PER_MS - 1:
            # A full millisecond, or a clock that was set back: continue from the last one.
            self._ms = ms = max(ms, self._ms + 1)
            self._count = 0
            self._time_part = (
                f"j{_TRIPLES[ms >> 30 & 32767]}{_TRIPLES[ms >> 15 & 32767]}{_TRIPLES[ms & 32767]}"
            )
        else:
            self._count += 1
        chance = self._dice.getrandbits(50)
        return (
            f"{self._time_part}{_PAIRS[self._count]}{_PAIRS[chance >> 40]}"
            f"{_PAIRS[chance >> 30 & 1023]}{_PAIRS[chance >> 20 & 1023]}"
            f"{_PAIRS[chance >> 10 & 1023]}{_PAIRS[chance & 1023]}"
        )


_source = IdSource()
new_job_id = _source.next


def new_worker_id() -> str:
    """128 random bits: the part of a lock's token that names the worker."""
    return os.urandom(16).hex()


flights = Flights(lambda: os.urandom(12).hex(), lambda: time.time_ns() // 1000)
"""The ids of this process's calls that add something, whatever queue or connection they use."""

# A forked child must not draw the same numbers as its parent.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_source.reseed)
    os.register_at_fork(after_in_child=flights.forget)
