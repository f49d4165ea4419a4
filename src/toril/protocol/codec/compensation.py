"""Compensations: what a group stores about them, and what the compensation job receives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from toril.protocol.codec.payload import to_json


def encode_compensation(name: str, data: bytes, options: Mapping[str, Any]) -> msgspec.Raw:
    """One entry of a group's compensations, as it is stored."""
    return msgspec.Raw(to_json({"name": name, "data": msgspec.Raw(data), "opts": options}))


def encode_compensations(entries: Mapping[str, msgspec.Raw]) -> bytes:
    """The compensations of a group, by the names of the jobs that they undo."""
    return to_json(entries)


class CompensationPayload(msgspec.Struct, frozen=True):
    """What a job that undoes a member of a group receives."""

    group_id: str
    original_job_name: str
    original_job_id: str
    original_return_value: Any
    """None also when nobody knows how the member ended: its process died."""
    compensation_data: Any
    reason: str | None = None
    """Why the group is undone."""
    failed_member: str | None = None
    """The key of the member whose failure turned the group; None if it was cancelled."""
    results: Mapping[str, Any] | None = None
    """What the members returned, by their keys; None if there are too many or they are too long:
    ask ``get_group_results``."""


def decode_compensation(data: Any) -> CompensationPayload | None:
    """The data of a compensation job, or None if it is another kind of job."""
    if not isinstance(data, Mapping):
        return None
    names = (
        "groupId",
        "originalJobName",
        "originalJobId",
        "originalReturnValue",
        "compensationData",
    )
    if any(name not in data for name in names):
        return None
    told = (data.get(name) for name in ("reason", "failedMember", "results"))
    return CompensationPayload(*(data[name] for name in names), *told)
