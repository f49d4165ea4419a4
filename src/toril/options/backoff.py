"""How long a failed job waits before its next attempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from toril.checking import shown
from toril.errors import InvalidOptionError
from toril.options.checks import MAX_DELAY_MS, Duration, check_text, milliseconds, whole

_MOST_DOUBLINGS = 40
"""Doublings of a wait: enough to reach ``MAX_DELAY_MS`` from the shortest one."""


class Backoff(msgspec.Struct, frozen=True):
    """How long a failed job waits before its next attempt.

    ``type`` is ``"fixed"``, ``"exponential"``, or the name of a strategy that the worker knows.
    With ``jitter``, a random part of the wait, up to that fraction, is subtracted, so that jobs
    that failed together are not all retried together.
    """

    type: str
    delay: int = 0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.type, str) or not self.type:
            raise InvalidOptionError(
                f"backoff type={shown(self.type)} must be a string: 'fixed', 'exponential', or the"
                f" name of a strategy of the worker"
            )
        whole(self.delay, "backoff delay", most=MAX_DELAY_MS)
        check_text(self.type, "backoff type")
        is_number = isinstance(self.jitter, int | float) and not isinstance(self.jitter, bool)
        if not is_number or not 0 <= self.jitter <= 1:
            raise InvalidOptionError(f"jitter={shown(self.jitter)} must be between 0 and 1")

    @classmethod
    def fixed(cls, delay: Duration, *, jitter: float = 0.0) -> Backoff:
        """The same wait before every attempt."""
        return cls("fixed", milliseconds(delay, "backoff delay"), jitter)

    @classmethod
    def exponential(cls, delay: Duration, *, jitter: float = 0.0) -> Backoff:
        """A wait that starts with ``delay`` and doubles with every attempt."""
        return cls("exponential", milliseconds(delay, "backoff delay"), jitter)

    @classmethod
    def of(cls, value: Any) -> Backoff:
        """``value`` in any of the accepted forms: itself, a fixed wait, or the wire's object."""
        if isinstance(value, Backoff):
            return value
        if isinstance(value, Mapping):
            known = {"type", "delay", "jitter"}
            if not set(value) <= known or not isinstance(value.get("type"), str):
                raise InvalidOptionError(
                    f"backoff={dict(value)!r} needs a 'type' and may have 'delay' and 'jitter'"
                )
            return cls(value["type"], value.get("delay", 0), value.get("jitter", 0.0) or 0.0)
        if isinstance(value, str):
            raise InvalidOptionError(
                f"backoff={value!r} does not say how long to wait; write Backoff.exponential(1000),"
                f" Backoff.fixed(1000), or Backoff({value!r}, …) for a strategy of the worker"
            )
        return cls("fixed", milliseconds(value, "backoff"))

    def wait_ms(self, attempts_made: int, dice: float) -> int:
        """The wait after attempt number ``attempts_made``; ``dice`` is drawn from [0, 1)."""
        doublings = 0 if self.type == "fixed" else min(max(attempts_made - 1, 0), _MOST_DOUBLINGS)
        longest = min(self.delay << doublings, MAX_DELAY_MS)
        if not self.jitter:
            return longest
        shortest = longest * (1 - self.jitter)
        return int(shortest + (longest - shortest) * dice)
