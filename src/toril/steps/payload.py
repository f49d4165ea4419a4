"""The unit of work: which step of which workflow, and what it needs."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from toril.checking import shown
from toril.errors import InvalidNameError, InvalidOptionError, PayloadMismatchError
from toril.protocol import codec
from toril.protocol.job import StoredJob

T = TypeVar("T")


class JobPayload(msgspec.Struct, Generic[T], frozen=True, rename="camel", omit_defaults=True):
    """One step of one workflow.

    On the wire the names are in BullMQ's camel case.  ``attempt`` is computed: whatever was
    written, a consumer sees the number of the running attempt, 1 for the first.
    """

    workflow_id: str
    step_id: str
    data: T
    attempt: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The key of this step's rows, history and metrics."""
        return self.workflow_id, self.step_id


def check_ids(payload: Any) -> None:
    """Refuse a payload that names no workflow or no step."""
    if not isinstance(payload, JobPayload):
        raise InvalidOptionError(
            f"{shown(payload)} is not a payload; write JobPayload(workflow_id=…, step_id=…, data=…)"
        )
    for name in ("workflow_id", "step_id"):
        value = getattr(payload, name)
        if not isinstance(value, str) or not value:
            raise InvalidNameError(f"{name}={value!r} must be a non-empty string")


def decode(job: StoredJob, data_type: Any) -> JobPayload[Any]:
    """The payload of ``job`` with its data as a ``data_type``.

    Raises ``PayloadMismatchError``, which fails the job for good and names the field: the same
    bytes will not fit better at the next attempt.
    """
    wanted: Any = JobPayload[data_type]
    try:
        payload: JobPayload[Any] = _read(job.data_text, wanted)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise PayloadMismatchError(
            f"job {job.id!r} of queue {job.queue_name!r} is not a step that this consumer can read:"
            f" {error}; correct the producer, then replay the job"
        ) from error
    return msgspec.structs.replace(payload, attempt=job.attempts_made + 1)


def _read(text: bytes, wanted: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=wanted, dec_hook=_decode_model)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        # Halves of surrogate pairs, which JavaScript's texts may have, are read as in other jobs.
        try:
            value = codec.decode(text)
        except (ValueError, RecursionError):
            raise error from None
        return msgspec.convert(value, wanted, dec_hook=_decode_model, str_keys=True)


def _decode_model(data_type: Any, value: Any) -> Any:
    """Types that msgspec does not know but that validate themselves, like pydantic's models."""
    if not hasattr(data_type, "model_validate"):
        raise TypeError(f"cannot decode into {data_type!r}; use a dataclass, Struct or model")
    try:
        return codec.read_model(data_type, value)
    except ValueError as error:
        raise ValueError(_in_one_line(error)) from error


def _in_one_line(error: ValueError) -> str:
    """The fields that a model refused, and why, without the links that pydantic prints."""
    list_errors = getattr(error, "errors", None)
    if list_errors is None:
        return str(error)
    return "; ".join(
        f"{'.'.join(map(str, item['loc'])) or 'data'}: {item['msg']}" for item in list_errors()
    )
