"""Parcels: what a call leaves in its own slot of a cluster for queues in other slots.

A call cannot write in two slots.  What it has to tell elsewhere it leaves where it is, in the same
step (``lua/rooms/parcels.lua``), and whoever made the call carries it right behind: the reply
brings the parcels (``Handed``), ``carry`` delivers them where they belong, and only then removes
them.  What no reply brought is fetched when it is due.  A parcel may be delivered any number of
times and is done once, so couriers may die, meet, and lose replies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from toril.errors import CrossSlotError, InvalidNameError, ServerError, ServerUnusableError
from toril.protocol import codec
from toril.protocol.command import Command, Plan, Resend, plain, script
from toril.protocol.keys import Keys, check_slot_of_each, keys_at

PARCELS_PER_SLICE = 100
BYTES_PER_SLICE = 500_000
MOST_SLICES = 20
"""How many slices one courier carries in a row; the next round goes on."""

FAR_AHEAD_MS = 86_400_000
"""Longer than a courier postpones a parcel."""

_NOT_YET = 1


class Parcel(msgspec.Struct, frozen=True):
    """One parcel on its way; the body is for the scripts alone."""

    id: str
    target: str
    body: bytes
    is_job: bool = False
    """Is a job in no other place until this parcel is collected?"""


class Handed(msgspec.Struct, frozen=True):
    """The parcels that the reply of a call brought."""

    parcels: tuple[Parcel, ...] = ()
    has_more: bool = True
    """Did the call leave more, which has to be fetched?"""


def together(some: Iterable[Handed]) -> Handed:
    """What several calls left, for one delivery."""
    all_of_it = list(some)
    parcels = tuple(parcel for one in all_of_it for parcel in one.parcels)
    return Handed(parcels, any(one.has_more for one in all_of_it))


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the parcels of one round."""

    delivered: int = 0
    refused: int = 0
    left: int = 0
    """Those that could not be delivered now."""
    error: ServerError | None = None
    """Why not, if a server did not do it."""


def carry(
    keys: Keys,
    handed: Handed = Handed(),  # noqa: B008 (it is frozen)
    collect_later: Callable[[list[str]], None] | None = None,
) -> Plan[Carried]:
    """Deliver parcels that calls of this queue left: what was handed over, and what is due if there
    is more.

    With ``collect_later`` the ids of delivered parcels are passed to it, unless a job is in transit
    as long as its parcel is not collected; another call of the queue can name them.
    """
    total = Carried()
    for slice_ in _slices(handed.parcels):
        total = _sum(total, (yield from _carry(keys, slice_, collect_later)))
    for _ in range(MOST_SLICES if handed.has_more else 0):
        parcels, has_more = yield fetch(keys)
        if parcels:
            total = _sum(total, (yield from _carry(keys, parcels, collect_later)))
        if not has_more:
            break
    return total


def carry_all(keys: Keys) -> Plan[Carried]:
    """Deliver every parcel that calls of this queue left, also those that others may be carrying.

    It ends when there is none left, or when those that are left cannot be delivered now.
    """
    total = Carried()
    while True:
        parcels, has_more = yield fetch(keys, ahead_ms=FAR_AHEAD_MS)
        if parcels:
            carried = yield from _carry(keys, parcels, None)
            total = _sum(total, carried)
            if carried.error is not None or carried.left == len(parcels):
                return total
        elif not has_more:
            return total


def _slices(parcels: Iterable[Parcel]) -> Iterator[list[Parcel]]:
    """Parcels in the order in which they were left, as many at a time as one call may carry."""
    some: list[Parcel] = []
    size = 0
    for parcel in sorted(parcels, key=lambda one: one.id):
        size += len(parcel.body)
        if some and (len(some) == PARCELS_PER_SLICE or size > BYTES_PER_SLICE):
            yield some
            some, size = [], len(parcel.body)
        some.append(parcel)
    if some:
        yield some


def _carry(
    keys: Keys, parcels: Sequence[Parcel], collect_later: Callable[[list[str]], None] | None
) -> Plan[Carried]:
    done: list[str] = []
    refused: list[dict[str, str]] = []
    problem: ServerError | None = None
    by_target: dict[str, list[Parcel]] = {}
    for parcel in parcels:
        by_target.setdefault(parcel.target, []).append(parcel)
    for target, some in by_target.items():
        try:
            there = keys_at(target)
            check_slot_of_each(there)
            answers = yield deliver(there, some)
        except ServerUnusableError:
            raise
        except ServerError as error:
            problem = error
            continue
        except (InvalidNameError, CrossSlotError) as error:
            answers = [str(error)] * len(some)
        for parcel, answer in zip(some, answers, strict=True):
            if answer == 0:
                done.append(parcel.id)
            elif answer != _NOT_YET:
                refused.append({"id": parcel.id, "words": str(answer)})
    jobs = {parcel.id for parcel in parcels if parcel.is_job}
    if collect_later is not None and not refused and jobs.isdisjoint(done):
        collect_later(done)
    elif done or refused:
        yield collect(keys, done, refused)
    left = len(parcels) - len(done) - len(refused)
    return Carried(delivered=len(done), refused=len(refused), left=left, error=problem)


def _sum(first: Carried, second: Carried) -> Carried:
    return Carried(
        delivered=first.delivered + second.delivered,
        refused=first.refused + second.refused,
        left=first.left + second.left,
        error=second.error or first.error,
    )


def sent_at(parcel_id: str) -> int:
    """When a parcel was left, in ms since the epoch; 0 if its id does not tell."""
    stamp = parcel_id[1:].partition("-")[0]
    return int(stamp) if stamp.isdecimal() else 0


def fetch(keys: Keys, *, ahead_ms: int = 0) -> Command[tuple[list[Parcel], bool]]:
    """A slice of what is due in ``ahead_ms``, and whether there is more."""

    def parse(reply: Any) -> tuple[list[Parcel], bool]:
        return [_parcel(item) for item in reply[0]], reply[1] == 1

    args = {"count": PARCELS_PER_SLICE, "bytes": BYTES_PER_SLICE}
    if ahead_ms:
        args["ahead_ms"] = ahead_ms
    return script("fetchParcels", keys, args, parse, resend=Resend.SAME)


def waiting(keys: Keys) -> Command[int]:
    """How many parcels of this queue are not collected; those that were refused do not count."""
    due = keys.own("parcels-due")
    return plain("ZCARD", due, parse=int, near=due)


def handed(parcels: Any, has_more: Any) -> Handed:
    """What a reply brought of the parcels that its call left."""
    return Handed(tuple(_parcel(item) for item in parcels), has_more == 1)


def _parcel(item: Any) -> Parcel:
    return Parcel(codec.text(item[0]), codec.name(item[1]), item[2], item[3] == 1)


def deliver(keys: Keys, parcels: Sequence[Parcel]) -> Command[list[int | str]]:
    """Do at the queue of ``keys`` what the parcels say, each once."""

    def parse(reply: list[Any]) -> list[int | str]:
        return [answer if isinstance(answer, int) else codec.text(answer) for answer in reply]

    return script(
        "deliverParcels",
        keys,
        {"ids": [parcel.id for parcel in parcels]},
        parse,
        payloads=[parcel.body for parcel in parcels],
        resend=Resend.SAME,
    )


def collect(
    keys: Keys, done: Sequence[str], refused: Sequence[dict[str, str]] = ()
) -> Command[None]:
    """Forget what was delivered, and set aside what was refused."""
    args = {"done": list(done), "refused": list(refused)}
    return script("collectParcels", keys, args, lambda _: None, resend=Resend.SAME)


def offer_again(keys: Keys) -> Plan[int]:
    """Let couriers carry once more what was refused; returns how many parcels."""
    offered = 0
    for _ in range(MOST_SLICES):
        args = {"count": PARCELS_PER_SLICE}
        count = yield script("offerParcels", keys, args, int, resend=Resend.SAME)
        if not count:
            break
        offered += count
    return offered
