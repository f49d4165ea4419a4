"""What is written beside a job that failed for good and goes to the dead letters.

The metadata become part of the data's text: of a plain object's here, of anything else's in the
script, and there too if somebody has changed the data since they were read.
Beside them a note is kept for the scripts that filter and replay.
"""

from __future__ import annotations

import re
from functools import lru_cache
from json.encoder import encode_basestring as quoted
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

_MEMBER = b',"_dlqMeta":'
_FIRST_TIME_MS = 1_000_000_000_000
_LENGTH_OF_TIME = len(f"{_FIRST_TIME_MS}}}")
_UNSAFE = re.compile(r'[^\x21-\x7e]|["\\]')


class BurialPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the jobs that failed for good a worker sends to the dead letters."""

    include_stalled: bool = True
    keep_source: bool = False


class Letter(msgspec.Struct, frozen=True, gc=False):
    """What the script is given of a job that goes to the dead letters."""

    cause: str
    fingerprint: str
    before: bytes
    """What comes before the metadata: the data and a name; nothing if the script puts them in."""
    metadata: str
    """As JSON, up to their time."""
    note: str
    """What scripts need to know of a letter later, as JSON: they cannot decode its data."""
    marks: dict[str, bool | str | int]
    """``after``, the length of what comes before; and what few letters have."""

    def text_at(self, now_ms: int) -> bytes:
        """The data with the metadata in them; the metadata alone if the script puts them in."""
        metadata = f"{self.metadata}{max(now_ms, _FIRST_TIME_MS)}}}".encode()
        return b"%b%b}" % (self.before, metadata) if self.before else metadata


def letter_of(
    job: StoredJob,
    error: BaseException,
    message: str,
    reason: str,
    traces: str,
    policy: BurialPolicy,
) -> Letter | None:
    """The letter of a job that goes to the dead letters; None when it does not.

    ``message`` are the error's own words, ``reason`` what is told of it, ``traces`` are JSON.

    The texts are put together from pieces that are JSON already: in a storm of failures an encoder
    would cost more than everything else.
    """
    cause = cause_of(job, error, message)
    if cause == "stalled" and not policy.include_stalled:
        return None
    where = fingerprint(error, cause)
    queue, job_id, timestamp = quoted(job.queue_name), quoted(job.id), max(job.timestamp, 0)
    legacy = _legacy(job.raw(b"opts") or b"{}")
    key = legacy.key or f"{job.queue_name}:{job.id}:{timestamp}"
    metadata = (
        f'{{"sourceQueue":{queue},"originalJobId":{job_id}'
        f',"failedReason":{quoted(message[: len(reason)] or reason)},"stacktrace":{traces}'
        f',"attemptsMade":{job.attempts_made + 1},"originalTimestamp":{timestamp}'
        f',"originalOpts":{legacy.original},"errorType":{quoted(type(error).__name__)}'
        f',"fingerprint":"{where}","cause":"{cause}"{_earlier_lives(job)},"deadLetteredAt":'
    )
    size = len(metadata) if metadata.isascii() else len(metadata.encode())
    note = (
        f'{{"source":{queue},"job":{job_id},"why":{quoted(reason.casefold())},"fp":"{where}"'
        f',"opts":{quoted(legacy.options(key))},"size":{size + _LENGTH_OF_TIME}'
        f"{_place(job, legacy)}}}"
    )
    before, is_json = b"", _is_json(job)
    data = job.raw(b"data") or b""
    if is_json and data[:2] == b'{"' and data[-1:] == b"}":
        before = data[:-1] + _MEMBER
    marks: dict[str, bool | str | int] = {"after": len(before)}
    if policy.keep_source:
        marks["stacktrace"] = traces
    if job.raw(b"x.replays") is not None:
        marks["is_returned"] = True
    if not is_json:
        marks["is_raw"] = True
    # What a job shares with others it has from its first day to its last.
    if job.raw(b"deid") or job.raw(b"x.group") or job.raw(b"x.lane"):
        marks["is_tied"] = True
    return Letter(cause, where, before, metadata, note, marks)


def _earlier_lives(job: StoredJob) -> str:
    """How often the job came back from the dead letters, when, and with which data at first."""
    replays = job.raw(b"x.replays")
    if replays is None:
        return ',"replays":0,"history":[]'
    history, original = job.raw(b"x.history") or b"", job.raw(b"x.original")
    first = "" if original is None else f',"originalData":{original.decode()}'
    return f',"replays":{replays.decode()},"history":[{history.decode()}]{first}'


def _place(job: StoredJob, legacy: _Legacy) -> str:
    """Where in its queue the job will be put again, unless at the end."""
    if legacy.is_plain and job.raw(b"priority") in (None, b"0"):
        return ""
    place: dict[str, Any] = {}
    if priority := job.opts.priority or job.priority:
        place["priority"] = priority
    if job.opts.delay:
        place["delay"] = job.opts.delay
    if job.opts.lane is not None:
        place["lane"] = job.opts.lane
        place["order_ms"] = job.opts.raw.get("orderMs") or job.timestamp
    return f",{codec.encode(place, 'the place of a job').decode()[1:-1]}" if place else ""


class _Legacy(msgspec.Struct, frozen=True):
    """What a job's options leave to a dead letter."""

    original: str
    before_key: str
    """The options of the next life, up to the idempotency key."""
    key: str | None
    is_plain: bool

    def options(self, key: str) -> str:
        """The options for the next life; the idempotency key stays that of the first."""
        return f'{self.before_key}"idempotencyKey":{quoted(key)}}}'


@lru_cache(maxsize=256)
def _legacy(text: bytes) -> _Legacy:
    """Most jobs of a queue have the same options."""
    opts = codec.decode_options(text)
    options = replayable(opts.raw)
    options.pop("idempotencyKey", None)
    kept = codec.encode(options, "the options of a dead letter").decode()
    return _Legacy(
        original=codec.text(text) if text[:1] == b"{" else "{}",
        before_key=f"{kept[:-1]}," if options else "{",
        key=opts.idempotency_key,
        is_plain=not opts.priority and not opts.delay and opts.lane is None,
    )


def cause_of(job: StoredJob, error: BaseException, message: str) -> str:
    """One word for the kind of end: ``attempts`` when they were used up."""
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
    """``options`` without those of a job's first life."""
    return {name: value for name, value in options.items() if name not in NOT_REPLAYED}


def _is_json(job: StoredJob) -> bool:
    """Can the metadata be put into the data without making it unreadable for others?"""
    try:
        _ = job.data
    except RecursionError:
        return True
    except ValueError:
        return False
    return True
