"""Looking at dead letters, sending them back, and removing them.

Bulk operations walk through the letters in slices, the oldest first; a slice is one script, so
nothing is ever half done, and a walk that was interrupted can be resumed where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from hashlib import sha1
from typing import Any, TypedDict, Unpack

import msgspec

from toril.errors import (
    DeadLetterNotFoundError,
    DeadLetterSourceError,
    InvalidGroupStateError,
    InvalidOptionError,
    JobLockedError,
    TooManyReplaysError,
)
from toril.options import epoch_ms, refuse_unknown, whole
from toril.protocol import codec
from toril.protocol.burying import replayable
from toril.protocol.command import Command, Resend, plain, script
from toril.protocol.dead_letter import DeadLetterMetadata, without_metadata
from toril.protocol.job import Job
from toril.protocol.keys import Keys, check_known_id

LETTERS_PER_LOOK = 400
REPLAYS_PER_SLICE = 50
PURGES_PER_SLICE = 150
"""So that a script takes less than 10 ms, also on a slow server."""
LEFT_BEHIND = 2000
"""How many letters that do not pass a filter stay at the end of the list, where the others are
taken out; more of them go round to the beginning, and are back in place when a walk is over."""
DEFAULT_MAX_REPLAYS = 10

LISTS = ("wait", "paused")
"""Where letters wait; `paused` is in use while a BullMQ of version 5 has paused the queue."""


class DeadLetterFilter(TypedDict, total=False):
    """The filters of the bulk operations, as keyword arguments."""

    name: str | None
    failed_reason: str | None
    fingerprint: str | None
    source_queue: str | None
    since: int | datetime | None
    until: int | datetime | None


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters are meant; all conditions must hold."""

    name: str | None = None
    failed_reason: str | None = None
    fingerprint: str | None = None
    source_queue: str | None = None
    since: int | datetime | None = None
    until: int | datetime | None = None

    def __post_init__(self) -> None:
        for option in ("name", "failed_reason", "fingerprint", "source_queue"):
            value = getattr(self, option)
            if value is not None and not isinstance(value, str):
                raise InvalidOptionError(f"{option}={value!r} must be a text")
        for option in ("since", "until"):
            value = getattr(self, option)
            if value is not None:
                msgspec.structs.force_setattr(self, option, epoch_ms(value, option))

    @classmethod
    def of(cls, **conditions: Unpack[DeadLetterFilter]) -> Filter:
        """The filter that keyword arguments describe."""
        refuse_unknown(conditions, frozenset(cls.__struct_fields__), "dead letters")
        return cls(**conditions)

    def args(self) -> dict[str, Any]:
        """The conditions as scripts have them."""
        given = {
            "name": self.name,
            "failed_reason": self.failed_reason and self.failed_reason.casefold(),
            "fingerprint": self.fingerprint,
            "source_queue": self.source_queue,
            "since": self.since,
            "before": self.until,
        }
        return {name: value for name, value in given.items() if value is not None}

    def admits(self, meta: DeadLetterMetadata) -> bool:
        """Does a letter pass that another program wrote? Its name and time have been looked at."""
        if self.fingerprint is not None and meta.fingerprint != self.fingerprint:
            return False
        if self.source_queue is not None and meta.source_queue != self.source_queue:
            return False
        wanted = (self.failed_reason or "").casefold()
        return wanted in meta.failed_reason.casefold()


class Walk(msgspec.Struct, frozen=True, kw_only=True):
    """How far a walk through the letters is."""

    list: str = LISTS[0]
    offset: int = 0
    anchor: str = ""
    not_after: int | None = None
    done: int = 0
    step: int = 0
    turn: str = ""
    """Set while the walk turns the list."""


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """What one slice of a walk brought."""

    is_done: bool
    offset: int
    anchor: str
    count: int
    examined: int
    not_after: int
    asked: list[str] = []
    held: int = 0
    length: int = 0
    turn: str = ""
    groups: dict[str, Group] = {}


class Group(msgspec.Struct, frozen=True):
    """The letters of one fingerprint in one slice."""

    count: int
    first: int
    last: int
    example: str

    def merged(self, other: Group | None) -> Group:
        """Both as one; the newest letter is the example."""
        if other is None:
            return self
        newest = self if self.last >= other.last else other
        first = min(self.first, other.first)
        return Group(self.count + other.count, first, newest.last, newest.example)


class DeadLetterProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a bulk operation is: told to its ``progress`` callback after each slice."""

    done: int
    """Replayed or removed so far."""
    examined: int
    held: int
    """Left alone because they were replayed ``max_replays`` times already."""
    left: int
    """Dead letters in the queue now, those that do not pass the filter included."""


class DeadLetterGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters with the same fingerprint."""

    fingerprint: str
    count: int
    first_seen: int
    last_seen: int
    example_id: str
    example: Job | None = None
    """The newest of them."""


def count(keys: Keys, list_name: str) -> Command[int]:
    """How many letters wait in one of ``LISTS``."""
    return plain("LLEN", getattr(keys, list_name), parse=int)


def page(
    keys: Keys, list_name: str, start: int, end: int, *, oldest_first: bool
) -> Command[list[str]]:
    """The ids from ``start`` to ``end``, both included, the newest first."""
    whole(start, "start")
    whole(end, "end", least=-1)

    def parse(ids: list[bytes]) -> list[str]:
        found = [job_id.decode() for job_id in ids]
        return found[::-1] if oldest_first else found

    if not oldest_first:
        return plain("LRANGE", getattr(keys, list_name), start, end, parse=parse)
    first = 0 if end == -1 else -(end + 1)
    return plain("LRANGE", getattr(keys, list_name), first, -(start + 1), parse=parse)


def total(keys: Keys, what: str) -> Command[int]:
    """A counter of the queue: ``deadLettered`` out of it, ``replayed`` or ``purged`` in it."""
    return plain("HGET", keys.meta, f"x.{what}", parse=lambda value: int(value or 0))


def source_of(keys: Keys, letter_id: str) -> Command[str | None]:
    """The queue that a letter came from, as far as Toril noted it."""
    check_known_id(letter_id)
    return plain(
        "HGET",
        keys.job(letter_id),
        "x.letter",
        parse=lambda text: None if text is None else _read_note(text).source,
    )


def replay(
    keys: Keys,
    letter_id: str,
    new_id: str,
    source: str,
    *,
    keep_delay: bool = False,
    by: str | None = None,
    max_replays: int | None = None,
    force: bool = False,
    text: bytes | None = None,
    options: bytes = b"",
    job_id: str = "",
    priority: int = 0,
    delay: int = 0,
    is_repaired: bool = False,
) -> Command[str | None]:
    """Send one letter back; None when somebody changed its data, so that ``text`` must be given."""
    args: dict[str, Any] = {
        "id": letter_id,
        "new_id": new_id,
        "source": source,
        "prefix": keys.prefix,
    }
    if keep_delay:
        args["keep_delay"] = True
    if by is not None:
        args["by"] = by
    if max_replays is not None:
        args["max_replays"] = whole(max_replays, "max_replays")
    if force:
        args["force"] = True
    if text is not None:
        args["has_data"] = True
    if job_id:
        args["job"] = job_id
    if is_repaired:
        args["is_repaired"] = True
    if priority:
        args["priority"] = priority
    if delay:
        args["delay"] = delay

    def parse(reply: bytes | int) -> str | None:
        if isinstance(reply, bytes):
            return reply.decode()
        if reply == 1:
            return None
        raise refusal(reply, letter_id, keys.name)

    return script(
        "replayDeadLetter",
        keys,
        args,
        parse,
        payloads=() if text is None else (text, options),
        resend=Resend.MARKED,
    )


def refusal(code: int, letter_id: str, queue: str) -> Exception:
    """The error for a code that ``replayDeadLetter.lua`` gave."""
    match code:
        case -111:
            return JobLockedError(
                f"dead letter {letter_id!r} of queue {queue!r} is running: a worker has taken it;"
                f" wait until it has finished"
            )
        case -112:
            return TooManyReplaysError(
                f"dead letter {letter_id!r} of queue {queue!r} has come back as often as"
                f" max_replays allows; repair its data, raise max_replays, or purge it"
            )
        case -132:
            return InvalidGroupStateError(
                f"dead letter {letter_id!r} of queue {queue!r} belongs to a group that is over or"
                f" being undone, so running it again could not be undone; pass force=True to replay"
                f" it all the same"
            )
    return not_found(letter_id, queue)


def not_found(letter_id: str, queue: str) -> DeadLetterNotFoundError:
    return DeadLetterNotFoundError(
        f"queue {queue!r} has no dead letter {letter_id!r}; it never had, or somebody has replayed"
        f" or purged it"
    )


def source_unknown(letter_id: str, queue: str) -> DeadLetterSourceError:
    return DeadLetterSourceError(
        f"job {letter_id!r} of queue {queue!r} does not say from which queue it came: its data have"
        f" no _dlqMeta.sourceQueue; add it where it belongs with Queue.add"
    )


def original_text(job: Job) -> bytes:
    """The data of a letter without the metadata, written anew."""
    return codec.encode(without_metadata(job.data), f"the data of dead letter {job.id!r}")


def original_options(job: Job, meta: DeadLetterMetadata) -> bytes:
    """The options for a replay of a letter that another program wrote."""
    options = replayable(meta.original_opts)
    first_key = f"{meta.source_queue}:{meta.original_job_id}:{meta.original_timestamp}"
    options.setdefault("idempotencyKey", first_key)
    return codec.encode(options, f"the options of dead letter {job.id!r}")


def replay_slice(
    keys: Keys,
    walk: Walk,
    wanted: Filter,
    ids: Sequence[str],
    *,
    run: str,
    sweep: str,
    tag: str | None = None,
    keep_delay: bool = False,
    by: str | None = None,
    max_replays: int | None = None,
    force: bool = False,
) -> Command[Slice]:
    """Replay up to as many letters as there are new ``ids``."""
    args = _walk_args(walk, wanted, run)
    args["limit"] = len(ids)
    args["ids"] = list(ids)
    args["prefix"] = keys.prefix
    if tag is not None:
        args["tag"] = tag
    if keep_delay:
        args["keep_delay"] = True
    if by is not None:
        args["by"] = by
    if max_replays is not None:
        args["max_replays"] = max_replays
    if force:
        args["force"] = True
    extra = {"sweep": sweep, "turning": keys.own("turning")}
    return script("replayDeadLetters", keys, args, _read_slice, extra=extra, resend=Resend.SAME)


def purge_slice(
    keys: Keys, walk: Walk, wanted: Filter, *, run: str, sweep: str, accepted: Sequence[str] = ()
) -> Command[Slice]:
    """Remove some letters; ``accepted`` are those that the client has found to pass the filter."""
    args = _walk_args(walk, wanted, run)
    args["limit"] = PURGES_PER_SLICE
    if accepted:
        args["accepted"] = dict.fromkeys(accepted, True)
    extra = {"sweep": sweep, "turning": keys.own("turning")}
    return script("purgeDeadLetters", keys, args, _read_slice, extra=extra, resend=Resend.SAME)


def survey_slice(
    keys: Keys,
    walk: Walk,
    wanted: Filter,
    *,
    is_for_replay: bool = False,
    max_replays: int | None = None,
    force: bool = False,
) -> Command[Slice]:
    """Count some letters, by fingerprint; those that a replay would leave alone are held."""
    args: dict[str, Any] = {
        "list": walk.list,
        "offset": walk.offset,
        "examine": LETTERS_PER_LOOK,
        "filter": wanted.args(),
    }
    if walk.anchor:
        args["anchor"] = walk.anchor
    if walk.not_after is not None:
        args["not_after"] = walk.not_after
    if is_for_replay:
        args["is_for_replay"] = True
    if max_replays is not None:
        args["max_replays"] = max_replays
    if force:
        args["force"] = True
    return script("surveyDeadLetters", keys, args, _read_slice, resend=Resend.SAME)


def sweep_key(keys: Keys, verb: str, wanted: Filter) -> str:
    """Where a walk is remembered: one place for each verb and filter."""
    text = msgspec.json.encode(wanted.args(), order="sorted")
    return keys.own(f"{verb}-{sha1(text, usedforsecurity=False).hexdigest()[:16]}")


def last_walk(sweep: str) -> Command[Walk | None]:
    """How far the last walk came; None when there was none or it came to its end."""

    def parse(reply: list[bytes | None]) -> Walk | None:
        list_name, done, text = reply
        if list_name is None or done is None or text is None:
            return None
        last = _read_slice(text)
        if last.is_done and list_name.decode() == LISTS[-1]:
            return None
        return after(Walk(list=list_name.decode(), done=int(done) - last.count), last)

    return plain("HMGET", sweep, "list", "done", "reply", parse=parse)


def again(walk: Walk, last: Slice) -> Walk:
    """The place before a slice, to look at its letters once more."""
    return Walk(
        list=walk.list,
        offset=walk.offset,
        anchor=walk.anchor,
        not_after=last.not_after,
        done=walk.done + last.count,
        step=walk.step + 1,
        turn=last.turn,
    )


def after(walk: Walk, last: Slice, *, taken_apart: int = 0) -> Walk:
    """Where a walk goes on after a slice, of whose letters the client has taken some out itself."""
    done = walk.done + last.count + taken_apart
    if last.is_done and walk.list != LISTS[-1]:
        return Walk(list=LISTS[-1], not_after=last.not_after, done=done, step=walk.step + 1)
    return Walk(
        list=walk.list,
        offset=last.offset - taken_apart,
        anchor="" if taken_apart else last.anchor,
        not_after=last.not_after,
        done=done,
        step=walk.step + 1,
        turn=last.turn,
    )


def _walk_args(walk: Walk, wanted: Filter, run: str) -> dict[str, Any]:
    args: dict[str, Any] = {
        "list": walk.list,
        "offset": walk.offset,
        "behind": LEFT_BEHIND,
        "examine": LETTERS_PER_LOOK,
        "filter": wanted.args(),
        "run": run,
        "step": walk.step,
        "done": walk.done,
    }
    if walk.list == LISTS[-1]:
        args["is_last"] = True
    if walk.anchor:
        args["anchor"] = walk.anchor
    if walk.turn:
        args["turn"] = walk.turn
    if walk.not_after is not None:
        args["not_after"] = walk.not_after
    return args


class _Note(msgspec.Struct):
    """What was noted beside a letter when it was written, as far as it is read here."""

    source: str


_read_note = msgspec.json.Decoder(_Note).decode
_read_slice = msgspec.json.Decoder(Slice).decode
