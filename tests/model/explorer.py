"""Explores every order in which the clients of a world can act, faults included.

From a moment every enabled step is taken; moments that were seen are not expanded again, nor those
in which less may go wrong than in one that was seen. The faults are steps like any other, each a
few times: a reply is lost, a request arrives twice, a worker dies, a lock expires.
"""

from __future__ import annotations

import gc
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.model.actors import Call, after_reply, keys_of, settle_request
from tests.model.checks import state_problems, step_problems
from tests.model.couriers import Courier, hand_over
from tests.model.draining import Drain
from tests.model.machine import START_MS, Machine, Request, Result, ScriptError, request_of
from tests.model.states import EMPTY, State
from tests.model.steps import Step, steps_of
from tests.model.view import View, view_of
from tests.model.violation import Violation
from tests.model.world import DEATH, GHOST, LOST, Node, Placed, World
from toril.protocol.command import Command

COURIERS = 2
EAGER = 0.5
"""How often the exploration goes on from a delivery: else it would rarely come to a second one."""
AT_ONCE = 48
"""How many moments are expanded in one message."""
AT_ONCE_IN_TWINS = 4
"""A member elsewhere has come and ended after a dozen steps: few at once lead further."""


@dataclass
class Findings:
    """What an exploration saw."""

    expansions: int = 0
    moments: int = 0
    ends: int = 0
    drained: int = 0
    is_exhausted: bool = False
    steps: Counter[str] = field(default_factory=Counter)


class _Planned(NamedTuple):
    node: Node
    view: View
    steps: list[Step]


def explore(
    world: World,
    machine: Machine,
    *,
    most: int,
    seed: int = 0,
    drain_share: float = 0.02,
    is_deep: bool = False,
) -> Findings:
    """Expand ``most`` steps, or all there are; raises `Violation` at the first thing that must not
    be. From ``drain_share`` of the moments, and from every end, fresh workers must finish.

    ``is_deep`` goes on from the moments found last, and now and then from a random one, for worlds
    that are too large to be exhausted. What is expanded depends on nothing but the arguments.
    """
    gc.disable()  # what is found is kept, and nothing here refers to itself
    try:
        return _Exploration(world, machine, seed, drain_share, is_deep).run(most)
    finally:
        gc.enable()


class _Exploration:
    def __init__(
        self, world: World, machine: Machine, seed: int, drain_share: float, is_deep: bool
    ) -> None:
        self._world = world
        self._machine = machine
        self._dice = random.Random(seed)
        self._drain_share = drain_share
        self._is_deep = is_deep
        self._at_once = AT_ONCE_IN_TWINS if world.is_spread and is_deep else AT_ONCE
        self._drain = Drain(world, machine)
        self._seen = _Seen()
        self._waiting: deque[Node] = deque()
        self._origin: dict[int, tuple[int, str]] = {}
        self._findings = Findings()
        names = enumerate(world.names_of_faults)
        self._calm = [index for index, name in names if name in (LOST, GHOST, DEATH)]
        self._full = tuple(amount for _, amount in world.faults)

    def run(self, most: int) -> Findings:
        findings = self._findings
        start = self._beginning()
        self._seen.is_new(start)
        self._waiting.append(start)
        # One message is always under way, so that the server works while its last answer is read.
        ahead = self._ask()
        while ahead:
            under_way, ahead = ahead, []
            if findings.expansions + sum(len(planned.steps) for planned in under_way) < most:
                ahead = self._ask()
            for planned in under_way:
                self._take_in(planned)
            if not ahead and findings.expansions < most:
                ahead = self._ask()
            self._drain_some(under_way)
        assert self._machine.holds(start.state), "steps were not taken back"
        findings.is_exhausted = not self._waiting
        return findings

    def _beginning(self) -> Node:
        state: State = EMPTY
        try:
            for command in self._world.given:
                state = self._given(state, self._request_of(command))
        except ScriptError as error:
            raise Violation(f"{self._world.name}: it cannot even begin: {error}") from error
        couriers = (Courier(),) * (COURIERS if self._world.is_spread else 0)
        start = Node(state, self._world.workers, START_MS, self._full, couriers=couriers)
        return self._all_idle(start) if self._world.starts_idle else start

    def _request_of(self, given: Command[Any] | Request | Placed) -> Request:
        if isinstance(given, Request):
            return given
        command = given if isinstance(given, Command) else given(self._world.layout)
        return request_of(command, is_spread=self._world.is_spread)

    def _given(self, state: State, request: Request) -> State:
        """What has happened before the world begins is checked like anything else."""
        result = self._machine.run(state, START_MS, request)
        before, after = (view_of(one, self._world.layout) for one in (state, result.state))
        step = Step(request.script, request, lambda reply: Node(state, (), 0, ()))
        try:
            problems = list(step_problems(before, after, result, step, START_MS))
        except (LookupError, ValueError, TypeError) as error:
            problems = [f"what is there cannot be read: {error!r}"]
        if problems:
            raise Violation(f"{self._world.name}: before it begins: {problems[0]}")
        return result.state

    def _all_idle(self, start: Node) -> Node:
        state, workers = start.state, []
        for worker in start.workers:
            call = Call(1, (), 1)
            result = self._machine.run(state, START_MS, settle_request(worker, call))
            workers.append(after_reply(worker, call, result.reply))
            marker = Request("delete", (keys_of(worker.queue).marker,), ())
            state = self._machine.run(result.state, START_MS, marker).state
        return start._replace(state=state, workers=tuple(workers))

    def _ask(self) -> list[_Planned]:
        """Send the next moments to the server."""
        found = []
        for _ in range(min(self._at_once, len(self._waiting))):
            node = self._next()
            view = view_of(node.state, self._world.layout)
            found.append(_Planned(node, view, list(steps_of(self._world, node, view))))
        self._machine.ask(
            [
                (node.state, [(node.clock_ms, step.request) for step in steps])
                for node, _, steps in found
            ]
        )
        return found

    def _next(self) -> Node:
        waiting = self._waiting
        if not self._is_deep:
            return waiting.popleft()
        if self._dice.random() < 0.05:
            other = self._dice.randrange(len(waiting))
            waiting[other], waiting[-1] = waiting[-1], waiting[other]
        return waiting.pop()

    def _take_in(self, planned: _Planned) -> None:
        node, before, steps = planned
        here = hash(node)
        self._findings.moments += 1
        found = []
        try:
            results = self._machine.answer()
            for step, result in zip(steps, results, strict=True):
                if isinstance(result, ScriptError):
                    raise result
                after = _forgetful(self._world, step.then(result.reply), result.state)
                if result.handed and step.is_heard:
                    couriers = hand_over(after.couriers, step.request.keys[0], result.handed)
                    self._findings.steps["a reply brings parcels"] += couriers != after.couriers
                    after = after._replace(couriers=couriers)
                self._findings.expansions += 1
                self._findings.steps[step.name] += 1
                is_new = self._seen.is_new(after)
                if is_new or result.events or step.is_deed:
                    self._check(node, before, step, result, after, is_new)
                if is_new:
                    self._origin.setdefault(hash(after), (here, step.name))
                    found.append((after, bool(step.verbs)))
        except (Violation, ScriptError) as error:
            raise self._violation(node, error) from error
        if self._is_deep:
            self._dice.shuffle(found)
            if self._world.is_spread and self._dice.random() < EAGER:
                found.sort(key=_is_delivered)
        self._waiting.extend(after for after, _ in found)

    def _check(
        self, node: Node, before: View, step: Step, result: Result, after: Node, is_new: bool
    ) -> None:
        view = view_of(result.state, self._world.layout)
        step.may_remove = step.may_remove or self._world.may_remove
        try:
            problems = []
            if (act := step.act) not in result.checked:
                result.checked.add(act)
                problems += step_problems(before, view, result, step, node.clock_ms)
            if is_new:
                is_calm = all(after.left[index] == self._full[index] for index in self._calm)
                problems += state_problems(view, after, is_calm=is_calm)
        except (LookupError, ValueError, TypeError) as error:
            raise Violation(f"{step.name}: what is there cannot be read: {error!r}") from error
        if problems:
            raise Violation(f"{step.name}: " + "; ".join(problems[:4]))

    def _drain_some(self, planned: list[_Planned]) -> None:
        for node, _, steps in planned:
            if not steps:
                self._findings.ends += 1
            if steps and self._dice.random() >= self._drain_share:
                continue
            try:
                self._drain.check(node)
            except (Violation, ScriptError) as error:
                raise self._violation(node, error) from error
            self._findings.drained += 1

    def _violation(self, node: Node, error: Exception) -> Violation:
        names: list[str] = []
        here = hash(node)
        while here in self._origin:
            here, name = self._origin[here]
            names.append(name)
        return Violation(f"{self._world.name}: {error}\nafter {' | '.join(names[::-1])}")


def _is_delivered(found: tuple[Node, bool]) -> bool:
    return found[1]


class _Seen:
    """Which moments were seen, and how much could still go wrong in each."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[tuple[int, ...], ...]] = {}

    def is_new(self, node: Node) -> bool:
        left = node.left
        key = hash(node._replace(left=()))
        known = self._left.get(key)
        if known is None:
            self._left[key] = (left,)
            return True
        for other in known:
            if all(a >= b for a, b in zip(other, left, strict=True)):
                return False
        self._left[key] = (*known, left)
        return True


def _forgetful(world: World, node: Node, state: State) -> Node:
    """Without what cannot matter any more: nobody repeats a request when no ghost is left."""
    workers = node.workers
    names = world.names_of_faults
    if GHOST not in names or not node.left[names.index(GHOST)]:
        workers = tuple(
            worker if worker.last is None else worker._replace(last=None) for worker in workers
        )
    return node._replace(state=state, workers=workers)
