"""Does it come to an end? Fresh workers, no more faults: everything that waits must be done."""

from __future__ import annotations

from typing import Any

from tests.model.actors import (
    DONE,
    Call,
    Held,
    Worker,
    advance_request,
    after_reply,
    keys_of,
    settle_request,
)
from tests.model.checks import server_problems
from tests.model.couriers import Courier, collect_request, deliver_request, fetch_request
from tests.model.machine import Machine, Request, Result, request_of
from tests.model.states import State
from tests.model.steps import TICK_MS, sweep_request
from tests.model.view import Queue, View, view_of
from tests.model.violation import Violation
from tests.model.world import Node, World
from toril.protocol import groups, lanes, pausing
from toril.protocol.command import Command

FINISHED = ("completed", "failed")
MOST_TURNS = 12
MOST_ROUNDS = 12


class Drain:
    """Remembers from which states it came to an end."""

    def __init__(self, world: World, machine: Machine) -> None:
        self._world = world
        self._machine = machine
        self._habits = {worker.queue: worker.habits for worker in world.workers}
        self._patience_ms = (70 if world.is_spread else 5) * TICK_MS
        self._good: set[tuple[State, int]] = set()
        self._state: State = ()
        self._clock_ms = 0

    def check(self, node: Node) -> None:
        """Raises `Violation` when something is left."""
        self._state, self._clock_ms = node.state, node.clock_ms
        passed = []
        for turn in range(MOST_TURNS):
            here = (self._state, self._clock_ms)
            view = view_of(self._state, self._world.layout)
            if here in self._good or self._is_over(view):
                self._good.update(passed, [here])
                self._check_strictly(view)
                return
            passed.append(here)
            self._open_and_sweep(view)
            self._clock_ms += self._patience_ms
            self._carry()
            for name in self._habits:
                self._work(Worker(f"z{turn}", name, self._habits[name]))
                self._carry()
        view = view_of(self._state, self._world.layout)
        if not self._is_over(view):
            places = {key: place for key, place in view.places.items() if place not in FINISHED}
            left = [(parcel.source, parcel.verb, parcel.about) for parcel in view.under_way]
            raise Violation(f"it does not come to an end: {places}; {left}")
        self._check_strictly(view)

    def _check_strictly(self, view: View) -> None:
        """Nothing is under way that could excuse anything."""
        problems = list(server_problems(view)) if self._world.is_spread else ()
        if problems:
            raise Violation("at the end: " + "; ".join(problems[:4]))

    def _run(self, request: Request) -> Result:
        result = self._machine.run(self._state, self._clock_ms, request)
        self._state = result.state
        return result

    def _send(self, command: Command[Any]) -> Result:
        return self._run(request_of(command, is_spread=self._world.is_spread))

    def _carry(self) -> None:
        """Honest couriers, until nothing is due."""
        if not self._world.is_spread:
            return
        for _ in range(MOST_ROUNDS):
            view = view_of(self._state, self._world.layout)
            due = [name for name, queue in view.queues.items() if self._is_due(queue)]
            for name in due:
                reply = self._run(fetch_request(name)).reply
                courier = Courier().fetched(name, reply)
                while courier.parcels and not courier.has_delivered:
                    some = courier.next_slice()
                    courier = courier.answered(some, self._run(deliver_request(some)).reply)
                if courier.parcels:
                    self._run(collect_request(courier))
            if not due:
                return

    def _is_due(self, queue: Queue) -> bool:
        return any(at <= self._clock_ms for at in queue.parcels_due.values())

    def _open_and_sweep(self, view: View) -> None:
        # What a program of BullMQ did to a job is seen from where its group is, maybe elsewhere.
        is_unseen = any(key.endswith(":toril:unnoticed") for key in view.keys)
        for name in self._habits:
            queue = view.queues[name]
            if "paused" in queue.meta:
                self._send(next(pausing.resume(keys_of(name))))  # type: ignore[arg-type]
            for lane in queue.lanes_stopped:
                self._send(lanes.resume(keys_of(name), lane))
            for key in queue.expiring:
                self._run(Request("delete", (key,), ()))
            for _ in range(2):
                self._run(sweep_request(name, is_spread=self._world.is_spread))
            is_looked_after = any("x.staged" in group for group in queue.groups.values())
            if is_looked_after or is_unseen:
                self._send(groups.reconcile(keys_of(name), everything=True))
            for group_id, group in queue.groups.items():
                if "x.asks" in group and group["state"] == "ACTIVE":  # somebody decides
                    self._send(groups.cancel(keys_of(name), group_id, request="drain"))

    def _work(self, worker: Worker) -> None:
        """Take and complete until there is nothing to take."""
        call = Call(1, (), 5)
        for _ in range(MOST_ROUNDS):
            worker = after_reply(worker, call, self._run(settle_request(worker, call)).reply)
            if not worker.held:
                return
            for held in worker.held:
                self._advance(worker, held)
            ended = tuple((held, DONE) for held in worker.held)
            call = Call(worker.request + 1, ended, 5)

    def _advance(self, worker: Worker, held: Held) -> None:
        if held.is_advanced:
            return
        request = advance_request(worker, held, self._clock_ms)
        if request is not None:
            self._run(request)

    def _is_over(self, view: View) -> bool:
        if any(queue.parcels for queue in view.queues.values()):
            return False
        for name in self._habits:
            queue = view.queues[name]
            for job_id, place in queue.places.items():
                if place not in FINISHED and not job_id.startswith("repeat:"):
                    return False
            states = {group["state"] for group in queue.groups.values()}
            if states & {"ACTIVE", "COMPENSATING"}:
                return False
        return True
