"""By what a piece of work is known: its scope and its key."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

LONGEST = 255


class KeyedJob(Protocol):
    """What is needed of a job, whoever runs it."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def queue_name(self) -> str: ...

    @property
    def idempotency_key(self) -> str: ...


def scope_of(job: Any, scope: str | None) -> str:
    """Keys mean something within a scope: an order's key may be that of its charge and its mail."""
    return fitting(scope or f"{job.queue_name}/{job.name}")


def fitting(text: str) -> str:
    """``text``, or a hash of it when a column cannot hold it as it is.

    Some databases take a text with spaces at its end for the same as without them.
    """
    if len(text) <= LONGEST and not text.endswith(" "):
        return text
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
