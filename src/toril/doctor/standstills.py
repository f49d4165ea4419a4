"""Jobs that are stuck while the queue works: no worker runs them, or somebody stopped them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from toril.client.connection import Connection
from toril.doctor import ailments
from toril.doctor.finding import Finding
from toril.doctor.reader import ConnectionReader
from toril.doctor.wording import counted
from toril.protocol import groups, lanes
from toril.protocol.groups import GroupState
from toril.protocol.keys import Keys
from toril.protocol.lanes import Lane, lane_name

_MOST_ACTIVE = 200
_MOST_LANES = 20
_MOST_SETTINGS = 10_000
_MOST_GROUPS = 200
_MOST_SHOWN = 3
_PRIORITY = 2**32
_PAUSE_S = 0.3


class Standstills(msgspec.Struct, frozen=True, kw_only=True):
    """What in a queue does not continue by itself."""

    unlocked: Sequence[str] = ()
    """Jobs that are active and that nobody holds a lock of."""
    lanes: Sequence[Lane] = ()
    """Lanes with jobs that are paused or halted."""
    groups: Sequence[str] = ()
    """Groups that could not be undone."""
    asking: Sequence[str] = ()
    blocked: Sequence[str] = ()
    """Groups of which nobody knows how a member ended."""
    oldest_prioritized: int | None = None
    """When the oldest of the most and of the least urgent jobs was added, in ms."""


async def read_standstills(
    connection: Connection, reader: ConnectionReader, keys: Keys, counts: dict[str, int]
) -> Standstills:
    return Standstills(
        unlocked=await _unlocked(reader, keys) if counts.get("active") else (),
        lanes=await _stopped_lanes(connection, reader, keys),
        groups=await _groups_not_undone(connection, keys),
        asking=await _groups_asking(connection, keys),
        blocked=await _groups_blocked(connection, keys),
        oldest_prioritized=(
            await _oldest_prioritized(reader, keys) if counts.get("prioritized") else None
        ),
    )


async def _unlocked(reader: ConnectionReader, keys: Keys) -> list[str]:
    """Looked for twice: a job may end between one answer and the next."""
    found = await _active_without_lock(reader, keys)
    if not found:
        return found
    await asyncio.sleep(_PAUSE_S)
    again = set(await _active_without_lock(reader, keys))
    return [job_id for job_id in found if job_id in again]


async def _active_without_lock(reader: ConnectionReader, keys: Keys) -> list[str]:
    (ids,) = await reader.ask([("LRANGE", keys.active, str(-_MOST_ACTIVE), "-1")])
    locks = await reader.ask([("EXISTS", f"{keys.job(job_id)}:lock") for job_id in ids])
    return [job_id for job_id, lock in zip(ids, locks, strict=True) if not lock]


async def _stopped_lanes(
    connection: Connection, reader: ConnectionReader, keys: Keys
) -> list[Lane]:
    names: list[str] = []
    cursor, seen = "0", 0
    while len(names) < _MOST_LANES and seen < _MOST_SETTINGS:
        page: list[Any]
        ((cursor, page),) = await reader.ask([("HSCAN", keys.lanes_settings, cursor)])
        pairs = list(zip(page[::2], page[1::2], strict=True))
        names += [lane_name(name.encode()) for name, own in pairs if _is_stopped(own)]
        seen += len(pairs)
        if cursor == "0":
            break
    found = await connection.run_all([lanes.read(keys, name) for name in names]) if names else []
    return [lane for lane in found if lane is not None and lane.depth]


def _is_stopped(settings: str) -> bool:
    return '"paused"' in settings or '"halted"' in settings


async def _groups_not_undone(connection: Connection, keys: Keys) -> list[str]:
    if not await connection.follow(groups.count_not_undone(keys)):
        return []
    wanted = (GroupState.FAILED_COMPENSATION,)
    plan = groups.groups(keys, wanted, 0, _MOST_GROUPS - 1, newest_first=True)
    return [group.id for group in await connection.follow(plan)]


async def _groups_asking(connection: Connection, keys: Keys) -> list[str]:
    return [group.id for group in await connection.follow(groups.asking(keys))]


async def _groups_blocked(connection: Connection, keys: Keys) -> list[str]:
    wanted = (GroupState.BLOCKED,)
    plan = groups.groups(keys, wanted, 0, _MOST_GROUPS - 1, newest_first=True)
    return [group.id for group in await connection.follow(plan)]


async def _oldest_prioritized(reader: ConnectionReader, keys: Keys) -> int | None:
    """Of the most urgent and of the least urgent: these are the ones that starve."""
    key = keys.prioritized
    first, last = await reader.ask(
        [("ZRANGE", key, "0", "0"), ("ZRANGE", key, "-1", "-1", "WITHSCORES")]
    )
    if not first or not last:
        return None
    least = int(float(last[1])) // _PRIORITY * _PRIORITY
    (starving,) = await reader.ask(
        [("ZRANGEBYSCORE", key, str(least), "+inf", "LIMIT", "0", "1")],
    )
    times = await reader.ask([("HGET", keys.job(one), "timestamp") for one in (*first, *starving)])
    return min((int(time) for time in times if time and time.isdigit()), default=None)


def check_standstills(
    subject: str, name: str, stands: Standstills, active: int, *, has_no_worker: bool
) -> Iterator[Finding]:
    if active and has_no_worker:
        yield ailments.LEFT_ACTIVE.of(subject, active=counted(active, "job"))
    elif stands.unlocked:
        yield ailments.UNLOCKED.of(subject, jobs=_some("job", stands.unlocked))
    if stands.lanes:
        stopped = [
            f"{lane.name!r} ({lane.depth} waiting,"
            f" {f'halted by job {lane.halted_by!r}' if lane.halted_by else 'paused'})"
            for lane in stands.lanes[:_MOST_SHOWN]
        ]
        yield ailments.LANES_STOPPED.of(
            subject,
            lanes=counted(len(stands.lanes), "lane"),
            examples=", ".join(stopped),
            queue=name,
        )
    if stands.groups:
        yield ailments.GROUPS_NOT_UNDONE.of(
            subject, groups=_some("group", stands.groups), queue=name
        )
    if stands.blocked:
        yield ailments.GROUPS_BLOCKED.of(subject, groups=_some("group", stands.blocked), queue=name)
    if stands.asking:
        yield ailments.GROUPS_ASKING.of(subject, groups=_some("group", stands.asking))


def _some(noun: str, ids: Sequence[str]) -> str:
    shown = ", ".join(repr(one) for one in ids[:_MOST_SHOWN])
    more = f" and {len(ids) - _MOST_SHOWN} more" if len(ids) > _MOST_SHOWN else ""
    return f"{noun} {shown}{more}"
