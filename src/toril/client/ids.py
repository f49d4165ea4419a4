"""Job ids, chosen by the client so that an add may be sent again when its reply was lost.

An id sorts by time, is unique, contains no ``:`` and is never all digits: ``j``, nine characters of
time in ms, twelve of chance, in Crockford's base 32.
"""

from __future__ import annotations

import os
import random
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_TRIPLES = [a + b + c for a in _ALPHABET for b in _ALPHABET for c in _ALPHABET]

_dice = random.SystemRandom()
_fast_dice = random.Random(_dice.getrandbits(256))


def new_job_id() -> str:
    """A new id; later ones sort after earlier ones, to the millisecond."""
    ms = time.time_ns() // 1_000_000
    chance = _fast_dice.getrandbits(60)
    return (
        f"j{_TRIPLES[ms >> 30 & 32767]}{_TRIPLES[ms >> 15 & 32767]}{_TRIPLES[ms & 32767]}"
        f"{_TRIPLES[chance >> 45]}{_TRIPLES[chance >> 30 & 32767]}"
        f"{_TRIPLES[chance >> 15 & 32767]}{_TRIPLES[chance & 32767]}"
    )


def new_worker_id() -> str:
    """128 bits of chance: the part of a lock's token that names the worker."""
    return f"{_dice.getrandbits(128):032x}"


def _reseed() -> None:
    _fast_dice.seed(_dice.getrandbits(256))


# A forked child must not draw the numbers its parent draws.
os.register_at_fork(after_in_child=_reseed)
