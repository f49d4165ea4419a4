"""Couriers: whoever carries parcels, as `toril.protocol.parceling` does it, one call at a time.

A courier fetches what is due at one queue, delivers it target by target, and then collects what was
delivered. At any time it may die, and the reply to it may be lost: then it sends its call again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from tests.model.actors import keys_of
from tests.model.machine import NOTHING, Request, request_of
from tests.model.view import PREFIX, View
from toril.protocol import parceling
from toril.protocol.parceling import Parcel

LOSS, UNHEARD = "loss of a courier", "unheard courier"
"""A courier dies; the reply to one is lost."""
NOT_YET = 1


class Courier(NamedTuple):
    """What it has fetched, and the answers that it has; it delivers in this order."""

    source: str = ""
    parcels: tuple[Parcel, ...] = ()
    answers: tuple[tuple[str, int | str], ...] = ()

    @property
    def has_delivered(self) -> bool:
        return bool(self.parcels) and len(self.answers) == len(self.parcels)

    def next_slice(self) -> tuple[Parcel, ...]:
        """What it delivers next: all for the target of the first that has no answer."""
        answered = dict(self.answers)
        left = [parcel for parcel in self.parcels if parcel.id not in answered]
        return tuple(parcel for parcel in left if parcel.target == left[0].target)

    def fetched(self, source: str, reply: Any) -> Courier:
        parcels, _ = parceling.fetch(keys_of(source)).parse(reply)
        return Courier(source, tuple(parcels)) if parcels else self

    def answered(self, some: tuple[Parcel, ...], reply: Any) -> Courier:
        answers = parceling.deliver(keys_of(self.source), some).parse(reply)
        told = zip((parcel.id for parcel in some), answers, strict=True)
        after = self._replace(answers=(*self.answers, *told))
        is_in_vain = after.has_delivered and all(one == NOT_YET for _, one in after.answers)
        return Courier() if is_in_vain else after


def hand_over(
    couriers: tuple[Courier, ...], base: str, parcels: tuple[Parcel, ...]
) -> tuple[Courier, ...]:
    """Couriers after a reply brought parcels of the queue at ``base``: one that is free has them.

    If none is, it is as if the one that had them died: they are due to others later.
    """
    if not parcels or Courier() not in couriers:
        return couriers
    others = list(couriers)
    others.remove(Courier())
    return tuple(sorted((*others, Courier(_name_of(base), parcels)), key=repr))


class Act(NamedTuple):
    """Something that a courier may do now."""

    name: str
    request: Request
    then: Callable[[Any], Courier]
    fault: str = ""
    verbs: frozenset[str] = frozenset()
    """What is delivered."""


def acts_of(courier: Courier, view: View, clock_ms: int) -> Iterator[Act]:
    if not courier.parcels:
        for name, queue in view.queues.items():
            if any(at <= clock_ms for at in queue.parcels_due.values()):
                yield _fetching(courier, name)
        return
    if courier.has_delivered:
        yield from _heard_or_not("collects", courier, collect_request(courier), lambda _: Courier())
        yield Act("dies before it collects", NOTHING, lambda _: Courier(), LOSS)
        return
    yield from _delivering(courier, view)
    yield Act("dies with its parcels", NOTHING, lambda _: Courier(), LOSS)


def _fetching(courier: Courier, source: str) -> Act:
    return Act(
        f"fetches from {source}",
        fetch_request(source),
        lambda reply: courier.fetched(source, reply),
    )


def _delivering(courier: Courier, view: View) -> Iterator[Act]:
    some = courier.next_slice()
    received = view.queues[_name_of(some[0].target)].received
    verbs = {parcel.id: verb_of(parcel) for parcel in some}
    words = (f"{verb} again" if one in received else verb for one, verb in verbs.items())
    yield from _heard_or_not(
        f"delivers {', '.join(words)}",
        courier,
        deliver_request(some),
        lambda reply: courier.answered(some, reply),
        frozenset(verbs.values()),
    )


def _heard_or_not(
    name: str,
    courier: Courier,
    request: Request,
    then: Callable[[Any], Courier],
    verbs: frozenset[str] = frozenset(),
) -> Iterator[Act]:
    yield Act(name, request, then, verbs=verbs)
    yield Act(f"{name}, unheard", request, lambda _: courier, UNHEARD, verbs)


@lru_cache(maxsize=100_000)
def verb_of(parcel: Parcel) -> str:
    """What it asks for; couriers themselves do not know it."""
    return str(msgspec.msgpack.decode(parcel.body, strict=False)["verb"])


def fetch_request(source: str) -> Request:
    return request_of(parceling.fetch(keys_of(source)), is_spread=True)


def deliver_request(some: tuple[Parcel, ...]) -> Request:
    target = keys_of(_name_of(some[0].target))
    return request_of(parceling.deliver(target, some), is_spread=True)


def collect_request(courier: Courier) -> Request:
    """Forget what was delivered, and set aside what was refused."""
    done = [parcel_id for parcel_id, answer in courier.answers if answer == 0]
    refused = [
        {"id": parcel_id, "words": str(answer)}
        for parcel_id, answer in courier.answers
        if answer not in (0, NOT_YET)
    ]
    return request_of(parceling.collect(keys_of(courier.source), done, refused), is_spread=True)


def _name_of(base: str) -> str:
    return base.removeprefix(f"{PREFIX}:")
