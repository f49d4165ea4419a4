"""A dead letter's metadata, as stored in the job's data under ``_dlqMeta``."""

from __future__ import annotations

from typing import Any

import msgspec

from toril.protocol import codec

META = "_dlqMeta"
WRAPPED = "_dlqData"
"""Under this name are data that were no JSON object, and so could take no metadata in."""
MOST_TRIES = 20
"""So many places are tried where metadata may begin: hostile data have very many."""


class Replay(msgspec.Struct, frozen=True, rename="camel"):
    """One return of a job from the dead letters to its queue."""

    dead_lettered_at: int
    replayed_at: int
    dead_letter_job_id: str
    original_job_id: str
    fingerprint: str = ""
    by: str | None = None
    is_repaired: bool = msgspec.field(name="repaired", default=False)


class DeadLetterMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """What is known about a job that failed for good."""

    source_queue: str
    original_job_id: str = ""
    failed_reason: str = ""
    stacktrace: list[str] = []
    """One entry per attempt, the oldest first."""
    attempts_made: int = 0
    dead_lettered_at: int = 0
    original_timestamp: int = 0
    original_opts: dict[str, Any] = {}
    error_type: str = ""
    fingerprint: str = ""
    """The error's type and its innermost frame."""
    cause: str = ""
    """``attempts``, ``unrecoverable``, ``stalled``, ``cancelled``, ``child`` or ``diverted``."""
    replays: int = 0
    history: list[Replay] = []
    original_data: Any = msgspec.UNSET
    """The data before somebody repaired them for a replay."""


def metadata_in(data: Any) -> DeadLetterMetadata | None:
    """The metadata in a job's decoded data; None if it is not a dead letter."""
    if not isinstance(data, dict) or not isinstance(data.get(META), dict):
        return None
    try:
        return msgspec.convert(data[META], DeadLetterMetadata)
    except msgspec.ValidationError:
        return None


def metadata_at_end(end: bytes, beginning: bytes = b"") -> bytes | None:
    """The metadata in the end of a job's data, as the text of data that hold nothing else.

    None if they are not there.  ``beginning`` replaces what comes before ``sourceQueue`` if that is
    cut off, as the original data of a repaired job may be; without it, this is not looked for.
    """
    found = _readable_from(end, b'"_dlqMeta"', b"{")
    if found is None and beginning:
        found = _readable_from(end, b'"sourceQueue"', b'{"_dlqMeta":{' + beginning)
    return found


def _readable_from(end: bytes, name: bytes, before: bytes) -> bytes | None:
    """``before`` and the text from ``name`` on; where that is nested, too many braces follow."""
    place = -1
    for _ in range(MOST_TRIES):
        place = end.find(name, place + 1)
        if place < 0:
            return None
        if _is_metadata(text := before + end[place:]):
            return text
    return None


def _is_metadata(text: bytes) -> bool:
    try:
        return metadata_in(codec.decode(text)) is not None
    except (ValueError, RecursionError):
        return False


def minted_key(queue: str, job_id: str, timestamp: int) -> str:
    """The idempotency key of a job that was given none."""
    return f"{queue}:{job_id}:{timestamp}"


def first_key(meta: DeadLetterMetadata) -> str:
    """The idempotency key that a dead letter had when it was a job."""
    given = meta.original_opts.get("idempotencyKey")
    if isinstance(given, str) and given:
        return given
    return minted_key(meta.source_queue, meta.original_job_id, meta.original_timestamp)


def without_metadata(data: Any) -> Any:
    """The data as it was before the job became a dead letter."""
    if not isinstance(data, dict) or META not in data:
        return data
    if WRAPPED in data and len(data) == 2:
        return data[WRAPPED]
    return {name: value for name, value in data.items() if name != META}
