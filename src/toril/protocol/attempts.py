"""What is known of each attempt of a job: when it began and ended, and which worker made it."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from toril.protocol import codec

_ENDED = re.compile(rb"(\d+):(\d+)")


class JobAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a job."""

    number: int
    """As ``attempts_started`` counts: the first is 1."""
    started_on: int
    """When a worker took the job, in ms since the epoch."""
    ended_on: int | None
    """When it ended, in ms since the epoch; None while it runs, or if nobody recorded it."""
    worker: str | None
    """The name of the worker, if it has one."""


def history_of(fields: dict[bytes, Any]) -> list[JobAttempt]:
    """The attempts that a job's hash tells of, the oldest first."""
    lines = (fields.get(b"x.attempts") or b"").split(b"\n")
    attempts = [past for line in lines if (past := _past(line)) is not None]
    last = _last(fields)
    return attempts if last is None else [*attempts, last]


def _past(line: bytes) -> JobAttempt | None:
    try:
        number, started_on, ended_on, worker = codec.decode(
            line.decode("utf-8", "replace").encode()
        )
    except (ValueError, TypeError, RecursionError):
        return None  # no line of ours
    counted, started_ms = codec.number_in(number), codec.number_in(started_on)
    if counted is None or started_ms is None:
        return None
    return JobAttempt(
        number=counted,
        started_on=started_ms,
        ended_on=codec.number_in(ended_on),
        worker=worker if isinstance(worker, str) else None,
    )


def _last(fields: dict[bytes, Any]) -> JobAttempt | None:
    number = codec.number(fields.get(b"ats"))
    started_on = codec.number(fields.get(b"processedOn"))
    if not number or started_on is None:
        return None
    ended = _ENDED.fullmatch(fields.get(b"x.ended") or b"")
    is_this_one = ended is not None and int(ended[1]) == number
    return JobAttempt(
        number=number,
        started_on=started_on,
        ended_on=int(ended[2])
        if ended and is_this_one
        else codec.number(fields.get(b"finishedOn")),
        worker=codec.text(fields.get(b"pb")) or None,
    )
