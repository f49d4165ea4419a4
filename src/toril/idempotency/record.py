"""What identifies a piece of work: its scope and its key."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

LONGEST = 255


class KeyedJob(Protocol):
    """What is needed from a job, whatever runs it."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def queue_name(self) -> str: ...

    @property
    def idempotency_key(self) -> str: ...


def scope_of(job: Any, scope: str | None) -> str:
    """Keys are unique within a scope: an order's charge and its mail may share the order's key."""
    return fitting(scope or f"{job.queue_name}/{job.name}")


def fitting(text: str) -> str:
    """``text``, or a hash of it when a column cannot hold it as it is.

    Some databases ignore trailing spaces when they compare texts.
    """
    if len(text) <= LONGEST and not text.endswith(" "):
        return text
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
