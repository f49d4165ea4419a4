"""A group of three and two workers, with everything that can go wrong between two scripts.

Members a and b can be undone, c cannot. The workers take from the queue of the members and from
that of the compensations, and each attempt ends well or badly. At any moment the group may be
cancelled, a worker may die, a reply may get lost (and the same call is sent again), the lock of a
living worker may expire, and somebody may run a completed member again by hand.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterator
from functools import partial
from typing import Any, NamedTuple

import msgspec

from tests.model.explorer import Step, Tape, View
from toril import Compensation, GroupJob
from toril.errors import RefusedError
from toril.protocol import groups, leasing, moving, settling
from toril.protocol.command import Command
from toril.protocol.job import StoredJob, fields_of
from toril.protocol.keys import Keys
from toril.protocol.new_group import new_group
from toril.protocol.settling import Outcome, Settled, Take

PREFIX = "m"
GROUP = "g"
NAMES = "abc"
MAPPED = "ab"
QUEUE = Keys(PREFIX, "q")
UNDO = Keys(PREFIX, "q:compensation")
QUEUES = {"q": QUEUE, "q:compensation": UNDO}
RECORD = f"{QUEUE.base}:groups:{GROUP}"
FINAL = ("COMPLETED", "FAILED", "FAILED_COMPENSATION")

_NOBODY = StoredJob(PREFIX, "q", "none", {})


class Call(NamedTuple):
    """A call of a worker: a take, or the end of a job."""

    queue: str
    request: int
    take: int
    job: str = ""
    token: str = ""
    ends: str = ""


class Worker(NamedTuple):
    """Where a worker is: idle, running a job, or waiting for a reply that got lost."""

    number: int
    life: int = 0
    request: int = 0
    queue: str = ""
    job: str = ""
    token: str = ""
    is_doomed: bool = False
    lost: Call | None = None

    @property
    def name(self) -> str:
        return f"w{self.number}.{self.life}"


class Clients(NamedTuple):
    """Both workers, and how much may still go wrong."""

    workers: tuple[Worker, ...]
    crashes: int
    losses: int
    expiries: int
    cancels: int
    retries: int
    lost_cancel: bool = False
    open: frozenset[str] = frozenset()
    """The members that were begun and of which nobody has told how they ended."""


class GroupUniverse:
    """``order`` is that of the compensations; the numbers say how often each may happen."""

    def __init__(
        self,
        *,
        crashes: int = 0,
        losses: int = 0,
        expiries: int = 0,
        cancels: int = 0,
        retries: int = 0,
        order: str = "parallel",
        workers: int = 2,
    ) -> None:
        self._start = Clients(
            tuple(Worker(number) for number in range(workers)),
            crashes,
            losses,
            expiries,
            cancels,
            retries,
        )
        self._order = order

    def begin(self, tape: Tape) -> Clients:
        jobs = [GroupJob(name, queue_name="q") for name in NAMES]
        group = new_group(
            "order",
            jobs,
            {name: Compensation("undo", attempts=1, backoff=None) for name in MAPPED},
            queue_name=None,
            compensation_queue="{queue}:compensation",
            order=self._order,
            late=True,
            keep=None,
            timeout=None,
        )
        tape.run(groups.create(PREFIX, group, GROUP, [f"j{name}" for name in NAMES]))
        return self._start

    # ------------------------------------------------------------------ what can happen

    def steps(self, view: View, clients: Clients) -> Iterator[Step]:
        for number, worker in enumerate(clients.workers):
            yield from self._steps_of(view, clients, number, worker)
        yield from self._orphans(view, clients)
        if clients.lost_cancel:
            yield Step("cancel again", partial(self._cancel, clients, is_lost=False))
        elif clients.cancels and self._state(view) == "ACTIVE":
            yield Step("cancel", partial(self._cancel, clients, is_lost=False), is_fault=True)
            if clients.losses:
                act = partial(self._cancel, clients, is_lost=True)
                yield Step("cancel, reply lost", act, is_fault=True)
        if clients.retries:
            for job in view.get(QUEUE.completed, {}):
                act = partial(self._retry, clients, job)
                yield Step(f"retry {job}", act, is_fault=True)

    def _steps_of(
        self, view: View, clients: Clients, number: int, worker: Worker
    ) -> Iterator[Step]:
        if worker.lost is not None:
            act = partial(self._call, clients, number, worker.lost)
            yield Step(f"resend by {worker.number}", act)
        for call in self._calls(view, worker):
            what = f"{call.ends or 'take'} {call.job or call.queue} by {worker.number}"
            yield Step(what, partial(self._call, clients, number, call))
            if clients.losses:
                act = partial(self._call, clients, number, call, is_lost=True)
                yield Step(f"{what}, reply lost", act, is_fault=True)
        is_busy = worker.job or worker.lost
        if clients.crashes and is_busy:
            yield Step(f"crash of {number}", partial(self._crash, clients, number), is_fault=True)
        if clients.expiries and worker.job and not worker.lost and _holds(view, worker):
            act = partial(self._expire, clients, worker.queue, worker.job, costs=True)
            yield Step(f"expiry under {number}", act, is_fault=True)

    def _calls(self, view: View, worker: Worker) -> Iterator[Call]:
        if worker.lost is not None:
            return
        request = worker.request + 1
        if not worker.job:
            for name, keys in QUEUES.items():
                if view.get(keys.wait):
                    yield Call(name, request, 1)
            return
        for ends in ("fail",) if worker.is_doomed else ("complete", "fail"):
            yield Call(worker.queue, request, 0, worker.job, worker.token, ends)

    def _orphans(self, view: View, clients: Clients) -> Iterator[Step]:
        """Locks that nobody renews expire, and jobs without a lock are brought back."""
        held = {(worker.queue, worker.token) for worker in clients.workers if worker.token}
        awaited = {
            (worker.lost.queue, f"{worker.name}:{worker.lost.request}")
            for worker in clients.workers
            if worker.lost is not None
        }
        for name, keys in QUEUES.items():
            has_silent = False
            for job in view.get(keys.active, ()):
                token = view.get(f"{keys.job(job)}:lock")
                has_silent = has_silent or token is None
                if token is not None and (name, token) not in held | awaited:
                    yield Step(f"expiry of {job}", partial(self._expire, clients, name, job))
            if has_silent:
                yield Step(f"sweep of {name}", partial(self._sweep, clients, name))

    # ------------------------------------------------------------------ doing it

    def _call(
        self, clients: Clients, number: int, call: Call, tape: Tape, *, is_lost: bool = False
    ) -> Clients:
        worker = clients.workers[number]
        reply = tape.run(self._command(worker, call))
        after = worker._replace(request=call.request, lost=call if is_lost else None)
        if not is_lost:
            if call.ends:
                after = after._replace(queue="", job="", token="", is_doomed=False)
            for *words, job in reply.jobs:
                job_id = job.decode()
                is_doomed = b"defa" in fields_of(words)
                token = f"{worker.name}:{call.request}"
                after = after._replace(
                    queue=call.queue, job=job_id, token=token, is_doomed=is_doomed
                )
        changed = _with_worker(clients, number, after)
        changed = changed._replace(open=_open_after(clients, call, reply))
        return changed._replace(losses=clients.losses - 1) if is_lost else changed

    def _command(self, worker: Worker, call: Call) -> Command[Any]:
        settled = []
        if call.ends:
            settled = [Settled(call.job, call.token, self._outcome(call), _NOBODY)]
        take = Take(count=call.take, token=f"{worker.name}:{call.request}", lock_ms=10**9)
        return settling.settle(
            QUEUES[call.queue], settled, take, flight=worker.name, request=call.request
        )

    def _outcome(self, call: Call) -> Outcome:
        if call.ends == "complete":
            return Outcome(kind="completed", payloads=(f'"result of {call.job}"',))
        return Outcome(kind="failed", details={"attempts": 1}, payloads=("no", "[]"))

    def _crash(self, clients: Clients, number: int, tape: Tape) -> Clients:
        worker = clients.workers[number]
        fresh = Worker(worker.number, worker.life + 1)
        return _with_worker(clients, number, fresh)._replace(crashes=clients.crashes - 1)

    def _expire(
        self, clients: Clients, queue: str, job: str, tape: Tape, *, costs: bool = False
    ) -> Clients:
        tape.delete(f"{QUEUES[queue].job(job)}:lock")
        return clients._replace(expiries=clients.expiries - 1) if costs else clients

    def _sweep(self, clients: Clients, queue: str, tape: Tape) -> Clients:
        keys = QUEUES[queue]
        for _ in range(2):
            tape.delete(keys.stalled_check)
            plan = leasing.sweep(keys, interval_ms=1, max_stalled=1000)
            command = next(plan)
            try:
                while True:
                    assert not isinstance(command, list)
                    command = plan.send(tape.run(command))
            except StopIteration:
                pass
        tape.delete(keys.stalled_check)
        return clients

    def _cancel(self, clients: Clients, tape: Tape, *, is_lost: bool) -> Clients:
        try:
            tape.run(groups.cancel(QUEUE, GROUP, request="r"))
        except RefusedError:
            assert not clients.lost_cancel, "a cancel that was sent again must not be refused"
        if clients.lost_cancel:
            return clients._replace(lost_cancel=False)
        losses = clients.losses - 1 if is_lost else clients.losses
        return clients._replace(cancels=clients.cancels - 1, lost_cancel=is_lost, losses=losses)

    def _retry(self, clients: Clients, job: str, tape: Tape) -> Clients:
        tape.run(moving.retry(QUEUE, job, call=f"{job} {clients.retries}", force=True))
        return clients._replace(retries=clients.retries - 1)

    # ------------------------------------------------------------------ what matters

    def essence(self, view: View, clients: Clients) -> Hashable:
        """Which worker holds a job does not matter, nor how often anybody asked."""
        matters = []
        for key, value in view.items():
            if key.endswith((":lock", ":toril:replies", ":id", ":marker", ":meta", ":stalled")):
                continue
            if key.endswith(":events"):
                value = [row["event"] for row in value if row["event"].startswith("group:")]
            elif isinstance(value, dict):
                value = sorted(_field(value, name) for name in value if name != "ats")
            matters.append((key, json.dumps(value)))
        workers = sorted(_worker_essence(view, worker) for worker in clients.workers)
        known = {worker.name for worker in clients.workers}
        orphans = sorted(
            _reply_essence(view, queue, flight)
            for queue in QUEUES
            for flight in view.get(f"{QUEUES[queue].base}:toril:replies", {})
            if flight not in known
        )
        locks = sorted(key for key in view if key.endswith(":lock"))
        left = clients._replace(workers=())
        return tuple(sorted(matters)), tuple(workers), tuple(orphans), tuple(locks), left

    def _state(self, view: View) -> str:
        return str(view[RECORD]["state"])

    # ------------------------------------------------------------------ what must hold

    def check(self, view: View, clients: Clients) -> Iterator[str]:
        record, members = view[RECORD], view[f"{RECORD}:jobs"]
        statuses = Counter(members.values())
        total = int(record["totalJobs"])
        ends = ("completed", "failed", "cancelled")
        counted = {name: int(record[f"{name}Count"]) for name in ends}
        for name, count in counted.items():
            if count != statuses[name]:
                yield f"{name}Count is {count}, and {statuses[name]} members are {name}"
        if total != statuses["pending"] + sum(counted.values()) or total != len(members):
            yield f"{total} members are not {dict(statuses)}"

        compensations = view.get(f"{RECORD}:compensations", {})
        running = int(record.get("x.running", 0))
        if running != sum(status == "pending" for status in compensations.values()):
            yield f"x.running is {running} of {compensations}"
        undo = view.get(f"{RECORD}:undo", [])
        if len(set(undo)) != len(undo):
            yield f"something is to be undone twice: {undo}"
        for key in compensations:
            number = int(key.rpartition("-c")[2])
            member = f"j{NAMES[number]}"
            may_be_done = members[QUEUE.job(member)] == "completed" or member in clients.open
            if not may_be_done or str(number) in undo:
                yield f"{key} undoes a member that has not completed, or is undone again"

        told = [row["event"] for row in view[QUEUE.events] if row["event"].startswith("group:")]
        if max(Counter(told).values(), default=0) > 1 or told != sorted(told, key=_EVENTS.index):
            yield f"the events are {told}"
        yield from self._check_final(record["state"], statuses, running, undo, told)
        yield from _check_places(view)
        for worker in clients.workers:
            runs = worker.queue == "q" and worker.job and _holds(view, worker)
            if runs and members[QUEUE.job(worker.job)] == "cancelled":
                yield f"{worker.job} is cancelled while worker {worker.number} runs it"

    def _check_final(
        self,
        state: str,
        statuses: Counter[str],
        running: int,
        undo: list[str],
        told: list[str],
    ) -> Iterator[str]:
        if state not in FINAL:
            if told not in ([], ["group:compensating"]):
                yield f"{told} was told in state {state}"
            return
        if statuses["pending"] or running or (undo and state != "COMPLETED"):
            yield f"{state} while {statuses['pending']} run, {running} undo and {undo} wait"
        wanted = "group:completed" if state == "COMPLETED" else "group:failed"
        if told[-1:] != [wanted]:
            yield f"{state} was told as {told}"

    def check_end(self, view: View, clients: Clients) -> Iterator[str]:
        state = self._state(view)
        if state not in FINAL:
            yield f"it ends as {state}"
        members = view[f"{RECORD}:jobs"]
        done = [n for n, name in enumerate(NAMES) if members[QUEUE.job(f"j{name}")] == "completed"]
        may_be_done = [n for n, name in enumerate(NAMES) if n in done or f"j{name}" in clients.open]
        if state == "COMPLETED":
            if len(done) != len(NAMES):
                yield "COMPLETED although not all are"
            return
        compensations = view.get(f"{RECORD}:compensations", {})
        undone = {int(key.rpartition("-c")[2]): status for key, status in compensations.items()}
        if sorted(undone) != [n for n in may_be_done if NAMES[n] in MAPPED]:
            yield f"{may_be_done} may be done and {sorted(undone)} were undone"
        for number in undone:
            job = json.loads(view[UNDO.job(f"{GROUP}-c{number}")]["data"])
            value = f"result of j{NAMES[number]}" if number in done else None
            if job["originalReturnValue"] != value:
                yield f"{number} is undone with {job}"
        has_failed = "failed" in undone.values()
        if (state == "FAILED_COMPENSATION") != has_failed:
            yield f"{state}, and the compensations ended as {undone}"


def _field(values: dict[str, str], name: str) -> tuple[str, Any]:
    """What matters of ``x.lost`` is how many starts ago it was."""
    if name == "x.lost":
        return name, int(values["ats"]) - int(values[name])
    return name, values[name]


def _open_after(clients: Clients, call: Call, reply: Any) -> frozenset[str]:
    """A member that is handed out may be run; what is told of a run that took place counts."""
    if call.queue != "q":
        return clients.open
    begun = {job.decode() for *words, job in reply.jobs if b"defa" not in fields_of(words)}
    is_told = call.ends and reply.results == [0] and not _runs_nothing(clients, call)
    return (clients.open - ({call.job} if is_told else set())) | begun


def _runs_nothing(clients: Clients, call: Call) -> bool:
    """A doomed job is failed by its worker without being run."""
    return any(worker.is_doomed for worker in clients.workers if worker.token == call.token)


_EVENTS = ["group:compensating", "group:completed", "group:failed"]


def _with_worker(clients: Clients, number: int, worker: Worker) -> Clients:
    workers = list(clients.workers)
    workers[number] = worker
    return clients._replace(workers=tuple(workers))


def _holds(view: View, worker: Worker) -> bool:
    lock = f"{QUEUES[worker.queue].job(worker.job)}:lock"
    return view.get(lock) == worker.token


def _worker_essence(view: View, worker: Worker) -> tuple[Any, ...]:
    lost: tuple[Any, ...] = ()
    if worker.lost is not None:
        lost = (worker.lost.queue, worker.lost.job, worker.lost.ends)
    holds = bool(worker.job) and _holds(view, worker)
    replies = tuple(_reply_essence(view, queue, worker.name) for queue in QUEUES)
    return worker.queue, worker.job, worker.is_doomed, holds, lost, replies


def _reply_essence(view: View, queue: str, flight: str) -> tuple[Any, ...]:
    """What the last reply of a flight handed out: a sweep asks for that, and a resend."""
    packed = view.get(f"{QUEUES[queue].base}:toril:replies", {}).get(flight)
    if packed is None:
        return (queue,)
    reply = msgspec.msgpack.decode(packed.encode("utf-8", "surrogateescape"), strict=False)
    return queue, tuple(reply["taken"]), tuple(reply["results"])


def _check_places(view: View) -> Iterator[str]:
    """I1: every job is in exactly one place."""
    for keys in QUEUES.values():
        places = ("wait", "active", "completed", "failed", "delayed", "prioritized")
        found = Counter(job for place in places for job in view.get(getattr(keys, place), ()))
        for job, times in found.items():
            if times > 1 or keys.job(job) not in view:
                yield f"job {job} is in {times} places"
