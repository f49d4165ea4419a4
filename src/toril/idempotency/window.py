"""The retry window: the longest time from a job's first enqueue to its last possible run.

A record of finished work must outlive it, or a late redelivery slips past the guard.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from toril.checking import checked_call, shown
from toril.errors import InvalidOptionError
from toril.options import (
    LANE_ATTEMPTS,
    LANE_BACKOFF,
    MAX_DELAY_MS,
    Backoff,
    Duration,
    NewJob,
    WorkerOptions,
    milliseconds,
    new_job,
)
from toril.protocol.codec import JobOpts


@checked_call
def retry_window(
    options: Mapping[str, Any] | NewJob | JobOpts,
    worker: Any = None,
    *,
    longest_run: Duration | None = None,
    longest_wait: Duration = 0,
    longest_backoff: Duration | None = None,
) -> int:
    """The window in ms, for a job's ``options`` and the ``worker`` (or its options) that runs it.

    It includes the delay or the time until ``run_at``, a run and a wait in the queue per attempt,
    the longest wait between attempts, and the workers that may die while they run the job.
    ``longest_run`` is how long a handler may run: the job's ``timeout`` if it has one, else the
    worker's ``lock_duration``.  ``longest_wait`` is how long a job may wait in the queue;
    ``longest_backoff`` is needed if the worker computes the backoff.
    """
    limits = getattr(worker, "options", worker)
    if limits is None:
        limits = WorkerOptions()
    if not isinstance(limits, WorkerOptions):
        raise InvalidOptionError(
            f"worker={shown(worker)} is not a worker; give the Worker that runs such jobs"
        )
    attempts, delay_ms, timeout_ms, backoff = _read(options)
    lock_ms, interval_ms = limits.lock_ms, limits.stalled_interval_ms
    run_ms = timeout_ms or lock_ms
    if longest_run is not None:
        run_ms = milliseconds(longest_run, "longest_run")
    wait_ms = milliseconds(longest_wait, "longest_wait")
    stalls = limits.max_stalled_count
    # A dead worker is noticed when its lock has expired and two sweeps have passed.
    stalled_ms = stalls * (lock_ms + 2 * interval_ms + run_ms + wait_ms)
    backoff_ms = _all_backoffs(backoff, attempts, longest_backoff)
    return delay_ms + attempts * (run_ms + wait_ms) + backoff_ms + stalled_ms


@checked_call
def check_lifetime(
    lifetime: Duration, options: Mapping[str, Any] | NewJob | JobOpts, worker: Any = None
) -> None:
    """Refuse records that would be gone before the last possible run."""
    lifetime_ms = milliseconds(lifetime, "lifetime")
    window_ms = retry_window(options, worker)
    if lifetime_ms <= window_ms:
        raise InvalidOptionError(
            f"records are kept for {lifetime_ms} ms, but the last run of such a job may come"
            f" {window_ms} ms after it was added, and would then do its work again; keep them"
            f" longer, or retry for a shorter time"
        )


def _read(
    options: Mapping[str, Any] | NewJob | JobOpts,
) -> tuple[int, int, int | None, Backoff | None]:
    if isinstance(options, JobOpts):
        ordering = options.raw.get("orderingDelay")
        delay = _first_wait(options.delay, ordering)
        return max(1, options.attempts), delay, options.timeout, options.backoff
    job = options if isinstance(options, NewJob) else new_job("any", None, options, {})
    delay = job.normalised("delay") or 0
    if (run_at := job.normalised("run_at")) is not None:
        delay = max(0, run_at - time.time_ns() // 1_000_000)
    timeout, ordering = job.normalised("timeout"), job.normalised("ordering_delay")
    attempts, backoff = job.attempts, job.normalised("backoff")
    if job.lane is not None:
        attempts = LANE_ATTEMPTS if attempts is None else attempts
        backoff = LANE_BACKOFF if backoff is None else backoff
    return max(1, attempts or 1), _first_wait(delay, ordering), timeout, backoff


def _first_wait(delay_ms: int, ordering_delay_ms: Any) -> int:
    """How long a job waits before it may run, including the wait for late ones ordered before it.

    A job may be early by as much time as it waits for others.
    """
    return max(delay_ms, 2 * ordering_delay_ms) if isinstance(ordering_delay_ms, int) else delay_ms


def _all_backoffs(backoff: Backoff | None, attempts: int, longest: Duration | None) -> int:
    if backoff is None:
        return 0
    if backoff.type == "fixed":
        return backoff.delay * (attempts - 1)
    if backoff.type == "exponential":
        return min(sum(_steps(backoff, attempts)), MAX_DELAY_MS)
    if longest is None:
        raise InvalidOptionError(
            f"the backoff {backoff.type!r} is computed by the worker, so its retry window cannot be"
            f" known; pass longest_backoff="
        )
    return milliseconds(longest, "longest_backoff") * (attempts - 1)


def _steps(backoff: Backoff, attempts: int) -> list[int]:
    """The longest wait after each attempt but the last; beyond 64, the sum is capped anyway."""
    return [backoff.delay * 2**made for made in range(min(attempts - 1, 64))]
