"""A state as the checks see it: the queues, where each job is, and what is written about it."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from functools import cached_property, lru_cache

from tests.model.parcels import Parcel, parcel_of
from tests.model.slots import Layout
from tests.model.states import Cell, State

PREFIX = "p"
DORMANT = 1000000000000000
"""Added to the score of a lane in the index of which nothing waits and nothing runs."""
LISTS = ("wait", "paused", "active")
ZSETS = ("prioritized", "delayed", "waiting-children", "completed", "failed")
_FIXED = {
    *("pc", "groups", "lanes:diverting"),
    *("metrics:completed", "metrics:failed", "metrics:deadLettered"),
}
_ITERATION = re.compile(r"repeat:[^:]+:\d+")
_OTHERS = ("toril:", "lanes:rate:", "repeat:", "metrics:")
_REMEMBERED = ("toril:adds:", "toril:call:", "toril:replies", "toril:group-bell")
"""What is remembered of calls ends long after they are sent again for the last time."""


class Queue:
    """One queue; ``order`` is how its jobs stand in each place, ``places`` where each one is."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.order: dict[str, list[str]] = {}
        self.places: dict[str, str] = {}
        self.scores: dict[str, dict[str, float]] = {}
        self.jobs: dict[str, dict[str, str]] = {}
        self.is_limited = False
        self.locks: dict[str, str] = {}
        self.expiring: list[str] = []
        self.parts: list[str] = []
        self.stalled: list[str] = []
        self.marker: dict[str, float] = {}
        self.meta: dict[str, str] = {}
        self.counter = 0
        self.lanes_held: dict[str, list[str]] = {}
        self.lanes_ready: list[str] = []
        self.lanes_index: list[str] = []
        self.lanes_aside: set[str] = set()
        self.lanes_delayed: set[str] = set()
        self.lanes_jobs: set[str] = set()
        self.lanes_started: set[str] = set()
        """Those in lanes that go before all others: they had their turn."""
        self.kept: set[str] = set()
        self.lanes_dormant: set[str] = set()
        self.lanes_later: dict[str, float] = {}
        self.lanes_stopped: list[str] = []
        self.schedulers: dict[str, float] = {}
        self.deduplication: dict[str, str] = {}
        self.next_jobs: dict[str, dict[str, str]] = {}
        self.groups: dict[str, dict[str, str]] = {}
        self.group_parts: dict[str, Cell] = {}
        self.parcels: dict[str, Parcel] = {}
        self.parcels_due: dict[str, float] = {}
        self.in_transit: dict[str, str] = {}
        self.received: dict[str, float] = {}
        self.refused: dict[str, str] = {}
        self.problems: list[str] = []

    def put(self, job_id: str, place: str) -> None:
        if job_id in self.places:
            self.problems.append(f"job {job_id} is in {self.places[job_id]} and in {place}")
        self.places[job_id] = place
        if place in self.order:
            self.order[place].append(job_id)
        else:
            self.order[place] = [job_id]

    def lane_of(self, job_id: str) -> str | None:
        """The lane of a job, if it has one."""
        field = self.jobs.get(job_id, {}).get("x.lane")
        return None if field is None else field[32:]


class View:
    """All queues of a state, by name."""

    def __init__(self, state: State, layout: Layout) -> None:
        self.layout = layout
        names = layout.queues
        self.keys = {cell.key: cell for cell in state}
        self.queues = {name: Queue(f"{PREFIX}:{name}") for name in names}
        self.unknown: list[str] = []
        self.problems: list[str] | None = None
        """What is wrong with it, when it has been looked at."""
        longest_first = sorted(names, key=len, reverse=True)
        heads = [(f"{PREFIX}:{name}:", self.queues[name]) for name in longest_first]
        for key, cell in self.keys.items():
            for head, queue in heads:
                if key.startswith(head):
                    rest = key[len(head) :]
                    _READERS.get(rest, _read_other)(queue, rest, cell)
                    break
            else:
                self.unknown.append(key)

    @cached_property
    def places(self) -> dict[tuple[str, str], str]:
        """(queue, job) -> place."""
        return {
            (name, job_id): place
            for name, queue in self.queues.items()
            for job_id, place in queue.places.items()
        }

    @cached_property
    def under_way(self) -> list[Parcel]:
        """The parcels that their targets have not received, of all queues."""
        received = {f"{PREFIX}:{name}": queue.received for name, queue in self.queues.items()}
        return [
            parcel
            for queue in self.queues.values()
            for parcel in queue.parcels.values()
            if parcel.id not in received.get(parcel.target, ())
        ]

    @cached_property
    def _told(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for parcel in self.under_way:
            for key in parcel.about:
                found[key].add(parcel.verb)
        return found

    def told(self, key: str) -> set[str]:
        """What is on its way to or about the job with this key, as the verbs of parcels."""
        return self._told.get(key, set())

    def place_of(self, key: str) -> str | None:
        """Where the job with this key is."""
        for queue in self.queues.values():
            head = queue.base + ":"
            if key.startswith(head) and key[len(head) :] in queue.places:
                return queue.places[key[len(head) :]]
        return None


@lru_cache(maxsize=4096)
def view_of(state: State, layout: Layout) -> View:
    """What is found is mostly gone on from soon."""
    return View(state, layout)


Reader = Callable[[Queue, str, Cell], None]


def _read_list(queue: Queue, rest: str, cell: Cell) -> None:
    for job_id in cell.content:
        queue.put(job_id, rest)


def _read_zset(queue: Queue, rest: str, cell: Cell) -> None:
    for job_id in cell.scores:
        queue.put(job_id, rest)
    queue.scores.setdefault(rest, {}).update(cell.scores)


def _lane_job(member: str) -> str:
    return member[member.index(" ") + 34 :]


def _read_lane_job(queue: Queue, member: str) -> None:
    queue.lanes_jobs.add(_lane_job(member))
    if member[member.index(" ") + 1] == "-":
        queue.lanes_started.add(_lane_job(member))


def _read_lane_waiting(queue: Queue, rest: str, cell: Cell) -> None:
    for member in cell.scores:
        queue.put(_lane_job(member), "wait")
        _read_lane_job(queue, member)


def _read_lane_delayed(queue: Queue, rest: str, cell: Cell) -> None:
    for member, score in cell.scores.items():
        queue.put(_lane_job(member), "delayed")
        queue.lanes_delayed.add(member)
        _read_lane_job(queue, member)
        queue.scores.setdefault("delayed", {})[_lane_job(member)] = score * 4096


def _read_lanes_index(queue: Queue, rest: str, cell: Cell) -> None:
    queue.lanes_index = list(cell.scores)
    queue.lanes_dormant = {lane for lane, since in cell.scores.items() if since >= DORMANT}


def _read_lanes_aside(queue: Queue, rest: str, cell: Cell) -> None:
    queue.lanes_aside = set(cell.scores)


def _read_kept(queue: Queue, rest: str, cell: Cell) -> None:
    queue.kept = set(cell.content) - {"groups", "compensation"}


def _read_lanes_held(queue: Queue, rest: str, cell: Cell) -> None:
    queue.lanes_held = {
        lane: [one for one in value.split("\n")[1:] if one] for lane, value in cell.pairs.items()
    }


def _setter(name: str, part: str) -> Reader:
    def read(queue: Queue, rest: str, cell: Cell) -> None:
        setattr(queue, name, getattr(cell, part))

    return read


def _read_lane_names(name: str) -> Reader:
    def read(queue: Queue, rest: str, cell: Cell) -> None:
        setattr(queue, name, list(cell.scores))

    return read


def _read_counter(queue: Queue, rest: str, cell: Cell) -> None:
    queue.counter = int(cell.content[0])


def _read_parcels(queue: Queue, rest: str, cell: Cell) -> None:
    queue.parcels = {
        parcel_id: parcel_of(parcel_id, queue.base, text) for parcel_id, text in cell.pairs.items()
    }


def _read_nothing(queue: Queue, rest: str, cell: Cell) -> None:
    pass


def _read_lanes_settings(queue: Queue, rest: str, cell: Cell) -> None:
    queue.lanes_stopped = [
        lane
        for lane, text in cell.pairs.items()
        if json.loads(text).get("paused") or json.loads(text).get("halted")
    ]


def _read_limiter(queue: Queue, rest: str, cell: Cell) -> None:
    queue.is_limited = True
    if cell.has_end:
        queue.expiring.append(cell.key)


_READERS: dict[str, Reader] = {
    **dict.fromkeys(LISTS, _read_list),
    **dict.fromkeys(ZSETS, _read_zset),
    **dict.fromkeys(_FIXED, _read_nothing),
    "lanes:waiting": _read_lane_waiting,
    "lanes:delayed": _read_lane_delayed,
    "lanes:held": _read_lanes_held,
    "de": _read_kept,
    "lanes:ready": _read_lane_names("lanes_ready"),
    "lanes:index": _read_lanes_index,
    "lanes:aside": _read_lanes_aside,
    "lanes:later": _setter("lanes_later", "scores"),
    "marker": _setter("marker", "scores"),
    "stalled": _setter("stalled", "content"),
    "meta": _setter("meta", "pairs"),
    "repeat": _setter("schedulers", "scores"),
    "id": _read_counter,
    "toril:parcels": _read_parcels,
    "toril:parcels-due": _setter("parcels_due", "scores"),
    "toril:in-transit": _setter("in_transit", "pairs"),
    "toril:received": _setter("received", "scores"),
    "toril:refused": _setter("refused", "pairs"),
    "limiter": _read_limiter,
    "lanes:settings": _read_lanes_settings,
}


def _read_other(queue: Queue, rest: str, cell: Cell) -> None:
    if cell.has_end and not rest.startswith(_REMEMBERED):
        queue.expiring.append(cell.key)
    if rest.endswith(":lock"):
        queue.locks[rest[:-5]] = cell.content[0]
    elif cell.kind == "hash" and (":" not in rest or _ITERATION.fullmatch(rest)):
        queue.jobs[rest] = cell.pairs
    elif rest.startswith("de:"):
        queue.deduplication[rest[3:]] = cell.content[0]
    elif rest.startswith("dn:"):
        queue.next_jobs[rest[3:]] = cell.pairs
    elif rest.startswith("groups:"):
        _, group_id, *part = rest.split(":", 2)
        if part:
            queue.group_parts[f"{group_id}:{part[0]}"] = cell
        else:
            queue.groups[group_id] = cell.pairs
    elif not rest.startswith(_OTHERS):
        queue.parts.append(rest)
