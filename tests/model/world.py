"""A world: who is there, what has happened before, what may happen, what may go wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from tests.model.actors import FAIL, Worker
from tests.model.couriers import Courier
from tests.model.machine import Request
from tests.model.slots import COMPENSATION, Layout
from tests.model.states import State
from tests.model.view import View
from toril.protocol.command import Command

LOST, GHOST, DEATH, EXPIRY = "lost", "ghost", "death", "expiry"
GIVING_BACK, RENEWAL, CONFIRMATION = "give back", "renewal", "confirmation"
LEAVING = "leaving"
"""A worker ends its job, takes no other and is gone."""

FAULTS = ((LOST, 1), (GHOST, 1), (DEATH, 1), (EXPIRY, 1))
"""How often each may happen: a reply is lost, a request arrives twice, a worker dies, a lock
expires."""


Placed = Callable[[Layout], Command[Any]]
"""A command that depends on where its jobs are."""


class Client(NamedTuple):
    """Something that anybody may do once: a command, made when the state is known."""

    name: str
    make: Callable[[View], Command[Any] | Request | None]
    """A request that is not a command of ours is not sent again when its reply is lost."""
    may_remove: bool = False
    is_silent: bool = False
    """Do jobs change their places without an event that says so?"""


@dataclass(frozen=True)
class World:
    """The initial state is what ``given`` does to an empty server; the clients act in any order."""

    name: str
    queues: tuple[str, ...]
    workers: tuple[Worker, ...]
    given: tuple[Command[Any] | Request | Placed, ...]
    clients: tuple[Client, ...] = ()
    ends: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """How jobs of a name may end, beside well."""
    faults: tuple[tuple[str, int], ...] = FAULTS
    may_remove: bool = False
    """Do jobs vanish by themselves (retention, dead letters)?"""
    starts_idle: bool = False
    """Have the workers taken what there was and popped the marker, so that only a new one wakes?"""
    ticks: int = 3
    """How many seconds may pass."""
    elsewhere: frozenset[str] = frozenset()
    """The jobs that are in the queue of another slot."""
    is_spread: bool = False
    """Is it on a cluster, with each hash tag in a slot of its own?"""
    needs: tuple[str, ...] = ()
    """What couriers must have delivered, and delivered again, for a run to prove anything."""

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.queues, self.elsewhere, self.is_spread)

    @property
    def has_groups(self) -> bool:
        return COMPENSATION in self.queues

    @property
    def names_of_faults(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.faults)

    def with_more_faults(self, more: int) -> World:
        """The same world, in which everything may go wrong so much more often."""
        faults = tuple((name, amount + more) for name, amount in self.faults)
        return replace(self, faults=faults)


def failing(*names: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(names, (FAIL,))


class Node(NamedTuple):
    """A moment of a world: the server, the workers, the clock, and what may still happen."""

    state: State
    workers: tuple[Worker, ...]
    clock_ms: int
    left: tuple[int, ...]
    """How often each fault may still happen."""
    begun: frozenset[str] = frozenset()
    """Members of a group that were handed out and of which nobody has told how they ended."""
    used: int = 0
    """Bits of the clients that have acted."""
    open: tuple[int, Request, bytes] | None = None
    """The client whose reply was lost, what arrives again, and what was answered."""
    couriers: tuple[Courier, ...] = ()
    """Those of a cluster; one that does nothing and one that is dead are the same."""
