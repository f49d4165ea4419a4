"""T1 and T4: events tell of every change of place; jobs come and go when a step says so."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from tests.model.checks.names import FINISHED, PLACE_EVENTS, WAITING
from tests.model.steps import Step
from tests.model.view import View


class Events:
    """The events of one step."""

    def __init__(self, written: list[list[bytes]]) -> None:
        self.all: list[tuple[str, dict[bytes, bytes]]] = []
        self.of_jobs: dict[tuple[str, str], list[bytes]] = defaultdict(list)
        for key, *flat in written:
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            queue = key.decode().removesuffix(":events").partition(":")[2]
            self.all.append((queue, fields))
            if b"jobId" in fields:
                self.of_jobs[queue, fields[b"jobId"].decode()].append(fields[b"event"])

    def names(self, queue: str) -> list[bytes]:
        return [fields[b"event"] for name, fields in self.all if name == queue]

    def of(self, queue: str, job_id: str) -> list[bytes]:
        return self.of_jobs.get((queue, job_id), [])

    def places_of(self, queue: str, job_id: str) -> list[bytes]:
        return [event for event in self.of(queue, job_id) if event in PLACE_EVENTS]


UNDOING = {"cancelMembers", "remove"}
ANEW = ("retryCompensation", "retryGroup")
"""What makes a job anew that failed, under the same id."""


def event_problems(
    before: View, after: View, events: Events, step: Step, changed: list[tuple[str, str]]
) -> Iterator[str]:
    for name, job_id in changed:
        old, new = before.places.get((name, job_id)), after.places.get((name, job_id))
        names, said = events.of(name, job_id), events.places_of(name, job_id)
        where = f"{name}: {job_id}"
        yield from (f"T1: {where} {problem}" for problem in _in_order(old, said))
        if said and new not in PLACE_EVENTS[said[-1]]:
            yield f"T1: {where} is in {new} and the events say {said}"
        is_retained = old in FINISHED and new is None and step.call is not None
        is_same_state = {old, new} == {"wait", "paused"}
        if not said and old != new and not (step.is_silent or is_retained or is_same_state):
            yield f"T1: {where} went from {old} to {new} and nobody was told"
        # A job that arrives together with the news that it is not wanted any more.
        has_come_and_gone = said[-1:] == [b"removed"] and bool(UNDOING & step.verbs)
        is_news = said != [b"removed"] and not has_come_and_gone
        if said and old == new and old in (*FINISHED, None) and is_news:
            yield f"T1: {where} is in {new} as before and the events say {said}"
        for event in said:
            if said.count(event) > 1:
                yield f"T1: {where}: {said}"
        is_exhausted = b"failed" in said and old == "active" and _is_last(before, name, job_id)
        if is_exhausted != (b"retries-exhausted" in names):
            yield f"T1: {where}: no attempt is left {is_exhausted}, and {names} was told"
        has_come = old is None and new is not None
        # A dead letter comes from another queue, where `deadLettered` says so; here it waits.
        is_letter = "x.letter" in after.queues[name].jobs.get(job_id, ())
        is_told = b"added" in names or (is_letter and b"waiting" in names)
        is_anew = step.request.script in ANEW or "removeMember" in step.verbs
        if (has_come and not is_told) or (b"added" in names and old is not None and not is_anew):
            yield f"T4: {where} from {old} to {new}: {names}"
        if old is not None and new is None and not step.may_remove:
            yield f"T4: {where} is gone from {old}"
        if b"removed" in names and new is not None and not is_anew:
            yield f"T4: {where} was removed and is in {new}"


def _is_last(before: View, name: str, job_id: str) -> bool:
    job = before.queues[name].jobs[job_id]
    found = re.search(r'"attempts":(\d+)', job.get("opts", ""))
    attempts = int(found.group(1)) if found else 1
    return int(job.get("atm", 0)) + 1 >= max(attempts, 1)


def _in_order(old: str | None, said: list[bytes]) -> Iterator[str]:
    """A job that is taken was waiting before, and the events say when it began to."""
    is_waiting = old in WAITING
    for event in said:
        if event == b"active" and not is_waiting:
            yield f"was in {old} and the events say {said}"
        is_waiting = event == b"waiting"
