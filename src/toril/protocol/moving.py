"""Moving jobs by hand: run again, run now, change priority or delay.

What changes one job has a ``call``, an id of this very call: the server remembers it for a while,
so that a copy of it does nothing, whatever has become of the job meanwhile.
"""

from __future__ import annotations

from typing import Any

from toril.errors import (
    InvalidGroupStateError,
    InvalidOptionError,
    JobNotFoundError,
    JobNotInStateError,
)
from toril.options import MAX_PRIORITY, whole
from toril.protocol import codec
from toril.protocol.command import Command, Plan, Resend, script
from toril.protocol.editing import encode_data
from toril.protocol.keys import Keys, check_known_id
from toril.protocol.refusals import Refusal
from toril.protocol.removing import SLICE, OnProgress


def retry(
    keys: Keys,
    job_id: str,
    *,
    call: str,
    resets_attempts: bool = False,
    force: bool = False,
    data: Any = codec.UNSET,
) -> Command[None]:
    """Run a failed or completed job again, with other data if they are given."""
    check_known_id(job_id)
    refuse = _refuser(job_id, "is neither failed nor completed, so it cannot be retried")

    def parse(code: int) -> None:
        if code == Refusal.WRONG_GROUP_STATE:
            raise InvalidGroupStateError(
                f"job {job_id!r} belongs to a group that is over or being undone, or that counts it"
                f" as completed, so running it again could not be undone; pass force=True to run it"
                f" anyway"
            )
        refuse(code)

    return script(
        "retry",
        keys,
        {"id": job_id, "call": call, "resets_attempts": resets_attempts, "force": force},
        parse,
        payloads=() if data is codec.UNSET else (encode_data(job_id, data),),
        resend=Resend.SAME,
    )


def retry_all(
    keys: Keys,
    state: str = "failed",
    *,
    until_ms: int | None = None,
    resets_attempts: bool = False,
    force: bool = False,
    on_progress: OnProgress | None = None,
) -> Plan[int]:
    """Run the failed (or completed) jobs again, the oldest first; returns how many."""
    if state not in ("failed", "completed"):
        raise InvalidOptionError(f"state={state!r} cannot be retried; use 'failed' or 'completed'")
    count: int = 0
    skip = 0
    while True:
        args: dict[str, Any] = {
            "state": state,
            "slice": SLICE,
            "skip": skip,
            "resets_attempts": resets_attempts,
            "force": force,
        }
        if until_ms is not None:
            args["until_ms"] = until_ms
        until_ms, looked, moved, kept = yield script(
            "retryAll", keys, args, tuple, resend=Resend.NUMBERED
        )
        count += moved
        skip += kept
        if moved and on_progress is not None:
            on_progress(count)
        if looked < SLICE:
            return count


def promote(keys: Keys, job_id: str, *, call: str) -> Command[None]:
    """Run a delayed job now."""
    check_known_id(job_id)
    return script(
        "promote",
        keys,
        {"id": job_id, "call": call},
        _refuser(job_id, "is not delayed (any more)"),
        resend=Resend.SAME,
    )


def promote_all(keys: Keys, *, on_progress: OnProgress | None = None) -> Plan[int]:
    """Run all delayed jobs now, the first due first; returns how many."""
    count: int = 0
    unseen: int | None = None
    while True:
        moved, left = yield script(
            "promoteAll", keys, {"slice": SLICE}, tuple, resend=Resend.NUMBERED
        )
        count += moved
        # Jobs that fail again and are put off meanwhile do not keep this from ending.
        unseen = left if unseen is None else min(left, unseen - SLICE)
        if moved and on_progress is not None:
            on_progress(count)
        if unseen <= 0:
            return count


def change_priority(
    keys: Keys, job_id: str, priority: int, *, call: str, lifo: bool = False
) -> Command[None]:
    """Give a job another priority; with ``lifo`` it comes before others of the same."""
    check_known_id(job_id)
    whole(priority, "priority", most=MAX_PRIORITY)
    return script(
        "changePriority",
        keys,
        {"id": job_id, "call": call, "priority": priority, "is_lifo": lifo},
        _refuser(job_id),
        extra={"job": keys.job(job_id)},
        resend=Resend.SAME,
    )


def change_delay(keys: Keys, job_id: str, delay_ms: int, *, call: str) -> Command[None]:
    """Delay a delayed job until ``delay_ms`` from now."""
    check_known_id(job_id)
    return script(
        "changeDelay",
        keys,
        {"id": job_id, "call": call, "delay_ms": delay_ms},
        _refuser(job_id, "is not delayed (any more)"),
        extra={"job": keys.job(job_id)},
        resend=Resend.SAME,
    )


def _refuser(job_id: str, wrong_state: str = "") -> Any:
    def parse(code: int) -> None:
        if code == Refusal.MISSING:
            raise JobNotFoundError(f"job {job_id!r} does not exist")
        if code < 0:
            raise JobNotInStateError(f"job {job_id!r} {wrong_state}; see queue.get_state()")

    return parse
