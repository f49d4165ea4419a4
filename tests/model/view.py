"""A state as the checks see it: the queues, where each job is, and what is written about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from tests.model.machine import decode

LISTS = ("wait", "paused", "active")
ZSETS = ("prioritized", "delayed", "waiting-children", "completed", "failed")
LANE_PLACES = {"lanes:waiting": "wait", "lanes:delayed": "delayed"}
_NAMES = {
    *LISTS,
    *ZSETS,
    *("pc", "id", "marker", "stalled", "limiter", "meta", "repeat", "groups"),
}


def pairs(flat: list[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


@dataclass
class Queue:
    """One queue; ``order`` is how its jobs stand in each place, and where each one is."""

    base: str
    order: dict[str, list[str]] = field(default_factory=dict)
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    jobs: dict[str, dict[str, str]] = field(default_factory=dict)
    locks: dict[str, str] = field(default_factory=dict)
    parts: set[str] = field(default_factory=set)
    stalled: list[str] = field(default_factory=list)
    marker: dict[str, float] = field(default_factory=dict)
    meta: dict[str, str] = field(default_factory=dict)
    counter: int = 0
    lanes_held: dict[str, list[str]] = field(default_factory=dict)
    lanes_ready: list[str] = field(default_factory=list)
    lanes_index: list[str] = field(default_factory=list)
    lanes_delayed: set[str] = field(default_factory=set)
    lanes_aside: set[str] = field(default_factory=set)
    schedulers: dict[str, float] = field(default_factory=dict)
    deduplication: dict[str, str] = field(default_factory=dict)
    next_jobs: dict[str, dict[str, str]] = field(default_factory=dict)
    groups: dict[str, dict[str, str]] = field(default_factory=dict)
    group_parts: dict[str, dict[str, str]] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def put(self, job_id: str, place: str) -> None:
        if job_id in self.places:
            self.problems.append(f"job {job_id} is in {self.places[job_id]} and in {place}")
        self.places[job_id] = place
        self.order.setdefault(place, []).append(job_id)


class View:
    """All queues of a state, by name."""

    def __init__(self, state: bytes, prefix: str, names: tuple[str, ...]) -> None:
        self.keys = decode(state)
        self.queues = {name: Queue(f"{prefix}:{name}") for name in names}
        self.unknown: list[str] = []
        longest_first = sorted(self.queues.values(), key=lambda queue: -len(queue.base))
        for key, (kind, content) in self.keys.items():
            for queue in longest_first:
                if key.startswith(queue.base + ":"):
                    _read(queue, key[len(queue.base) + 1 :], kind, content)
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


def _read(queue: Queue, rest: str, kind: str, content: list[str]) -> None:
    if rest in LISTS:
        for job_id in content:
            queue.put(job_id, rest)
    elif rest in ZSETS:
        for score, job_id in zip(content[::2], content[1::2], strict=True):
            queue.put(job_id, rest)
            queue.scores.setdefault(rest, {})[job_id] = float(score)
    elif rest in LANE_PLACES:
        for score, member in zip(content[::2], content[1::2], strict=True):
            job_id = member[member.index(" ") + 34 :]
            queue.put(job_id, LANE_PLACES[rest])
            if rest == "lanes:delayed":
                queue.lanes_delayed.add(member)
                queue.scores.setdefault("delayed", {})[job_id] = float(score) * 4096
    elif rest == "marker":
        queue.marker = {m: float(s) for s, m in zip(content[::2], content[1::2], strict=True)}
    elif rest == "stalled":
        queue.stalled = content
    elif rest == "meta":
        queue.meta = pairs(content)
    elif rest == "id":
        queue.counter = int(content[0])
    elif rest == "repeat":
        queue.schedulers = {m: float(s) for s, m in zip(content[::2], content[1::2], strict=True)}
    elif rest == "lanes:held":
        queue.lanes_held = {
            lane: [one for one in value.split("\n")[1:] if one]
            for lane, value in pairs(content).items()
        }
    elif rest == "lanes:ready":
        queue.lanes_ready = content[1::2]
    elif rest == "lanes:aside":
        queue.lanes_aside = set(content[1::2])
    elif rest == "lanes:index":
        queue.lanes_index = content[1::2]
    elif rest.startswith("de:"):
        queue.deduplication[rest[3:]] = content[0]
    elif rest.startswith("dn:"):
        queue.next_jobs[rest[3:]] = pairs(content)
    elif rest.startswith("groups:"):
        _, group_id, *part = rest.split(":", 2)
        if part:
            if kind == "hash":
                queue.group_parts[f"{group_id}:{part[0]}"] = pairs(content)
        else:
            queue.groups[group_id] = pairs(content)
    elif rest.endswith(":lock"):
        queue.locks[rest[:-5]] = content[0]
    elif kind == "hash" and (
        ":" not in rest or (rest.startswith("repeat:") and rest.count(":") == 2)
    ):
        queue.jobs[rest] = pairs(content)
    elif rest not in _NAMES and not rest.startswith(
        ("toril:", "lanes", "repeat:", "metrics:", "groups")
    ):
        queue.parts.add(rest)
