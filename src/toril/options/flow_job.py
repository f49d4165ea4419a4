"""A job of a flow, with its children."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toril.checking import shown
from toril.errors import InvalidNameError, InvalidOptionError
from toril.options.deduplication import Deduplication
from toril.options.job import NewJob


class FlowJob(NewJob, frozen=True, kw_only=True):
    """A job of a flow, in the queue ``queue_name``; it runs when its ``children`` have finished."""

    queue_name: str
    prefix: str | None = None
    children: Sequence[FlowJob] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.queue_name, str):
            raise InvalidNameError(
                f"queue_name={shown(self.queue_name)} of job {self.name!r} must be a string"
            )
        if self.prefix is not None and not isinstance(self.prefix, str):
            raise InvalidNameError(
                f"prefix={shown(self.prefix)} of job {self.name!r} must be a string"
            )
        if self.children != () and (
            not isinstance(self.children, list | tuple)
            or not all(isinstance(child, FlowJob) for child in self.children)
        ):
            raise InvalidOptionError(
                f"children={shown(self.children)} of job {self.name!r} must be a list of"
                f" FlowJob(name, data, queue_name=…)"
            )
        if self.children and self.deduplication is not None:
            deduplication = Deduplication.of(self.deduplication)
            for mode in ("replace", "keep_last_if_active", "reschedule"):
                if getattr(deduplication, mode):
                    raise InvalidOptionError(
                        f"job {self.name!r} has children, and its deduplication asks for {mode};"
                        f" a job with children cannot be replaced or delayed"
                    )

    @property
    def membership(self) -> Mapping[str, Any]:
        """What it says as a member of a group: how it is undone, whose results it uses."""
        return {}
