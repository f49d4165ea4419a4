"""What is written beside a job that failed for good and goes to the dead letters.

The script splices the metadata into the data's text; here is what it cannot know: what kind of end
it was, a fingerprint to group equal failures by, and the options under which a replay is added.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec

from toril.errors import FailedChildrenError, JobCancelledError, UnrecoverableError
from toril.protocol import codec
from toril.protocol.job import StoredJob

STALLED_TOO_OFTEN = "job stalled more than allowable limit"
STARTED_TOO_OFTEN = "job started more than allowable limit"

LONGEST_FINGERPRINT = 160

NOT_REPLAYED = frozenset(
    {
        "jobId",
        "timestamp",
        "delay",
        "repeat",
        "repeatJobKey",
        "prevMillis",
        "parent",
        "fpof",
        "cpof",
        "idof",
        "rdof",
        "failParentOnFailure",
        "continueParentOnFailure",
        "ignoreDependencyOnFailure",
        "removeDependencyOnFailure",
        "de",
        "deduplication",
        "debounce",
        "group",
    }
)
"""Options that belong to the first life of a job: its id, its place in time, its ties to others."""

_UNSAFE = re.compile(r'[^\x21-\x7e]|["\\]')


class BurialPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the jobs that failed for good a worker sends to the dead letters."""

    include_stalled: bool = True
    keep_source: bool = False


def letter_of(
    job: StoredJob, error: BaseException, reason: str, policy: BurialPolicy
) -> dict[str, Any] | None:
    """What the script is told of a job that goes to the dead letters; None when it does not."""
    cause = cause_of(job, error)
    if cause == "stalled" and not policy.include_stalled:
        return None
    letter: dict[str, Any] = {
        "message": _message(error, reason),
        "why": reason.casefold(),
        "type": type(error).__name__,
        "cause": cause,
        "fingerprint": fingerprint(error, cause),
        "opts": replay_options(job),
    }
    priority = job.opts.priority or job.priority
    if priority:
        letter["priority"] = priority
    if job.opts.delay:
        letter["delay"] = job.opts.delay
    lane = job.opts.raw.get("lane")
    if isinstance(lane, str):
        letter["lane"] = lane
        letter["order_ms"] = job.opts.raw.get("orderMs") or job.timestamp
    if policy.keep_source:
        letter["keeps_source"] = True
    if not _is_json(job):
        letter["is_raw"] = True
    return letter


def cause_of(job: StoredJob, error: BaseException) -> str:
    """One word for the kind of end: ``attempts`` when they were used up."""
    message = codec.words_of(error)
    if message in (STALLED_TOO_OFTEN, STARTED_TOO_OFTEN):
        return "stalled"
    if isinstance(error, JobCancelledError):
        return "cancelled"
    if isinstance(error, FailedChildrenError) or message == job.deferred_failure:
        return "child"
    if isinstance(error, UnrecoverableError):
        return "unrecoverable"
    return "attempts"


def fingerprint(error: BaseException, cause: str) -> str:
    """The error's type and the innermost frame: equal for failures that are the same trouble."""
    frame = error.__traceback__
    where = cause
    if frame is not None:
        while frame.tb_next is not None:
            frame = frame.tb_next
        code = frame.tb_frame.f_code
        where = f"{code.co_filename.replace(chr(92), '/').rpartition('/')[2]}:{code.co_qualname}"
    return _safe(f"{type(error).__name__}@{where}")


@lru_cache(maxsize=1024)
def _safe(text: str) -> str:
    """Without what would have to be escaped between quotes."""
    return _UNSAFE.sub("_", text)[:LONGEST_FINGERPRINT]


def replay_options(job: StoredJob) -> str:
    """The options for the next life of ``job``; the idempotency key stays that of the first."""
    options = replayable(job.opts.raw)
    options["idempotencyKey"] = job.idempotency_key
    return codec.encode(options, f"the options of job {job.id!r}").decode()


def replayable(options: dict[str, Any]) -> dict[str, Any]:
    """``options`` without those of a job's first life."""
    return {name: value for name, value in options.items() if name not in NOT_REPLAYED}


def _message(error: BaseException, reason: str) -> str:
    """The error's own words; its type is kept beside them."""
    message = codec.words_of(error)
    return message[: len(reason)] if message else reason


def _is_json(job: StoredJob) -> bool:
    """Can the metadata be put into the data without making it unreadable for others?"""
    try:
        _ = job.data
    except RecursionError:
        return True
    except ValueError:
        return False
    return True
