"""Lanes: one job at a time for each key, in order. What operators read and change."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from toril.errors import InvalidNameError, InvalidOptionError
from toril.options import RateLimit, check_lane, whole
from toril.protocol import codec
from toril.protocol.command import Command, Plan, Resend, plain, script
from toril.protocol.job import fields_of
from toril.protocol.keys import Keys, is_away
from toril.protocol.reading import IDS_PER_READ, bounds, ids_in_lanes

SLICE = 200
SETTINGS_PER_READ = 500
DIVERT_SLICE = 100
DRAIN_SLICE = 100
DIVERTED_BYTES = 500_000
MOST_CONCURRENT = 1000
MOST_WEIGHT = 1000
_UNWRITTEN = re.compile(rb"[%\x00-\x20\x7f]")


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """A lane as it was when it was read."""

    name: str
    depth: int
    """How many jobs wait in it for their turn."""
    delayed: int
    """How many jobs of it wait for a time, one that is to be tried again included."""
    head: str | None
    """The id of the job that is next."""
    holders: tuple[str, ...]
    """The ids of the jobs that run, or that failed and keep the lane until their next attempt."""
    held_since: int | None
    """Since when the first of them holds it, in ms since the epoch."""
    is_paused: bool
    halted_by: str | None
    """The id of the job whose failure halted it (``on_exhausted="halt"``)."""
    is_ready: bool
    """May a job of it be taken now?"""
    limited_until: int | None
    """Until when its rate limit holds it back, in ms since the epoch."""
    weight: int
    concurrency: int

    @property
    def holder(self) -> str | None:
        """The id of the job that holds it, the first one if there are more."""
        return self.holders[0] if self.holders else None


def lane_name(written: bytes) -> str:
    """The lane whose name in the keys is ``written``."""
    return unquote_to_bytes(written).decode("utf-8", "replace")


def names(keys: Keys, start: int, end: int) -> Command[list[str]]:
    """The lanes that have jobs, those longest at work first, then those whose jobs are delayed."""

    def parse(reply: list[bytes]) -> list[str]:
        return [lane_name(item) for item in reply]

    return plain("ZRANGE", keys.lanes_index, start, end, parse=parse)


STATES = ("paused", "halted", "stopped")
"""What keeps a lane from running: an operator, a failed job, or either."""


def stopped(keys: Keys, state: str, start: int, end: int) -> Plan[list[str]]:
    """The lanes that are paused or halted, whether they have jobs or not, the oldest stop first."""
    if state not in STATES:
        raise InvalidOptionError(f"{state!r} is not a state of lanes; choose one of {STATES}")
    wanted = ("paused", "halted") if state == "stopped" else (state,)
    found: dict[str, int] = {}
    cursor = "0"
    while True:
        cursor, page = yield plain(
            "HSCAN", keys.lanes_settings, cursor, "COUNT", SETTINGS_PER_READ, parse=_parse_settings
        )
        found |= {
            lane: codec.number(own.get("since")) or 0
            for lane, own in page
            if any(own.get(word) for word in wanted)
        }
        if cursor == "0":
            break
    names = sorted(found, key=lambda lane: (found[lane], lane))
    return names[start : None if end == -1 else end + 1]


def _parse_settings(reply: Any) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    settings = fields_of(reply[1])
    own = [(lane_name(lane), settings_of(text)) for lane, text in settings.items()]
    return codec.text(reply[0]), own


def settings_of(text: bytes | None) -> dict[str, Any]:
    """The settings of a lane; none, as for the scripts, where somebody wrote something else."""
    own = codec.decode_or_text(text or None)
    return own if isinstance(own, dict) else {}


def halted_by(own: Mapping[str, Any]) -> str | None:
    """The id of the job whose failure halted the lane with these settings."""
    return str(own["halted"]) if own.get("halted") else None


def written_name(lane: str) -> bytes:
    """How ``lane`` is written in the keys: without spaces and control characters."""
    return _UNWRITTEN.sub(lambda match: b"%%%02x" % match[0][0], lane.encode())


def job_ids(keys: Keys, lane: str, start: int, end: int) -> Plan[list[str]]:
    """The jobs of a lane: those that hold it, those that wait in order, those that wait for a time.

    Both ends are included, and negative ones count from the end.
    """
    check_lane(lane)
    written = written_name(lane)
    low, high = b"[" + written + b" ", b"(" + written + b"!"
    places = (keys.lanes_waiting, keys.lanes_aside)
    holders, *sizes = yield [
        plain("HGET", keys.lanes_held, written, parse=_parse_holders),
        *(plain("ZLEXCOUNT", place, low, high, parse=int) for place in places),
    ]
    first, last = bounds(start, end, len(holders) + sum(sizes))
    found = dict.fromkeys(holders[first : last + 1])
    passed = len(holders)
    for place, size in zip(places, sizes, strict=True):
        skip, begin = max(first - passed, 0), low
        left = min(last - passed, size - 1) - skip + 1
        while left > 0:
            most = min(left, IDS_PER_READ)
            page: list[bytes] = yield plain(
                "ZRANGEBYLEX", place, begin, high, "LIMIT", skip, most, parse=list
            )
            found.update(dict.fromkeys(ids_in_lanes(page)))
            if len(page) < most:
                break
            skip, begin, left = 0, b"(" + page[-1], left - most
        passed += size
    return list(found)


def _parse_holders(reply: Any) -> list[str]:
    return codec.text(reply).split("\n")[1:] if reply else []


def count(keys: Keys) -> Command[int]:
    """How many lanes have a job that waits, for its turn or for a time, or runs."""
    return plain("ZCARD", keys.lanes_index, parse=int)


def read(keys: Keys, lane: str) -> Command[Lane | None]:
    """What is known about a lane; None if nothing is."""
    check_lane(lane)

    def parse(reply: Any) -> Lane | None:
        depth, head, holders, is_ready, limited_until, settings, concurrency, delayed = reply
        own = settings_of(settings)
        if not (depth or delayed or holders or own):
            return None
        return Lane(
            name=lane,
            depth=depth,
            delayed=delayed,
            head=codec.name(head) or None,
            holders=tuple(codec.name(item) for item in holders[::2]),
            held_since=min((codec.number(item) or 0 for item in holders[1::2]), default=None),
            is_paused=bool(own.get("paused")),
            halted_by=halted_by(own),
            is_ready=is_ready == 1,
            limited_until=codec.number(limited_until) or None,
            weight=codec.number_in(own.get("weight")) or 1,
            concurrency=codec.number_in(own.get("concurrency")) or codec.number(concurrency) or 1,
        )

    return script("readLane", keys, {"lane": lane}, parse, resend=Resend.SAME)


def recover(keys: Keys, *, parts: Sequence[str] = ("held", "index", "kept")) -> Plan[int]:
    """Release lanes whose holder is gone, and those that wait for no reason; returns how many.

    The part ``kept`` sees to it that BullMQ takes no job that waits in a lane for an orphan.
    """
    recovered = 0
    for part in parts:
        cursor = "0"
        while True:
            cursor, found = yield script(
                "recoverLanes",
                keys,
                {"part": part, "cursor": cursor, "slice": SLICE},
                _parse_recovered,
                resend=Resend.SAME,
            )
            recovered += found
            if cursor == "0":
                break
    return recovered


def _parse_recovered(reply: Any) -> tuple[str, int]:
    return codec.text(reply[0]), reply[1]


def divert(keys: Keys) -> Plan[int]:
    """Send what waits in diverted lanes to the dead letters, in order; returns how many jobs."""
    diverted: list[tuple[str, str]] = yield plain(
        "HGETALL", keys.lanes_diverting, parse=_parse_diverting
    )
    sent = 0
    for lane, dead_letter_queue in diverted:
        try:
            dead = keys.sibling(dead_letter_queue) if dead_letter_queue else keys
        except InvalidNameError:
            continue  # no entry of ours, and the other lanes must not wait for it
        skip, more = 0, 1
        while more:
            more, gone, kept = yield _divert(keys, lane, dead, skip)
            sent += gone
            skip += kept
    return sent


def _divert(keys: Keys, lane: str, dead: Keys, skip: int) -> Command[Any]:
    args = {
        "lane": lane,
        "source": keys.name,
        "dead_letters": dead.name,
        "slice": DIVERT_SLICE,
        "bytes": DIVERTED_BYTES,
        "skip": skip,
    }
    away = is_away(keys, dead)
    if away:
        args["away"] = dead.base
    beside = None if away else dead
    return script("divertLane", keys, args, tuple, beside=beside, resend=Resend.SAME)


def _parse_diverting(reply: Any) -> list[tuple[str, str]]:
    return [(lane_name(lane), _queue_in(told)) for lane, told in fields_of(reply).items()]


def _queue_in(told: bytes) -> str:
    """Where a lane is diverted to; empty for an entry that the script cannot read and forgets."""
    cause = codec.decode_or_text(told)
    name = cause.get("queue") if isinstance(cause, dict) else None
    return name if isinstance(name, str) else ""


def pause(keys: Keys, lane: str) -> Command[bool]:
    """Take nothing from this lane; True if it was already stopped."""
    return _change(keys, lane, pause=True)


def resume(keys: Keys, lane: str) -> Command[bool]:
    """Resume a lane that is paused, halted or held by a handler; False for any other."""
    return _change(keys, lane, resume=True)


def set_weight(keys: Keys, lane: str, weight: int) -> Command[bool]:
    """How many turns the lane gets for one of another."""
    whole(weight, "weight", least=1, most=MOST_WEIGHT)
    return _change(keys, lane, {"weight": weight})


def set_concurrency(keys: Keys, concurrency: int | None, lane: str | None) -> Plan[None]:
    """How many jobs of a lane may run at once; None removes the setting."""
    if concurrency is None:
        yield from _set(keys, lane, {}, ("concurrency",))
        return
    whole(concurrency, "concurrency", least=1, most=MOST_CONCURRENT)
    yield from _set(keys, lane, {"concurrency": concurrency}, ())


def set_rate_limit(keys: Keys, limit: RateLimit | None, lane: str | None) -> Plan[None]:
    """How many jobs of a lane may start in a period; None removes the setting."""
    if limit is None:
        yield from _set(keys, lane, {}, ("max", "duration"))
        return
    yield from _set(keys, lane, {"max": limit.max, "duration": limit.duration_ms}, ())


def defaults(keys: Keys) -> Command[tuple[int | None, RateLimit | None]]:
    """What applies to all lanes: how many jobs of each may run at once, and how many may start."""

    def parse(reply: list[Any]) -> tuple[int | None, RateLimit | None]:
        concurrency, most, duration = map(codec.number, reply)
        return concurrency, RateLimit(most, duration or 1000) if most else None

    fields = ("toril.laneConcurrency", "toril.laneMax", "toril.laneDuration")
    return plain("HMGET", keys.meta, *fields, parse=parse)


def _set(
    keys: Keys, lane: str | None, changes: Mapping[str, int], clear: Sequence[str]
) -> Plan[None]:
    yield _change(keys, lane, changes, clear)
    if lane is None:
        yield from recover(keys, parts=("index",))


def _change(
    keys: Keys,
    lane: str | None,
    changes: Mapping[str, int] | None = None,
    clear: Sequence[str] = (),
    *,
    pause: bool = False,
    resume: bool = False,
) -> Command[bool]:
    args: dict[str, Any] = {"set": dict(changes or {}), "clear": list(clear)}
    if lane is not None:
        check_lane(lane)
        args["lane"] = lane
    if pause:
        args["pause"] = True
    if resume:
        args["resume"] = True
    return script("setLane", keys, args, bool, resend=Resend.SAME)


def drain(keys: Keys, lane: str, *, delayed: bool = False) -> Plan[int]:
    """Remove the jobs of a lane that wait, with ``delayed`` also those that wait for a time."""
    check_lane(lane)
    removed = 0
    for place in ("waiting", "delayed") if delayed else ("waiting",):
        skip = 0
        while True:
            looked, gone = yield script(
                "drainLane",
                keys,
                {"lane": lane, "place": place, "slice": DRAIN_SLICE, "skip": skip},
                tuple,
                extra={"repeat": keys.repeat},
                resend=Resend.NUMBERED,
            )
            removed += gone
            skip += looked - gone
            if looked < DRAIN_SLICE:
                break
    return removed
