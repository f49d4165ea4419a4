"""Deduplication ids: who owns one, and releasing it."""

from __future__ import annotations

from toril.errors import InvalidOptionError
from toril.options import Deduplication, check_text
from toril.protocol import codec
from toril.protocol.command import Command, Resend, plain, script
from toril.protocol.keys import Keys, check_known_id


def owner(keys: Keys, deduplication_id: str) -> Command[str | None]:
    """The id of the job that owns ``deduplication_id``, or None."""
    return plain(
        "GET",
        key(keys, deduplication_id),
        parse=lambda reply: None if reply is None else codec.name(reply),
    )


def free(keys: Keys, deduplication_id: str, *, owner_id: str | None = None) -> Command[bool]:
    """Let the next job with ``deduplication_id`` in; with ``owner_id`` only if that job owns it."""
    name = key(keys, deduplication_id)
    if owner_id is not None:
        check_known_id(owner_id)
    return script(
        "freeDeduplication",
        keys,
        {} if owner_id is None else {"owner": owner_id},
        lambda reply: reply == 1,
        extra={"deduplication": name},
        resend=Resend.NUMBERED,
    )


def entry(deduplication: Deduplication) -> dict[str, str | int | bool]:
    """What the script that adds a job receives."""
    wanted: dict[str, str | int | bool] = {"id": deduplication.id}
    if (ttl_ms := deduplication.ttl_ms) is not None:
        wanted["ttl"] = ttl_ms
    for mode, is_on in (
        ("extend", deduplication.extend),
        ("replace", deduplication.replace),
        ("keep_last", deduplication.keep_last_if_active),
        ("reschedule", deduplication.reschedule),
    ):
        if is_on:
            wanted[mode] = True
    return wanted


def key(keys: Keys, deduplication_id: str) -> str:
    """Where the owner's id is kept."""
    if not isinstance(deduplication_id, str) or not deduplication_id:
        raise InvalidOptionError(
            f"deduplication id={deduplication_id!r} must be a non-empty string"
        )
    check_text(deduplication_id, "deduplication id")
    return f"{keys.base}:de:{deduplication_id}"
