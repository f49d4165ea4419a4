"""Looking at queues again and again, as a monitor does.

Each look is one command whose cost does not depend on how many jobs there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from toril.protocol import codec, events, groups, lanes
from toril.protocol.command import Command, Plan, Resend, plain, script
from toril.protocol.events import Event
from toril.protocol.groups import GroupInfo
from toril.protocol.keys import Keys
from toril.protocol.reading import readable

BEGINNING = "0-0"

_OF_FAILED = ("name", "failedReason", "atm", "finishedOn", "pb")

_PLACE_LENGTH = 32
"""A job's field for its lane begins with its place in it, in digits."""


class Glance(msgspec.Struct, frozen=True, kw_only=True):
    """A queue at one moment, and the newest of the events since the last look."""

    waiting: int
    active: int
    prioritized: int
    delayed: int
    waiting_children: int
    completed: int
    failed: int
    lanes: int
    """How many lanes have a job waiting or running."""
    groups: int
    is_paused: bool
    events_added: int
    """How many events there ever were."""
    events: list[Event]
    """The oldest first."""
    in_transit: int = 0
    """How many jobs are on their way to another slot of a cluster."""

    @property
    def total(self) -> int:
        """All jobs that are not finished."""
        unfinished = self.waiting + self.active + self.prioritized
        return unfinished + self.delayed + self.waiting_children


def together(parts: Sequence[Glance]) -> Glance:
    """Several queues as one: the partitions of a queue."""
    if len(parts) == 1:
        return parts[0]
    counted = (
        *("waiting", "active", "prioritized", "delayed", "waiting_children", "completed"),
        *("failed", "lanes", "groups", "events_added", "in_transit"),
    )
    events = sorted((event for part in parts for event in part.events), key=_moment)
    return Glance(
        **{name: sum(getattr(part, name) for part in parts) for name in counted},
        is_paused=all(part.is_paused for part in parts),
        events=events,
    )


def _moment(event: Event) -> tuple[int, int]:
    at_ms, _, number = event.id.partition("-")
    return int(at_ms), int(number or 0)


class ActiveJob(msgspec.Struct, frozen=True):
    """A job that runs, in a few words."""

    id: str
    name: str
    attempts_started: int
    processed_on: int
    progress: Any
    worker: str
    lane: str


class FailedJob(msgspec.Struct, frozen=True):
    """A job that failed for good, in a few words."""

    id: str
    name: str
    reason: str
    attempts_made: int
    finished_on: int
    worker: str


class LaneGlance(msgspec.Struct, frozen=True):
    """A lane, in a few words."""

    name: str
    depth: int
    head: str
    holders: tuple[str, ...]
    is_paused: bool
    halted_by: str | None

    @property
    def state(self) -> str:
        if self.is_paused:
            return "paused"
        if self.halted_by:
            return "halted"
        return "running" if self.holders else "waiting"


def look(keys: Keys, *, after: str = BEGINNING, most: int = 200) -> Command[Glance]:
    """The queue now, and at most ``most`` of the events after ``after``."""

    def parse(reply: list[Any]) -> Glance:
        wait, paused, active, prioritized, delayed, children, completed, failed = reply[:8]
        lanes_waiting, lanes_delayed, lane_count, group_count, in_transit, *rest = reply[8:]
        is_paused, added, log = rest
        return Glance(
            waiting=wait + paused + lanes_waiting,
            active=active,
            prioritized=prioritized,
            delayed=delayed + lanes_delayed,
            waiting_children=children,
            completed=completed,
            failed=failed,
            lanes=lane_count,
            groups=group_count,
            in_transit=in_transit,
            is_paused=is_paused == 1,
            events_added=added,
            events=[events.decode(entry_id, fields) for entry_id, fields in reversed(log)],
        )

    return script(
        "glance",
        keys,
        {"after": after, "most": most},
        parse,
        extra={"groups": f"{keys.base}:groups"},
        resend=Resend.SAME,
    )


def active(keys: Keys, *, most: int) -> Command[list[ActiveJob]]:
    """The jobs that have been running longest."""

    def parse(reply: list[list[bytes]]) -> list[ActiveJob]:
        return [_active_job(*row) for row in reply]

    return script("glanceActive", keys, {"most": most}, parse, resend=Resend.SAME)


def _active_job(*row: bytes) -> ActiveJob:
    job_id, name, started, since, progress, worker, lane = row
    return ActiveJob(
        codec.name(job_id),
        codec.text(name),
        codec.number(started) or 0,
        codec.number(since) or 0,
        codec.decode_or_text(progress) if progress else None,
        codec.text(worker),
        lanes.lane_name(lane[_PLACE_LENGTH:]) if lane else "",
    )


def failed(keys: Keys, *, most: int) -> Plan[list[FailedJob]]:
    """The jobs that failed last; of each only what a line shows, however large its data are."""
    ids: list[str] = yield plain(
        "ZREVRANGE",
        keys.failed,
        0,
        most - 1,
        parse=lambda reply: [codec.name(one) for one in reply],
    )

    def read(job_id: str) -> Command[FailedJob]:
        def parse(reply: list[bytes | None]) -> FailedJob:
            name, reason, attempts, finished, worker = reply
            return FailedJob(
                job_id,
                codec.text(name or b""),
                codec.text(reason or b""),
                codec.number(attempts) or 0,
                codec.number(finished) or 0,
                codec.text(worker or b""),
            )

        return plain("HMGET", keys.job(job_id), *_OF_FAILED, parse=parse)

    return (yield from readable([read(job_id) for job_id in ids])) if ids else []


def lanes_at_work(keys: Keys, *, most: int) -> Command[list[LaneGlance]]:
    """Some lanes that have a job, those longest at work first."""

    def parse(reply: list[list[Any]]) -> list[LaneGlance]:
        return [_lane(*row) for row in reply]

    return script("glanceLanes", keys, {"most": most}, parse, resend=Resend.SAME)


def added_at(keys: Keys, job_id: str) -> Command[int | None]:
    """When a job was added, without the rest of it."""
    return plain("HGET", keys.job(job_id), "timestamp", parse=codec.number)


def _lane(name: bytes, depth: int, head: bytes, holders: bytes, settings: bytes) -> LaneGlance:
    own = lanes.settings_of(settings)
    return LaneGlance(
        lanes.lane_name(name),
        depth,
        codec.name(head),
        tuple(codec.name(holders).split("\n")) if holders else (),
        bool(own.get("paused")),
        lanes.halted_by(own),
    )


def newest_groups(keys: Keys, *, most: int) -> Command[list[GroupInfo]]:
    """The newest groups that the queue owns."""

    def parse(reply: list[Any]) -> list[GroupInfo]:
        found = [groups.info_or_none(codec.text(group_id), values) for group_id, values in reply]
        return [group for group in found if group is not None]

    _, _, *fields = groups.read(keys, "any").words

    return script(
        "glanceGroups",
        keys,
        {"most": most, "fields": fields},
        parse,
        extra={"groups": f"{keys.base}:groups"},
        resend=Resend.SAME,
    )
