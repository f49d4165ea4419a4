"""The queue's log of what happened: one entry per event, read from any place in it.

Names of events are those on the wire (``waiting-children``), their fields have Python's
(``failed_reason``).  What cannot be decoded is handed on as text: one bad entry stops nobody.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec

from toril.protocol import codec
from toril.protocol.command import Command, Plan, plain
from toril.protocol.keys import Keys
from toril.protocol.reading import worker_names

EVENTS_PER_READ = 500
PAGES_SEARCHED = 20
"""How far back a job's end is looked for; a stream holds some ten thousand events."""

ENDS = frozenset({"completed", "failed", "removed"})
"""The events after which nothing more will come of a job."""

_BEGINNING = "0-0"
_STREAM_ID = re.compile(r"[0-9]{1,20}(-[0-9]{1,20})?")
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_JSON_FIELDS = frozenset(
    {
        ("progress", "data"),
        ("completed", "returnvalue"),
        ("group:failed", "compensationResults"),
    }
)
_NUMBER_FIELDS = frozenset(
    {("delayed", "delay"), ("retries-exhausted", "attemptsMade"), ("cleaned", "count")}
)


class Event(msgspec.Struct, frozen=True):
    """Something that happened in a queue.

    ``id`` is its place in the log: reading from there on gives what came after it.
    """

    name: str
    id: str
    job_id: str | None = None
    data: dict[str, Any] = {}


def client_name(keys: Keys) -> str:
    """The name of a connection that listens, as BullMQ gives it."""
    return f"{worker_names(keys)}:qe"


def is_event_id(text: str) -> bool:
    """Whether ``text`` names a place in the log: one or two numbers of 64 bits."""
    is_like_one = _STREAM_ID.fullmatch(text) is not None
    return is_like_one and all(int(number) < 2**64 for number in text.split("-"))


def last_id(keys: Keys) -> Command[str]:
    """The id of the newest event: what is read after it is new."""

    def parse(reply: list[Any]) -> str:
        return codec.text(reply[0][0]) if reply else _BEGINNING

    return plain("XREVRANGE", keys.events, "+", "-", "COUNT", 1, parse=parse)


def read(
    keys: Keys, after: str, *, block_ms: int, only: frozenset[str] | None = None
) -> Command[list[Event]]:
    """The events after ``after``; waits up to ``block_ms`` for one.

    With ``only`` those names are decoded and the others passed over, but for the last event, whose
    id says how far the log was read.
    """
    wanted = None if only is None else {name.encode() for name in only}

    def parse(reply: Any) -> list[Event]:
        if not reply:
            return []
        entries = reply[0][1]
        if wanted is not None:
            last = entries[-1]
            entries = [entry for entry in entries if entry is last or _name(entry[1]) in wanted]
        return [decode(entry_id, fields) for entry_id, fields in entries]

    words = ("XREAD", "COUNT", EVENTS_PER_READ, "BLOCK", block_ms, "STREAMS", keys.events, after)
    return plain(*words, parse=parse, block_ms=block_ms)


def find_end(keys: Keys, job_id: str) -> Plan[Event | None]:
    """How a job that is gone ended, as far as the log still knows."""

    before = "+"
    for _ in range(PAGES_SEARCHED):
        page: list[Event] = yield page_before(keys, before)
        for event in page:
            if event.job_id == job_id and event.name in ENDS:
                return event
        if len(page) < EVENTS_PER_READ:
            return None
        before = f"({page[-1].id}"
    return None


def _name(fields: Any) -> Any:
    return fields.get(b"event") if isinstance(fields, dict) else fields[1]


def page_before(keys: Keys, before: str) -> Command[list[Event]]:
    """Some events, the newest first, from a place in the log back."""

    def parse(reply: list[Any]) -> list[Event]:
        return [decode(entry_id, fields) for entry_id, fields in reply]

    words = ("XREVRANGE", keys.events, before, "-", "COUNT", EVENTS_PER_READ)
    return plain(*words, parse=parse)


def decode(entry_id: bytes, fields: Any) -> Event:
    """An entry of the log as an event, whatever is in it."""
    if isinstance(fields, dict):
        pairs = list(fields.items())
    else:
        pairs = list(zip(fields[::2], fields[1::2], strict=False))
    raw = {codec.text(name): value for name, value in pairs}
    name = codec.text(raw.pop("event", b""))
    job_id = raw.pop("jobId", None)
    return Event(
        name,
        codec.text(entry_id),
        None if job_id is None else codec.name(job_id),
        {_field_name(field): _value(name, field, value) for field, value in raw.items()},
    )


def _value(event: str, field: str, value: bytes) -> Any:
    text = codec.text(value)
    if (event, field) in _JSON_FIELDS:
        return codec.decode_or_text(value)
    if (event, field) in _NUMBER_FIELDS:
        number = codec.number(value)
        return text if number is None else number
    if field == "failedReason":
        return codec.reason(text)
    return text


@lru_cache(maxsize=1024)
def _field_name(wire_name: str) -> str:
    if wire_name == "returnvalue":
        return "return_value"
    return _CAPITAL.sub("_", wire_name).lower()
