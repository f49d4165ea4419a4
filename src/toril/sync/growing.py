# Written by tools/unasync.py from src/toril/client/growing.py: change that file instead.
"""Giving a queue more partitions.

A job's lane or id, modulo the number of partitions, decides where it goes: two processes with
different numbers would run two jobs of one lane at once.  So a growing queue takes no jobs until
every process has noticed, and its lanes are empty when the new number takes effect.  An interrupted
call leaves the queue growing; calling it again resumes.  Several calls may run at once: each waits
by itself, and only writes if the numbers are still those it has read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from toril.client.ids import new_job_id
from toril.errors import InvalidOptionError, RefusedError
from toril.protocol import codec, lanes, limiting, partitioning, pausing, scheduling
from toril.protocol.command import plain
from toril.protocol.keys import Keys
from toril.protocol.partitioning import Numbers
from toril.sync.agreeing import AGREE_AGAIN_S
from toril.sync.connection import Connection

GRACE_S = AGREE_AGAIN_S + 5.0
"""By then no process adds with the old number any more, and calls in flight have arrived."""
LOOK_AGAIN_S = 0.5
PARENTS_PER_READ = 500

Tell = Callable[[str], object]


def grow(
    connection: Connection,
    keys: Keys,
    partitions: int,
    *,
    patience_s: float = 60.0,
    grace_s: float = GRACE_S,
    tell: Tell = lambda words: None,
) -> Numbers:
    """Give a queue more partitions; returns the numbers that are stored afterwards.

    Raises ``RefusedError`` if its lanes are not empty after ``patience_s``: the queue keeps
    growing and takes no jobs, and its workers continue.  Without patience they must already be
    empty.

    The new partitions are paused if all others are, and have the same limits of all lanes.  A limit
    that is divided among the partitions must be removed first.
    """
    numbers = connection.run(partitioning.read(keys))
    if numbers.now == partitions and not numbers.next:
        return numbers
    _refuse_impossible(keys, numbers, partitions)
    _refuse_laned_schedulers(connection, keys, numbers)
    _refuse_divided_limits(connection, keys, numbers)
    growing = numbers
    if not numbers.next:
        if not patience_s:
            _wait_for_lanes(connection, keys, numbers, 0.0, tell)
        begun = Numbers(numbers.earlier, numbers.now, partitions, new_job_id())
        growing = _begin(connection, keys, numbers, begun)
    tell(f"{keys.name} takes no jobs now; waiting {grace_s:.0f} s until every process knows")
    time.sleep(grace_s)
    _wait_for_lanes(connection, keys, growing, patience_s, tell)
    _refuse_divided_limits(connection, keys, growing)
    if connection.run(partitioning.read(keys)) == growing:
        _carry_over(connection, keys, growing)
    grown = Numbers((*growing.earlier, growing.now), partitions)
    _write(connection, keys, growing, grown)
    return grown


def _begin(connection: Connection, keys: Keys, numbers: Numbers, begun: Numbers) -> Numbers:
    """Let it grow; if somebody else has just started the same, continue with that."""
    found = connection.run(partitioning.swap(keys, numbers, begun))
    same = msgspec.structs.replace(found, growth=begun.growth)
    if same != begun:
        raise _changed_elsewhere(keys, numbers, found)
    return found


def stop_growing(connection: Connection, keys: Keys) -> Numbers:
    """Stop growing a queue, and leave it as it was."""
    numbers = connection.run(partitioning.read(keys))
    if not numbers.next:
        raise RefusedError(f"queue {keys.name!r} is not growing")
    before = Numbers(numbers.earlier, numbers.now)
    _write(connection, keys, numbers, before)
    return before


def _refuse_impossible(keys: Keys, numbers: Numbers, partitions: int) -> None:
    partitioning.check(keys, partitions)
    if not numbers.now:
        raise RefusedError(
            f"queue {keys.name!r} has no partitions; make a new queue that has, and let a worker"
            f" of this one drain it"
        )
    if numbers.next and numbers.next != partitions:
        raise RefusedError(
            f"queue {keys.name!r} is already growing to {numbers.next} partitions; finish that, or"
            f" stop it with `toril partitions grow {keys.name} --stop`"
        )
    if partitions <= numbers.now:
        raise InvalidOptionError(
            f"queue {keys.name!r} has {numbers.now} partitions and cannot shrink to {partitions}:"
            f" what is in the others would be lost"
        )


def _refuse_laned_schedulers(connection: Connection, keys: Keys, numbers: Numbers) -> None:
    """A scheduler creates its jobs in its own partition, and its lane may move to another."""
    for part in _parts(keys, numbers.now):
        for scheduler in connection.follow(scheduling.many(part, 0, -1)):
            if scheduler.opts.lane is not None:
                raise RefusedError(
                    f"queue {keys.name!r} cannot grow while scheduler {scheduler.id!r} adds jobs to"
                    f" lane {scheduler.opts.lane!r}; remove it, and create it again afterwards"
                )


def _refuse_divided_limits(connection: Connection, keys: Keys, numbers: Numbers) -> None:
    """Each partition has its share of a limit: the new ones would have none, and so no limit."""
    for part in _parts(keys, numbers.now):
        concurrency = connection.run(limiting.concurrency(part))
        if concurrency is None and connection.run(limiting.rate(part)) is None:
            continue
        limit = "rate limit" if concurrency is None else "concurrency"
        stop = f"; stop with `toril partitions grow {keys.name} --stop`," if numbers.next else ";"
        raise RefusedError(
            f"queue {keys.name!r} cannot grow while it has a global {limit}, which is divided among"
            f" its partitions{stop} remove it, and set it again when the queue has grown"
        )


def _carry_over(connection: Connection, keys: Keys, numbers: Numbers) -> None:
    """What holds for all partitions holds for the new ones too.

    A growth that was stopped may have left something else there.
    """
    parts = _parts(keys, numbers.next)
    before, new = parts[: numbers.now], parts[numbers.now :]
    paused = connection.run_all([pausing.is_paused(part) for part in before])
    is_paused = all(paused)
    concurrency, limit = connection.run(lanes.defaults(before[0]))
    for part in new:
        if connection.run(pausing.is_paused(part)) != is_paused:
            change = pausing.pause(part) if is_paused else pausing.resume(part)
            connection.follow(change)
        if connection.run(lanes.defaults(part)) != (concurrency, limit):
            connection.follow(lanes.set_concurrency(part, concurrency, None))
            connection.follow(lanes.set_rate_limit(part, limit, None))


def _wait_for_lanes(
    connection: Connection, keys: Keys, numbers: Numbers, patience_s: float, tell: Tell
) -> None:
    deadline = time.monotonic() + patience_s
    before = ""
    while True:
        found = connection.run(partitioning.read(keys))
        if found != numbers:
            return  # the next write finds out what that means
        parts = _parts(keys, numbers.now)
        counts = [lanes.count(part) for part in parts]
        stopped = [connection.follow(lanes.stopped(part, "stopped", 0, 9)) for part in parts]
        at_work = sum(connection.run_all(counts))
        names = [name for part in stopped for name in part]
        parents = 0
        if not at_work and not names:
            parents = _count_parents(connection, parts)
            at_work = sum(connection.run_all(counts))  # one may have entered meanwhile
        if not at_work and not names and not parents:
            return
        if time.monotonic() >= deadline:
            why = f"{at_work} have jobs"
            if names:
                why = f"lanes {', '.join(names[:5])} are stopped"
            elif parents:
                why = f"some will get {parents} jobs that wait for children"
            raise RefusedError(
                f"queue {keys.name!r} has not grown: of its lanes {why}; let workers drain them and"
                f" grow it again, or stop with `toril partitions grow {keys.name} --stop`"
            )
        words = f"{at_work} lanes have jobs"
        if parents:
            words = f"{parents} jobs of lanes wait for children"
        if words != before:
            before = words
            tell(words)
        time.sleep(LOOK_AGAIN_S)


def _count_parents(connection: Connection, parts: Sequence[Keys]) -> int:
    """How many jobs wait for their children before they enter their lanes."""
    found = 0
    for part in parts:
        start, ids = 0, [b""]
        while ids:
            last = start + PARENTS_PER_READ - 1
            ids = connection.run(plain("ZRANGE", part.waiting_children, start, last, parse=list))
            looks = [
                plain("HEXISTS", part.job(codec.name(one)), "x.lane", parse=bool) for one in ids
            ]
            found += sum(one is True for one in connection.run_each(looks)) if ids else 0
            start += PARENTS_PER_READ
    return found


def _parts(keys: Keys, count: int) -> list[Keys]:
    names = [partitioning.name_of(keys.name, number) for number in range(count)]
    return [keys.sibling(name) for name in names]


def _write(connection: Connection, keys: Keys, expected: Numbers, numbers: Numbers) -> None:
    """Store the numbers, unless somebody has changed the stored ones in the meantime."""
    found = connection.run(partitioning.swap(keys, expected, numbers))
    if found != numbers:
        raise _changed_elsewhere(keys, expected, found)


def _changed_elsewhere(keys: Keys, expected: Numbers, found: Numbers) -> RefusedError:
    return RefusedError(
        f"somebody else is changing the partitions of queue {keys.name!r}: they were {expected} and"
        f" are {found} now; look with `toril partitions list {keys.name}`"
    )


__all__ = ["grow", "stop_growing"]
