"""Looking at dead letters, walking through them, and removing them.

Bulk operations walk through the letters in slices, the oldest first; a slice is one script, so
nothing is ever half done, and a walk that was interrupted can be resumed where it was.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from hashlib import sha1
from typing import Any, TypedDict, Unpack

import msgspec

from toril.errors import (
    DeadLetterNotFoundError,
    DeadLetterSourceError,
    InvalidOptionError,
    NotDeadLettersError,
)
from toril.options import (
    epoch_ms,
    refuse_unknown,
    whole,
)
from toril.protocol import codec, reading
from toril.protocol.command import Command, Plan, Resend, plain, script
from toril.protocol.dead_letter import DeadLetterMetadata, metadata_at_end
from toril.protocol.job import Fields, Job
from toril.protocol.keys import Keys, check_known_id, hash_tag
from toril.protocol.replay_options import ReplayOptions

LETTERS_PER_LOOK = 400
PURGES_PER_SLICE = 150
"""So that a script takes less than 10 ms, also on a slow server."""
PURGED_BYTES_PER_SLICE = 16_000_000
"""And that it does so whatever the payloads: a larger one has a slice for itself."""
LEFT_BEHIND = 2000
"""How many letters that do not pass a filter stay at the end of the list, where the others are
taken out; more of them go round to the beginning, and are back in place when a walk is over."""

PLACES = ("wait", "paused", "prioritized", "delayed")
"""Where letters wait; `paused` is in use while a BullMQ of version 5 has paused the queue, the last
two hold letters that somebody gave a priority or a delay."""
LISTS = frozenset(("wait", "paused"))

LONGEST_METADATA = 64 * 1024
"""Where a list is read, so much is looked at of the end of each letter's data."""


class DeadLetterFilter(TypedDict, total=False):
    """The filters of the bulk operations, as keyword arguments."""

    name: str | None
    failed_reason: str | None
    fingerprint: str | None
    source_queue: str | None
    since: int | datetime | timedelta | None
    until: int | datetime | timedelta | None


FILTER_NAMES = frozenset(DeadLetterFilter.__annotations__)


class Note(msgspec.Struct, frozen=True):
    """The note stored with a letter when it was written, as far as it is used here."""

    source: str
    lane: str | None = None


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters are meant; all conditions must hold."""

    name: str | None = None
    failed_reason: str | None = None
    fingerprint: str | None = None
    source_queue: str | None = None
    since: int | datetime | timedelta | None = None
    until: int | datetime | timedelta | None = None

    def __post_init__(self) -> None:
        for option in ("name", "failed_reason", "fingerprint", "source_queue"):
            value = getattr(self, option)
            if value is not None and not isinstance(value, str):
                raise InvalidOptionError(f"{option}={value!r} must be a string")
        for option in ("since", "until"):
            value = getattr(self, option)
            if isinstance(value, timedelta):
                if value < timedelta(0):
                    raise InvalidOptionError(f"{option}={value!r} is negative; say how long ago")
            elif value is not None:
                epoch_ms(value, option)

    @classmethod
    def of(cls, **conditions: Unpack[DeadLetterFilter]) -> Filter:
        """The filter that keyword arguments describe.

        Raises for an empty text, as a variable has that was never set: each reason contains it, so
        it would mean all letters.  Only ``fingerprint`` may be empty, for letters that have none.
        """
        refuse_unknown(conditions, frozenset(cls.__struct_fields__), "dead letters")
        for option in ("name", "failed_reason", "source_queue"):
            if conditions.get(option) == "":
                raise InvalidOptionError(f"{option}='' is empty; give a text, or leave it out")
        return cls(**conditions)

    @classmethod
    def of_args(cls, args: dict[str, Any]) -> Filter:
        """The filter that was given to scripts, also by a version that took empty texts."""
        return cls(**{("until" if name == "before" else name): args[name] for name in args})

    @property
    def is_relative(self) -> bool:
        """Whether it counts from the time at which it is used."""
        return isinstance(self.since, timedelta) or isinstance(self.until, timedelta)

    def at(self, now_ms: int) -> Filter:
        """The same with moments in ms in place of durations and times of other forms."""
        since, until = _moment(self.since, "since"), _moment(self.until, "until")
        if isinstance(since, timedelta):
            since = now_ms - since // timedelta(milliseconds=1)
        if isinstance(until, timedelta):
            until = now_ms - until // timedelta(milliseconds=1)
        return msgspec.structs.replace(self, since=since, until=until)

    def args(self) -> dict[str, Any]:
        """The conditions as scripts have them."""
        given = {
            "name": self.name,
            "failed_reason": self.failed_reason and self.failed_reason.casefold(),
            "fingerprint": self.fingerprint,
            "source_queue": self.source_queue,
            "since": _moment(self.since, "since"),
            "before": _moment(self.until, "until"),
        }
        return {name: value for name, value in given.items() if value is not None}

    def admits(self, meta: DeadLetterMetadata) -> bool:
        """Whether a letter of another program matches; its name and time are already checked."""
        if self.fingerprint is not None and meta.fingerprint != self.fingerprint:
            return False
        if self.source_queue is not None and meta.source_queue != self.source_queue:
            return False
        said = f"{meta.error_type}: {meta.failed_reason}" if meta.error_type else meta.failed_reason
        return (self.failed_reason or "").casefold() in said.casefold()


def _moment(edge: int | datetime | timedelta | None, option: str) -> int | timedelta | None:
    """A moment in ms; how long ago stays as it is until ``Filter.at`` counts from now."""
    return edge if edge is None or isinstance(edge, timedelta) else epoch_ms(edge, option)


class Walk(msgspec.Struct, frozen=True, kw_only=True):
    """How far a walk through the letters has come."""

    place: str = PLACES[0]
    offset: int = 0
    anchor: str = ""
    not_after: int | None = None
    done: int = 0
    step: int = 0
    turn: str = ""
    """Set while the walk turns the list."""


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one slice of a walk."""

    is_done: bool
    """Is nothing left in its place? Then ``next`` is the one to go on with, if there is one."""
    next: str = ""
    offset: int
    anchor: str
    count: int
    examined: int
    not_after: int
    asked: list[str] = []
    kept: str = ""
    """The last letter that was left without asking; ``asked_before`` are how many before it."""
    asked_before: int = 0
    held: int = 0
    grouped: int = 0
    length: int = 0
    turn: str = ""
    groups: dict[str, Group] = {}

    @property
    def is_last(self) -> bool:
        """Whether the walk is over."""
        return self.is_done and not self.next


class Interrupted(msgspec.Struct, frozen=True):
    """An unfinished run: where it stopped, and what it looked for."""

    walk: Walk
    wanted: Filter
    run: str = ""
    """Its name."""


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
    """How far a bulk operation has come: passed to ``on_progress`` after each slice."""

    done: int
    """Replayed or removed so far."""
    examined: int
    held: int
    """Left alone: replayed ``max_replays`` times already, or of a group that is over."""
    left: int
    """Dead letters in the queue now, those that do not pass the filter included."""
    held_by_group: int = 0
    """Of those held, the members of groups that are over or being undone."""
    resumed: int = 0
    """Of those done, how many the run had done that was resumed."""
    run: str = ""
    """The name of this run, for ``resume`` if it is interrupted."""


class DeadLetterGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters with the same fingerprint."""

    fingerprint: str
    count: int
    first_seen: int
    last_seen: int
    example_id: str
    example: Job | None = None
    """The newest of them."""

    def with_more(self, other: DeadLetterGroup) -> DeadLetterGroup:
        """These and those that another queue has of the same fingerprint."""
        newest = max(self, other, key=lambda group: group.last_seen)
        return DeadLetterGroup(
            fingerprint=self.fingerprint,
            count=self.count + other.count,
            first_seen=min(self.first_seen, other.first_seen),
            last_seen=newest.last_seen,
            example_id=newest.example_id,
            example=newest.example,
        )


def count(keys: Keys, place: str) -> Command[int]:
    """How many letters wait in one of ``PLACES``."""
    return plain("LLEN" if place in LISTS else "ZCARD", getattr(keys, place), parse=int)


def total_count(keys: Keys) -> Plan[int]:
    """How many letters wait in all places."""
    counts: list[int] = yield [count(keys, place) for place in PLACES]
    return sum(counts)


def page(keys: Keys, start: int, end: int, *, oldest_first: bool) -> Plan[list[str]]:
    """The ids from ``start`` to ``end``, both included, the newest of each place first.

    ``oldest_first`` reverses the order.
    """
    whole(start, "start")
    whole(end, "end", least=-1)
    counts: list[int] = yield [count(keys, place) for place in PLACES]
    everything = sum(counts)
    end = everything - 1 if end == -1 else min(end, everything - 1)
    if oldest_first:
        start, end = everything - 1 - end, everything - 1 - start
    commands, before = [], 0
    for place, length in zip(PLACES, counts, strict=True):
        first, last = max(start - before, 0), min(end - before, length - 1)
        before += length
        if first <= last:
            verb = "LRANGE" if place in LISTS else "ZREVRANGE"
            commands.append(plain(verb, getattr(keys, place), first, last, parse=_decoded))
    pages: list[list[str]] = (yield commands) if commands else []
    ids = list(dict.fromkeys(job_id for ids in pages for job_id in ids))
    return ids[::-1] if oldest_first else ids


class LetterHead(Job):
    """A dead letter without its payload: of its data only the metadata were read."""

    __slots__ = ("data_bytes", "is_unclear")

    def __init__(self, keys: Keys, letter_id: str, reply: list[Any]) -> None:
        values, self.data_bytes, end = reply
        fields = reading.listed(values, _LISTED)
        data = metadata_at_end(end, _beginning(fields) if b"x.letter" in fields else b"")
        self.is_unclear = data is None and bool(end)
        """Are there metadata in the data, somewhere before their end?"""
        fields[b"data"] = data or b"{}"
        super().__init__(keys.prefix, keys.name, letter_id, fields)


def heads(keys: Keys, ids: Sequence[str]) -> Plan[list[Job]]:
    """The letters with these ids without their payloads; what is gone is left out.

    A letter of another program is read whole if its metadata are not at the end of its data.
    """
    found: list[Job] = yield from reading.jobs_of(keys, ids, head)
    unclear = [one.id for one in found if isinstance(one, LetterHead) and one.is_unclear]
    if not unclear:
        return found
    whole: list[Job] = yield from reading.jobs_of(keys, unclear)
    known = {one.id: one for one in whole}
    return [known.get(one.id, one) for one in found]


def head(keys: Keys, letter_id: str) -> Command[Job | None]:
    """What a list shows of a dead letter, or of a job that may be one."""

    def parse(reply: list[Any]) -> Job | None:
        return LetterHead(keys, letter_id, reply) if reply else None

    args = {"fields": _LISTED, "most": LONGEST_METADATA}
    job = {"job": keys.job(letter_id)}
    return script("glanceLetter", keys, args, parse, extra=job, resend=Resend.SAME)


_LISTED = (*reading.LISTED, "x.letter", "x.replays")


def _beginning(fields: Fields) -> bytes:
    """Members of a letter's metadata that are stored beside its data too."""
    at, replays = (codec.number(fields.get(name)) or 0 for name in (b"timestamp", b"x.replays"))
    return b'"deadLetteredAt":%d,"replays":%d,' % (at, replays)


def _decoded(ids: list[bytes]) -> list[str]:
    return [codec.name(job_id) for job_id in ids]


def total(keys: Keys, what: str) -> Command[int]:
    """A counter of the queue: ``deadLettered`` out of it, ``replayed`` or ``purged`` in it."""
    return plain("HGET", keys.meta, f"x.{what}", parse=lambda value: int(value or 0))


def is_marked(keys: Keys) -> Command[bool]:
    """Whether a letter was ever buried in this queue: the script that buries one marks it."""
    return plain("HGET", keys.meta, "toril.deadLetters", parse=lambda value: value is not None)


def not_dead_letters(queue: str) -> NotDeadLettersError:
    return NotDeadLettersError(
        f"queue {queue!r} is no dead letter queue: its waiting jobs are no dead letters, and no"
        f" worker has ever buried one there; check the name, or pass force=True (--force) to treat"
        f" its jobs as dead letters anyway"
    )


def note_of(keys: Keys, letter_id: str) -> Command[Note | None]:
    """Toril's note about a letter; None if there is none, or it is damaged."""
    check_known_id(letter_id)

    def parse(text: bytes | None) -> Note | None:
        try:
            return None if text is None else _read_note(text)
        except (ValueError, RecursionError):
            return None

    return plain("HGET", keys.job(letter_id), "x.letter", parse=parse)


def group_elsewhere(keys: Keys, letter_id: str) -> Command[tuple[Keys, str] | None]:
    """The owner of the group that a letter's job belongs to, and its membership.

    None if it belongs to none, or to one that shares the hash tag of the letter's queue.
    """
    check_known_id(letter_id)

    def parse(text: bytes | None) -> tuple[Keys, str] | None:
        member = "" if text is None else codec.text(text)
        base, _, rest = member.rpartition(":groups:")
        name = base.removeprefix(f"{keys.prefix}:")
        if not rest or name == base or hash_tag(base) == hash_tag(keys.base):
            return None
        return keys.sibling(name), member

    return plain("HGET", keys.job(letter_id), "x.member", parse=parse)


def is_member(keys: Keys, letter_id: str) -> Command[bool]:
    """Whether a letter's job belongs to a group."""
    check_known_id(letter_id)
    return plain("HEXISTS", keys.job(letter_id), "x.member", parse=bool)


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


def purge_slice(
    keys: Keys,
    walk: Walk,
    wanted: Filter,
    *,
    run: Run,
    is_sure: bool = True,
    accepted: Sequence[str] = (),
) -> Command[Slice]:
    """Remove some letters; ``accepted`` are those that the client has found to pass the filter.

    Unless it ``is_sure`` that letters wait here, only those go that Toril noted as such.
    """
    args = walk_args(walk, wanted, run)
    args["limit"] = PURGES_PER_SLICE
    args["bytes"] = PURGED_BYTES_PER_SLICE
    if is_sure:
        args["is_sure"] = True
    if accepted:
        args["accepted"] = dict.fromkeys(accepted, True)
    extra = run.keys(keys)
    return script("purgeDeadLetters", keys, args, read_slice, extra=extra, resend=Resend.SAME)


def survey_slice(
    keys: Keys, walk: Walk, wanted: Filter, replay: ReplayOptions | None = None
) -> Command[Slice]:
    """Count some letters, by fingerprint; those that ``replay`` would leave alone are held."""
    args: dict[str, Any] = {
        "place": walk.place,
        "offset": walk.offset,
        "examine": LETTERS_PER_LOOK,
        "filter": wanted.args(),
    }
    if walk.anchor:
        args["anchor"] = walk.anchor
    if walk.not_after is not None:
        args["not_after"] = walk.not_after
    if replay is not None:
        args["is_for_replay"] = True
        if replay.max_replays is not None:
            args["max_replays"] = replay.max_replays
        if replay.force:
            args["force"] = True
    return script("surveyDeadLetters", keys, args, read_slice, resend=Resend.SAME)


class Run(msgspec.Struct, frozen=True):
    """One bulk operation: nobody else continues it, so that it can remember its last slice.

    ``said`` is the filter as it was given, by which the last run with it is found.
    ``resumed`` is the run that it goes on with: when it is over, so is that one.
    """

    verb: str
    name: str
    said: Filter
    resumed: str = ""

    def keys(self, keys: Keys) -> dict[str, str]:
        """The keys that scripts need beside those of the queue."""
        return {
            "sweep": record_key(keys, self.verb, self.name),
            "latest": latest_key(keys, self.verb, self.said),
            "turning": keys.own("turning"),
        }


def record_key(keys: Keys, verb: str, run: str) -> str:
    """Where a run is remembered."""
    return keys.own(f"{verb}-{run}")


def latest_key(keys: Keys, verb: str, said: Filter) -> str:
    """Where the name of the last run with this filter is stored."""
    text = msgspec.json.encode(said.args(), order="sorted")
    return keys.own(f"{verb}-of-{sha1(text, usedforsecurity=False).hexdigest()[:16]}")


def latest_run(keys: Keys, verb: str, said: Filter) -> Command[str | None]:
    """The name of the last unfinished run with this filter."""
    return plain(
        "GET",
        latest_key(keys, verb, said),
        parse=lambda name: None if name is None else name.decode(),
    )


def interrupted(keys: Keys, verb: str, run: str) -> Command[Interrupted | None]:
    """How far a run came; None if there is no such run, or it is finished."""

    def parse(reply: list[bytes | None]) -> Interrupted | None:
        place, done, text, filter_text = reply
        if place is None or done is None or text is None or filter_text is None:
            return None
        last = read_slice(text)
        if last.is_last and not last.asked:
            return None
        walk = after(Walk(place=place.decode(), done=int(done) - last.count), last)
        if last.asked:
            # Nobody knows which of these the client came to; what it left is looked at again.
            walk = Walk(
                place=place.decode(), not_after=last.not_after, done=walk.done, turn=last.turn
            )
        return Interrupted(
            msgspec.structs.replace(walk, step=0), Filter.of_args(_read_args(filter_text)), run
        )

    return plain(
        "HMGET", record_key(keys, verb, run), "place", "done", "reply", "filter", parse=parse
    )


def server_time(keys: Keys) -> Command[int]:
    """The time by which letters are dated, in ms."""
    return script("clock", keys, {}, int, resend=Resend.SAME)


def again(walk: Walk, last: Slice) -> Walk:
    """The place before a slice, to look at its letters once more."""
    return Walk(
        place=walk.place,
        offset=walk.offset,
        anchor=walk.anchor,
        not_after=last.not_after,
        done=walk.done + last.count,
        step=walk.step + 1,
        turn=last.turn,
    )


def has_begun_anew(walk: Walk, last: Slice) -> bool:
    """Did a slice begin with the oldest, because the letter is gone by which the walk went?"""
    return walk.offset > 0 and last.offset == last.examined


def after(walk: Walk, last: Slice, *, taken_apart: Collection[str] = ()) -> Walk:
    """Where a walk goes on after a slice, of whose letters the client has taken some out itself."""
    done = walk.done + last.count + len(taken_apart)
    if last.next:
        return Walk(place=last.next, not_after=last.not_after, done=done, step=walk.step + 1)
    return Walk(
        place=walk.place,
        offset=last.offset - len(taken_apart),
        anchor=_last_left(last, taken_apart),
        not_after=last.not_after,
        done=done,
        step=walk.step + 1,
        turn=last.turn,
    )


def _last_left(last: Slice, taken_apart: Collection[str]) -> str:
    """The letter that a walk has left last: by it a walk knows its place when others take some."""
    if not taken_apart:
        return last.anchor
    asked = reversed(last.asked[last.asked_before :])
    return next((letter_id for letter_id in asked if letter_id not in taken_apart), last.kept)


def walk_args(walk: Walk, wanted: Filter, run: Run) -> dict[str, Any]:
    """What every script that changes letters in slices needs."""
    args: dict[str, Any] = {
        "place": walk.place,
        "offset": walk.offset,
        "behind": LEFT_BEHIND,
        "examine": LETTERS_PER_LOOK,
        "filter": wanted.args(),
        "run": run.name,
        "step": walk.step,
        "done": walk.done,
    }
    if run.resumed:
        args["resumed"] = run.resumed
    if walk.anchor:
        args["anchor"] = walk.anchor
    if walk.turn:
        args["turn"] = walk.turn
    if walk.not_after is not None:
        args["not_after"] = walk.not_after
    return args


_read_note = msgspec.json.Decoder(Note).decode
read_slice = msgspec.json.Decoder(Slice).decode
_read_args = msgspec.json.Decoder(dict[str, Any]).decode
