"""The options that a stored job carries, whoever wrote them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from toril.options import LANE_BACKOFF, ON_EXHAUSTED
from toril.protocol.codec import foreign_options as foreign
from toril.protocol.codec.foreign_options import Retention
from toril.protocol.codec.payload import from_json


class JobGroup(msgspec.Struct, frozen=True):
    """The group that a job belongs to."""

    id: str
    name: str


class JobOpts:
    """The options that a job carries, whoever wrote them; read with Python's names.

    Unknown ones are in ``raw``, under the names they have on the wire.
    """

    __slots__ = ("attempts", "backoff", "is_odd", "keep_completed", "keep_failed", "raw", "trouble")

    def __init__(
        self, raw: dict[str, Any], *, is_odd: bool = False, trouble: str | None = None
    ) -> None:
        self.raw = raw
        self.is_odd = is_odd
        """Is their text not quite JSON? Then ``raw`` is what it means."""
        self.trouble = trouble
        """Why they cannot be read, if they cannot."""
        self.attempts = foreign.attempts(raw.get("attempts"))
        # A lane's own waits are not written: a hash with long values takes twice the memory.
        default = LANE_BACKOFF if "lane" in raw else None
        self.backoff = foreign.backoff(raw["backoff"]) if "backoff" in raw else default
        if foreign.never_retries(raw.get("backoff")):
            self.attempts = min(self.attempts, 1)
        self.keep_completed = _read_keep(raw.get("removeOnComplete"))
        self.keep_failed = _read_keep(raw.get("removeOnFail"))

    @property
    def delay(self) -> int:
        return foreign.whole(self.raw.get("delay"))

    @property
    def priority(self) -> int:
        return foreign.whole(self.raw.get("priority"))

    @property
    def lifo(self) -> bool:
        return bool(self.raw.get("lifo"))

    @property
    def job_id(self) -> str | None:
        return self.raw.get("jobId")

    @property
    def timeout(self) -> int | None:
        value = self.raw.get("timeoutMs")
        return None if value is None else foreign.whole(value) or None

    @property
    def expires(self) -> int | None:
        value = self.raw.get("expiresMs")
        return None if value is None else foreign.whole(value) or None

    @property
    def keep_logs(self) -> int | None:
        value = self.raw.get("kl", self.raw.get("keepLogs"))
        return None if value is None else foreign.whole(value)

    @property
    def stack_trace_limit(self) -> int | None:
        return foreign.trace_limit(self.raw.get("stackTraceLimit"))

    @property
    def idempotency_key(self) -> str | None:
        value = self.raw.get("idempotencyKey")
        return value if isinstance(value, str) else None

    @property
    def group(self) -> JobGroup | None:
        """The group of which this job is a member, or None."""
        value = self.raw.get("group", self.raw.get("grp"))
        if not isinstance(value, Mapping) or not isinstance(value.get("id"), str):
            return None
        return JobGroup(value["id"], str(value.get("name", "")))

    @property
    def remove_on_complete(self) -> bool | int | dict[str, int] | None:
        return self.raw.get("removeOnComplete")

    @property
    def remove_on_fail(self) -> bool | int | dict[str, int] | None:
        return self.raw.get("removeOnFail")

    @property
    def telemetry(self) -> str | None:
        value = self.raw.get("tm")
        return value if isinstance(value, str) else None

    @property
    def lane(self) -> str | None:
        value = self.raw.get("lane")
        return value if isinstance(value, str) else None

    @property
    def on_retry(self) -> str:
        return "skip" if self.raw.get("onRetry") == "skip" else "block"

    @property
    def on_exhausted(self) -> str:
        value = self.raw.get("onExhausted")
        return value if value in ON_EXHAUSTED else "skip"

    def __repr__(self) -> str:
        return f"JobOpts({self.raw!r})"


class Unset:
    """The type of ``UNSET``: the job says nothing, the worker's default decides."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset()


@lru_cache(maxsize=1024)
def decode_options(text: bytes) -> JobOpts:
    """The options of a stored job; equal texts share one value.

    Never raises, whatever somebody wrote: ``trouble`` says why they cannot be read.
    """
    try:
        try:
            raw, is_odd = from_json(text), False
        except ValueError:
            raw, is_odd = _decode_oddly(text), True
        return JobOpts(raw if isinstance(raw, dict) else {}, is_odd=is_odd)
    except RecursionError:
        trouble = "they are nested too deeply"
    except Exception as error:  # noqa: BLE001 (nothing that is stored may stop its reader)
        trouble = f"{error}"
    return JobOpts({}, is_odd=True, trouble=trouble)


def _decode_oddly(text: bytes) -> Any:
    """A JSON text of another writer: with numbers beyond all bounds, NaN, halves of characters.

    What it means can be written again: numbers are bounded, NaN is null, as in JavaScript.
    """
    loose = json.loads(
        text.decode("utf-8", "replace"),
        parse_int=lambda digits: int(digits) if len(digits) <= 300 else _finite(float(digits)),
        parse_float=lambda digits: _finite(float(digits)),
        parse_constant=lambda constant: _finite(float(constant)),
    )
    return from_json(json.dumps(loose, ensure_ascii=False).encode("utf-8", "replace"))


def _finite(value: float) -> float | None:
    return None if math.isnan(value) else max(-_LARGEST, min(value, _LARGEST))


_LARGEST = 1.7976931348623157e308


@lru_cache(maxsize=1024)
def decode_options_of_before(text: bytes) -> JobOpts:
    """The options of a job that Toril 0.1 stored, when a time limit was called `timeout`.

    Bull had that name too, and its options live on in programs that use BullMQ, which ignores it.
    """
    opts = decode_options(text)
    return JobOpts({"timeoutMs": opts.raw["timeout"], **opts.raw}, is_odd=opts.is_odd)


def _read_keep(value: Any) -> Retention | Unset | None:
    """A stored retention as scripts have it; None keeps everything."""
    return UNSET if value is None else foreign.retention(value)
