"""The options of jobs: retries that back off and end, and finished jobs that go away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toril.doctor import ailments
from toril.doctor.finding import Finding
from toril.options import NewJob
from toril.protocol import codec
from toril.protocol.codec import UNSET, JobOpts

MANY_ATTEMPTS = 100


def as_stored(options: Any) -> JobOpts:
    """Options as a job carries them, from keyword arguments."""
    return codec.decode_options(codec.encode_options(NewJob("any", None, **options)))


def check_retries(subject: str, what: str, opts: JobOpts) -> Iterator[Finding]:
    backoff = opts.backoff
    if opts.attempts > MANY_ATTEMPTS:
        yield ailments.MANY_ATTEMPTS.of(subject, jobs=what, attempts=opts.attempts)
    if opts.attempts <= 1:
        yield ailments.ONE_ATTEMPT.of(subject, jobs=what)
    elif backoff is None or backoff.delay == 0:
        yield ailments.NO_BACKOFF.of(subject, jobs=what)
    elif backoff.type == "fixed":
        yield ailments.FIXED_BACKOFF.of(subject, jobs=what, delay=backoff.delay)
    elif backoff.type == "exponential" and not backoff.jitter:
        yield ailments.NO_JITTER.of(subject, jobs=what)


def check_retention(subject: str, keep_completed: Any, keep_failed: Any) -> Iterator[Finding]:
    """``UNSET`` and None keep everything."""
    unbounded = [
        option
        for option, keep in (
            ("remove_on_complete", keep_completed),
            ("remove_on_fail", keep_failed),
        )
        if keep is UNSET or not keep
    ]
    if unbounded:
        yield ailments.UNBOUNDED.of(subject, options=" and ".join(unbounded))
