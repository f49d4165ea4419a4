"""How a step becomes a job: its options, its id and its idempotency key."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from toril.options import Backoff, Duration, Keep, NewJob, new_job
from toril.steps.payload import JobPayload, check_ids

JOB_NAME = "step"
"""All steps have this job name: consumers look at the payload, not at names."""

DEFAULTS: Mapping[str, Any] = {
    "attempts": 3,
    "backoff": Backoff.exponential(1000, jitter=0.5),
    "remove_on_complete": 1000,
    "remove_on_fail": 500,
}
"""The default options of a step; its producer and its queue can override them."""

_LONGEST_PART = 80
_UNFIT_FOR_AN_ID = re.compile(r"[^A-Za-z0-9_.=@#+~-]")


class EnqueueOptions(msgspec.Struct, frozen=True, kw_only=True):
    """When a step runs, how often it is retried, and how long it is kept.

    If None, the queue's ``default_job_options`` apply, and then ``DEFAULTS``.
    """

    job_id: str | None = None
    attempts: int | None = None
    delay_ms: Duration | None = None
    backoff: Backoff | Duration | Mapping[str, Any] | None = None
    remove_on_complete: bool | int | Keep | None = None
    remove_on_fail: bool | int | Keep | None = None
    idempotency_key: str | None = None


_NOTHING_GIVEN = EnqueueOptions()


def step_job(
    payload: JobPayload[Any],
    options: EnqueueOptions | None,
    queue_defaults: Mapping[str, Any],
    *,
    now_ms: int,
    chance: str,
) -> NewJob:
    """The job for one step; ``chance`` distinguishes ids of the same millisecond."""
    check_ids(payload)
    options = options or _NOTHING_GIVEN
    made_up_id = f"{_part(payload.workflow_id)}-{_part(payload.step_id)}-{now_ms}-{_part(chance)}"
    key = options.idempotency_key
    given = {
        "attempts": options.attempts,
        "delay": options.delay_ms,
        "backoff": options.backoff,
        "remove_on_complete": options.remove_on_complete,
        "remove_on_fail": options.remove_on_fail,
        "job_id": options.job_id or (made_up_id if key is None else _id_of_key(payload, key)),
        "idempotency_key": made_up_id if key is None else key,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    return new_job(JOB_NAME, payload, chosen, {**DEFAULTS, **queue_defaults})


def _part(name: str) -> str:
    return _UNFIT_FOR_AN_ID.sub("_", name)[:_LONGEST_PART]


def _id_of_key(payload: JobPayload[Any], key: str) -> str:
    """Equal keys of one step yield equal ids, whatever characters they contain.

    Two steps may share a key, such as that of the order they both belong to.
    """
    parts = msgspec.json.encode([payload.workflow_id, payload.step_id, key])
    return f"step-{hashlib.sha256(parts).hexdigest()[:40]}"
