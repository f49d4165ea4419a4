"""Users' own events in a queue's event log, and the log's length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toril.errors import InvalidInputError
from toril.protocol import codec
from toril.protocol.command import Command, Resend, plain, script
from toril.protocol.keys import Keys

MOST_FIELDS = 100

RESERVED = frozenset(
    [
        "active",
        "added",
        "cleaned",
        "completed",
        "deadLettered",
        "debounced",
        "deduplicated",
        "delayed",
        "drained",
        "duplicated",
        "error",
        "failed",
        "ioredis:close",
        "newListener",
        "paused",
        "progress",
        "removeListener",
        "removed",
        "resumed",
        "retries-exhausted",
        "stalled",
        "waiting",
        "waiting-children",
    ]
)
"""Names that have a meaning already: to BullMQ, to Toril, or to Node's emitters of events."""

_OWN_FIELDS = frozenset({"event", "jobId", "id"})


def publish(
    keys: Keys, name: str, data: Mapping[str, Any] | None, *, job_id: str | None = None
) -> Command[str]:
    """Write an event named ``name``; returns its id."""
    if not isinstance(name, str) or not name:
        raise InvalidInputError(f"{name!r} is not a name for an event; give a non-empty string")
    if name in RESERVED or name.startswith("group:"):
        raise InvalidInputError(
            f"events named {name!r} are written by the queue itself; choose another name, such as"
            f" 'my:{name}'"
        )
    words: list[str] = [] if job_id is None else ["jobId", _utf8(job_id, name, "jobId")]
    data = data or {}
    if len(data) > MOST_FIELDS:
        raise InvalidInputError(
            f"event {name!r} has {len(data)} fields, and at most {MOST_FIELDS} are possible; put"
            f" them into one field, as JSON"
        )
    for field, value in data.items():
        if not isinstance(field, str) or not field or field in _OWN_FIELDS:
            raise InvalidInputError(
                f"event {name!r} cannot have a field named {field!r}; pass job_id= for the job,"
                f" and choose another name for anything else"
            )
        words.append(_utf8(field, name, field))
        if isinstance(value, str):
            words.append(_utf8(value, name, field))
        else:
            words.append(codec.encode(value, f"field {field!r} of event {name!r}").decode())
    args = {"name": _utf8(name, name, "event"), "fields": words}
    return script("publish", keys, args, codec.text, resend=Resend.NEVER)


def trim(keys: Keys, max_length: int) -> Command[int]:
    """Remove all but the newest ``max_length`` events; returns how many were removed."""
    return plain("XTRIM", keys.events, "MAXLEN", max_length, parse=int, resend=Resend.SAME)


def _utf8(text: str, event: str, field: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"field {field!r} of event {event!r} cannot be stored as text: {error}"
        ) from error
    return text
