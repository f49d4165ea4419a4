"""Schedulers: jobs that come again and again.

A scheduler has one pending iteration at a time, an ordinary job.  The worker that takes it adds the
next one before it runs it, so N workers make one job a tick, and a crash in between loses none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec

from toril.errors import InvalidOptionError, SchedulerConflictError
from toril.options import NewJob, Schedule
from toril.protocol import codec, cron
from toril.protocol.codec import JobOpts
from toril.protocol.command import Command, Plan, Resend, plain, script
from toril.protocol.job import Fields, Job, StoredJob, fields_of
from toril.protocol.keys import Keys, check_known_scheduler_id, check_scheduler_id
from toril.protocol.refusals import Refusal

DEFAULT_ZONE = "UTC"
_PER_READ = 500
# What an iteration does not take over from the one before it.
_OWN_OPTIONS = ("jobId", "delay", "timestamp", "prevMillis", "parent", "de")


class JobScheduler(msgspec.Struct, frozen=True, kw_only=True):
    """A scheduler as it is stored."""

    id: str
    name: str
    next_at: int | None
    """When its next iteration is due, in ms since the epoch; None while it is paused."""
    iterations: int
    """How many iterations it has made."""
    every: int | None
    cron: str | None
    tz: str | None
    start: int | None
    end: int | None
    limit: int | None
    offset: int | None
    data: Any
    opts: JobOpts
    paused_at: int | None = None
    """Since when it is paused, in ms since the epoch; None if it is not."""

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None


def iteration_id(scheduler_id: str, due_ms: int) -> str:
    """The id of the job that a scheduler makes for one time."""
    return f"repeat:{scheduler_id}:{due_ms}"


def due_before(scheduler: JobScheduler) -> int | None:
    """When a scheduler was last due; None if it has not run, or that is unknown."""
    if scheduler.iterations < 2 or scheduler.next_at is None:
        return None
    if scheduler.every:
        return scheduler.next_at - scheduler.every
    try:
        pattern = cron.parse(scheduler.cron or "")
        return cron.last_before(pattern, scheduler.next_at, cron.zone_of(scheduler.tz or "UTC"))
    except InvalidOptionError:
        return None  # another program may know patterns and zones that we do not


def repeating_id(owner: str, schedule: Schedule) -> str:
    """The id of the scheduler that ``repeat=`` makes: one for each lane (or name) and schedule."""
    told = codec.encode([owner, schedule.every_ms, schedule.cron, schedule.tz], "repeat")
    return f"repeating-{sha256(told).hexdigest()[:32]}"


def upsert(keys: Keys, scheduler_id: str, schedule: Schedule, template: NewJob) -> Plan[Job]:
    """Make or change a scheduler; returns its pending iteration."""
    check_scheduler_id(scheduler_id)
    check_template(template)
    if schedule.cron is not None:
        cron.parse(schedule.cron)
        cron.zone_of(schedule.tz or DEFAULT_ZONE)
    now_ms: int = yield script("clock", keys, {}, int, resend=Resend.SAME)
    if schedule.end_ms is not None and schedule.end_ms <= now_ms:
        raise InvalidOptionError(
            f"end={schedule.end!r} of scheduler {scheduler_id!r} is in the past"
        )
    job: Job = yield _upsert(keys, scheduler_id, schedule, template, now_ms)
    return job


def _upsert(
    keys: Keys, scheduler_id: str, schedule: Schedule, template: NewJob, now_ms: int
) -> Command[Job]:
    data = data_of(scheduler_id, template)
    template_opts = template_options(template)
    repeat = _repeat_of(schedule)
    iteration_opts = {**template_opts, "repeat": repeat, "repeatJobKey": scheduler_id}
    args: dict[str, Any] = {
        "scheduler_id": scheduler_id,
        "id_json": id_json(scheduler_id),
        "name": template.name,
        "fields": _definition(schedule),
        "priority": template.priority or 0,
        "lifo": bool(template.lifo),
    }
    if template.lane is not None:
        args["lane"] = template.lane
        if template.ordering_delay is not None:
            args["ordering_delay"] = template.normalised("ordering_delay")
    if schedule.cron is not None:
        args["next_ms"] = _first_cron_ms(scheduler_id, schedule, schedule.cron, now_ms)
    else:
        args["every"] = schedule.every_ms
        if schedule.offset is not None:
            args["offset"] = schedule.offset_ms
        if schedule.start is not None:
            args["start"] = schedule.start_ms
    if schedule.end is not None:
        args["end_ms"] = schedule.end_ms
    opts = codec.encode(iteration_opts, "options")

    def parse(reply: Any) -> Job:
        if reply == Refusal.AFTER_END:
            raise InvalidOptionError(
                f"scheduler {scheduler_id!r} was not changed: its next time is after"
                f" end={schedule.end!r}, so it would never run; choose a later end, or remove it"
            )
        if isinstance(reply, int):
            raise SchedulerConflictError(
                f"scheduler {scheduler_id!r} was not changed: the jobs of its next times exist"
                f" already; remove them, or choose another id"
            )
        return _iteration(keys, scheduler_id, template, data, opts, reply)

    return script(
        "upsertScheduler",
        keys,
        args,
        parse,
        extra=keys_of(keys, scheduler_id),
        payloads=(data, opts, codec.encode(template_opts, "options") if template_opts else b""),
        resend=Resend.NUMBERED,
    )


def data_of(scheduler_id: str, template: NewJob) -> bytes:
    """The data of a scheduler's jobs, encoded."""
    if template.data is None:
        return b"{}"
    what = f"the data of scheduler {scheduler_id!r}"
    return codec.encode_limited(template.data, template.size_limit, what)


def template_options(template: NewJob) -> dict[str, Any]:
    """The options of a scheduler's jobs, as its record has them."""
    options = codec.wire_options(template)
    if template.attempts is None and template.lane is None:
        options.pop("attempts")
    return options


def _iteration(
    keys: Keys, scheduler_id: str, template: NewJob, data: bytes, opts: bytes, reply: list[Any]
) -> Job:
    """The pending job of a scheduler, as the server has just written it."""
    job_id, delay, at_ms = reply
    fields: Fields = {
        b"name": template.name.encode(),
        b"data": data,
        b"opts": opts,
        b"timestamp": at_ms,
        b"delay": delay,
        b"priority": template.priority or 0,
        b"rjk": scheduler_id.encode(),
    }
    return Job(keys.prefix, keys.name, codec.name(job_id), fields)


_DECIDED = ("job_id", "delay", "run_at", "timestamp", "order_ms", "deduplication", "parent")


def check_template(template: NewJob) -> None:
    """Refuse a template with options that the schedule decides."""
    for option in _DECIDED:
        if getattr(template, option) is not None:
            raise InvalidOptionError(
                f"the template of a scheduler cannot have {option}; the schedule decides"
            )
    if template.child_policy:
        raise InvalidOptionError(
            f"the template of a scheduler cannot have {template.child_policy}: its jobs have no"
            f" parent; add a flow from the handler instead"
        )


def _repeat_of(schedule: Schedule) -> dict[str, Any]:
    """The schedule as every iteration carries it, for whoever makes the next one."""
    given = {
        "every": schedule.every_ms,
        "pattern": schedule.cron,
        "tz": _zone_name(schedule),
        "limit": schedule.limit,
        "startDate": schedule.start_ms,
        "endDate": schedule.end_ms,
        "offset": schedule.offset_ms,
    }
    return {"count": 1, **{name: value for name, value in given.items() if value is not None}}


def _definition(schedule: Schedule) -> list[str]:
    words: list[str] = []
    for name, value in (
        ("tz", _zone_name(schedule)),
        ("limit", schedule.limit),
        ("pattern", schedule.cron),
        ("startDate", schedule.start_ms),
        ("endDate", schedule.end_ms),
        ("every", schedule.every_ms),
    ):
        if value is not None:
            words += (name, str(value))
    return words


def _zone_name(schedule: Schedule) -> str | None:
    """BullMQ's workers take a pattern without a zone for the one of their own machine."""
    return (schedule.tz or DEFAULT_ZONE) if schedule.cron is not None else None


def _first_cron_ms(scheduler_id: str, schedule: Schedule, pattern: str, now_ms: int) -> int:
    if schedule.immediately:
        return now_ms
    after_ms = max(now_ms, schedule.start_ms or 0)
    return next_cron_ms(scheduler_id, pattern, schedule.tz, after_ms)


def next_cron_ms(
    scheduler_id: str, pattern: str, tz: str | None, after_ms: int, *, passed_over: int = 0
) -> int:
    """The next time of a pattern after ``after_ms``; ``passed_over`` many are not to be had."""
    zone, parsed = cron.zone_of(tz or DEFAULT_ZONE), cron.parse(pattern)
    next_ms: int | None = after_ms
    for _ in range(passed_over + 1):
        next_ms = None if next_ms is None else cron.next_after(parsed, next_ms, zone)
    if next_ms is None:
        raise InvalidOptionError(
            f"cron={pattern!r} of scheduler {scheduler_id!r} does not occur within fifty years"
        )
    return next_ms


def taken_over(opts: Mapping[str, Any], *, besides: Iterable[str] = ()) -> dict[str, Any]:
    """What a job takes over from the options of the iteration before it, or of the template."""
    dropped = {*_OWN_OPTIONS, *besides}
    return {name: value for name, value in opts.items() if name not in dropped}


def advance(keys: Keys, job: StoredJob, now_ms: int) -> Plan[str | None]:
    """Add the iteration after ``job``, which was just taken; returns its id, if there is one."""
    scheduler_id = job.scheduler_id
    assert scheduler_id is not None
    repeat = job.opts.raw.get("repeat")
    if not isinstance(repeat, dict):
        repeat = yield plain("HGETALL", hash_of(keys, scheduler_id), parse=_repeat_from_hash)
    count = (codec.number_in(repeat.get("count")) or 0) + 1
    limit = codec.number_in(repeat.get("limit"))
    end = moment(repeat.get("endDate"))
    if (limit and count > limit) or (end is not None and now_ms > end):
        return None
    opts = {
        "attempts": 0,
        **taken_over(job.opts.raw),
        "repeat": {**repeat, "count": count},
        "repeatJobKey": scheduler_id,
    }
    args: dict[str, Any] = {
        "scheduler_id": scheduler_id,
        "id_json": id_json(scheduler_id),
        "job_id": job.id,
        "name": job.name,
        "priority": job.opts.priority,
        "lifo": job.opts.lifo,
        **lane_args(job.opts),
    }
    if end is not None:
        args["end_ms"] = end
    every = codec.number_in(repeat.get("every"))
    if every:
        args["every"] = every
    taken_ms = 0
    while True:
        if not every and repeat.get("pattern"):
            next_ms = _cron_ms_after(job, repeat, max(now_ms, taken_ms))
            if next_ms is None:
                return None
            args["next_ms"] = next_ms
        made: str | int | None = yield script(
            "advanceScheduler",
            keys,
            args,
            _made_or_taken,
            extra=keys_of(keys, scheduler_id),
            payloads=(codec.encode(opts, "options"),),
            resend=Resend.SAME,
        )
        if not isinstance(made, int):
            return made
        if made <= taken_ms:
            return None  # a damaged interval leads nowhere
        # The jobs of these times exist already: the schedule goes on after them.
        taken_ms = made
        args = {**args, "taken_ms": taken_ms}


def _made_or_taken(reply: Any) -> str | int | None:
    """The id of the new iteration, or the last time that is taken."""
    return reply if reply is None or isinstance(reply, int) else codec.name(reply)


def lane_args(opts: JobOpts) -> dict[str, Any]:
    """What the server needs of the options to place a job in its lane."""
    if opts.lane is None:
        return {}
    ordering_delay = codec.number_in(opts.raw.get("orderingDelay"))
    return {"lane": opts.lane} | ({"ordering_delay": ordering_delay} if ordering_delay else {})


def _cron_ms_after(job: StoredJob, repeat: dict[str, Any], now_ms: int) -> int | None:
    """Strictly after the iteration that was taken, however late that was."""
    previous = codec.number_in(job.opts.raw.get("prevMillis")) or 0
    after_ms = max(now_ms, previous, moment(repeat.get("startDate")) or 0)
    zone = cron.zone_of(repeat.get("tz") or DEFAULT_ZONE)
    return cron.next_after(cron.parse(repeat["pattern"]), after_ms, zone)


def remove(keys: Keys, scheduler_id: str) -> Command[bool]:
    """Forget a scheduler; an iteration that waits or runs already is left alone."""
    check_known_scheduler_id(scheduler_id)
    return script(
        "removeScheduler",
        keys,
        {"scheduler_id": scheduler_id},
        lambda reply: reply == 1,
        extra=keys_of(keys, scheduler_id),
        resend=Resend.NUMBERED,
    )


def count(keys: Keys) -> Command[int]:
    """How many schedulers there are."""
    return plain("ZCARD", keys.repeat, parse=int)


def one(keys: Keys, scheduler_id: str) -> Plan[JobScheduler | None]:
    """One scheduler, or None."""
    found = yield from record(keys, scheduler_id)
    return None if found is None else _read(scheduler_id, *found)


def record(keys: Keys, scheduler_id: str) -> Plan[tuple[int, Fields] | None]:
    """When a scheduler is due next, and its hash; None if there is no such scheduler."""
    check_known_scheduler_id(scheduler_id)
    found: list[Any] = yield [
        plain("ZSCORE", keys.repeat, scheduler_id, parse=codec.number),
        plain("HGETALL", hash_of(keys, scheduler_id), parse=fields_of),
    ]
    next_at, fields = found
    return None if next_at is None or not _is_scheduler(fields) else (next_at, fields)


def _is_scheduler(fields: Fields) -> bool:
    """What BullMQ 5 made of ``add(…, {repeat})`` has no count, and is no scheduler."""
    return b"ic" in fields


def many(keys: Keys, start: int, end: int, *, payloads: bool = True) -> Plan[list[JobScheduler]]:
    """The schedulers from ``start`` to ``end``: the paused ones, then the next due first.

    Without ``payloads`` the data of their jobs are not read.
    """
    index: list[tuple[str, int]] = yield plain(
        "ZRANGE", keys.repeat, start, end, "WITHSCORES", parse=_read_index
    )
    schedulers: list[JobScheduler] = []
    for begin in range(0, len(index), _PER_READ):
        part = index[begin : begin + _PER_READ]
        hashes: list[Fields] = yield [
            plain("HGETALL", hash_of(keys, name), parse=fields_of)
            if payloads
            else plain("HMGET", hash_of(keys, name), *_LISTED, parse=_listed)
            for name, _ in part
        ]
        for (name, next_at), fields in zip(part, hashes, strict=True):
            if _is_scheduler(fields):
                schedulers.append(_read(name, next_at, fields))
    return schedulers


def _read(scheduler_id: str, next_at: int, fields: Fields) -> JobScheduler:
    known = definition_of(fields)
    return JobScheduler(
        id=scheduler_id,
        name=codec.text(fields.get(b"name"), scheduler_id),
        next_at=None if b"x.paused" in fields else next_at,
        iterations=codec.number(fields[b"ic"]) or 0,
        every=known.get("every"),
        cron=known.get("pattern"),
        tz=known.get("tz"),
        start=known.get("startDate"),
        end=known.get("endDate"),
        limit=known.get("limit"),
        offset=known.get("offset"),
        data=codec.decode_or_text(fields.get(b"data", b"{}")),
        opts=codec.decode_options(fields.get(b"opts", b"{}")),
        paused_at=(codec.number(fields[b"x.paused"]) or 0) if b"x.paused" in fields else None,
    )


_NUMBERS = (b"every", b"startDate", b"endDate", b"limit", b"offset")
_LISTED = (b"name", b"ic", b"pattern", b"tz", b"opts", b"x.paused", *_NUMBERS)


def _listed(reply: list[Any]) -> Fields:
    known = zip(_LISTED, reply, strict=True)
    return {name: value for name, value in known if value is not None}


def _repeat_from_hash(reply: list[Any]) -> dict[str, Any]:
    """The schedule of a job that does not carry it."""
    fields = fields_of(reply)
    made = codec.number(fields.get(b"ic"))
    return definition_of(fields) | ({} if made is None else {"count": made})


def definition_of(fields: Fields) -> dict[str, Any]:
    """When a scheduler is due, under the names on the wire: what its record has of it."""
    raw = {name: codec.number(fields.get(name)) for name in _NUMBERS}
    texts = {name: codec.text_or_none(fields.get(name)) for name in (b"pattern", b"tz")}
    return {name.decode(): value for name, value in (raw | texts).items() if value is not None}


def _read_index(reply: list[bytes]) -> list[tuple[str, int]]:
    return [
        (codec.name(name), codec.number(score) or 0)
        for name, score in zip(reply[::2], reply[1::2], strict=True)
    ]


def moment(value: Any) -> int | None:
    """A date as Node stores it: ms, or a text."""
    if isinstance(value, str):
        try:
            return round(datetime.fromisoformat(value).timestamp() * 1000)
        except ValueError:
            return None
    return codec.number_in(value)


def id_json(scheduler_id: str) -> str:
    """The beginning of an iteration's id as JSON, without the closing quote."""
    return codec.encode(f"repeat:{scheduler_id}:", "a scheduler's id").decode()[:-1]


def hash_of(keys: Keys, scheduler_id: str) -> str:
    """The key of a scheduler's record."""
    return f"{keys.repeat}:{scheduler_id}"


def keys_of(keys: Keys, scheduler_id: str) -> dict[str, str]:
    """The keys of a call about one scheduler."""
    return {"repeat": keys.repeat, "scheduler": hash_of(keys, scheduler_id)}
