"""The options of jobs: retries that back off and end, and finished jobs that go away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toril.doctor.finding import Finding, Severity
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
        yield Finding(
            code="D220",
            severity=Severity.WARNING,
            subject=subject,
            problem=f"{what} are tried {opts.attempts} times",
            harm="A job that cannot succeed is tried almost for ever, and nobody sees it.",
            remedy="Bound the attempts (5 to 20), and send what fails to the dead letters.",
        )
    if opts.attempts <= 1:
        yield Finding(
            code="D221",
            severity=Severity.INFO,
            subject=subject,
            problem=f"{what} are tried once",
            harm="A moment's trouble, such as a lost connection, fails them for good.",
            remedy="attempts=3 or more, if the handler may run twice.",
        )
    elif backoff is None or backoff.delay == 0:
        yield Finding(
            code="D222",
            severity=Severity.WARNING,
            subject=subject,
            problem=f"{what} are retried at once",
            harm="All attempts are spent while the trouble lasts, and add to it.",
            remedy="backoff=Backoff.exponential(1000, jitter=0.5).",
        )
    elif backoff.type == "fixed":
        yield Finding(
            code="D223",
            severity=Severity.WARNING,
            subject=subject,
            problem=f"{what} back off by the same {backoff.delay} ms every time",
            harm="An outage that is longer than a few waits fails them all.",
            remedy="backoff=Backoff.exponential(1000, jitter=0.5).",
        )
    elif backoff.type == "exponential" and not backoff.jitter:
        yield Finding(
            code="D224",
            severity=Severity.WARNING,
            subject=subject,
            problem=f"{what} back off without jitter",
            harm="Jobs that failed together come back together, and fail together again.",
            remedy="backoff=Backoff.exponential(…, jitter=0.5).",
        )


def check_retention(
    subject: str, keep_completed: Any, keep_failed: Any, remedy: str
) -> Iterator[Finding]:
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
        yield Finding(
            code="D304",
            severity=Severity.WARNING,
            subject=subject,
            problem=f"{' and '.join(unbounded)} is not bounded",
            harm="Finished jobs pile up until the server's memory is full.",
            remedy=remedy,
        )
