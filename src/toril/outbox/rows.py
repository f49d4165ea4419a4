"""A row of the outbox, on its way from options to a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from toril.errors import InvalidOptionError, PayloadError
from toril.options import OPTION_NAMES, Backoff, Deduplication, Keep, NewJob, new_job
from toril.outbox.table import LONGEST_KEY, LONGEST_NAME
from toril.protocol import adding
from toril.protocol.adding import Prepared
from toril.protocol.keys import check_queue_name


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the relay reads of a row."""

    seq: int
    id: str
    queue: str
    name: str
    data: str
    options: str
    lane: str | None
    key: str
    status: str
    attempts: int
    error: str | None = None


def values_of(
    queue: str,
    name: str,
    data: Any,
    options: Mapping[str, Any],
    *,
    generated_id: str,
) -> dict[str, Any]:
    """The columns of a new row; what could not become a job later is refused now."""
    check_queue_name(queue)
    job = new_job(name, data, options, {})
    if job.parent is not None:
        raise InvalidOptionError(
            f"job {name!r} cannot go through the outbox: it has a parent, which may be gone when"
            f" the row is relayed; let the parent's handler add it"
        )
    _check_length("queue", queue, LONGEST_KEY)
    _check_length("name", name, LONGEST_NAME)
    _check_length("lane", job.lane or "", LONGEST_KEY)
    # A row whose id was made up is its own key. An id that was given may be used again for other
    # work once the job is gone, so it alone does not make two rows the same.
    job_id = job.job_id or generated_id
    key = job.idempotency_key or (f"{job_id}-{generated_id}" if job.job_id else job_id)
    if len(key) > LONGEST_KEY:
        raise InvalidOptionError(
            f"idempotency_key={key!r} is longer than {LONGEST_KEY} characters; use a hash of it"
        )
    prepared = adding.prepare(job, generated_id)
    return {
        "id": prepared.id,
        "queue": queue,
        "name": name,
        "data": prepared.data.decode(),
        "options": _write_options(job),
        "lane": job.lane,
        "key": key,
    }


def _check_length(what: str, text: str, longest: int) -> None:
    """Some databases would cut it off without a word."""
    if len(text) > longest:
        raise InvalidOptionError(
            f"{what}={text!r} is longer than the {longest} characters that an outbox has room for"
        )


def prepare(row: OutboxRow, *, once_ms: int) -> Prepared:
    """The job of a row, to be added at most once; raises what a row written by hand has wrong."""
    options = _read_options(row)
    options["idempotency_key"] = row.key
    if row.lane is not None:
        options["lane"] = row.lane
    try:
        msgspec.json.decode(row.data)
    except msgspec.DecodeError as error:
        raise PayloadError(f"the data of outbox row {row.seq} is not JSON: {error}") from error
    job = new_job(row.name, msgspec.Raw(row.data.encode()), options, {})
    return adding.prepare(job, row.id, once_ms=once_ms)


def _write_options(job: NewJob) -> str:
    given = {
        option: value
        for option in sorted(OPTION_NAMES - {"lane"})
        if (value := getattr(job, option)) is not None
    }
    return msgspec.json.encode(msgspec.to_builtins(given)).decode()


def _read_options(row: OutboxRow) -> dict[str, Any]:
    try:
        options = msgspec.json.decode(row.options, type=dict[str, Any])
        return {name: _read_option(name, value) for name, value in options.items()}
    except (msgspec.DecodeError, TypeError) as error:
        raise InvalidOptionError(
            f"the options of outbox row {row.seq} cannot be read: {error}"
        ) from error


def _read_option(name: str, value: Any) -> Any:
    match name:
        case "backoff":
            return Backoff.of(value)
        case "remove_on_complete" | "remove_on_fail" if isinstance(value, dict):
            return Keep(**value)
        case "deduplication":
            return Deduplication(**value)
    return value
