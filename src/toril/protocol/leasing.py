"""Locks: renewed while a job runs, and taken from workers that are silent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from toril.errors import LockLostError
from toril.protocol import codec, lanes
from toril.protocol.command import Command, Plan, Resend, plain, script
from toril.protocol.keys import Keys, check_known_id

T = TypeVar("T")

SWEEP_SLICE = 500
FORGET_REPLIES_MS = 3_600_000


class Renewal(msgspec.Struct, frozen=True):
    """Which locks were lost, and which jobs somebody cancelled, and why."""

    lost: list[str]
    cancelled: list[tuple[str, str]]


def renew(keys: Keys, locks: Sequence[tuple[str, str]], *, lock_ms: int) -> Command[Renewal]:
    """Hold ``(job id, token)`` locks for ``lock_ms`` from now."""
    return _renew(keys, locks, lock_ms, _parse_renewal)


def _renew(
    keys: Keys, locks: Sequence[tuple[str, str]], lock_ms: int, parse: Callable[[Any], T]
) -> Command[T]:
    return script(
        "renew",
        keys,
        {"locks": locks, "lock_ms": lock_ms},
        parse,
        resend=Resend.SAME,
    )


def _parse_renewal(reply: Any) -> Renewal:
    lost, cancelled = reply
    return Renewal(
        [codec.name(item) for item in lost],
        [(codec.name(job_id), codec.text(reason)) for job_id, reason in cancelled],
    )


def extend_lock(keys: Keys, job_id: str, token: str, *, lock_ms: int) -> Command[None]:
    """Hold one lock for ``lock_ms`` from now."""
    check_known_id(job_id)

    def parse(reply: Any) -> None:
        if _parse_renewal(reply).lost:
            raise LockLostError(f"the lock of job {job_id!r} is not held with this token")

    return _renew(keys, [(job_id, token)], lock_ms, parse)


def sweep(
    keys: Keys, *, interval_ms: int, max_stalled: int, slice_size: int = SWEEP_SLICE
) -> Plan[list[str]]:
    """Bring stalled jobs back, slice by slice; returns their ids.

    Does nothing if another worker did it less than ``interval_ms`` ago.
    """
    brought_back: list[str] = []
    cursor = 0
    while True:
        more, cursor, ids, has_lanes = yield script(
            "sweep",
            keys,
            {
                "interval_ms": interval_ms,
                "max_stalled": max_stalled,
                "cursor": cursor,
                "slice": slice_size,
                "forget_ms": FORGET_REPLIES_MS,
            },
            _parse_sweep,
            extra={"repeat": keys.repeat},
            resend=Resend.SAME,
        )
        brought_back.extend(ids)
        if not more:
            break
    if has_lanes:
        yield from lanes.recover(keys, parts=("held", "kept"))
        yield from lanes.divert(keys)
    return brought_back


def _parse_sweep(reply: Any) -> tuple[bool, int, list[str], bool]:
    more, cursor, ids, has_lanes = reply
    return more == 1, cursor, [codec.name(item) for item in ids], has_lanes > 0


def wait_for_marker(keys: Keys, *, block_ms: int) -> Command[float | None]:
    """Wait for something to take: 0 for now, a time in ms, or None when nothing came."""
    return plain(
        "BZPOPMIN",
        keys.marker,
        max(block_ms, 1) / 1000,
        parse=lambda reply: None if reply is None else float(reply[2]),
        block_ms=block_ms,
    )


Marker = tuple[bytes, bytes]
"""What a worker pops to be woken: its name, and its score, the time of what is due."""


def pop_marker(keys: Keys, *, block_ms: int) -> Command[Marker | None]:
    """Wait for something to take, and say how to put back what was popped."""
    return plain(
        "BZPOPMIN",
        keys.marker,
        max(block_ms, 1) / 1000,
        parse=lambda reply: None if reply is None else (reply[1], reply[2]),
        block_ms=block_ms,
    )


def put_marker(keys: Keys, marker: Marker) -> Command[int]:
    """Wake another worker instead, unless an earlier marker is already there."""
    name, score = marker
    return plain("ZADD", keys.marker, "LT", score, name, parse=int)


def wait_for_mail(keys: Keys, worker_id: str, *, block_ms: int) -> Command[tuple[str, ...] | None]:
    """Wait for a job that this worker should stop: its id, its lock's token, the reason.

    A fourth word says that the job is not stopped but told: its group has turned.
    """
    return plain(
        "BLPOP",
        mailbox(keys, worker_id),
        max(block_ms, 1) / 1000,
        parse=lambda reply: None if reply is None else _read_mail(reply[1]),
        block_ms=block_ms,
    )


def wait_for_mail_in(
    boxes: Sequence[str], *, block_ms: int
) -> Command[tuple[str, tuple[str, ...] | None] | None]:
    """Wait for a message in one of several mailboxes: which, and what ``wait_for_mail`` says."""
    return plain(
        "BLPOP",
        *boxes,
        max(block_ms, 1) / 1000,
        parse=lambda reply: None if reply is None else (codec.name(reply[0]), _read_mail(reply[1])),
        block_ms=block_ms,
    )


_mail = msgspec.msgpack.Decoder(tuple[str, ...])


def _read_mail(message: bytes) -> tuple[str, ...] | None:
    try:
        words = _mail.decode(message)
    except msgspec.DecodeError:  # not one of ours; locks must be renewed anyway
        return None
    return words if len(words) in (3, 4) else None


def group_bell(keys: Keys) -> str:
    """A mailbox that all workers of a queue read: whoever finds something looks for due groups."""
    return keys.own("group-bell")


def mailbox(keys: Keys, worker_id: str) -> str:
    """Where others leave messages for the worker whose locks begin with ``worker_id``."""
    return keys.own(f"mail-{worker_id}")
