"""Where a worker sends jobs that failed for good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from toril.errors import InvalidNameError, InvalidOptionError
from toril.options.checks import flag
from toril.options.keep import Keep


class DeadLetterOptions(msgspec.Struct, frozen=True):
    """Where a worker sends jobs that failed for good, and who is notified.

    ``queue_name`` is a name or a ``Queue``.  ``on_dead_letter(job, letter)``, plain or async, is
    called after each move.  Jobs that failed because their workers died are included unless
    ``include_stalled`` is False.  ``keep_source`` also leaves the job in the source's ``failed``.
    ``keep`` says how many letters stay, and for how long: the oldest are removed when new ones
    arrive.
    """

    queue_name: Any
    on_dead_letter: Callable[..., Any] | None = None
    include_stalled: bool = True
    keep_source: bool = False
    keep: Keep | int | None = None

    def __post_init__(self) -> None:
        if self.keep is not None:
            keep = Keep.of_option(self.keep, "keep")
            if isinstance(self.keep, bool) or keep.count == 0 or keep.age_ms == 0:
                raise InvalidOptionError(
                    f"keep={self.keep!r} would remove letters at once; give a number of them, or"
                    f" Keep(count=…, age=…)"
                )
        name = getattr(self.queue_name, "name", self.queue_name)
        if not isinstance(name, str) or not name:
            raise InvalidNameError(
                f"dead_letter_queue={self.queue_name!r} is not a queue; give a name that is not"
                f" empty, a Queue or DeadLetterOptions"
            )
        if self.on_dead_letter is not None and not callable(self.on_dead_letter):
            raise InvalidOptionError(
                f"on_dead_letter={self.on_dead_letter!r} is not callable; give a function of a job"
                f" and a letter"
            )
        flag(self.include_stalled, "include_stalled")
        flag(self.keep_source, "keep_source")

    @classmethod
    def of(cls, value: object) -> DeadLetterOptions:
        """``value`` in any of the accepted forms: itself, a queue, or the name of one."""
        return value if isinstance(value, DeadLetterOptions) else cls(value)
