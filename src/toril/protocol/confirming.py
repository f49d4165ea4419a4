"""What became of jobs that were added earlier, for callers that keep a list of them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from toril.protocol.command import Command, Resend, script
from toril.protocol.keys import Keys


class Fate(IntEnum):
    """Where a job that was added is now."""

    LOST = 0
    TO_RUN = 1
    FINISHED = 2
    GONE = 3
    """It is finished, and was removed."""


def confirm(
    keys: Keys, jobs: Sequence[tuple[str, str]], *, remember_ms: int
) -> Command[list[Fate]]:
    """The fate of jobs, each given by its id and its idempotency key."""
    return script(
        "confirm",
        keys,
        {"jobs": [{"id": job_id, "key": key} for job_id, key in jobs], "ms": remember_ms},
        lambda reply: [Fate(code) for code in reply],
        resend=Resend.SAME,
    )
