"""A row of the outbox, on its way from options to a job."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from toril.errors import InvalidInputError, InvalidOptionError, PayloadError
from toril.options import (
    MAX_LANE_LENGTH,
    MAX_NAME_LENGTH,
    OPTION_NAMES,
    Backoff,
    Deduplication,
    Keep,
    NewJob,
    new_job,
)
from toril.outbox.schema import LONGEST_KEY, LONGEST_NAME
from toril.protocol import adding
from toril.protocol.adding import Prepared
from toril.protocol.keys import check_job_id, check_queue_name

UNREADABLE = (msgspec.DecodeError, RecursionError)
"""What JSON raises that is wrong, or nested deeper than the stack."""


class OutboxRow(msgspec.Struct, frozen=True):
    """What the relay reads from a row."""

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
    """The columns of a new row; refuses now what could not become a job later."""
    check_queue_name(queue)
    job = new_job(name, data, options, {})
    if job.parent is not None:
        raise InvalidOptionError(
            f"job {name!r} cannot go through the outbox: it has a parent, which may be gone when"
            f" the row is relayed; let the parent's handler add it"
        )
    check_length("queue", queue, LONGEST_KEY)
    check_length("name", name, LONGEST_NAME)
    check_length("lane", job.lane or "", LONGEST_KEY)
    # A generated id is also the row's key. A given id may be used again for other work once the
    # job is gone, so it alone does not make two rows the same.
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


def check_length(what: str, text: str, longest: int) -> None:
    """Some databases would truncate it silently."""
    if len(text) > longest:
        raise InvalidOptionError(
            f"{what}={text!r} is longer than the {longest} characters that an outbox has room for"
        )


def prepare(row: OutboxRow, *, once_ms: int) -> Prepared:
    """The job of a row, to be added at most once; raises if a row written by hand is wrong."""
    check_row_id(row)
    _check_data(row)
    data = row.data.encode()
    if _is_sound(row):
        pattern = _pattern_of(row.options, row.lane is not None, once_ms)
        if pattern is not None:
            return pattern.fill(row, data)
    options = _read_options(row.options, row.seq)
    options["idempotency_key"] = row.key
    if row.lane is not None:
        options["lane"] = row.lane
    job = new_job(row.name, msgspec.Raw(data), options, {})
    return adding.prepare(job, row.id, once_ms=once_ms)


def _check_data(row: OutboxRow) -> None:
    try:
        msgspec.json.decode(row.data)
    except UNREADABLE as error:
        if not (isinstance(error, msgspec.DecodeError) and _is_strict_json(row.data)):
            raise PayloadError(f"the data of outbox row {row.seq} is not JSON: {error}") from error


def _is_strict_json(text: str) -> bool:
    """Is it JSON that msgspec does not read: halves of surrogate pairs, numbers like 1e400?"""
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(word)


def check_row_id(row: OutboxRow) -> None:
    """Refuse an id that is no job's: one like "meta" would overwrite a key of the queue."""
    check_job_id(row.id, f"outbox row {row.seq}: the id")


class Pattern:
    """What the jobs of rows with the same options have in common, checked and encoded once.

    An outbox has thousands of rows and few different options; what differs is filled in.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._entry = prepared.entry
        self._opts: dict[str, Any] = msgspec.json.decode(prepared.opts)
        self._once_ms: int = prepared.entry["once"]["ms"]

    def fill(self, row: OutboxRow, data: bytes) -> Prepared:
        entry = {
            **self._entry,
            "id": row.id,
            "name": row.name,
            "once": {"key": row.key, "ms": self._once_ms},
        }
        opts = {**self._opts, "idempotencyKey": row.key}
        if row.lane is not None:
            entry["lane"] = opts["lane"] = row.lane
        return Prepared(row.id, entry, data, msgspec.json.encode(opts))


def _is_sound(row: OutboxRow) -> bool:
    """Could its texts be those of a job? Rows that fail are checked and reported one by one."""
    has_lane = row.lane is None or 0 < len(row.lane) <= MAX_LANE_LENGTH
    return has_lane and 0 < len(row.name) <= MAX_NAME_LENGTH and bool(row.key)


@functools.lru_cache(maxsize=1024)
def _pattern_of(options: str, has_lane: bool, once_ms: int) -> Pattern | None:
    """The pattern for these options; None if each row has to be checked on its own."""
    try:
        given = _read_options(options, 0)
        if _OWN & given.keys():
            return None
        given |= {"idempotency_key": "any"} | ({"lane": "any"} if has_lane else {})
        return Pattern(adding.prepare(new_job("any", None, given, {}), "any", once_ms=once_ms))
    except InvalidInputError:
        return None


_OWN = frozenset(
    {
        "deduplication",
        "idempotency_key",
        "job_id",
        "lane",
        "order_ms",
        "parent",
        "run_at",
        "size_limit",
        "telemetry",
        "timestamp",
    }
)
"""Options that differ from row to row, or concern the data."""


def _write_options(job: NewJob) -> str:
    given = {
        option: value
        for option in sorted(OPTION_NAMES - {"lane"})
        if (value := job.normalised(option)) is not None
    }
    return msgspec.json.encode(msgspec.to_builtins(given)).decode()


def _read_options(text: str, seq: int) -> dict[str, Any]:
    try:
        options = msgspec.json.decode(text, type=dict[str, Any])
        return {name: _read_option(name, value) for name, value in options.items()}
    except (*UNREADABLE, TypeError) as error:
        raise InvalidOptionError(
            f"the options of outbox row {seq} cannot be read: {error}"
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
