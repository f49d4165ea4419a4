"""Being told to end: by SIGTERM, or by Ctrl-C."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

_ENDS = (signal.SIGTERM, signal.SIGINT)


def note_signals() -> deque[int]:
    """The signals that come from now on, for whoever looks; each is only noted.

    A handler that did something would do so anywhere: in the middle of a restart, before a process
    that is being started is known, or while somebody looks at the very event that it sets.
    """
    told: deque[int] = deque()
    for number in _ENDS:
        signal.signal(number, lambda one, _: told.append(one))
    return told


@contextmanager
def noted_signals() -> Iterator[deque[int]]:
    """The same while the block runs."""
    before = {number: signal.getsignal(number) for number in _ENDS}
    told = note_signals()
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
