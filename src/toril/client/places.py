"""What belongs to an event loop: sockets, tasks, locks and futures are useless on another one.

This module and its blocking twin, where the place is the process, are both written by hand.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

Place = asyncio.AbstractEventLoop


class PerPlace(Generic[T]):
    """One ``T`` for each event loop that asks for it, created when it first does.

    When a new loop asks, those of closed loops are passed to ``forget``, which must not use their
    loop any more.  Several loops may be alive at once, each in its thread.
    """

    def __init__(self, make: Callable[[], T], forget: Callable[[T], None] | None = None) -> None:
        self._make = make
        self._forget = forget
        # Reentrant: a garbage collection may end what waited on a closed loop.
        self._guard = threading.RLock()
        self._all: dict[Place, T] = {}
        self._latest: tuple[Place | None, T | None] = (None, None)

    def here(self) -> T:
        """The one of the running loop."""
        loop = asyncio.get_running_loop()
        place, value = self._latest  # read at once: another thread may change it
        if place is loop:
            return value  # type: ignore[return-value]
        return self._move(loop)

    def items(self) -> Iterator[tuple[Place, T]]:
        """Every one, with its loop."""
        with self._guard:
            return iter(list(self._all.items()))

    def values(self) -> list[T]:
        return [value for _, value in self.items()]

    def _move(self, loop: Place) -> T:
        with self._guard:
            gone = [self._all.pop(place) for place in list(self._all) if place.is_closed()]
            if loop not in self._all:
                self._all[loop] = self._make()
            value = self._all[loop]
            self._latest = (loop, value)
        if self._forget is not None:
            for one in gone:
                self._forget(one)
        return value


__all__ = ["PerPlace"]
