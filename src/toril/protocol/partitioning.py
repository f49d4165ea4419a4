"""A queue in several partitions: which job goes where, and how the parts make a whole.

Partition 3 of the queue ``mail`` is the plain queue ``{mail-3}``, and of ``{mail}-dlq`` the plain
queue ``{mail-3}-dlq``: the number goes into the hash tag, so that what belongs together shares a
slot, partition by partition.  An id that Toril chooses ends in the number of its partition; what
else decides (a lane, a deduplication id, an id of the user's own) is spread by its CRC-32.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar
from zlib import crc32

import msgspec

from toril.errors import InvalidNameError, InvalidOptionError, PartitionMismatchError
from toril.options import Deduplication, NewJob, RateLimit, milliseconds, whole
from toril.protocol import codec
from toril.protocol.command import Command, Resend, plain, script
from toril.protocol.keys import GENERATED_ID, Keys, hash_tag
from toril.protocol.measuring import Metrics

T = TypeVar("T")

MOST_PARTITIONS = 1024
_NUMBERED_TAG = re.compile(r"(?P<stem>.+)-(?P<number>0|[1-9][0-9]{0,3})")


def check(keys: Keys, partitions: int) -> None:
    """Refuse a number that cannot be, and a prefix that would put all partitions into one slot."""
    whole(partitions, "partitions", least=1, most=MOST_PARTITIONS)
    if partitions > 1 and hash_tag(keys.prefix) is not None:
        raise InvalidOptionError(
            f"prefix={keys.prefix!r} has a hash tag, which would keep all partitions of queue"
            f" {keys.name!r} on one node; leave it out: each partition has a hash tag of its own"
        )


def name_of(name: str, number: int) -> str:
    """The name of the plain queue that is partition ``number`` of queue ``name``."""
    tag = hash_tag(name)
    if tag is None:
        return f"{{{name}-{number}}}"
    return name.replace(f"{{{tag}}}", f"{{{tag}-{number}}}", 1)


def whole_of(name: str) -> tuple[str, int] | None:
    """The queue that a plain queue may be a partition of, and which one; None for other names."""
    found = _NUMBERED_TAG.fullmatch(hash_tag(name) or "")
    if found is None:
        return None
    stem = name.replace(f"{{{found[0]}}}", f"{{{found['stem']}}}", 1)
    if stem == f"{{{found['stem']}}}":
        stem = found["stem"]
    return stem, int(found["number"])


def home_of(text: str, partitions: int) -> int:
    """The partition of a lane, of a deduplication id or of an id that the user chose."""
    return crc32(text.encode("utf-8", "surrogateescape")) % partitions


def named_in(job_id: str, partitions: int) -> int | None:
    """The partition that an id names which Toril chose; None for other ids."""
    found = GENERATED_ID.fullmatch(job_id)
    if found is None or found[1] is None or int(found[1][1:]) >= partitions:
        return None
    return int(found[1][1:])


def home_of_id(job_id: str, partitions: int) -> int:
    """The partition of a job, as far as its id can tell."""
    number = named_in(job_id, partitions)
    return home_of(job_id, partitions) if number is None else number


def home_by(
    lane: str | None, deduplication_id: str | None, job_id: str | None, partitions: int
) -> int | None:
    """The partition that a lane decides, or else a deduplication id, or else the job's own id."""
    text = deduplication_id if lane is None else lane
    if text is not None:
        return home_of(text, partitions)
    return None if job_id is None else home_of_id(job_id, partitions)


def home_of_job(job: NewJob, partitions: int, stem: str) -> int | None:
    """The partition that a new job must go to; None for one that may go anywhere.

    A child goes where its parent is, if that is in a partition of the same stem.
    """
    given = job.deduplication
    deduplication_id = None if given is None else Deduplication.of(given).id
    if (home := home_by(job.lane, deduplication_id, job.job_id, partitions)) is not None:
        return home
    if job.parent is not None:
        found = _NUMBERED_TAG.fullmatch(hash_tag(_parent_queue(job.parent)) or "")
        if found is not None and found["stem"] == stem and int(found["number"]) < partitions:
            return int(found["number"])
    return None


def homes_before(job: NewJob, numbers: Numbers, stem: str) -> list[int]:
    """Where a job that is the same may be since there were fewer partitions, the latest first.

    Lanes are empty when a queue grows, so only the ids of a job can tell.
    """
    if job.job_id is None and job.deduplication is None:
        return []
    now = home_of_job(job, numbers.now, stem)
    before = (home_of_job(job, count, stem) for count in reversed(numbers.earlier))
    return [home for home in before if home is not None and home != now]


def traces_of(keys: Keys, job: NewJob) -> list[str]:
    """Keys of which one exists where a job with the same deduplication id, or the same id, is."""
    traces = [] if job.job_id is None else [keys.job(job.job_id)]
    if job.deduplication is not None:
        traces.append(f"{keys.base}:de:{Deduplication.of(job.deduplication).id}")
    return traces


def ambiguous(name: str, job_id: str, numbers: Sequence[int]) -> InvalidNameError:
    """The error for an id that several partitions have given out."""
    return InvalidNameError(
        f"job {job_id!r} exists in the partitions {', '.join(map(str, numbers))} of queue {name!r};"
        f" say which is meant: queue.partitions[{numbers[0]}], or the queue"
        f" {name_of(name, numbers[0])!r}"
    )


def _parent_queue(parent: Any) -> str:
    name = parent.get("queue_name") if isinstance(parent, dict) else parent.queue_name
    return str(name)


# ---------------------------------------------------------------------- the number of partitions


class Numbers(msgspec.Struct, frozen=True):
    """What is written down of a queue's partitions: ``4,16``, or ``~id,4>16`` while it grows."""

    earlier: tuple[int, ...] = ()
    now: int = 0
    """How many there are; 0 for a plain queue."""
    next: int = 0
    """How many there will be; 0 when it does not grow."""
    growth: str = ""
    """Tells this growth from one that was stopped and begun again meanwhile."""

    def __str__(self) -> str:
        words = ",".join(map(str, (*self.earlier, self.now)))
        if not self.next:
            return words
        return f"~{self.growth},{words}>{self.next}" if self.growth else f"{words}>{self.next}"

    def refuse(self, keys: Keys, partitions: int, *, writes: bool = False) -> None:
        """Refuse another number than the one that is written down, and to add while it changes."""
        if self.next and writes:
            raise PartitionMismatchError(keys.name, partitions, self.now, self.next)
        if self.now and self.now != partitions:
            raise PartitionMismatchError(keys.name, partitions, self.now)


def record_key(keys: Keys) -> str:
    """Where the number of a queue's partitions is written."""
    return keys.own("partitions")


def read(keys: Keys) -> Command[Numbers]:
    """The numbers of partitions that a queue has and had."""
    return plain("GET", record_key(keys), parse=_numbers)


def agree(keys: Keys, partitions: int) -> Command[Numbers]:
    """Write the number down if nobody has; returns what was there before."""
    return plain("SET", record_key(keys), str(partitions), "NX", "GET", parse=_numbers)


def swap(keys: Keys, expected: Numbers, wanted: Numbers) -> Command[Numbers]:
    """Write numbers down in place of others, if those are still there; returns what is now."""
    return script(
        "swap",
        keys,
        {"expected": str(expected), "wanted": str(wanted)},
        _numbers,
        extra={"record": record_key(keys)},
        resend=Resend.SAME,
    )


def forget(keys: Keys, expected: Numbers) -> Command[Numbers]:
    """Delete the numbers, if they are still the expected ones; returns what is there now."""
    return script(
        "swap",
        keys,
        {"expected": str(expected)},
        _numbers,
        extra={"record": record_key(keys)},
        resend=Resend.SAME,
    )


def _numbers(reply: bytes | None) -> Numbers:
    had, _, to_have = codec.text(reply or b"").partition(">")
    words = had.split(",")
    known = [int(word) for word in words if word.isdecimal()]
    if not known:
        return Numbers()
    growth = words[0][1:] if words[0].startswith("~") else ""
    following = int(to_have) if to_have.isdecimal() else 0
    return Numbers(tuple(known[:-1]), known[-1], following, growth)


# ---------------------------------------------------------------------- parts and their whole


def share(total: int, partitions: int, what: str) -> list[int]:
    """``total`` divided among the partitions, as evenly as whole numbers can be."""
    whole(total, what, least=1)
    if total < partitions:
        raise InvalidOptionError(
            f"{what}={total} cannot be divided among {partitions} partitions: each needs at least"
            f" one, so {partitions} is the smallest"
        )
    least, rest = divmod(total, partitions)
    return [least + (number < rest) for number in range(partitions)]


def share_rate(limit: RateLimit, partitions: int) -> list[RateLimit]:
    """A rate shared out; one with fewer jobs than partitions has longer windows instead."""
    if limit.max >= partitions:
        counts = share(limit.max, partitions, "max")
        return [RateLimit(count, limit.duration) for count in counts]
    duration = milliseconds(limit.duration, "duration") * partitions // limit.max
    return [RateLimit(1, duration)] * partitions


def sum_of_rates(limits: Sequence[RateLimit]) -> RateLimit:
    """What ``share_rate`` was given, nearly."""
    return RateLimit(sum(limit.max for limit in limits), limits[0].duration)


def page(counts: Sequence[int], start: int, end: int) -> list[range]:
    """Which places of each part belong to a page of the whole.

    The whole is read like cards that are dealt: the first of each part, then the second of each,
    and so on; so a page costs no more than its length, and its jobs are about equally old.
    """
    total = sum(counts)
    first = start if start >= 0 else max(total + start, 0)
    last = min(end if end >= 0 else total + end, total - 1)
    if first > last:
        return [range(0)] * len(counts)
    begin, stop = _dealt(counts, first), _dealt(counts, last + 1)
    return [range(low, high) for low, high in zip(begin, stop, strict=True)]


def _dealt(counts: Sequence[int], place: int) -> list[int]:
    """How many of each part come before a place of the whole."""
    low, high = 0, max(counts)
    while low < high:
        rounds = (low + high + 1) // 2
        if sum(min(count, rounds) for count in counts) <= place:
            low = rounds
        else:
            high = rounds - 1
    dealt = [min(count, low) for count in counts]
    left = place - sum(dealt)
    for number, count in enumerate(counts):
        if left and count > low:
            dealt[number] += 1
            left -= 1
    return dealt


def deal(pages: Sequence[range], parts: Sequence[Sequence[T]]) -> list[T]:
    """The page of the whole, made of those of its parts."""
    cards = [
        (place, number, item)
        for number, (places, items) in enumerate(zip(pages, parts, strict=True))
        for place, item in zip(places, items, strict=False)
    ]
    cards.sort(key=lambda card: card[:2])
    return [item for _, _, item in cards]


def add_up(parts: Iterable[dict[Any, int]]) -> dict[Any, int]:
    """Counts of several parts as those of the whole."""
    total: dict[Any, int] = {}
    for part in parts:
        for name, count in part.items():
            total[name] = total.get(name, 0) + count
    return total


def add_up_metrics(parts: Sequence[Metrics], start: int, end: int) -> Metrics:
    """The metrics of the whole: each part wrote its minutes down when one of its jobs ended."""
    newest = max((part.last_at or 0 for part in parts), default=0)
    data: list[int] = []
    for part in parts:
        behind = (newest - (part.last_at or newest)) // 60_000
        for minute, count in enumerate(part.data, behind):
            data += [0] * (minute + 1 - len(data))
            data[minute] += count
    stop = None if end == -1 else end + 1
    return Metrics(
        count=sum(part.count for part in parts),
        data=data[start:stop],
        points=len(data),
        last_at=newest or None,
    )


class Row(msgspec.Struct, frozen=True):
    """Queues under one name: a plain one, or the partitions of one."""

    name: str
    queues: tuple[str, ...]
    is_beside: bool = False
    """Is it the plain queue beside partitions of the same name? ``name`` opens the partitions."""

    @property
    def label(self) -> str:
        """The name as people are shown it; no two rows have the same, as no name has a colon."""
        return f"{self.name}: plain" if self.is_beside else self.name


def wholes_of(names: Iterable[str]) -> list[str]:
    """The queues that some of ``names`` may be partitions of."""
    return sorted({found[0] for name in names if (found := whole_of(name))})


def fold(names: Iterable[str], partitioned: Mapping[str, int]) -> list[Row]:
    """One row for each plain queue, and one for all partitions of each that is ``partitioned``.

    A plain queue beside partitions of its name has its own row, after theirs.
    """
    plain_ones: set[str] = set()
    wholes: set[str] = set()
    for name in names:
        found = whole_of(name)
        if found is not None and found[1] < partitioned.get(found[0], 0):
            wholes.add(found[0])
        else:
            plain_ones.add(name)
    rows = [whole_row(stem, partitioned[stem]) for stem in wholes]
    rows += [Row(name, (name,), is_beside=name in wholes) for name in plain_ones]
    return sorted(rows, key=lambda row: (row.name, row.is_beside))


def whole_row(name: str, count: int) -> Row:
    """The row of a queue with so many partitions."""
    return Row(name, tuple(name_of(name, number) for number in range(count)))
