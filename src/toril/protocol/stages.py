"""Who waits for whom in a group: the graph of its members, checked before anything is sent.

Members are told by their place in the group.  Members that wait for the same others share a gate:
it opens when all of these have completed.  What a graph says twice is said once: whoever waits for
``charge``, which waits for ``reserve``, need not wait for ``reserve``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from toril.errors import GroupValidationError

MOST_EDGES = 10_000
"""So that whatever a group does next is found in a few milliseconds."""


class Member(Protocol):
    """What the graph knows of a member."""

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str | None: ...
    @property
    def after(self) -> Sequence[str]: ...
    @property
    def pivot(self) -> bool: ...
    @property
    def inputs(self) -> Mapping[str, str]: ...
    @property
    def is_signal(self) -> bool: ...


class Gate(msgspec.Struct, frozen=True):
    """Opens for ``members`` when all of ``after`` have completed."""

    after: tuple[int, ...]
    members: tuple[int, ...]


class Graph(msgspec.Struct, frozen=True):
    """The order of a group's members, by their places."""

    labels: tuple[str | None, ...]
    """What each is called; None for those that share a key."""
    after: tuple[tuple[int, ...], ...]
    """For whom each waits, without those for whom it waits anyway."""
    ancestors: tuple[int, ...]
    """All that come before each, as bits."""
    gates: tuple[Gate, ...]
    inputs: tuple[dict[str, int], ...]
    """Whose result goes into its data, and under which name."""
    pivot: int | None = None
    has_signals: bool = False

    @property
    def is_staged(self) -> bool:
        return bool(self.gates) or self.pivot is not None or self.has_signals

    def comes_before(self, one: int, other: int) -> bool:
        return bool(self.ancestors[other] >> one & 1)

    def gates_behind(self, place: int) -> list[int]:
        """The gates that wait for this member, counted from 1."""
        return [number for number, gate in enumerate(self.gates, 1) if place in gate.after]


def graph_of(members: Sequence[Member]) -> Graph:
    """The graph that the members' ``after`` describe; raises ``GroupValidationError``."""
    labels = _labels(members)
    places = {label: place for place, label in enumerate(labels) if label is not None}
    named = [
        [_place_of(after, member, members, places, "waits for") for after in member.after]
        for member in members
    ]
    for place, before in enumerate(named):
        if place in before:
            raise GroupValidationError(f"member {members[place].name!r} waits for itself")
    ancestors = _ancestors(members, named)
    after = tuple(_reduced(before, ancestors) for before in named)
    by_gate: dict[tuple[int, ...], list[int]] = {}
    for place, preceding in enumerate(after):
        if preceding:
            by_gate.setdefault(preceding, []).append(place)
    gates = tuple(Gate(before, tuple(waiting)) for before, waiting in by_gate.items())
    _refuse_too_many_edges(gates)
    inputs = tuple(_inputs(place, members, places, ancestors) for place in range(len(members)))
    pivots = [place for place, member in enumerate(members) if member.pivot]
    if pivots:
        _check_pivot(pivots, members, ancestors)
    return Graph(
        labels=labels,
        after=after,
        ancestors=ancestors,
        gates=gates,
        inputs=inputs,
        pivot=pivots[0] if pivots else None,
        has_signals=any(member.is_signal for member in members),
    )


def _labels(members: Sequence[Member]) -> tuple[str | None, ...]:
    """By what each member is known: its key, or its name; None if several share that."""
    keys = [member.key or member.name for member in members]
    seen: dict[str, int] = {}
    for place, key in enumerate(keys):
        if key in seen:
            first = members[seen[key]]
            if members[place].key or first.key:
                raise GroupValidationError(
                    f"members {first.name!r} and {members[place].name!r} have the key {key!r};"
                    f" give each a key of its own"
                )
        seen.setdefault(key, place)
    shared = {key for place, key in enumerate(keys) if seen[key] != place}
    return tuple(None if key in shared else key for key in keys)


def _place_of(
    key: str, member: Member, members: Sequence[Member], places: Mapping[str, int], does: str
) -> int:
    if key in places:
        return places[key]
    if any(key == other.name for other in members):
        raise GroupValidationError(
            f"member {member.name!r} {does} {key!r}, and several members have that name;"
            f" give them keys: GroupJob({key!r}, key=…)"
        )
    known = ", ".join(repr(other) for other in list(places)[:20])
    raise GroupValidationError(
        f"member {member.name!r} {does} {key!r}, which is not a member of the group;"
        f" its members are {known}"
    )


def _ancestors(members: Sequence[Member], named: Sequence[Sequence[int]]) -> tuple[int, ...]:
    found = [0] * len(members)
    behind: list[list[int]] = [[] for _ in members]
    left = [len(set(before)) for before in named]
    for place, before in enumerate(named):
        for other in set(before):
            behind[other].append(place)
    ready = [place for place, count in enumerate(left) if count == 0]
    done = 0
    while ready:
        place = ready.pop()
        done += 1
        for other in behind[place]:
            found[other] |= found[place] | 1 << place
            left[other] -= 1
            if left[other] == 0:
                ready.append(other)
    if done < len(members):
        raise GroupValidationError(f"members wait for each other: {_cycle(members, named, left)}")
    return tuple(found)


def _cycle(members: Sequence[Member], named: Sequence[Sequence[int]], left: Sequence[int]) -> str:
    place = next(place for place, count in enumerate(left) if count)
    walked: list[int] = []
    while place not in walked:
        walked.append(place)
        place = next(other for other in named[place] if left[other])
    circle = [*walked[walked.index(place) :], place]
    return " after ".join(repr(members[one].name) for one in circle)


def _reduced(before: Sequence[int], ancestors: Sequence[int]) -> tuple[int, ...]:
    implied = 0
    for other in before:
        implied |= ancestors[other]
    return tuple(sorted({other for other in before if not implied >> other & 1}))


def _refuse_too_many_edges(gates: Sequence[Gate]) -> None:
    edges = sum(len(gate.after) + len(gate.members) for gate in gates)
    if edges > MOST_EDGES:
        raise GroupValidationError(
            f"the members of the group wait for each other in {edges} ways, and {MOST_EDGES} is the"
            f" most; put one member between them"
        )


def _inputs(
    place: int,
    members: Sequence[Member],
    places: Mapping[str, int],
    ancestors: Sequence[int],
) -> dict[str, int]:
    member = members[place]
    found: dict[str, int] = {}
    for name, key in member.inputs.items():
        source = _place_of(key, member, members, places, "takes the result of")
        if not ancestors[place] >> source & 1:
            raise GroupValidationError(
                f"member {member.name!r} takes the result of {key!r}, which may not have run"
                f" before it; add {key!r} to its after"
            )
        found[name] = source
    return found


def _check_pivot(
    pivots: Sequence[int], members: Sequence[Member], ancestors: Sequence[int]
) -> None:
    if len(pivots) > 1:
        first, second = (members[place].name for place in pivots[:2])
        raise GroupValidationError(
            f"members {first!r} and {second!r} are both pivots; after the first nothing"
            f" can be undone anyway"
        )
    (pivot,) = pivots
    for place, member in enumerate(members):
        if place == pivot or ancestors[place] >> pivot & 1 or ancestors[pivot] >> place & 1:
            continue
        raise GroupValidationError(
            f"member {member.name!r} is neither before nor after the pivot"
            f" {members[pivot].name!r}; if it failed at the same time,"
            f" it would be unclear whether to undo"
        )
