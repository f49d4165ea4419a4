"""A dead letter's metadata, as stored in the job's data under ``_dlqMeta``."""

from __future__ import annotations

from typing import Any

import msgspec

META = "_dlqMeta"
WRAPPED = "_dlqData"
"""Under this name are data that were no JSON object, and so could take no metadata in."""


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
