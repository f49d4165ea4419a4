"""What belongs to a process: threads and what they hold do not survive a fork.

The hand-written blocking twin of ``toril.client.places``, where the place is an event loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class PerPlace(Generic[T]):
    """One ``T`` for each process that asks for it, created when it first does.

    That of a parent process is left alone: it may still be in use there.
    """

    def __init__(self, make: Callable[[], T], forget: Callable[[T], None] | None = None) -> None:
        self._make = make
        self._all: dict[int, T] = {}

    def here(self) -> T:
        """The one of this process."""
        process = os.getpid()
        value = self._all.get(process)
        if value is not None:
            return value
        # If two threads come here together, both get the one that was first.
        return self._all.setdefault(process, self._make())

    def items(self) -> Iterator[tuple[int, T]]:
        """The one of this process, if it has asked for it."""
        process = os.getpid()
        return iter([(process, self._all[process])] if process in self._all else [])

    def values(self) -> list[T]:
        return [value for _, value in self.items()]


__all__ = ["PerPlace"]
