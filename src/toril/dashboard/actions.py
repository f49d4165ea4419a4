"""What people do on the pages: each change is asked for, made, and noted with who made it."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from toril.client.dead_letters import UNCHANGED
from toril.client.queue import Queue
from toril.dashboard.audit import AuditLog
from toril.dashboard.exporting import data_of
from toril.dashboard.operations import Operation, Operations, Work
from toril.dashboard.reading import Desk
from toril.dashboard.security import User
from toril.dashboard.showing import counted, span
from toril.errors import InvalidInputError, InvalidOptionError, RefusedError, TorilError
from toril.options import RateLimit
from toril.protocol import codec, groups
from toril.protocol.cancelling import Cancelled
from toril.protocol.dead_letters import DeadLetterFilter, DeadLetterProgress
from toril.protocol.groups import GroupState

SHORT_S = 1.0
"""For so long a page waits for an operation, and shows its end."""
MOST_SELECTED = 500
CANCELLED_AT_ONCE = 50
GONE = "it no longer exists"
LONGEST_MS = 100 * 365 * 86_400_000

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}

LETTER_FILTERS = (
    *("name", "failed_reason", "fingerprint", "no_fingerprint", "source_queue", "since", "until"),
)
"""The fields of a form; an empty one means any, so letters without a fingerprint have their own."""


class Form:
    """What was sent: texts by name, some of them several times."""

    def __init__(self, fields: Mapping[str, Sequence[str]]) -> None:
        self.fields = {name: list(values) for name, values in fields.items()}

    def text(self, name: str, default: str = "") -> str:
        return self.fields.get(name, [default])[0]

    def needed(self, name: str) -> str:
        if not (value := self.text(name)):
            raise InvalidOptionError(f"The field {name!r} is empty; fill it in.")
        return value

    def many(self, name: str) -> list[str]:
        values = [value for value in self.fields.get(name, ()) if value]
        if not values:
            raise InvalidOptionError("Nothing was selected; tick at least one row.")
        if len(values) > MOST_SELECTED:
            raise InvalidOptionError(f"Select at most {MOST_SELECTED} rows at once.")
        return list(dict.fromkeys(values))

    def whole(self, name: str) -> int | None:
        value = self.text(name).strip()
        if not value:
            return None
        if not (value.isdecimal() and value.isascii() and len(value) < 16):
            raise InvalidOptionError(f"{name}={value[:40]!r} must be a whole number.")
        return int(value)

    def duration_ms(self, name: str) -> int | None:
        value = self.text(name).strip().lower()
        if not value:
            return None
        found = _DURATION.fullmatch(value)
        if found is None or len(value) > 20:
            raise InvalidOptionError(f"{name}={value[:40]!r} must be a duration such as 10s or 2h.")
        ms = int(float(found[1]) * _UNIT_MS[found[2] or "ms"])
        if ms > LONGEST_MS:
            raise InvalidOptionError(f"{name}={value[:40]!r} is longer than a hundred years.")
        return ms

    def json(self, name: str) -> Any:
        try:
            return codec.decode((self.text(name) or "null").encode())
        except (ValueError, RecursionError) as error:
            raise InvalidOptionError(f"The field {name!r} is not JSON: {error}") from error


@dataclass(frozen=True)
class Context:
    """What an action works with."""

    desk: Desk
    audit: AuditLog
    operations: Operations
    user: User
    form: Form
    queue: Queue


@dataclass(frozen=True)
class Question:
    """What somebody has to confirm before it happens."""

    sentence: str
    button: str
    is_destructive: bool = True
    answer: str = "yes"
    """What confirms it; one of its own is asked for anew when the question has changed."""


@dataclass(frozen=True)
class Change:
    """A change, ready to be made: what it is in words, and how."""

    what: str
    make: Callable[[], Awaitable[str]] | None = None
    """Makes it at once, and returns the result."""
    work: Work | None = None
    """Or makes it beside the pages; ``total`` is for the bar."""
    total: int = 0
    question: Question | None = None


Prepare = Callable[[Context], Awaitable[Change]]
ACTIONS: dict[str, Prepare] = {}


def action(name: str) -> Callable[[Prepare], Prepare]:
    """Enter a change under the name by which forms ask for it."""

    def enter(prepare: Prepare) -> Prepare:
        ACTIONS[name] = prepare
        return prepare

    return enter


async def make(context: Context, change: Change) -> str:
    """Make a change and note it; returns the id of the note."""
    name, user, desk = context.queue.name, context.user, context.desk
    if change.work is not None:
        operation = Operation(name, change.what, user.name, change.total)
        started = await context.audit.write(name, who=user.name, what=change.what, outcome="began")

        async def ended(over: Operation) -> None:
            desk.forget()
            await context.audit.write(name, who=over.who, what=over.what, outcome=over.outcome)

        context.operations.start(operation, change.work, ended)
        await context.operations.wait(operation, SHORT_S)
        return started
    assert change.make is not None
    try:
        outcome = await change.make()
    except TorilError as error:
        await context.audit.write(
            name, who=user.name, what=change.what, outcome=f"refused: {error}"
        )
        raise
    finally:
        desk.forget()
    return await context.audit.write(name, who=user.name, what=change.what, outcome=outcome)


# ---------------------------------------------------------------------------- queue


@action("pause")
async def _pause(on: Context) -> Change:
    return Change("pause the queue", _said(on.queue.pause, "paused"))


@action("resume")
async def _resume(on: Context) -> Change:
    return Change("resume the queue", _said(on.queue.resume, "running"))


@action("concurrency")
async def _concurrency(on: Context) -> Change:
    number = on.form.whole("concurrency")
    if number is None:
        return Change(
            "lift the concurrency limit", _said(on.queue.remove_global_concurrency, "no limit")
        )
    return Change(
        f"set the concurrency to {number}",
        _said(lambda: on.queue.set_global_concurrency(number), f"at most {number} at once"),
    )


@action("rate-limit")
async def _rate_limit(on: Context) -> Change:
    number, duration = on.form.whole("max"), on.form.duration_ms("duration")
    if number is None:
        return Change("lift the rate limit", _said(on.queue.remove_global_rate_limit, "no limit"))
    if duration is None:
        raise InvalidOptionError("A rate limit needs a duration, such as 1s or 1m.")
    return Change(
        f"set the rate limit to {number} in {duration} ms",
        _said(lambda: on.queue.set_global_rate_limit(RateLimit(number, duration)), "set"),
    )


@action("add")
async def _add(on: Context) -> Change:
    name, data = on.form.needed("name"), on.form.json("data")
    options: dict[str, Any] = {
        "job_id": on.form.text("job_id") or None,
        "lane": on.form.text("lane") or None,
        "delay": on.form.duration_ms("delay"),
        "priority": on.form.whole("priority"),
        "attempts": on.form.whole("attempts"),
    }
    given = {key: value for key, value in options.items() if value is not None}

    async def add() -> str:
        job = await on.queue.add(name, data, **given)
        return f"{'found' if job.duplicated else 'added'} job {job.id}"

    return Change(f"add a job {name!r}", add)


# ---------------------------------------------------------------------------- jobs


@action("retry")
async def _retry(on: Context) -> Change:
    resets = bool(on.form.text("reset"))
    return _on_jobs(on, "retry", lambda queue, one: queue.retry(one, reset_attempts=resets))


@action("promote")
async def _promote(on: Context) -> Change:
    return _on_jobs(on, "promote", lambda queue, one: queue.promote(one))


@action("remove")
async def _remove(on: Context) -> Change:
    return _on_jobs(on, "remove", lambda queue, one: queue.remove(one), always_asks=True)


@action("cancel")
async def _cancel(on: Context) -> Change:
    reason = f"by {on.user.name} on the dashboard"

    def cancel(queue: Queue, job_id: str) -> Awaitable[Any]:
        return queue.cancel(job_id, reason=reason)

    return _on_jobs(on, "cancel", cancel, always_asks=True)


def _on_jobs(
    on: Context, verb: str, do: Callable[[Queue, str], Awaitable[Any]], *, always_asks: bool = False
) -> Change:
    ids = _selected(on)
    what = f"{verb} job {ids[0][1]}" if len(ids) == 1 else f"{verb} {len(ids)} jobs"
    question = None
    if always_asks or len(ids) > 1:
        question = _ask(on, verb, len(ids), is_destructive=verb in ("remove", "cancel"))
    if len(ids) == 1:

        async def one() -> str:
            answer = await do(*ids[0])
            return GONE if answer is False else str(answer or "done")

        return Change(what, one, question=question)

    async def each() -> str:
        refusals: list[str] = []
        for queue, job_id in ids:
            try:
                if await do(queue, job_id) is False:
                    refusals.append(GONE)
            except TorilError as error:
                refusals.append(str(error))
        done = f"{len(ids) - len(refusals)} of {len(ids)} done"
        return f"{done}; first refusal: {refusals[0]}" if refusals else done

    return Change(what, each, question=question)


def _selected(on: Context) -> list[tuple[Queue, str]]:
    """The jobs that were ticked; those of a list of several partitions say in which they are.

    Two partitions may have given out the same id.
    """
    ids = on.form.many("id")
    if not on.form.text("by_queue"):
        return [(on.queue, job_id) for job_id in ids]
    parts = {part.name: part for part in on.queue.partitions}
    found = [(parts.get(name), job_id) for name, _, job_id in (one.partition(":") for one in ids)]
    if any(part is None for part, _ in found):
        raise InvalidOptionError("A selected row belongs to another queue; reload the page.")
    return [(part, job_id) for part, job_id in found if part is not None]


@action("retry-all")
async def _retry_all(on: Context) -> Change:
    state = on.form.needed("state")
    total = (await on.queue.get_job_counts(state)).get(state, 0)

    async def work(operation: Operation) -> str:
        done = await on.queue.retry_all(state, on_progress=_noting(operation))
        return f"{done:,} jobs retried"

    return Change(
        f"retry all {state} jobs", work=work, total=total,
        question=_ask(on, "retry", total, f"all {state} jobs", is_destructive=False),
    )  # fmt: skip


@action("promote-all")
async def _promote_all(on: Context) -> Change:
    total = (await on.queue.get_job_counts("delayed"))["delayed"]

    async def work(operation: Operation) -> str:
        return f"{await on.queue.promote_all(on_progress=_noting(operation)):,} jobs promoted"

    return Change(
        "promote all delayed jobs", work=work, total=total,
        question=_ask(on, "promote", total, "all delayed jobs", is_destructive=False),
    )  # fmt: skip


@action("remove-all")
async def _remove_all(on: Context) -> Change:
    state = on.form.needed("state")
    total = (await on.queue.get_job_counts(state)).get(state, 0)

    async def work(operation: Operation) -> str:
        done = await on.queue.clean(state, on_progress=_noting(operation))
        return f"{len(done):,} jobs removed"

    return Change(
        f"remove all {state} jobs", work=work, total=total,
        question=_ask(on, "remove", total, f"all {state} jobs"),
    )  # fmt: skip


@action("cancel-all")
async def _cancel_all(on: Context) -> Change:
    state = on.form.needed("state")
    total = (await on.queue.get_job_counts(state)).get(state, 0)
    reason = f"by {on.user.name} on the dashboard"

    async def work(operation: Operation) -> str:
        for part in on.queue.partitions:
            await _cancel_each(part, state, reason, operation)
        return f"{operation.done:,} jobs cancelled"

    return Change(
        f"cancel all {state} jobs", work=work, total=total,
        question=_ask(on, "cancel", total, f"all {state} jobs"),
    )  # fmt: skip


async def _cancel_each(queue: Queue, state: str, reason: str, operation: Operation) -> None:
    staying: set[str] = set()
    before = -1
    # Once more when some were cancelled: jobs that move on meanwhile hide others from a page.
    while operation.done > before:
        before, start = operation.done, 0
        while ids := await _ids(queue, state, start, CANCELLED_AT_ONCE):
            fresh = [job_id for job_id in ids if job_id not in staying]
            ends = await asyncio.gather(*(_cancel_one(queue, one, reason) for one in fresh))
            operation.done += sum(end is not None for end in ends)
            gone = {one for one, end in zip(fresh, ends, strict=True) if end == "ended"}
            staying.update(one for one in fresh if one not in gone)
            start += len(ids) - len(gone)


async def _ids(queue: Queue, state: str, start: int, count: int) -> list[str]:
    found = await queue.get_job_ids(state, start=start, end=start + count - 1)
    return next(iter(found.values()))


async def _cancel_one(queue: Queue, job_id: str, reason: str) -> Cancelled | None:
    try:
        return await queue.cancel(job_id, reason=reason)
    except RefusedError:
        return None  # it has run meanwhile, or is not to be cancelled


@action("edit-retry")
async def _edit_retry(on: Context) -> Change:
    job_id, data = on.form.needed("id"), on.form.json("data")
    await _refuse_masked(on, on.queue, job_id)

    async def edit() -> str:
        # One call: a job that cannot be retried keeps its data.
        await on.queue.retry(job_id, data=data, reset_attempts=True)
        return "data replaced, retried"

    return Change(f"edit and retry job {job_id}", edit)


async def _refuse_masked(on: Context, queue: Queue, job_id: str) -> None:
    job = await queue.get_job(job_id)
    if job is not None and on.desk.redacted.hides(data_of(job, on.desk.redacted)):
        raise InvalidOptionError("Parts of this payload are masked, so it cannot be edited here.")


@action("stop")
async def _stop(on: Context) -> Change:
    operation_id = on.form.needed("operation")

    async def stop() -> str:
        return (
            "stopping"
            if on.operations.stop(operation_id, on.queue.name)
            else "it had already ended"
        )

    return Change("stop an operation", stop)


# ---------------------------------------------------------------------------- dead letters


def letter_filter(form: Form) -> DeadLetterFilter:
    """Which dead letters are meant; ``since`` and ``until`` say how long ago."""
    texts = ("name", "failed_reason", "fingerprint", "source_queue")
    wanted: dict[str, Any] = {name: form.text(name) for name in texts if form.text(name)}
    for name in ("since", "until"):
        if (ms := form.duration_ms(name)) is not None:
            wanted[name] = timedelta(milliseconds=ms)
    if form.text("no_fingerprint"):
        if "fingerprint" in wanted:
            raise InvalidOptionError("Letters cannot have a fingerprint and none; choose one.")
        wanted["fingerprint"] = ""
    return cast(DeadLetterFilter, wanted)


@action("replay")
async def _replay(on: Context) -> Change:
    data = on.form.json("data") if on.form.text("data") else UNCHANGED
    to = on.form.text("to") or None
    if data is not UNCHANGED and len(on.form.many("id")) > 1:
        raise InvalidOptionError("Repair one dead letter at a time.")
    if data is not UNCHANGED:
        await _refuse_masked(on, *_selected(on)[0])

    async def replay(queue: Queue, letter_id: str) -> str:
        new = await queue.replay_dead_letter(letter_id, data=data, queue_name=to, by=on.user.name)
        return f"sent back as job {new}"

    return _on_jobs(on, "replay", replay)


@action("replay-all")
async def _replay_all(on: Context) -> Change:
    wanted, to, rate = letter_filter(on.form), on.form.text("to") or None, on.form.whole("rate")
    resume = bool(on.form.text("resume"))
    total = await on.queue.replay_all_dead_letters(
        dry_run=True, resume=resume, queue_name=to, **wanted
    )

    async def work(operation: Operation) -> str:
        await on.queue.replay_all_dead_letters(
            by=on.user.name, queue_name=to, rate=rate, on_progress=_noting_letters(operation),
            resume=resume, **wanted,
        )  # fmt: skip
        return f"{operation.done:,} dead letters sent back"

    where = f"to the queue {to!r}" if to else "to their queues"
    return Change(
        f"replay dead letters {where}{_in_words(wanted)}", work=work, total=total,
        question=Question(
            f"Send {counted(total, 'dead letter')} of the queue {on.queue.name!r} back {where}"
            f"{_in_words(wanted)}? A dry run counted them.",
            f"Replay {total:,}",
            is_destructive=False,
        ),
    )  # fmt: skip


@action("purge")
async def _purge(on: Context) -> Change:
    wanted = letter_filter(on.form)
    total = await on.queue.purge_dead_letters(dry_run=True, **wanted)

    async def work(operation: Operation) -> str:
        done = await on.queue.purge_dead_letters(on_progress=_noting_letters(operation), **wanted)
        return f"{done:,} dead letters removed"

    sentence = (
        f"Remove {counted(total, 'dead letter')} of the queue {on.queue.name!r}"
        f"{_in_words(wanted)} for good? This cannot be undone."
    )
    # Asked anew if their number has changed: nobody has seen those that came meanwhile.
    answer = _answer(sentence, [])
    if on.form.text("confirmed") not in ("", answer):
        sentence += (
            " Their number has changed since you were asked; if more keep coming, filter by"
            " “died before”, for example 1m, to leave the newest out."
        )
    return Change(
        f"purge dead letters{_in_words(wanted)}", work=work, total=total,
        question=Question(sentence, f"Remove {total:,} for good", answer=answer),
    )  # fmt: skip


# ---------------------------------------------------------------------------- groups


@action("cancel-group")
async def _cancel_group(on: Context) -> Change:
    group_id = on.form.needed("id")
    info = await on.queue.get_group_state(group_id)
    members = info.total_jobs if info else 0
    undone = info.completed_count if info else 0
    return Change(
        f"cancel group {group_id}",
        _said(lambda: on.queue.cancel_group(group_id), "cancelled"),
        question=Question(
            f"Cancel the group {group_id!r} of {counted(members, 'job')} of the queue"
            f" {on.queue.name!r}? What has not started is cancelled, and the {undone:,} that"
            " completed are undone.",
            "Cancel the group",
        ),
    )


@action("retry-compensation")
async def _retry_compensation(on: Context) -> Change:
    group_id = on.form.needed("id")

    async def retry() -> str:
        return f"{counted(await on.queue.retry_compensation(group_id), 'job')} tried again"

    return Change(f"retry the compensation of group {group_id}", retry)


@action("retry-group")
async def _retry_group(on: Context) -> Change:
    group_id = on.form.needed("id")

    async def retry() -> str:
        return f"{counted(await on.queue.retry_group(group_id), 'member')} tried again"

    return Change(f"run the blocked members of group {group_id} again", retry)


@action("resolve-group")
async def _resolve_group(on: Context) -> Change:
    group_id, note = on.form.needed("id"), on.form.needed("note")
    info = await on.queue.get_group_state(group_id)
    if info is None:
        raise groups.not_found(group_id)
    broken = groups.broken(info.state, await on.queue.get_group_jobs(group_id))

    async def resolve() -> None:
        await on.queue.resolve_group(
            group_id,
            f"{note} ({on.user.name})",
            expected_state=info.state,
            expected_members=broken,
        )

    if info.state is GroupState.BLOCKED:
        return Change(
            f"let the blocked group {group_id} continue: {note}",
            _said(resolve, "what failed counts as done by hand; the group continues"),
            question=_ask_to_continue(on, group_id, note, broken),
        )
    return Change(
        f"resolve group {group_id}: {note}",
        _said(resolve, "resolved"),
        question=_ask_to_close(on, group_id, note, broken),
    )


def _ask_to_continue(on: Context, group_id: str, note: str, broken: list[str]) -> Question:
    """Resolving a blocked group does not close it: what comes after the failed members runs."""
    sentence = (
        f"Let the blocked group {group_id!r} of the queue {on.queue.name!r} continue? It is not"
        f" closed: what failed counts as done by hand ({groups.named(broken)}), and the members"
        f" after it run. The note is {note!r}."
    )
    return Question(sentence, "Let the group continue", answer=_answer(sentence, broken))


def _ask_to_close(on: Context, group_id: str, note: str, broken: list[str]) -> Question:
    sentence = (
        f"Resolve the group {group_id!r} of the queue {on.queue.name!r} as fixed by hand? What"
        f" could not be undone counts as undone ({groups.named(broken)}). 1 group is closed with"
        f" the note {note!r}."
    )
    return Question(sentence, "Resolve the group", answer=_answer(sentence, broken))


def _answer(sentence: str, members: list[str]) -> str:
    """What confirms this sentence about these members, those included that it does not name."""
    return hashlib.sha256(repr((sentence, members)).encode()).hexdigest()


@action("complete-member")
async def _complete_member(on: Context) -> Change:
    group_id, member, result = (
        on.form.needed("id"),
        on.form.needed("member"),
        on.form.json("result"),
    )
    return Change(
        f"say that member {member} of group {group_id} completed",
        _said(lambda: on.queue.complete_member(group_id, member, result), "the group continues"),
        question=_ask_of_member(on, group_id, member, "completed"),
    )


@action("fail-member")
async def _fail_member(on: Context) -> Change:
    group_id, member, reason = (
        on.form.needed("id"),
        on.form.needed("member"),
        on.form.needed("note"),
    )
    return Change(
        f"say that member {member} of group {group_id} failed: {reason}",
        _said(
            lambda: on.queue.fail_member(group_id, member, f"{reason} ({on.user.name})"),
            "the group is being undone",
        ),
        question=_ask_of_member(on, group_id, member, "failed, and left nothing to undo"),
    )


def _ask_of_member(on: Context, group_id: str, member: str, what: str) -> Question:
    return Question(
        f"Record that the member {member!r} of the group {group_id!r} of the queue"
        f" {on.queue.name!r} {what}? 1 group is affected.",
        "Record it",
    )


# ---------------------------------------------------------------------------- lanes


@action("pause-lane")
async def _pause_lane(on: Context) -> Change:
    lane = on.form.needed("lane")
    return Change(f"pause lane {lane}", _said(lambda: on.queue.pause_lane(lane), "paused"))


@action("resume-lane")
async def _resume_lane(on: Context) -> Change:
    lane = on.form.needed("lane")

    done = _said(lambda: on.queue.resume_lane(lane), "running", or_else="it was not stopped")
    return Change(f"resume lane {lane}", done)


@action("drain-lane")
async def _drain_lane(on: Context) -> Change:
    lane = on.form.needed("lane")
    found = await on.queue.get_lane(lane)
    depth = found.depth if found else 0

    async def drain() -> str:
        return f"{await on.queue.drain_lane(lane):,} jobs removed"

    return Change(
        f"drain lane {lane}", drain,
        question=Question(
            f"Remove the {counted(depth, 'job')} waiting in the lane {lane!r} of the queue"
            f" {on.queue.name!r}? A running job is not affected.",
            f"Remove {depth:,}",
        ),
    )  # fmt: skip


@action("lane-settings")
async def _lane_settings(on: Context) -> Change:
    lane = on.form.needed("lane")
    weight, concurrency = on.form.whole("weight"), on.form.whole("concurrency")
    most, duration = on.form.whole("max"), on.form.duration_ms("duration")
    if most is not None and duration is None:
        raise InvalidOptionError("A rate limit needs a duration, such as 1s or 1m.")

    async def change() -> str:
        said: list[str] = []
        if weight is not None:
            await on.queue.set_lane_weight(lane, weight)
            said.append(f"weight {weight}")
        if concurrency is not None:
            await on.queue.set_lane_concurrency(lane, concurrency)
            said.append(f"concurrency {concurrency}")
        if most is not None and duration is not None:
            await on.queue.set_lane_rate_limit(lane, RateLimit(most, duration))
            said.append(f"{most} in {duration} ms")
        return ", ".join(said) or "nothing to change"

    return Change(f"change the settings of lane {lane}", change)


# ---------------------------------------------------------------------------- schedules


@action("run-schedule")
async def _run_schedule(on: Context) -> Change:
    scheduler_id = on.form.needed("id")

    async def run() -> str:
        job = await on.queue.run_job_scheduler(scheduler_id)
        return f"added job {job.id}"

    return Change(f"run schedule {scheduler_id} now", run)


@action("pause-schedule")
async def _pause_schedule(on: Context) -> Change:
    scheduler_id = on.form.needed("id")
    done = _said(lambda: on.queue.pause_job_scheduler(scheduler_id), "paused", or_else=GONE)
    return Change(f"pause schedule {scheduler_id}", done)


@action("resume-schedule")
async def _resume_schedule(on: Context) -> Change:
    scheduler_id = on.form.needed("id")
    done = _said(lambda: on.queue.resume_job_scheduler(scheduler_id), "resumed", or_else=GONE)
    return Change(f"resume schedule {scheduler_id}", done)


@action("change-schedule")
async def _change_schedule(on: Context) -> Change:
    scheduler_id = on.form.needed("id")
    every, limit = on.form.duration_ms("every"), on.form.whole("limit")
    cron, tz = on.form.text("cron") or None, on.form.text("tz") or None

    async def change() -> str:
        changed = await on.queue.change_job_scheduler(
            scheduler_id, every=every, cron=cron, tz=tz, limit=limit
        )
        beat = f"every {span(changed.every)}" if changed.every else f"{changed.cron} {changed.tz}"
        return beat if changed.limit is None else f"{beat}, at most {changed.limit} runs"

    return Change(f"change schedule {scheduler_id}", change)


@action("remove-schedule")
async def _remove_schedule(on: Context) -> Change:
    scheduler_id = on.form.needed("id")
    return Change(
        f"remove schedule {scheduler_id}",
        _said(lambda: on.queue.remove_job_scheduler(scheduler_id), "removed", or_else=GONE),
        question=Question(
            f"Remove 1 schedule, {scheduler_id!r}, of the queue {on.queue.name!r}?"
            " It adds no more jobs.",
            "Remove the schedule",
        ),
    )  # fmt: skip


# ---------------------------------------------------------------------------- words


def _said(
    do: Callable[[], Awaitable[Any]], outcome: str, *, or_else: str = ""
) -> Callable[[], Awaitable[str]]:
    """Does it and says so; ``or_else`` is said when there was nothing to do."""

    async def call() -> str:
        is_done = await do() is not False
        return outcome if is_done or not or_else else or_else

    return call


def _ask(
    on: Context, verb: str, count: int, which: str = "", *, is_destructive: bool = True
) -> Question:
    what = f"{which} ({counted(count, 'job')})" if which else counted(count, "job")
    return Question(
        f"{verb.capitalize()} {what} of the queue {on.queue.name!r}?",
        f"{verb.capitalize()} {count:,}",
        is_destructive,
    )


def _in_words(wanted: DeadLetterFilter) -> str:
    said = [
        f"no {name}" if value == "" else f"{name.replace('_', ' ')} {value!s}"
        for name, value in wanted.items()
    ]
    return f" with {' and '.join(said)}" if said else ""


def _noting(operation: Operation) -> Callable[[int], None]:
    def note(done: int) -> None:
        operation.done = done

    return note


def _noting_letters(operation: Operation) -> Callable[[DeadLetterProgress], None]:
    before = now = 0

    def note(progress: DeadLetterProgress) -> None:
        nonlocal before, now
        done = progress.done - progress.resumed  # not what the resumed run had done
        if done < now:  # the next partition has begun
            before += now
        now = done
        operation.done = before + now

    return note


def refusal_status(error: TorilError) -> int:
    """The HTTP status that a refusal stands for."""
    return 400 if isinstance(error, InvalidInputError) else 409
