"""Cancelling a job, wherever it is."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from toril.errors import JobNotFoundError, JobNotInStateError, SchedulerOwnsJobError
from toril.protocol import codec
from toril.protocol.codec import UNSET
from toril.protocol.command import Plan, Resend, plain, script
from toril.protocol.keys import Keys, check_known_id
from toril.protocol.refusals import Refusal

LONG_LIST = 2000
MAIL_MS = 60_000
LONGEST_REASON = 1024
WORD = "cancelled"


class Cancelled(StrEnum):
    """The outcome of cancelling a job."""

    ENDED = "ended"
    """It had not started, and is now among the failed ones."""

    MARKED = "marked"
    """It stands in a long list: when its turn comes it fails without being run."""

    STOPPING = "stopping"
    """A worker is running it and was told to stop."""


_RESULTS = {1: Cancelled.ENDED, 2: Cancelled.MARKED, 3: Cancelled.STOPPING}


def cancel(keys: Keys, job_id: str, *, call: str, reason: str | None = None) -> Plan[Cancelled]:
    """Cancel a job; the server knows a copy of this very call by the id ``call``."""
    check_known_id(job_id)
    text = WORD if reason is None else f"{WORD}: {reason}"[:LONGEST_REASON]
    opts = yield plain("HGET", keys.job(job_id), "opts", parse=lambda reply: reply)
    args: dict[str, Any] = {
        "id": job_id,
        "reason": text,
        "long": LONG_LIST,
        "mail_ms": MAIL_MS,
        "call": call,
    }
    keep = codec.decode_options(opts or b"{}").keep_failed
    if keep is not UNSET and keep is not None:
        args["keep"] = keep

    def parse(code: int) -> Cancelled:
        match code:
            case Refusal.MISSING:
                raise JobNotFoundError(f"job {job_id!r} does not exist, so it cannot be cancelled")
            case Refusal.NOT_IN_STATE:
                raise JobNotInStateError(f"job {job_id!r} is finished; there is nothing to cancel")
            case Refusal.SCHEDULED:
                raise SchedulerOwnsJobError(
                    f"job {job_id!r} is the next iteration of its scheduler, which would end"
                    f" without it; remove the scheduler instead"
                )
        return _RESULTS[code]

    result: Cancelled = yield script(
        "cancel",
        keys,
        args,
        parse,
        extra={"repeat": keys.repeat},
        resend=Resend.SAME,
    )
    return result


def is_told_by(reason: str) -> bool:
    """Did somebody cancel the job that failed, or is to fail, for this reason?"""
    return reason == WORD or reason.startswith(f"{WORD}: ")
