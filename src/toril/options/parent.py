"""The parent of a job, and what the failure of a child does to it."""

from __future__ import annotations

from typing import Any

import msgspec

from toril.checking import refuse_wrong_fields, shown
from toril.errors import InvalidOptionError

CHILD_POLICIES = (
    "fail_parent_on_failure",
    "continue_parent_on_failure",
    "ignore_dependency_on_failure",
    "remove_dependency_on_failure",
)
"""What the final failure of a child does to its parent; at most one of them."""


class Parent(msgspec.Struct, frozen=True):
    """The parent of a new job: its id and its queue.

    Without ``prefix`` it is under the prefix of the child's queue.
    """

    id: str
    queue_name: str
    prefix: str | None = None

    def __post_init__(self) -> None:
        refuse_wrong_fields(self)

    @classmethod
    def of(cls, value: Any) -> Parent:
        """A ``Parent``, or a job that was read, added or is being run."""
        if isinstance(value, Parent):
            return value
        try:
            return cls(value.id, value.queue_name, value.prefix)
        except AttributeError:
            raise InvalidOptionError(
                f"parent={shown(value)} is neither a job nor Parent(id, queue_name)"
            ) from None
