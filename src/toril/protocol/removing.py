"""Removing jobs: one with its children, those of a state, or everything.

What touches many jobs is a plan of slices, none of which holds the server up.  A plan can be
interrupted at any time, and calling again resumes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from toril.errors import (
    InvalidOptionError,
    JobLockedError,
    NotDeliveredError,
    NotPausedError,
    RefusedError,
    SchedulerOwnsJobError,
    ServerError,
    ServerUnusableError,
)
from toril.protocol import codec, parceling, pausing
from toril.protocol.command import Command, Plan, Resend, plain, script
from toril.protocol.keys import Keys, check_known_id
from toril.protocol.refusals import Refusal

SLICE = 250
KEYS_SLICE = 1000

OnProgress = Callable[[int], object]
"""Called after each slice with how many jobs are done so far."""

CLEANABLE = {
    "completed": ("completed",),
    "failed": ("failed",),
    "delayed": ("delayed", "lanes:delayed"),
    "prioritized": ("prioritized",),
    "active": ("active",),
    "waiting": ("wait", "paused", "lanes:waiting"),
    "wait": ("wait", "paused", "lanes:waiting"),
    "paused": ("paused",),
}
"""The states that ``clean`` knows, and the places where such jobs are."""


_WAITING = ("wait", "paused", "prioritized", "lanes:waiting")
_DELAYED = ("delayed", "lanes:delayed")


def remove(
    keys: Keys, job_id: str, *, children: bool = True, slice_size: int = SLICE
) -> Plan[bool]:
    """Remove a job and, with ``children``, all of its descendants; False if it does not exist."""
    check_known_id(job_id)

    def parse(reply: Any) -> tuple[bool, bool]:
        if isinstance(reply, int):
            raise _refused(reply, job_id)
        return reply[0] == 1, reply[1] == 1

    while True:
        more, existed = yield script(
            "remove",
            keys,
            {"id": job_id, "children": children, "slice": slice_size},
            parse,
            extra={"repeat": keys.repeat},
            resend=Resend.NUMBERED,
        )
        if not more:
            return bool(existed)


def _refused(code: int, job_id: str) -> RefusedError:
    if code == Refusal.SCHEDULED:
        return SchedulerOwnsJobError(
            f"job {job_id!r} is the next iteration of its scheduler, which would end without it;"
            f" remove the scheduler instead"
        )
    return JobLockedError(
        f"job {job_id!r} or a child of it is being run by a worker;"
        f" wait until it is done, or stop it with queue.cancel() first"
    )


def drain(keys: Keys, *, delayed: bool = False, on_progress: OnProgress | None = None) -> Plan[int]:
    """Remove the jobs that wait; returns how many."""
    removed = 0
    for place in (*_WAITING, *(_DELAYED if delayed else ())):
        skip = 0
        unseen: int | None = None
        while unseen is None or unseen > 0:
            gone, kept, left = yield script(
                "drain",
                keys,
                {"place": place, "slice": SLICE, "skip": skip},
                tuple,
                extra={"repeat": keys.repeat},
                resend=Resend.NUMBERED,
            )
            removed += gone
            skip += kept
            # What is added meanwhile does not keep this from ending.
            unseen = left - skip if unseen is None else min(unseen - gone - kept, left - skip)
            if gone and on_progress is not None:
                on_progress(removed)
            if gone + kept < SLICE:
                break
    return removed


def clean(
    keys: Keys,
    state: str,
    *,
    grace_ms: int = 0,
    limit: int = 0,
    on_progress: OnProgress | None = None,
) -> Plan[list[str]]:
    """Remove the jobs in ``state`` that are older than ``grace_ms``; returns their ids.

    At most ``limit`` of them, the oldest, unless it is 0.
    """
    places = CLEANABLE.get(state)
    if places is None:
        known = ", ".join(sorted(CLEANABLE))
        raise InvalidOptionError(f"state={state!r} cannot be cleaned; use one of {known}")
    removed: list[str] = []
    cutoff_ms: int | None = None
    for place in places:
        skip = 0
        while True:
            wanted = min(SLICE, limit - len(removed)) if limit else SLICE
            args: dict[str, Any] = {
                "place": place,
                "grace_ms": grace_ms,
                "slice": wanted,
                "skip": skip,
                "removed": len(removed),
                "limit": limit,
                "is_last": place == places[-1],
            }
            if cutoff_ms is not None:
                args["cutoff_ms"] = cutoff_ms
            cutoff_ms, looked, kept, ids = yield script(
                "clean",
                keys,
                args,
                _parse_clean,
                extra={"repeat": keys.repeat},
                resend=Resend.NUMBERED,
            )
            removed += ids
            skip += kept
            if ids and on_progress is not None:
                on_progress(len(removed))
            if 0 < limit <= len(removed):
                return removed
            if looked < wanted:
                break
    return removed


def _parse_clean(reply: Any) -> tuple[int, int, int, list[str]]:
    cutoff_ms, looked, kept, ids = reply
    return cutoff_ms, looked, kept, [codec.name(item) for item in ids]


def obliterate(
    keys: Keys, *, force: bool = False, on_progress: OnProgress | None = None
) -> Plan[int]:
    """Remove the queue with everything that belongs to it; returns how many jobs it had.

    It has to be paused and nothing may be active; ``force`` pauses it and takes the jobs away from
    their workers.  Parcels are delivered first; ``force`` leaves those that cannot be.
    """
    if force:
        yield from pausing.pause(keys)
    removed = yield from remove_jobs(keys, force=force, on_progress=on_progress)
    if force:
        yield from _deliver(keys)
    cursor = "0"
    while True:
        command = script(
            "eraseKeys",
            keys,
            {"cursor": cursor, "slice": KEYS_SLICE, "leaves_parcels": force},
            functools.partial(_unless_kept, keys.name),
            resend=Resend.MARKED,
        )
        page = yield from _behind_parcels(keys, command)
        cursor = page[0].decode()
        if cursor == "0":
            return removed


def remove_jobs(
    keys: Keys, *, force: bool = False, on_progress: OnProgress | None = None
) -> Plan[int]:
    """The first half of ``obliterate``: remove the jobs; the queue stays, and stays paused."""
    removed: int = 0
    while True:
        command = script(
            "obliterate",
            keys,
            {"slice": SLICE, "force": force},
            functools.partial(_unless_kept, keys.name),
            resend=Resend.SAME,
        )
        count, more = yield from _behind_parcels(keys, command)
        removed += count
        if count and on_progress is not None:
            on_progress(removed)
        if not more:
            return removed


def _behind_parcels(keys: Keys, command: Command[Any]) -> Plan[Any]:
    """The answer to a command; parcels that are in its way are delivered, and it is sent again."""
    reply = yield command
    if reply != Refusal.PARCELS_LEFT:
        return reply
    error = yield from _deliver(keys)
    reply = yield command
    if reply != Refusal.PARCELS_LEFT:
        return reply
    raise (yield from _not_delivered(keys)) from error


def deliver_parcels(keys: Keys) -> Plan[None]:
    """Deliver what the queue has for other slots; raises ``NotDeliveredError`` if some is left."""
    if not (yield plain("EXISTS", keys.parcels, parse=int)):
        return
    error = yield from _deliver(keys)
    if (yield plain("EXISTS", keys.parcels, parse=int)):
        raise (yield from _not_delivered(keys)) from error


def _not_delivered(keys: Keys) -> Plan[NotDeliveredError]:
    due = yield plain("ZCARD", keys.parcels_due, parse=int)
    refused = yield plain("HLEN", keys.refused, parse=int)
    return NotDeliveredError(
        f"queue {keys.name!r} holds jobs or reports for queues in other slots: {due} not delivered"
        f" yet, {refused} refused by their targets; call obliterate() again when 'toril doctor'"
        f" finds these queues in order, or obliterate(force=True), which leaves the first to a"
        f" worker and erases the others"
    )


def _deliver(keys: Keys) -> Plan[ServerError | None]:
    """Deliver the parcels of the queue as far as that is possible; returns what was in the way."""
    try:
        carried = yield from parceling.carry_all(keys)
    except ServerUnusableError as error:
        return error
    return carried.error


def refuse_to_obliterate(queue: str, *, is_paused: bool, active: int) -> None:
    """Refuse what ``obliterate`` refuses."""
    if not is_paused:
        raise _kept(Refusal.NOT_PAUSED, queue)
    if active:
        raise _kept(Refusal.LOCKED, queue)


def _unless_kept(queue: str, reply: Any) -> Any:
    if isinstance(reply, int) and reply < 0 and reply != Refusal.PARCELS_LEFT:
        raise _kept(reply, queue)
    return reply


def _kept(code: int, queue: str) -> RefusedError:
    if code == Refusal.NOT_PAUSED:
        return NotPausedError(
            f"queue {queue!r} is not paused; call queue.pause() before obliterate(),"
            f" or obliterate(force=True)"
        )
    return JobLockedError(
        f"queue {queue!r} has active jobs; wait until they are done, or call"
        f" obliterate(force=True), which takes them away from their workers"
    )
