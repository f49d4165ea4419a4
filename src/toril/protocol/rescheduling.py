"""Schedulers that exist: paused, resumed, changed, and run once beside their beat.

Whoever changes a record has read it before.  The server changes it only if it is still the same, so
that two operators, or an operator and Node, never undo each other; the loser reads again.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from toril.errors import InvalidOptionError, SchedulerConflictError, SchedulerNotFoundError
from toril.options import Duration, NewJob, Schedule
from toril.protocol import codec, cron, scheduling
from toril.protocol.adding import Prepared
from toril.protocol.command import Command, Plan, Resend, plain, script
from toril.protocol.job import Fields
from toril.protocol.keys import Keys, check_known_scheduler_id
from toril.protocol.refusals import Refusal

_MOST_TRIES = 32
_WRITTEN = ("tz", "limit", "pattern", "startDate", "endDate", "every")
# What a job of the template that runs at once does not take over.
_OF_THE_BEAT = ("repeat", "repeatJobKey", "deduplication", "debounce")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be another than before; what is None stays."""

    every: Duration | None = None
    cron: str | None = None
    tz: str | None = None
    start: int | datetime | None = None
    end: int | datetime | None = None
    limit: int | None = None
    offset: Duration | None = None
    template: NewJob | None = None


class _Record(msgspec.Struct, frozen=True):
    """A scheduler as it was read, with the options of its pending job."""

    at: int
    fields: Fields
    pending: dict[str, Any]

    @property
    def is_paused(self) -> bool:
        return b"x.paused" in self.fields


def pause(keys: Keys, scheduler_id: str) -> Command[bool]:
    """Let a scheduler make no more jobs; False when there is none."""
    check_known_scheduler_id(scheduler_id)
    return script(
        "pauseScheduler",
        keys,
        {"scheduler_id": scheduler_id},
        lambda reply: reply == 1,
        extra=scheduling.keys_of(keys, scheduler_id),
        resend=Resend.SAME,
    )


def resume(keys: Keys, scheduler_id: str) -> Plan[bool]:
    """Let a paused scheduler go on, from its next time on; False when there is none."""
    for taken in range(_MOST_TRIES):
        record = yield from _read(keys, scheduler_id)
        if record is None:
            return False
        if not record.is_paused:
            return True
        reply = yield from _write(keys, scheduler_id, record, Change(), taken, is_resumed=True)
        if reply not in (Refusal.CHANGED, Refusal.TIME_TAKEN):
            _check(scheduler_id, reply)
            return bool(reply != Refusal.MISSING)
    raise _conflict(scheduler_id)


def change(keys: Keys, scheduler_id: str, new: Change) -> Plan[None]:
    """Change what ``new`` names, and keep all else; a paused scheduler stays paused."""
    if new.template is not None:
        scheduling.check_template(new.template)
    if new.cron is not None:
        cron.parse(new.cron)
    if new.tz is not None:
        cron.zone_of(new.tz)
    for taken in range(_MOST_TRIES):
        record = yield from _read(keys, scheduler_id)
        if record is None:
            raise _missing(keys, scheduler_id)
        reply = yield from _write(keys, scheduler_id, record, new, taken, is_resumed=False)
        if reply == Refusal.MISSING:
            raise _missing(keys, scheduler_id)
        if reply not in (Refusal.CHANGED, Refusal.TIME_TAKEN):
            _check(scheduler_id, reply)
            return
    raise _conflict(scheduler_id)


def once(keys: Keys, scheduler_id: str, job_id: str) -> Plan[Prepared]:
    """One job of the template, to be added beside the beat."""
    record = yield from _read(keys, scheduler_id)
    if record is None:
        raise _missing(keys, scheduler_id)
    raw = _object(record.fields.get(b"opts"))
    opts = {"attempts": 0, **scheduling.taken_over(raw, besides=_OF_THE_BEAT)}
    text = codec.encode(opts, "options")
    entry = {"id": job_id, "name": _name(scheduler_id, record), **_placing(text)}
    return Prepared(job_id, entry, record.fields.get(b"data", b"{}"), text)


def _read(keys: Keys, scheduler_id: str) -> Plan[_Record | None]:
    found = yield from scheduling.record(keys, scheduler_id)
    if found is None:
        return None
    at, fields = found
    if b"x.paused" in fields:
        return _Record(at, fields, _object(fields.get(b"x.pending")))
    job = keys.job(scheduling.iteration_id(scheduler_id, at))
    opts: bytes | None = yield plain("HGET", job, "opts", parse=lambda reply: reply)
    return _Record(at, fields, _object(opts))


def _write(
    keys: Keys, scheduler_id: str, record: _Record, new: Change, taken: int, *, is_resumed: bool
) -> Plan[Any]:
    """Write the record with what is new in it; returns the server's reply.

    ``taken`` is how many times of a pattern are to be passed over: jobs have them already.
    """
    now_ms: int = yield script("clock", keys, {}, int, resend=Resend.SAME)
    wire = _merged(scheduler_id, record, new, now_ms)
    pending, template_opts = _options(record, new)
    count = codec.number_in(_object_in(record.pending, "repeat").get("count"))
    if count is None:
        count = codec.number(record.fields[b"ic"]) or 1

    def iteration(number: int) -> bytes:
        limit, end = wire.get("limit"), scheduling.moment(wire.get("endDate"))
        if (limit and number > limit) or (end is not None and now_ms > end):
            return b""
        repeat = {**_repeat(pending, wire, new), "count": number}
        opts = {**pending, "repeat": repeat, "repeatJobKey": scheduler_id}
        return codec.encode(opts, "options")

    data = record.fields.get(b"data", b"{}")
    if new.template is not None:
        data = scheduling.data_of(scheduler_id, new.template)
    every = wire.get("every")
    expected = {name: value for name, value in record.fields.items() if name != b"ic"}
    args: dict[str, Any] = {
        "scheduler_id": scheduler_id,
        "id_json": scheduling.id_json(scheduler_id),
        "name": _name(scheduler_id, record) if new.template is None else new.template.name,
        "fields": [word for name in _WRITTEN if wire.get(name) is not None
                   for word in (name, str(wire[name]))],
        "expected": [codec.text(name) for name in expected],
        "expected_at": record.at,
        "stays_paused": record.is_paused and not is_resumed,
        "is_resumed": is_resumed,
        "keeps_every": every == codec.number(record.fields.get(b"every")) and new.offset is None,
        "priority": 0, "lifo": False, **_placing(codec.encode(pending, "options")),
    }  # fmt: skip
    times: dict[str, Any] = {"end_ms": scheduling.moment(wire.get("endDate"))}
    if every:
        times |= {"every": every, "offset": wire.get("offset"), "start": wire.get("startDate")}
    else:
        after_ms = max(now_ms, wire.get("startDate") or 0)
        times["next_ms"] = scheduling.next_cron_ms(
            scheduler_id, wire["pattern"], wire.get("tz"), after_ms, passed_over=taken
        )
    args |= {name: value for name, value in times.items() if value is not None}
    reply = yield script(
        "changeScheduler",
        keys,
        args,
        lambda reply: reply,
        extra=scheduling.keys_of(keys, scheduler_id),
        payloads=(data, iteration(count), template_opts, iteration(count + 1), *expected.values()),
        resend=Resend.NUMBERED,
    )
    return reply


def _repeat(pending: dict[str, Any], wire: dict[str, Any], new: Change) -> dict[str, Any]:
    """The schedule as an iteration carries it, without its count."""
    dropped = (*_WRITTEN, "offset") if wire.get("offset") is None else _WRITTEN
    before = _object_in(pending, "repeat")
    repeat = {name: value for name, value in before.items() if name not in dropped}
    repeat |= {name: wire[name] for name in _WRITTEN if wire.get(name) is not None}
    return repeat if new.offset is None else {**repeat, "offset": wire["offset"]}


def _merged(scheduler_id: str, record: _Record, new: Change, now_ms: int) -> dict[str, Any]:
    """The definition under its names on the wire: what is stored, and over it what is new."""
    wire = scheduling.definition_of(record.fields)
    if new.every is not None:
        wire |= {"pattern": None, "tz": None, "offset": None}
    if new.cron is not None:
        wire |= {"every": None, "offset": None, "pattern": new.cron}
        wire["tz"] = wire.get("tz") or scheduling.DEFAULT_ZONE
    stored_every = None if wire.get("pattern") else wire.get("every")
    given = Schedule(
        every=new.every if new.every is not None else stored_every,
        cron=wire.get("pattern") if new.every is None else new.cron,
        tz=new.tz,
        start=new.start,
        end=new.end,
        limit=new.limit,
        offset=new.offset,
    )
    if given.end_ms is not None and given.end_ms <= now_ms:
        raise InvalidOptionError(f"end={new.end!r} of scheduler {scheduler_id!r} is in the past")
    over = {
        "every": given.every_ms if new.every is not None else None,
        "tz": given.tz,
        "limit": given.limit,
        "startDate": given.start_ms,
        "endDate": given.end_ms,
        "offset": given.offset_ms,
    }
    return wire | {name: value for name, value in over.items() if value is not None}


def _options(record: _Record, new: Change) -> tuple[dict[str, Any], bytes]:
    """What an iteration takes over, and the options of the template as they are stored."""
    if new.template is not None:
        opts = scheduling.template_options(new.template)
        kept = {name: record.pending[name] for name in ("repeat",) if name in record.pending}
        return {**opts, **kept}, codec.encode(opts, "options") if opts else b""
    stored = record.fields.get(b"opts", b"")
    return scheduling.taken_over(record.pending or _object(stored or None)), stored


def _placing(opts: bytes) -> dict[str, Any]:
    """What the server needs of the options to place a job."""
    read = codec.decode_options(opts)
    placing = scheduling.lane_args(read)
    if read.priority:
        placing["priority"] = read.priority
    if read.lifo:
        placing["lifo"] = True
    return placing


def _object(text: bytes | None) -> dict[str, Any]:
    try:
        value = codec.decode(text, {})
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _object_in(value: dict[str, Any], name: str) -> dict[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _name(scheduler_id: str, record: _Record) -> str:
    return codec.text(record.fields.get(b"name"), scheduler_id)


def _check(scheduler_id: str, reply: Any) -> None:
    if reply == Refusal.TIMES_TAKEN:
        raise _conflict(scheduler_id)


def _missing(keys: Keys, scheduler_id: str) -> SchedulerNotFoundError:
    return SchedulerNotFoundError(f"queue {keys.name!r} has no scheduler {scheduler_id!r}")


def _conflict(scheduler_id: str) -> SchedulerConflictError:
    return SchedulerConflictError(
        f"scheduler {scheduler_id!r} was not changed: others keep changing it, or the jobs of its"
        f" next times exist already; try again"
    )
