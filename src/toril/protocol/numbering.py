"""Numbers for calls that add, by which the server recognises a call that it already executed.

A flight is a line of calls, one at a time, and each call has a larger number than the one before.
The server remembers the last call of every flight (``rooms/requests.lua``): the same number
again gets the same reply, and a smaller one comes from an abandoned socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

RESEND_WITHIN_S = 60.0
"""After that a call is no longer made by sending it again: the server forgets it in five minutes,
and a copy may be under way for a while."""


class Flight:
    """A line of calls; whoever has taken it from its ``Flights`` is the only one to use it."""

    __slots__ = ("_last", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._last = 0

    def next_number(self, now_us: int) -> str:
        """The number of a new call.

        It is the time, so that two copies of a process, made of one snapshot of it, do not give the
        same number to different calls.
        """
        self._last = max(self._last + 1, now_us)
        return f"{self._last:016d}"


class Flights:
    """The flights of a process: as many as it has calls under way at the same time, used again and
    again, so that the server has little to remember."""

    def __init__(self, new_name: Callable[[], str], clock_us: Callable[[], int]) -> None:
        self._new_name = new_name
        self._clock_us = clock_us
        self._free: deque[Flight] = deque()

    def take(self) -> tuple[Flight, str]:
        """A flight that nobody else uses, and the number of its next call."""
        try:
            flight = self._free.pop()
        except IndexError:
            flight = Flight(self._new_name())
        return flight, flight.next_number(self._clock_us())

    def give_back(self, flight: Flight) -> None:
        """Return a flight when its last call is over or abandoned."""
        self._free.append(flight)

    def forget(self) -> None:
        """In a forked child: the flights are the parent's."""
        self._free = deque()
