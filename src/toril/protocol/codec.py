"""JSON, and the wire's names: the only place where camelCase meets snake_case.

Payloads are strict JSON (RFC 8259): one value that Node cannot parse would stop every listener.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from toril.errors import PayloadError, PayloadTooLargeError
from toril.options import (
    LANE_ATTEMPTS,
    LANE_BACKOFF,
    ON_EXHAUSTED,
    Backoff,
    Deduplication,
    Keep,
    NewJob,
)
from toril.protocol import foreign
from toril.protocol.foreign import Retention


def _dump_model(value: Any) -> Any:
    """What msgspec does not know but can write itself: paths, and pydantic's models."""
    path = getattr(value, "__fspath__", None)
    if path is not None and isinstance(text := path(), str):
        return text
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"objects of type {type(value).__name__!r} are not supported")
    return dump(mode="json")


_encode = msgspec.json.Encoder(enc_hook=_dump_model).encode
_decode = msgspec.json.Decoder().decode

MOST = foreign.MOST
_LARGEST = 1.7976931348623157e308

PLAIN_OPTIONS = b'{"attempts":0}'
"""The options of a job added without any, as BullMQ writes them."""


def encode(value: Any, what: str) -> bytes:
    """``value`` as JSON text; ``what`` names it in the error when that is impossible.

    A ``msgspec.Raw`` is JSON text already, written by this function before.
    """
    if type(value) is msgspec.Raw:
        return bytes(value)
    try:
        text = _encode(value)
    except (OverflowError, UnicodeEncodeError):
        text = _encode_slowly(value, what)
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(
            f"{what} cannot be written as JSON: {error}; use plain values, dataclasses or Structs"
        ) from error
    if b"null" in text:
        _refuse_nan(value, what)
    return text


def encode_limited(value: Any, size_limit: int | None, what: str) -> bytes:
    """``value`` as JSON text of at most ``size_limit`` bytes."""
    text = encode(value, what)
    if size_limit is not None and len(text) > size_limit:
        raise PayloadTooLargeError(
            f"{what} takes {len(text)} bytes as JSON, and its size_limit is {size_limit};"
            f" store the bulk elsewhere and put a reference into the job"
        )
    return text


def decode(text: bytes | None, default: Any = None) -> Any:
    """The value of a JSON text from the server; ``default`` when there is none."""
    if text is None:
        return default
    try:
        return _decode(text)
    except msgspec.DecodeError:
        # Integers beyond 64 bits and what other writers left behind.
        return json.loads(text)


def decode_or_text(value: bytes | None) -> Any:
    """The value of a JSON text, or the text itself where somebody wrote something else."""
    try:
        return decode(value)
    except (ValueError, RecursionError):
        return text(value)


def text(value: bytes | None, default: str = "") -> str:
    """A field that is raw text on the wire."""
    return default if value is None else value.decode("utf-8", "replace")


def name(value: bytes) -> str:
    """What a key or an id is called; one that is no UTF-8 can be sent back byte for byte."""
    return value.decode("utf-8", "surrogateescape")


def reason(value: str) -> str:
    """Why a job failed: raw text, but for Python's `bullmq` below 3, which writes it as JSON.

    Quotes that are part of the words stay: all that it writes is one text of JSON, in ASCII.
    """
    if len(value) < 2 or not value[0] == value[-1] == '"' or not value.isascii():
        return value
    try:
        return str(json.loads(value))
    except ValueError:
        return value


def words_of(error: BaseException) -> str:
    """An error's own words, as text that JSON can carry; a class may fail to give any."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 (the user's class)
        message = "its message cannot be shown"
    return message if message.isascii() else message.encode("utf-8", "replace").decode()


def number(value: bytes | int | None) -> int | None:
    """A field that is a decimal number on the wire; tolerates what other writers leave."""
    if value is None or isinstance(value, int):
        return value
    try:
        found = int(value)
    except ValueError:
        try:
            found = int(float(value))
        except (ValueError, OverflowError):
            return None
    return _bounded(found)


def number_in(value: Any) -> int | None:
    """A number inside a JSON object; tolerates what other writers leave."""
    if isinstance(value, str):
        return number(value.encode())
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return _whole(value) if is_number else None


def _bounded(value: int) -> int:
    """``value``, or the nearest number that every language and every command can carry."""
    return max(-MOST, min(value, MOST))


def _whole(value: float) -> int | None:
    """A number of a JSON text as a bounded integer; None for one that is none."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return _bounded(int(value))


def encode_options(job: NewJob, parent: tuple[str, str] | None = None) -> bytes:
    """The options of a new job as BullMQ stores them; ``parent`` is an id and a qualified queue."""
    options = wire_options(job)
    if parent is not None:
        options["parent"] = {"id": parent[0], "queue": parent[1]}
        if policy := job.child_policy:
            options[_CHILD_POLICIES[policy]] = True
    return PLAIN_OPTIONS if len(options) == 1 and options["attempts"] == 0 else _encode(options)


def wire_options(job: NewJob) -> dict[str, Any]:
    """The options of a new job under their names on the wire."""
    attempts = LANE_ATTEMPTS if job.attempts is None and job.lane else job.attempts
    options: dict[str, Any] = {"attempts": attempts or 0}
    for name, wire_name in _PLAIN_NAMES:
        value = getattr(job, name)
        if value is not None:
            options[wire_name] = value
    if job.backoff is not None:
        options["backoff"] = _wire_backoff(Backoff.of(job.backoff))
    if job.remove_on_complete is not None:
        options["removeOnComplete"] = _wire_keep(Keep.of(job.remove_on_complete))
    if job.remove_on_fail is not None:
        options["removeOnFail"] = _wire_keep(Keep.of(job.remove_on_fail))
    if job.deduplication is not None:
        options["de"] = _wire_deduplication(Deduplication.of(job.deduplication))
    return options


def with_children(options: bytes, children: Sequence[str]) -> bytes:
    """The options of a parent that remember in which order its children were given."""
    return _encode({**decode(options), _CHILDREN: children})


def children_of(options: bytes | None) -> list[str]:
    """The full keys of a parent's children in the order given, if its options remember it."""
    try:
        raw = decode(options, {})
    except ValueError:
        return []
    children = raw.get(_CHILDREN) if isinstance(raw, Mapping) else None
    return [str(key) for key in children] if isinstance(children, list) else []


_CHILDREN = "x.children"


def encode_parent(job: NewJob, parent: tuple[str, str]) -> bytes:
    """What a child knows of its parent; its policy is read from here when it fails."""
    wire: dict[str, Any] = {"id": parent[0], "queueKey": parent[1]}
    if policy := job.child_policy:
        wire[_CHILD_POLICIES[policy]] = True
    return _encode(wire)


_CHILD_POLICIES = {
    "fail_parent_on_failure": "fpof",
    "continue_parent_on_failure": "cpof",
    "ignore_dependency_on_failure": "idof",
    "remove_dependency_on_failure": "rdof",
}

_PLAIN_NAMES = (
    ("job_id", "jobId"),
    ("delay", "delay"),
    ("priority", "priority"),
    ("lifo", "lifo"),
    ("timestamp", "timestamp"),
    ("keep_logs", "kl"),
    ("stack_trace_limit", "stackTraceLimit"),
    ("size_limit", "sizeLimit"),
    ("timeout", "timeoutMs"),
    ("expires", "expiresMs"),
    ("idempotency_key", "idempotencyKey"),
    ("telemetry", "tm"),
    ("lane", "lane"),
    ("order_ms", "orderMs"),
    ("ordering_delay", "orderingDelay"),
    ("on_retry", "onRetry"),
    ("on_exhausted", "onExhausted"),
    ("max_lane_size", "maxLaneSize"),
)


_WIRE_NAMES = {wire: name for name, wire in _PLAIN_NAMES} | {
    "keepLogs": "keep_logs",
    "removeOnComplete": "remove_on_complete",
    "removeOnFail": "remove_on_fail",
    "queueName": "queue_name",
    "compensateFailed": "compensate_failed",
    "grp": "group",
}


def python_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options under Python's names, whichever of the two were used."""
    named = {_WIRE_NAMES.get(name, name): value for name, value in options.items()}
    for name in ("remove_on_complete", "remove_on_fail"):
        if isinstance(named.get(name), Mapping):
            named[name] = _keep_of_wire(named[name])
    return named


def _keep_of_wire(wire: Mapping[str, Any]) -> Keep:
    """A retention as the wire has it, its age in seconds."""
    age = wire.get("age")
    return Keep(
        count=wire.get("count"),
        age=None if age is None else age * 1000,
        limit=wire.get("limit"),
    )


def encode_options_of_member(job: NewJob, group_id: str, group_name: str) -> bytes:
    """The options of a job that belongs to a group."""
    return _encode({**wire_options(job), "group": {"id": group_id, "name": group_name}})


def encode_compensation(name: str, data: bytes, options: Mapping[str, Any]) -> msgspec.Raw:
    """One entry of a group's compensations, as it is stored."""
    return msgspec.Raw(_encode({"name": name, "data": msgspec.Raw(data), "opts": options}))


def encode_compensations(entries: Mapping[str, msgspec.Raw]) -> bytes:
    """The compensations of a group, by the names of the jobs that they undo."""
    return _encode(entries)


def encode_wire_options(options: Mapping[str, Any]) -> bytes:
    """Options that have their names on the wire already."""
    return _encode(options)


def _wire_backoff(backoff: Backoff) -> dict[str, Any]:
    wire: dict[str, Any] = {"type": backoff.type, "delay": backoff.delay}
    if backoff.jitter:
        wire["jitter"] = backoff.jitter
    return wire


def _wire_keep(keep: Keep) -> bool | int | Retention:
    if keep.age is None and keep.limit is None:
        if keep.count is None:
            return False
        return True if keep.count == 0 else keep.count
    return keep_args(keep) or {}


def _wire_deduplication(deduplication: Deduplication) -> dict[str, Any]:
    wire: dict[str, Any] = {"id": deduplication.id}
    if deduplication.ttl is not None:
        wire["ttl"] = deduplication.ttl
    for name, wire_name in (
        ("extend", "extend"),
        ("replace", "replace"),
        ("keep_last_if_active", "keepLastIfActive"),
        ("reschedule", "reschedule"),
    ):
        if getattr(deduplication, name):
            wire[wire_name] = True
    return wire


def keep_args(keep: Keep | None) -> Retention | None:
    """A retention as scripts and the wire have it: the age in whole seconds."""
    if keep is None:
        return None
    wire: Retention = {}
    if keep.count is not None:
        wire["count"] = keep.count
    if keep.age is not None:
        assert isinstance(keep.age, int)
        wire["age"] = math.ceil(keep.age / 1000)
    if keep.limit is not None:
        wire["limit"] = keep.limit
    return wire or None


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


class CompensationPayload(msgspec.Struct, frozen=True):
    """What a job is told that undoes a member of a group."""

    group_id: str
    original_job_name: str
    original_job_id: str
    original_return_value: Any
    """None also when nobody knows how the member ended: its process died."""
    compensation_data: Any


def decode_compensation(data: Any) -> CompensationPayload | None:
    """The data of a compensation job, or None when they are those of another job."""
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
    return CompensationPayload(*(data[name] for name in names))


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
            raw, is_odd = _decode(text), False
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
    return _decode(json.dumps(loose, ensure_ascii=False).encode("utf-8", "replace"))


def _finite(value: float) -> float | None:
    return None if math.isnan(value) else max(-_LARGEST, min(value, _LARGEST))


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


def _encode_slowly(value: Any, what: str) -> bytes:
    """What the fast encoder refuses though JSON can say it, and ``decode`` gives to handlers.

    Those are whole numbers of more than 64 bits, and halves of surrogate pairs, which JavaScript's
    texts may have and which are written as an escape.
    """
    try:
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_dump_model)
        return json.dumps(plain, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(f"{what} cannot be written as JSON: {error}") from error


def _refuse_nan(value: Any, what: str) -> None:
    """The encoder writes NaN and infinities as null, which would change the data silently."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, float) and not math.isfinite(item):
            raise PayloadError(
                f"{what} contains {item!r}, which JSON cannot express; send None or a text instead"
            )
        if isinstance(item, Mapping):
            stack.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            stack.extend(item)
        elif isinstance(item, msgspec.Struct):
            stack.extend(getattr(item, name) for name in item.__struct_fields__)
        elif hasattr(item, "__dataclass_fields__"):
            stack.extend(getattr(item, name) for name in item.__dataclass_fields__)
        elif hasattr(item, "model_dump"):
            stack.append(item.model_dump())
