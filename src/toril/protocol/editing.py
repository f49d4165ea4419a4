"""Changing what a job carries: its data, its progress, its log."""

from __future__ import annotations

from typing import Any

from toril.errors import JobNotFoundError
from toril.protocol import codec
from toril.protocol.command import Command, Resend, script
from toril.protocol.keys import Keys, check_known_id
from toril.protocol.refusals import Refusal
from toril.protocol.settling import refusal


def update_progress(
    keys: Keys, job_id: str, value: Any, *, token: str | None = None
) -> Command[None]:
    """Store how far a job is and tell the listeners."""
    text = codec.encode(value, f"the progress of job {job_id!r}")
    return _update(keys, job_id, "progress", text, token)


def update_data(keys: Keys, job_id: str, data: Any, *, token: str | None = None) -> Command[None]:
    """Replace a job's data."""
    return _update(keys, job_id, "data", encode_data(job_id, data), token)


def encode_data(job_id: str, data: Any) -> bytes:
    """The new data of a job as they are stored."""
    return codec.encode({} if data is None else data, f"the data of job {job_id!r}")


def _update(keys: Keys, job_id: str, field: str, text: bytes, token: str | None) -> Command[None]:
    check_known_id(job_id)
    args: dict[str, Any] = {"field": field, "id": job_id}
    if token is not None:
        args["token"] = token

    def parse(code: int) -> None:
        if code < 0:
            raise refusal(code, job_id)

    return script(
        "update",
        keys,
        args,
        parse,
        extra={"job": keys.job(job_id)},
        payloads=(text,),
        resend=Resend.SAME,
    )


def add_log(
    keys: Keys, job_id: str, row: str, *, keep: int | None = None, token: str | None = None
) -> Command[int]:
    """Append a row to a job's log; returns how many there are."""
    check_known_id(job_id)
    job = keys.job(job_id)
    args: dict[str, Any] = {"row": row}
    if keep is not None:
        args["keep"] = keep
    if token is not None:
        args["token"] = token

    def parse(count: int) -> int:
        if count == Refusal.MISSING:
            raise JobNotFoundError(f"job {job_id!r} does not exist, so nothing was logged")
        if count < 0:
            raise refusal(count, job_id)
        return count

    return script(
        "addLog",
        keys,
        args,
        parse,
        extra={"job": job, "logs": f"{job}:logs"},
        resend=Resend.MARKED,
    )


def clear_logs(keys: Keys, job_id: str, *, keep: int = 0) -> Command[None]:
    """Forget a job's log, but for its last ``keep`` rows."""
    check_known_id(job_id)
    job = keys.job(job_id)

    def parse(code: int) -> None:
        if code < 0:
            raise JobNotFoundError(f"job {job_id!r} does not exist, so it has no log")

    return script(
        "clearLogs",
        keys,
        {"keep": keep},
        parse,
        extra={"job": job, "logs": f"{job}:logs"},
        resend=Resend.SAME,
    )
