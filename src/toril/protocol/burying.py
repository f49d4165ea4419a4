"""What is added to a job that failed for good when it becomes a dead letter.

The metadata become part of the data's text, and beside them a note is kept for the scripts that
filter and replay.  Both are put together by the script that moves the job: what is the job's own it
has at hand, and the rest, which is most, comes once for all letters of the same trouble.
"""

from __future__ import annotations

import re
from functools import lru_cache
from json.encoder import encode_basestring as quoted
from typing import Any

import msgspec

from toril.errors import (
    FailedChildrenError,
    InvalidOptionError,
    JobCancelledError,
    TorilError,
    UnrecoverableError,
)
from toril.options import DeadLetterOptions
from toril.protocol import codec
from toril.protocol.job import StoredJob
from toril.protocol.keys import Keys

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


def grave_of(target: object, source: Keys) -> tuple[DeadLetterOptions, Keys]:
    """The dead letter queue of ``source``, checked."""
    options = DeadLetterOptions.of(target)
    keys = getattr(options.queue_name, "keys", None)
    if not isinstance(keys, Keys):
        keys = source.sibling(options.queue_name)
    if keys.prefix != source.prefix:
        raise InvalidOptionError(
            f"dead_letter_queue {keys.name!r} has the prefix {keys.prefix!r} and"
            f" queue {source.name!r} has {source.prefix!r}; both need the same prefix"
        )
    if keys.name == source.name:
        raise InvalidOptionError(
            f"queue {source.name!r} cannot be its own dead_letter_queue: its jobs would fail"
            f" for ever; choose another name, such as '{source.name}-dlq'"
        )
    return options, keys


class BurialPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs that failed for good a worker turns into dead letters."""

    include_stalled: bool = True
    keep_source: bool = False


class SharedTrouble(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What jobs that failed in the same way with the same options have in common.

    In a storm of failures that is nearly everything about them.
    """

    name: str
    """Of the jobs."""
    attempts_made: int
    cause: str
    fingerprint: str
    reason: str
    metadata: str
    """Members of a JSON object, each with a comma before it: the job's own come first."""
    note: str
    """What scripts need to know of a letter later, written alike: they cannot decode its data."""


class Letter(msgspec.Struct, frozen=True, gc=False):
    """What the script receives about a job that becomes a dead letter."""

    trouble: SharedTrouble
    own: dict[str, bool | str]
    """``at``, when the job was added; ``is_special`` if it has more than most, ``is_raw`` if its
    data are no JSON."""


def letter_of(
    job: StoredJob,
    error: BaseException,
    message: str,
    reason: str,
    traces: str,
    policy: BurialPolicy,
) -> Letter | None:
    """The letter of a job that becomes a dead letter; None if it does not.

    ``message`` are the error's own words, ``reason`` what is told of it, ``traces`` are JSON.
    """
    cause = cause_of(job, error, message)
    if cause == "stalled" and not policy.include_stalled:
        return None
    # People look for the type of an error, also where the reason can do without.
    sought = f"{type(error).__name__}: {reason}" if isinstance(error, TorilError) else reason
    trouble = _trouble(
        job.name,
        job.attempts_made + 1,
        cause,
        fingerprint(error, cause),
        reason,
        sought,
        message[: len(reason)] or reason,
        traces,
        type(error).__name__,
        job.queue_name,
        job.raw(b"opts") or b"{}",
        job.raw(b"priority") or b"0",
    )
    own: dict[str, bool | str] = {"at": str(max(job.timestamp, 0))}
    if not _is_json(job):
        own["is_raw"] = own["is_special"] = True
    elif policy.keep_source or _is_special(job):
        own["is_special"] = True
    return Letter(trouble, own)


def _is_special(job: StoredJob) -> bool:
    """Has it an earlier life, something to share with others, or an id that JSON must escape?

    What a job shares it has from its first day to its last.
    """
    return job.has_any(_OF_FEW) or len(quoted(job.id)) > len(job.id) + 2


_OF_FEW = frozenset({b"x.replays", b"deid", b"x.group", b"x.lane"})


@lru_cache(maxsize=64)
def _trouble(
    name: str,
    attempts_made: int,
    cause: str,
    where: str,
    reason: str,
    sought: str,
    message: str,
    traces: str,
    kind: str,
    queue_name: str,
    options: bytes,
    priority: bytes,
) -> SharedTrouble:
    """Put together from pieces that are JSON already; kept, as it will be needed again."""
    opts, queue = codec.decode_options(options), quoted(queue_name)
    original = codec.text(options) if opts.raw else "{}"
    if opts.is_odd:
        original = codec.encode(opts.raw, "the options of a dead letter").decode()
    return SharedTrouble(
        name=name,
        attempts_made=attempts_made,
        cause=cause,
        fingerprint=where,
        reason=reason,
        metadata=(
            f',"sourceQueue":{queue},"failedReason":{quoted(message)},"stacktrace":{traces}'
            f',"attemptsMade":{attempts_made},"originalOpts":{original}'
            f',"errorType":{quoted(kind)},"fingerprint":"{where}","cause":"{cause}"'
        ),
        note=(
            f',"source":{queue},"why":{quoted(sought.casefold())},"fp":"{where}"'
            f"{_next_life(opts, codec.number(priority) or 0)}"
        ),
    )


def _next_life(opts: codec.JobOpts, priority: int) -> str:
    """The options of a replayed job and its place in the queue, as far as they are not the usual.

    The idempotency key stays that of the first life: the job's own, or what its id makes.
    """
    options = replayable(opts.raw)
    options.pop("idempotencyKey", None)
    life: dict[str, Any] = {}
    text = codec.encode(options, "the options of a dead letter")
    if text != codec.PLAIN_OPTIONS:
        life["opts"] = text.decode()
    if opts.idempotency_key is not None:
        life["key"] = opts.idempotency_key
    if opts.priority or priority:
        life["priority"] = opts.priority or priority
    if opts.delay:
        life["delay"] = opts.delay
    if opts.lane is not None:
        life["lane"] = opts.lane
        if opts.raw.get("orderMs"):
            life["order_ms"] = opts.raw["orderMs"]
    return f",{codec.encode(life, 'the next life of a job').decode()[1:-1]}" if life else ""


def cause_of(job: StoredJob, error: BaseException, message: str) -> str:
    """One word for why the job ended: ``attempts`` if they were used up."""
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
    """The error's type and the innermost frame: equal for failures with the same cause."""
    trace = error.__traceback__
    if trace is None:
        return _safe(f"{type(error).__name__}@{cause}")
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    return _at(type(error).__name__, code.co_filename, code.co_qualname)


@lru_cache(maxsize=1024)
def _at(kind: str, filename: str, function: str) -> str:
    return _safe(f"{kind}@{filename.replace(chr(92), '/').rpartition('/')[2]}:{function}")


def _safe(text: str) -> str:
    """Without what would have to be escaped between quotes."""
    return _UNSAFE.sub("_", text)[:LONGEST_FINGERPRINT]


def replayable(options: dict[str, Any]) -> dict[str, Any]:
    """``options`` without those that only apply to the original job."""
    return {name: value for name, value in options.items() if name not in NOT_REPLAYED}


def _is_json(job: StoredJob) -> bool:
    """Whether the metadata can be put into the data without making it unreadable for others."""
    try:
        _ = job.data
    except RecursionError:
        return True
    except ValueError:
        return False
    return True
