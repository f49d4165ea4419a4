"""What each failed attempt writes into the job's progress, so that ``result.errors`` can show it.

The first attempt and the latest ones are kept, so that a job that is retried for years does not
grow.
"""

from __future__ import annotations

from typing import Any

import msgspec

from toril.protocol import codec
from toril.protocol.job import StoredJob

KEPT = 20
"""So many errors a result tells: the first and the last of them."""
LONGEST_TRACE = 20_000
"""In characters; its beginning and its end are kept."""
FIELD = "django_attempts"


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One failed attempt."""

    name: str = msgspec.field(name="class")
    trace: str
    worker: str
    attempt: int
    started: int | None = None


class Records(msgspec.Struct, frozen=True):
    """The records of one job, oldest first."""

    of: tuple[Record, ...] = ()

    def with_one(self, record: Record) -> dict[str, Any]:
        """The job's progress with one more record."""
        cut = msgspec.structs.replace(record, trace=_cut(record.trace))
        kept = (*self.of[:1], *self.of[1:][2 - KEPT :], cut)
        return {FIELD: msgspec.to_builtins(kept)}


def records_of(job: StoredJob) -> Records:
    """The records of earlier attempts; progress that somebody else wrote is ignored."""
    left = codec.decode(job.raw(b"progress"), None)
    found = left.get(FIELD) if isinstance(left, dict) else None
    try:
        return Records(msgspec.convert(found or [], tuple[Record, ...]))
    except msgspec.ValidationError:
        return Records()


def _cut(trace: str) -> str:
    if len(trace) <= LONGEST_TRACE:
        return trace
    half = LONGEST_TRACE // 2
    return f"{trace[:half]}\n[{len(trace) - 2 * half} characters left out]\n{trace[-half:]}"
