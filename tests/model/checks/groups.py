"""S6: a group's counts are those of its members; its state fits them; who completed is undone."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.model.checks.events import Events
from tests.model.checks.names import FINISHED, GROUP_EVENTS, is_forced_elsewhere
from tests.model.steps import Step
from tests.model.view import Queue, View
from tests.model.world import Node

ENDS = ("completed", "failed", "cancelled")
_JOB_IN_PLAN = re.compile(r":j(\d+)")
OVER = ("COMPLETED", "FAILED", "FAILED_COMPENSATION")
MAPPED = 2
"""So many members can be undone, the first ones."""
NEWS = {"addMember", "memberEnded", "memberRetried", "memberSought"}
"""Parcels after which a job is where its group thinks it is, or the group knows better."""
_MEMBER = re.compile(r":(?:j(\d+)|g-s(\d+))$")


def _number_of(key: str) -> int:
    """The place of a member in its group: job j1 is the first, signal g-s1 the second."""
    job, signal = _MEMBER.findall(key)[0]
    return int(job) - 1 if job else int(signal)


def group_problems(view: View, queue: Queue) -> Iterator[str]:
    indexes = ("open", "ended", "asking", "staged")
    for part in ("groups", *(f"toril:groups-{index}" for index in indexes)):
        cell = view.keys.get(f"{queue.base}:{part}")
        for group_id in cell.scores if cell is not None else ():
            if group_id not in queue.groups:
                yield f"S6: {part} names {group_id}, which does not exist"
    for group_id, record in queue.groups.items():
        group = _Group(view, queue, group_id, record)
        yield from (f"S6: {problem}" for problem in group.problems())


def group_run_problems(view: View, queue: Queue, node: Node) -> Iterator[str]:
    for group_id, record in queue.groups.items():
        group = _Group(view, queue, group_id, record)
        yield from (f"S6: {problem}" for problem in group.run_problems(node))


class _Group:
    def __init__(self, view: View, queue: Queue, group_id: str, record: dict[str, str]) -> None:
        self._view = view
        self._queue = queue
        self._id = group_id
        self.record = record
        self.state = record["state"]
        self.members = self._part("jobs")
        self.undoings = self._part("compensations")
        plan = self._part("plan")
        total = int(record["totalJobs"])
        # A member that completed and was forced to run again has a second number for its first run.
        self.repeated = {
            number: str(int(_JOB_IN_PLAN.findall(plan[number])[0]) - 1)
            for number in plan
            if number.isdecimal() and int(number) >= total
        }
        self.undo = self._numbers("undo")
        self.tried = self._numbers("tried")
        self.live = [key for key, status in self.members.items() if status == "pending"]
        self.planned = [key for key, status in self.members.items() if status == "planned"]
        self.awaited = [key for key, status in self.members.items() if status == "awaited"]
        self.is_staged = "x.staged" in record
        self.is_side_by_side = record["name"] in ("joined", "beside")
        # Its time limit has passed, and what is under way goes on.
        self.is_overdue = "x.overdue" in record and self.state == "FAILED_COMPENSATION"
        self.running = [key for key, status in self.undoings.items() if status == "pending"]
        self.asks = "x.asks" in record
        # What BullMQ took, ended or removed; the group learns of it when somebody looks.
        self.unnoticed = {
            f"{one.base}:{job_id}"
            for one in view.queues.values()
            if (noted := view.keys.get(f"{one.base}:toril:unnoticed")) is not None
            for job_id in noted.content
        }

    def member(self, number: int) -> str:
        """The key of the job with this number, wherever it is; the first is j1."""
        return next(key for key in self.members if key.endswith(f":j{number}"))

    def before(self, number: int) -> tuple[int, ...]:
        """Those for whom a member of a staged group waits, directly or not."""
        if self.is_side_by_side:
            return (0, 1) if self.record["name"] == "joined" and number == 2 else ()
        return tuple(range(number))

    @property
    def mapped(self) -> int:
        if self.record["name"] == "beside":
            return MAPPED
        if len(self.members) < MAPPED + 1 or "g-s1" in str(self.members):
            has_none = "x.pivot" in self.record or "g-s0" in str(self.members)
            return 0 if has_none else 1 if self.is_staged else MAPPED
        return int(self.record.get("x.pivot", MAPPED))

    @property
    def is_past_pivot(self) -> bool:
        pivot = self.record.get("x.pivot")
        if pivot is None:
            return False
        return self.members[self.member(int(pivot) + 1)] == "completed"

    def _part(self, name: str) -> dict[str, str]:
        cell = self._queue.group_parts.get(f"{self._id}:{name}")
        return {} if cell is None else cell.pairs

    def _numbers(self, name: str) -> list[str]:
        cell = self._queue.group_parts.get(f"{self._id}:{name}")
        return [] if cell is None else cell.content

    def as_members(self, numbers: list[str]) -> list[str]:
        return [self.repeated.get(number, number) for number in numbers]

    def problems(self) -> Iterator[str]:
        yield from self._counts()
        yield from self._fits()
        yield from self._lists()
        yield from self._places()
        if self.is_staged:
            yield from self._stages()

    def run_problems(self, node: Node) -> Iterator[str]:
        """What depends on who has run what."""
        for worker in node.workers:
            for held in worker.held:
                there = self._view.queues[worker.queue]
                is_cancelled = self.members.get(f"{there.base}:{held.job_id}") == "cancelled"
                if is_cancelled and there.locks.get(held.job_id) == held.token:
                    yield f"{held.job_id} is cancelled while {worker.name} runs it"
        if self.state in ("FAILED", "FAILED_COMPENSATION") and not self.is_overdue:
            yield from self._undone(node.begun)

    def _counts(self) -> Iterator[str]:
        statuses = Counter(self.members.values())
        counted = {end: int(self.record.get(f"{end}Count", 0)) for end in ENDS}
        for end, count in counted.items():
            if count != statuses[end]:
                yield f"group counts {count} {end} of {self.members}"
        total = int(self.record["totalJobs"])
        not_ended = len(self.live) + len(self.planned) + len(self.awaited)
        if total != not_ended + sum(counted.values()) or total != len(self.members):
            yield f"{total} members are not {dict(statuses)}"
        if int(self.record.get("x.running", 0)) != len(self.running):
            yield f"group counts {self.record.get('x.running')} of {self.undoings} under way"
        broken = sum(status in ("failed", "cancelled") for status in self.undoings.values())
        if int(self.record.get("x.broken", 0)) != broken:
            yield f"group counts {self.record.get('x.broken')} broken of {self.undoings}"

    def _fits(self) -> Iterator[str]:
        has_failed = "failed" in self.members.values() or "cancelled" in self.members.values()
        if self.state in ("ACTIVE", "COMPLETED", "BLOCKED") and self.undoings:
            yield f"group is {self.state} and is being undone: {self.undoings}"
        if self.state == "COMPLETED" and set(self.members.values()) != {"completed"}:
            yield f"group is COMPLETED with {self.members}"
        if self.state == "ACTIVE" and (not (self.live or self.awaited) or has_failed):
            yield f"group is ACTIVE with {self.members}"
        has_plans = self.planned or self.awaited
        if self.state == "COMPENSATING" and has_plans:
            yield f"group is COMPENSATING with {self.members}"
        goes_on = (self.running or self.live) and not self.is_overdue
        if self.state in OVER and (goes_on or has_plans):
            yield f"group is {self.state} with {self.members} and {self.undoings}"
        is_stopped = self.state == "FAILED_COMPENSATION" and self.record.get("x.order") == "reverse"
        if self.state in OVER and self.undo and not is_stopped and not self.is_overdue:
            yield f"group is {self.state} and {self.undo} wait to be undone"
        if self.state == "COMPENSATING" and not self.live and not self.running:
            yield "group is COMPENSATING and nothing of it is left"
        if self.state not in ("ACTIVE", "COMPLETED") and "x.reason" not in self.record:
            yield f"group is {self.state} and nobody knows why"
        if len(set(self.undo)) != len(self.undo):
            yield f"something is to be undone twice: {self.undo}"
        is_line = self.record.get("x.order") == "reverse" and not self.is_side_by_side
        if is_line and len(self.running) > 1 and not self.repeated:
            yield f"{self.running} are undone at once and not in reverse order"

    def _lists(self) -> Iterator[str]:
        base = self._queue.base
        listed, opened, ended = (
            self._view.keys.get(f"{base}:{name}")
            for name in ("groups", "toril:groups-open", "toril:groups-ended")
        )
        if listed is None or self._id not in listed.scores:
            yield "group is not in the index"
        if (opened is not None and self._id in opened.scores) != (self.state not in OVER):
            yield f"group is {self.state}; it counts as open: {opened}"
        staged = self._view.keys.get(f"{base}:toril:groups-staged")
        is_open = self.is_staged and self.state not in OVER
        if (staged is not None and self._id in staged.scores) != is_open:
            yield f"group is {self.state}; it is looked after as a staged one: {staged}"
        asking = self._view.keys.get(f"{base}:toril:groups-asking")
        is_broken = self.state in ("FAILED_COMPENSATION", "BLOCKED")
        if (asking is not None and self._id in asking.scores) != (is_broken or self.asks):
            yield f"group is {self.state}; it asks for a person: {asking}"
        is_closed = self.state in ("COMPLETED", "FAILED")
        if (ended is not None and self._id in ended.scores) != is_closed:
            yield f"group is {self.state}; it counts as ended: {ended}"

    def _stages(self) -> Iterator[str]:
        """Each waits for those before it, and is undone before they are."""
        status_of = {_number_of(key): status for key, status in self.members.items()}
        undoings = self.as_members([key.rpartition("-c")[2] for key in self.undoings])
        undo_of = dict(zip(map(int, undoings), self.undoings.values(), strict=True))
        again = set(map(int, self.repeated.values()))
        for number, status in status_of.items():
            before = {one: status_of[one] for one in self.before(number) if one not in again}
            if status == "planned" and before and set(before.values()) == {"completed"}:
                yield f"{number} is planned, and before it are {before}"
            has_come = status in ("pending", "awaited", "completed")
            if has_come and set(before.values()) - {"completed"}:
                yield f"{number} is {status}, and before it are {before}"
        for number in undo_of:
            behind = [one for one in status_of if number in self.before(one)]
            later = [one for one in self.as_members(self.undo) if int(one) in behind]
            later += [str(one) for one in behind if undo_of.get(one, "completed") != "completed"]
            if later:
                yield f"{number} is undone before {later}"
            if any(status_of[one] == "pending" for one in behind):
                yield f"{number} is undone while a later one runs: {status_of}"
        limits = {int(number): float(at) for number, at in self._part("signals").items()}
        index = self._view.keys.get(f"{self._queue.base}:toril:groups-staged")
        due = index.scores.get(self._id) if index is not None else None
        for number, at in limits.items():
            if status_of[number] != "awaited":
                yield f"{number} is {status_of[number]} and has a time limit"
            elif due is None or due > at:
                yield f"{number} is awaited until {at}, and the group is looked at {due}"
        if self.is_past_pivot and (self.undoings or self.undo):
            yield f"the pivot has completed, and {self.undoings} are undone"
        pivot = int(self.record.get("x.pivot", 0))
        # It waited to run again when the group was cancelled, and nobody knows how it had ended.
        was_lost = self.record.get("x.reason") == "nobody knows how it ended"
        ways = {"failed", "cancelled"} if was_lost else {"failed"}
        if self.state == "BLOCKED" and not self.is_past_pivot and status_of[pivot] not in ways:
            yield f"group is BLOCKED before its pivot: {status_of}"
        if self.state == "ACTIVE" and "x.reason" in self.record:
            yield f"group is ACTIVE again, and says that {self.record['x.reason']}"
        if self.state == "ACTIVE" and {"failed", "cancelled"} & set(status_of.values()):
            yield f"group is ACTIVE with {status_of}"
        if any(status == "planned" for status in status_of.values()) and self.state in OVER:
            yield f"group is {self.state} with {status_of}"

    def _places(self) -> Iterator[str]:
        for key, status in self.undoings.items():
            place = self._view.place_of(key)
            # Brought back by another tool it waits, and its group learns of it when it is taken.
            is_under_way = place is not None and place not in FINISHED
            is_told = bool(self._view.told(key) & NEWS)
            if (
                (status == "pending") != is_under_way
                and (status, place) != ("failed", "wait")
                and not is_told
            ):
                yield f"compensation {key} is {status} and in {place}"
            if status in FINISHED and place in FINISHED and status != place and not is_told:
                yield f"compensation {key} {place}, and its group says that it {status}"
            number = key.rpartition("-c")[2]
            if number in self.repeated:
                continue
            member = self.member(int(number) + 1)
            if self.members[member] == "pending" or number in self.undo:
                yield f"{key} undoes {member}, which is {self.members[member]}"
        for key, status in self.members.items():
            place = self._view.place_of(key)
            is_gone = place is None or place in FINISHED
            is_known = key in self.unnoticed or bool(self._view.told(key) & NEWS)
            if status == "pending" and is_gone and not is_known:
                yield f"member {key} is pending and in {place}"
            if status in ("planned", "awaited") and place is not None:
                yield f"member {key} is {status} and in {place}"
            # Brought back by another tool it waits, and its group learns of it when it is taken.
            is_back = place in ("active", "completed") and not is_known
            if self.state == "BLOCKED" and status == "failed" and is_back:
                yield f"member {key} blocks its group and is in {place}"
            if status == "cancelled" and place is not None:
                yield f"member {key} is cancelled and in {place}"

    def _undone(self, begun: frozenset[str]) -> Iterator[str]:
        """Every member that may have done its work and can be undone was, once."""
        wanted = {
            f"{self._id}-c{_number_of(key)}"
            for key, status in self.members.items()
            if (status == "completed" or key.rpartition(":")[2] in begun)
            and _number_of(key) < self.mapped
        } | {
            f"{self._id}-c{number}"
            for number, member in self.repeated.items()
            if int(member) < self.mapped
        }
        wanted -= {f"{self._id}-c{number}" for number in self.undo}
        # Of what BullMQ ran and what is gone nobody may know whether it did anything.
        open_ends = {f"{self._id}-c{_number_of(key)}" for key in self.unnoticed}
        if (wanted ^ {key.rpartition(":")[2] for key in self.undoings}) - open_ends:
            yield f"group is {self.state}; {wanted} are to be undone and {self.undoings} were"
        is_broken = "failed" in self.undoings.values() or "cancelled" in self.undoings.values()
        is_resolved = self.state == "FAILED" and "x.note" in self.record
        if is_broken != (self.state == "FAILED_COMPENSATION" or is_resolved):
            yield f"group is {self.state} with {self.undoings}"
        if len(self.tried) != len(self.undoings):
            yield f"{self.undoings} were undone, and {self.tried} were tried"
        for key in self.undoings:
            job = self._view.keys.get(key)
            undone = key.rpartition("-c")[2]
            number = int(self.repeated.get(undone, undone)) + 1
            if job is None:
                continue
            data = json.loads(job.pairs["data"])
            member = self.member(number)
            is_done = undone in self.repeated or self.members[member] == "completed"
            if data["originalReturnValue"] != (f"result of j{number}" if is_done else None):
                yield f"{key} undoes with {data}"


def _undo_order(before: View, after: View, name: str, group_id: str) -> Iterator[str]:
    """Undone backwards is the last first; else in the order in which the members completed."""
    was, now = (
        _Group(view, view.queues[name], group_id, view.queues[name].groups[group_id])
        for view in (before, after)
    )
    if now.is_past_pivot:  # what came before is never undone
        return
    if now.is_staged and now.repeated:  # by the graph, and no longer by the order of completion
        return
    done = now.as_members(now.undo)[: len(was.undo)]
    if now.state == "ACTIVE" and done != was.as_members(was.undo):
        yield f"{was.undo} completed and is {now.undo} now"
    if len(now.repeated) != len(was.repeated):
        return
    newly = now.tried[len(was.tried) :]
    is_reverse = now.record.get("x.order") == "reverse"
    in_order = now.undo + newly[::-1] if is_reverse else newly + now.undo
    if now.state != "COMPLETED" and in_order[: len(was.undo)] != was.undo:
        yield f"{was.undo} were to be undone first, and {in_order} are"
    tried = [number for number in now.tried if number in was.undo and number not in now.undo]
    wanted = [number for number in was.undo if number in tried]
    if now.record.get("x.order") == "reverse":
        wanted = was.undo[len(was.undo) - len(tried) :][::-1]
    if tried != wanted:
        yield f"{was.undo} are to be undone and {tried} were tried"


def _removed(before: View, after: View, name: str, group_id: str) -> Iterator[str]:
    """A member that ended without its group noticing has ended so, also when it is removed."""
    was, now = (
        _Group(view, view.queues[name], group_id, view.queues[name].groups[group_id])
        for view in (before, after)
    )
    for key in was.live:
        place, status = before.place_of(key), now.members.get(key)
        is_gone = after.place_of(key) is None
        if place in FINISHED and is_gone and status not in ("pending", place):
            yield f"{key} had {place} and is {status}"


def group_step_problems(
    before: View, after: View, events: Events, step: Step, reply: Any
) -> Iterator[str]:
    for name, queue in after.queues.items():
        told = [event for event in events.names(name) if event.startswith(b"group:")]
        wanted = []
        for group_id, group in queue.groups.items():
            if group_id in before.queues[name].groups:
                problems = (
                    *_undo_order(before, after, name, group_id),
                    *_removed(before, after, name, group_id),
                )
                yield from (f"T7: {name}: {problem}" for problem in problems)
            old = before.queues[name].groups.get(group_id, group)["state"]
            new = group["state"]
            is_cancelled = step.request.script == "cancelGroup" and reply == b"ACTIVE"
            if is_cancelled and not step.is_repeated and new == "ACTIVE":
                yield f"T7: {name}: the group was cancelled and is ACTIVE"
            if old == "ACTIVE" and new not in ("ACTIVE", "COMPLETED", "BLOCKED"):
                now = _Group(after, queue, group_id, group)
                for key in now.live:
                    is_left = key in now.unnoticed or "cancelMembers" in after.told(key)
                    if after.place_of(key) != "active" and not is_left:
                        yield f"T7: {name}: the group is {new} and {key} was not cancelled"
            if old == "ACTIVE" and new.startswith("FAILED") and len(told) > 1:
                wanted.append(b"group:compensating")
            is_resolved = step.request.script == "resolveGroup" and old != new
            if is_resolved and old in ("BLOCKED", "FAILED_COMPENSATION"):
                wanted.append(b"group:resolved")
            if old == "FAILED_COMPENSATION" and is_resolved:
                pass
            elif old == "FAILED_COMPENSATION" and new == "COMPENSATING":
                wanted.append(b"group:retrying")
            elif old == "BLOCKED" and new in ("ACTIVE", "COMPLETED"):
                wanted += [event for event in told if event == b"group:retrying"]
                wanted += [GROUP_EVENTS[new]] if new == "COMPLETED" else []
            elif old != new:
                wanted.append(GROUP_EVENTS[new])
        if before.queues[name].groups.keys() - queue.groups.keys():  # over and forgotten
            wanted = [*wanted, *told[-1:]]
        if told != wanted:
            yield f"T7: {name}: {wanted} has happened and {told} was told"
        is_new = queue.groups.keys() - before.queues[name].groups.keys()
        if is_new and (step.is_repeated or step.name.startswith("start it again")):
            yield f"T7: {name}: {is_new} had ended and was forgotten, and was started again"
        yield from (f"T7: {name}: {problem}" for problem in _stranded(before, after, name, events))


def _stranded(before: View, after: View, name: str, events: Events) -> Iterator[str]:
    """A member whose group is over or being undone is handed out only if its retry was forced."""
    for (where, job_id), told in events.of_jobs.items():
        job = before.queues[name].jobs.get(job_id, {})
        key, _, kind = job.get("x.group", "").rpartition(":")
        if where != name or b"active" not in told or not key or kind.startswith("c"):
            continue
        if after.queues[name].locks.get(job_id) == "node":  # BullMQ knows of no groups
            continue
        cell = before.keys.get(key)
        state = "forgotten" if cell is None else cell.pairs["state"]
        if (
            state not in ("ACTIVE", "BLOCKED")
            and "x.forced" not in job
            and not is_forced_elsewhere(job)
            and "defa" not in after.queues[name].jobs[job_id]
            and "cancelMembers" not in before.told(f"{before.queues[name].base}:{job_id}")
        ):
            yield f"{job_id} was handed out, and its group is {state}"
