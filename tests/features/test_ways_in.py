"""Whichever way a job comes in, it is written and placed as a plain add would have done it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine

from tests.helpers import wait_until
from toril import (
    Backoff,
    Deduplication,
    FlowJob,
    FlowProducer,
    GroupJob,
    Keep,
    NewJob,
    Parent,
    Queue,
    Worker,
)
from toril.client.connection import Connection
from toril.errors import GroupValidationError, InvalidOptionError
from toril.options import OPTION_NAMES
from toril.outbox import Outbox, Relay

FAR = 600_000
SOON_MS = 4_000_000_000_000
"""A time that no test lives to see."""
PARENT = Parent("p", "q")
USUAL = (("delay", 0), ("attempts", 0))
LAST = Deduplication("d", keep_last_if_active=True)

OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "delay": {"delay": FAR},
    "run_at": {"run_at": SOON_MS},
    "priority": {"priority": 3},
    "lifo": {"lifo": True},
    "attempts": {"attempts": 4},
    "backoff": {"backoff": Backoff.exponential(1000, jitter=0.2)},
    "remove_on_complete": {"remove_on_complete": 5},
    "remove_on_fail": {"remove_on_fail": Keep(age=1000)},
    "keep_logs": {"keep_logs": 7},
    "stack_trace_limit": {"stack_trace_limit": 2},
    "size_limit": {"size_limit": 1000},
    "timeout": {"timeout": 5000},
    "idempotency_key": {"idempotency_key": "k"},
    "timestamp": {"timestamp": 1_700_000_000_000},
    "expires": {"expires": FAR},
    "telemetry": {"telemetry": "00-trace"},
    "lane": {"lane": "l"},
    "lane, delay": {"lane": "l", "delay": FAR},
    "lane, run_at": {"lane": "l", "run_at": SOON_MS},
    "order_ms": {"lane": "l", "order_ms": 5},
    "ordering_delay": {"lane": "l", "ordering_delay": FAR},
    "order_ms, ordering_delay": {"lane": "l", "order_ms": SOON_MS, "ordering_delay": FAR},
    "run_at, ordering_delay": {"lane": "l", "run_at": SOON_MS, "ordering_delay": FAR},
    "on_retry": {"lane": "l", "on_retry": "skip"},
    "on_exhausted": {"lane": "l", "on_exhausted": "halt"},
    "max_lane_size": {"lane": "l", "max_lane_size": 9},
    "parent": {"parent": PARENT},
    "fail_parent_on_failure": {"parent": PARENT, "fail_parent_on_failure": True},
    "continue_parent_on_failure": {"parent": PARENT, "continue_parent_on_failure": True},
    "ignore_dependency_on_failure": {"parent": PARENT, "ignore_dependency_on_failure": True},
    "remove_dependency_on_failure": {"parent": PARENT, "remove_dependency_on_failure": True},
}


def test_every_option_is_walked():
    """A new option has to come in by every way."""
    walked = {name for options in OPTIONS.values() for name in options}

    assert walked == OPTION_NAMES - {"job_id", "deduplication"}


class Place:
    """A queue for one way in."""

    def __init__(
        self, url: str, connection: Connection, prefix: str, name: str, client: Any, folder: Path
    ) -> None:
        self.url, self.name, self.prefix, self.client = url, name, prefix, client
        self.folder = folder
        self.queue = Queue(name, connection=connection, prefix=prefix)
        self.flow = FlowProducer(connection=connection, prefix=prefix)

    async def record_of(self, job_id: str) -> dict[str, Any]:
        """What is written of a job and where it is, without what differs from way to way."""
        base = self.queue.keys.base
        fields = await self.client.hgetall(f"{base}:{job_id}")
        opts = json.loads(fields.pop("opts"))
        for own in ("de", "group", "jobId", "repeat", "repeatJobKey"):
            opts.pop(own, None)
        if opts.get("idempotencyKey") == job_id:  # a row has one in any case
            del opts["idempotencyKey"]
        now_ms = time.time() * 1000
        # A tick always says when it was made, and says nothing of a single attempt.
        if abs(opts.get("timestamp", 0) - now_ms) < 100_000:
            del opts["timestamp"]
        opts = {name: value for name, value in opts.items() if (name, value) not in USUAL}
        if abs(int(fields["timestamp"]) - now_ms) < 100_000:
            fields["timestamp"] = "now"
        fields["delay"] = _about(now_ms + int(fields["delay"]))
        if "x.due" in fields:
            fields["x.due"] = _about(int(fields["x.due"]))
        if "x.lane" in fields:
            order = int(fields["x.lane"][:16])
            is_now = abs(order - now_ms) < 100_000
            fields["x.lane"] = ("now" if is_now else order, fields["x.lane"][32:])
        for own in ("deid", "x.group", "rjk"):
            fields.pop(own, None)
        record = {**fields, "opts": opts, "place": await self._place(job_id)}
        return json.loads(json.dumps(record).replace(base, "queue"))

    async def _place(self, job_id: str) -> tuple[str, Any]:
        base, due = self.queue.keys.base, None
        for name in ("wait", "active"):
            if job_id in await self.client.lrange(f"{base}:{name}", 0, -1):
                return name, None
        for name in ("prioritized", "delayed", "waiting-children", "lanes:waiting"):
            for member in await self.client.zrange(f"{base}:{name}", 0, -1):
                if member.endswith(job_id):
                    due = await self.client.zscore(f"{base}:{name}", member)
                    return name, _about(due / 4096) if name == "delayed" else None
        for member in await self.client.zrange(f"{base}:lanes:delayed", 0, -1):
            if member.endswith(job_id):
                due = await self.client.zscore(f"{base}:lanes:delayed", member)
                return "lanes:delayed", _about(due)
        return "nowhere", None


def _about(at_ms: float) -> str:
    """Which of the times that the options mean this is; one way in takes longer than another."""
    now_ms = time.time() * 1000
    meant = {"now": now_ms, "far": now_ms + FAR, "twice as far": now_ms + 2 * FAR, "soon": SOON_MS}
    names = [name for name, ms in meant.items() if abs(at_ms - ms) < 100_000]
    assert names, f"an unknown time: {at_ms}, now it is {now_ms}"
    return names[0]


async def plainly(place: Place, options: dict[str, Any]) -> str:
    return (await place.queue.add("x", {"n": 1}, **options)).id


async def in_bulk(place: Place, options: dict[str, Any]) -> str:
    return (await place.queue.add_bulk([NewJob("x", {"n": 1}, **options)]))[0].id


async def as_a_flow(place: Place, options: dict[str, Any]) -> str:
    return (await place.flow.add(FlowJob("x", {"n": 1}, queue_name=place.name, **options))).job.id


async def in_a_group(place: Place, options: dict[str, Any]) -> str:
    member = GroupJob("x", {"n": 1}, queue_name=place.name, **options)
    return (await place.flow.add_group("g", [member])).jobs[0].id


async def as_a_schedule(place: Place, options: dict[str, Any]) -> str:
    """A tick that is due at once is a job like any other."""
    template = NewJob("x", {"n": 1}, **options)
    job = await place.queue.upsert_job_scheduler("s", every=FAR, template=template)
    return job.id


async def kept_for_later(place: Place, options: dict[str, Any]) -> str:
    """It came while the owner of its deduplication id ran."""
    kept = NewJob("x", {"n": 1}, job_id="kept", deduplication=LAST, **options)

    async def handle(job: Any) -> None:
        await place.queue.add_bulk([kept])
        await place.queue.pause()

    await place.queue.add("owner", deduplication=LAST, remove_on_complete=True)
    async with Worker(place.name, handle, connection=place.url, prefix=place.prefix):
        await wait_until(lambda: place.client.exists(f"{place.queue.keys.base}:kept"))
    await place.queue.resume()
    return "kept"


async def in_a_later_stage(place: Place, options: dict[str, Any]) -> str:
    """A member that becomes a job when another one has completed."""
    before = f"{place.name}-before"
    first = GroupJob("first", queue_name=before)
    member = GroupJob("x", {"n": 1}, queue_name=place.name, after=["first"], **options)
    node = await place.flow.add_group("g", [first, member], queue_name=before)
    job_id = node.jobs[1].id
    async with Worker(before, _nothing, connection=place.url, prefix=place.prefix):
        await wait_until(lambda: place.client.exists(place.queue.keys.job(job_id)))
    return job_id


async def beside_a_schedule(place: Place, options: dict[str, Any]) -> str:
    """A job of a schedule's template that somebody wants now."""
    template = NewJob("x", {"n": 1}, **options)
    await place.queue.upsert_job_scheduler("s", every=FAR, start=SOON_MS, template=template)
    return (await place.queue.run_job_scheduler("s")).id


async def from_a_row(place: Place, options: dict[str, Any]) -> str:
    """A job whose row an outbox had committed."""
    engine = create_engine(f"sqlite:///{place.folder}/x.db")
    outbox = Outbox(MetaData())
    outbox.table.metadata.create_all(engine)
    with engine.begin() as connection:
        job_id = outbox.add(connection, place.name, "x", {"n": 1}, **options)
    async with Relay(engine, outbox, connection=place.url, prefix=place.prefix) as relay:
        assert await relay.run_once() == 1
    engine.dispose()
    return job_id


async def _nothing(job: Any) -> None:
    pass


WAYS_IN = (
    *(in_bulk, as_a_flow, in_a_group, in_a_later_stage, as_a_schedule, beside_a_schedule),
    *(kept_for_later, from_a_row),
)
MAY_REFUSE = {*WAYS_IN} - {in_bulk, as_a_flow}
REFUSED = {"parent", "delay", "run_at", "timestamp", "order_ms"}
"""A schedule decides on times; neither its jobs nor members of a group nor those that may never be
added have parents."""


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
async def test_every_way_in_honours_every_option_or_refuses_it(
    options, url, prefix, client, tmp_path
):
    """Regression: a job that was kept for later forgot run_at and ordering_delay."""
    connection = Connection(url)
    records, refused = {}, set()
    for way in (plainly, *WAYS_IN):
        place = Place(url, connection, prefix, way.__name__, client, tmp_path)
        its_options = dict(options)
        if "parent" in options:
            its_options["parent"] = Parent("p", place.name)
            await place.queue.add("p", job_id="p", delay=FAR)
        try:
            records[way] = await place.record_of(await way(place, its_options))
        except (InvalidOptionError, GroupValidationError):
            refused.add(way)
    await connection.close()

    expected = records.pop(plainly)
    for way, record in records.items():
        assert record == expected, way.__name__
    assert refused <= MAY_REFUSE
    assert not refused or options.keys() & REFUSED
