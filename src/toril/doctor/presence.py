"""Which queues there are: under the prefix, under another one, or only in somebody's mind."""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from toril.client.agreeing import sizes_of
from toril.client.connection import Connection
from toril.doctor import ailments
from toril.doctor.finding import Finding
from toril.doctor.reader import ConnectionReader
from toril.doctor.wording import counted
from toril.errors import InvalidNameError
from toril.protocol import partitioning, reading
from toril.protocol.keys import COMPENSATION_SUFFIX, Keys, check_queue_name
from toril.protocol.partitioning import record_key

_META = ":meta"
_MOST_SHOWN = 5
_MOST_LOOKED_AT = 1000


async def find_queues(reader: ConnectionReader, prefix: str) -> tuple[list[str], list[Finding]]:
    """The queues under ``prefix``, on every node, and those that Toril cannot open."""
    escaped = "".join(f"\\{char}" if char in "*?[]\\" else char for char in prefix)
    keys = await reader.scan(f"{escaped}:*{_META}")
    names = {key[len(prefix) + 1 : -len(_META)] for key in keys}
    names = {name for name in names if ":" not in name.removesuffix(COMPENSATION_SUFFIX)}
    odd = sorted(name for name in names if not _can_be_opened(name))
    return sorted(names - set(odd)), list(_odd(odd))


def _can_be_opened(name: str) -> bool:
    try:
        check_queue_name(name)
    except InvalidNameError:
        return False
    return True


def _odd(names: Sequence[str]) -> Iterator[Finding]:
    if names:
        shown = ", ".join(repr(name) for name in names[:_MOST_SHOWN])
        more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
        yield ailments.ODD_NAMES.of(
            "queues", queues=f"{counted(len(names), 'queue')}: {shown}{more}"
        )


async def check_named(
    connection: Connection, reader: ConnectionReader, prefix: str, names: Sequence[str]
) -> tuple[list[str], list[Finding]]:
    """The named queues without those that do not exist, and what to say of these.

    In place of a queue with partitions stand those of them that exist.
    """
    queues = {name: Keys(prefix, name) for name in names}
    near = [name for name, keys in queues.items() if _answers(reader, record_key(keys))]
    sizes = await sizes_of(connection, prefix, near)
    made_of: dict[str, tuple[str, ...]] = {name: (name,) for name in names}
    for name, size in sizes.items():
        made_of[name] = (*partitioning.whole_row(name, size).queues, name)
    every = dict.fromkeys(itertools.chain(*made_of.values()))
    asked = [keys for keys in (Keys(prefix, one) for one in every) if _answers(reader, keys.meta)]
    there = await connection.run_all(
        [reading.is_found(keys) if keys.name in sizes else reading.exists(keys) for keys in asked]
    )
    absent = {keys.name for keys, is_there in zip(asked, there, strict=True) if not is_there}
    missing = [name for name in names if absent.issuperset(made_of[name])]
    existing = [name for name in every if name not in absent]
    if not missing:
        return existing, []
    known, _ = await find_queues(reader, prefix)
    return existing, [_missing(name, known) for name in missing]


async def find_undoing(
    connection: Connection,
    reader: ConnectionReader,
    prefix: str,
    owners: Sequence[str],
    *,
    besides: Sequence[str],
) -> list[str]:
    """The queues in which groups of ``owners`` are undone, ``besides`` those that are known."""
    names = {one for name in owners for one in undoing(name)}.difference(besides)
    keys = [Keys(prefix, name) for name in sorted(names)]
    asked = [one for one in keys if _answers(reader, one.meta)]
    there = await connection.run_all([reading.is_found(one) for one in asked]) if asked else []
    return [one.name for one, is_there in zip(asked, there, strict=True) if is_there]


def undoing(name: str) -> tuple[str, ...]:
    """How the queue may be called in which groups of this queue are undone."""
    if name.endswith(COMPENSATION_SUFFIX):
        return ()
    return name + COMPENSATION_SUFFIX, f"{name}-compensation"


def _answers(reader: ConnectionReader, key: str) -> bool:
    """Does the node answer that has the key?"""
    return reader.node_of(key) is not None


def _missing(name: str, known: Sequence[str]) -> Finding:
    close = difflib.get_close_matches(name, known, n=3)
    like_it = f"Perhaps {' or '.join(map(repr, close))} is meant; else" if close else "Otherwise"
    return ailments.NO_SUCH_QUEUE.of(f"queue {name}", advice=like_it)


async def check_elsewhere(reader: ConnectionReader, prefix: str) -> list[Finding]:
    """Queues under other prefixes, for one under which there are none."""
    keys = (await reader.scan(f"*:*{_META}"))[:_MOST_LOOKED_AT]
    kinds = await reader.ask([("TYPE", key) for key in keys])
    hashes = [key for key, kind in zip(keys, kinds, strict=True) if kind == "hash"]
    marks = await reader.ask([("HMGET", key, "version", "opts.maxLenEvents") for key in hashes])
    prefixes = Counter(
        key.removesuffix(_META).removesuffix(COMPENSATION_SUFFIX).rpartition(":")[0]
        for key, marked in zip(hashes, marks, strict=True)
        if any(marked)
    )
    del prefixes[prefix]
    if not prefixes:
        return []
    shown = ", ".join(
        f"{other!r} ({counted(count, 'queue')})"
        for other, count in prefixes.most_common(_MOST_SHOWN)
    )
    return [ailments.OTHER_PREFIX.of("queues", prefix=prefix, others=shown)]
