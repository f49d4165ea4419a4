"""Explores every order in which the clients of a universe can act, faults included.

From a state every enabled step is taken; states that were seen are not expanded again. The faults
are steps like any other, each with a budget: a reply is lost, a request arrives twice, a worker
dies, a lock expires.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.model.actors import (
    DONE,
    FAIL,
    FRESH,
    GIVE_BACK,
    LOCK_MS,
    POPPED,
    PREFIX,
    Call,
    Held,
    Worker,
    advance_request,
    after_reply,
    keys_of,
    settle_request,
)
from tests.model.checks import FINISHED, state_problems, step_problems
from tests.model.machine import EMPTY, START_MS, Machine, Request, ScriptError, request_of
from tests.model.view import View
from toril.protocol import lanes, leasing, pausing
from toril.protocol.command import Command

SWEEP_EVERY_MS = 30_000
TICK_MS = 1000


class Client(NamedTuple):
    """Something that anybody may do once: a command, made when the state is known."""

    name: str
    make: Callable[[View], Command[Any] | None]
    may_remove: bool = False
    is_silent: bool = False


@dataclass(frozen=True)
class Universe:
    """Who is there, what has happened before, what may happen, and how often it may go wrong."""

    name: str
    queues: tuple[str, ...]
    workers: tuple[Worker, ...]
    given: tuple[Command[Any], ...]
    clients: tuple[Client, ...] = ()
    failing: tuple[str, ...] = ()
    """Names of jobs that may fail."""
    budget: tuple[tuple[str, int], ...] = (
        ("lost", 1),
        ("ghost", 1),
        ("death", 1),
        ("expiry", 1),
        ("give back", 0),
        ("renewal", 0),
    )
    may_remove: bool = False
    """Do jobs vanish by themselves (retention, dead letters)?"""
    ticks: int = 3


class Node(NamedTuple):
    """A state of the world: the server's, the workers', the clock, and what may still happen."""

    state: bytes
    workers: tuple[Worker, ...]
    clock_ms: int
    budget: tuple[int, ...]
    used: int
    """Bits of the clients that have acted."""
    open: tuple[int, Request] | None = None
    """The client whose reply was lost, and what it will send again."""


@dataclass
class Step:
    """One thing that can happen in a state."""

    name: str
    request: Request
    then: Callable[[Any], Node]
    """The node after it, but for the state, given the reply."""
    call: Call | None = None
    worker: Worker | None = None
    may_remove: bool = False
    is_silent: bool = False
    is_repeated: bool = False
    held: str = ""
    is_front: bool = False
    """Does what comes back stand before the others?"""
    is_many: bool = False
    """May jobs come in for several reasons at once?"""
    clock_ms: int = 0


class Violation(Exception):
    """Something that must not be; says how it came about."""


@dataclass
class Findings:
    """What an exploration saw."""

    expansions: int = 0
    states: int = 0
    ends: int = 0
    drained: int = 0
    is_exhausted: bool = False
    steps: Counter[str] = field(default_factory=Counter)


_NOTHING = Request("nothing", (), ())


def explore(
    universe: Universe,
    machine: Machine,
    *,
    most: int,
    seconds: float = math.inf,
    seed: int = 0,
    drain_share: float = 0.02,
    is_deep: bool = False,
) -> Findings:
    """Expand up to ``most`` steps within ``seconds``; raises `Violation` at the first thing that
    must not be.

    ``is_deep`` goes on from random known states instead of the oldest one, for universes that are
    too large to be exhausted.
    """
    dice = random.Random(seed)
    findings = Findings()
    try:
        start = _beginning(universe, machine)
    except ScriptError as error:
        raise Violation(f"{universe.name}: it cannot even begin: {error}") from error
    seen = {hash(start)}
    origin: dict[int, tuple[int, str]] = {}
    waiting: deque[Node] = deque([start])
    end = time.monotonic() + seconds
    while waiting:
        if findings.expansions >= most or time.monotonic() > end:
            return findings
        if is_deep and dice.random() < 0.05:
            waiting.rotate(dice.randrange(len(waiting)))
        node = waiting.pop() if is_deep else waiting.popleft()
        findings.states += 1
        before = View(node.state, PREFIX, universe.queues)
        steps = list(_steps(universe, node, before))
        if not steps:
            findings.ends += 1
        here = hash(node)
        found: list[Node] = []
        try:
            # Steps that turn the clock run at another time, so each has its own call.
            for step in steps:
                findings.steps[step.name.partition(":")[0]] += 1
            results = machine.run(
                node.state, node.clock_ms, [step.request for step in steps if not step.clock_ms]
            )
            at = iter(results)
            for step in steps:
                if step.clock_ms:
                    (result,) = machine.run(node.state, step.clock_ms, [step.request])
                else:
                    result = next(at)
                after_node = _forgetful(universe, step.then(result.reply), result.state)
                findings.expansions += 1
                key = hash(after_node)
                is_new = key not in seen
                if is_new or result.events:
                    _check(universe, node, before, step, result, after_node)
                if is_new:
                    seen.add(key)
                    origin[key] = (here, step.name)
                    found.append(after_node)
            if is_deep:
                dice.shuffle(found)
            waiting.extend(found)
        except (Violation, ScriptError) as error:
            raise Violation(
                f"{universe.name}: {error}\nafter {' | '.join(_path(here, origin))}"
            ) from error
        if not steps or dice.random() < drain_share:
            try:
                _drain(universe, machine, node)
            except (Violation, ScriptError) as error:
                raise Violation(
                    f"{universe.name}: {error}\nafter {' | '.join(_path(here, origin))}"
                ) from error
            findings.drained += 1
    findings.is_exhausted = True
    return findings


def _forgetful(universe: Universe, node: Node, state: bytes) -> Node:
    """Without what cannot matter any more: nobody repeats a request when no ghost is left."""
    workers = node.workers
    if not dict(zip((name for name, _ in universe.budget), node.budget, strict=True)).get("ghost"):
        workers = tuple(worker._replace(last=None) for worker in workers)
    return node._replace(state=state, workers=workers)


def _path(here: int, origin: dict[int, tuple[int, str]]) -> list[str]:
    names = []
    while here in origin:
        here, name = origin[here]
        names.append(name)
    return names[::-1]


def _check(
    universe: Universe, node: Node, before: View, step: Step, result: Any, after_node: Node
) -> None:
    after = View(result.state, PREFIX, universe.queues)
    step.may_remove = step.may_remove or universe.may_remove
    clock_ms = step.clock_ms or node.clock_ms
    problems = list(step_problems(before, after, result.events, step, result.reply, clock_ms))
    full = dict(universe.budget)
    names = [name for name, _ in universe.budget]
    left = dict(zip(names, after_node.budget, strict=True))
    is_calm = all(left[name] == full[name] for name in ("lost", "death", "ghost") if name in full)
    problems += state_problems(after, after_node.workers, is_calm=is_calm)
    if problems:
        raise Violation(f"{step.name}: " + "; ".join(problems[:4]))


def _beginning(universe: Universe, machine: Machine) -> Node:
    state = EMPTY
    for command in universe.given:
        (result,) = machine.run(state, START_MS, [request_of(command)])
        state = result.state
    budget = tuple(amount for _, amount in universe.budget)
    return Node(state, universe.workers, START_MS, budget, 0)


# ---------------------------------------------------------------------------- what may happen


def _steps(universe: Universe, node: Node, view: View) -> Iterator[Step]:
    names = [name for name, _ in universe.budget]
    left = dict(zip(names, node.budget, strict=True))

    def spend(name: str) -> tuple[int, ...]:
        return tuple(amount - (one == name) for one, amount in zip(names, node.budget, strict=True))

    for index, worker in enumerate(node.workers):
        yield from _worker_steps(universe, node, view, index, worker, left, spend)
    yield from _server_steps(universe, node, view, left, spend)
    yield from _client_steps(universe, node, view, left, spend)


def _worker_steps(
    universe: Universe,
    node: Node,
    view: View,
    index: int,
    worker: Worker,
    left: dict[str, int],
    spend: Callable[[str], tuple[int, ...]],
) -> Iterator[Step]:
    def put(changed: Worker, **others: Any) -> Node:
        workers = (*node.workers[:index], changed, *node.workers[index + 1 :])
        return node._replace(workers=workers, **others)

    def calling(name: str, call: Call, *, is_repeated: bool = False) -> Iterator[Step]:
        request = settle_request(worker, call)
        name = f"{worker.name} {name}"
        yield Step(
            name,
            request,
            lambda reply: put(after_reply(worker, call, reply)),
            call,
            worker,
            is_repeated=is_repeated,
        )
        if left.get("lost"):
            yield Step(
                f"{name}, reply lost",
                request,
                lambda reply: put(
                    worker._replace(pending=call, request=call.request), budget=spend("lost")
                ),
                call,
                worker,
                is_repeated=is_repeated,
            )

    following = worker.request + 1
    if worker.pending is not None:
        yield from calling("asks again", worker.pending, is_repeated=True)
    elif worker.held:
        held = worker.held[0]
        if not held.is_advanced:
            yield from _advancing(node, worker, held, put, left, spend)
        else:
            kinds = [DONE]
            if any(held.words[i + 1] in _bytes(universe.failing) for i in _names(held)):
                kinds.append(FAIL)
            if left.get("give back"):
                kinds.append(GIVE_BACK)
            for how in kinds:
                call = Call(following, ((held, how),), 0 if how == GIVE_BACK else 1)
                for step in calling(f"{how} {held.job_id}", call):
                    step.is_front = how == GIVE_BACK
                    if how == GIVE_BACK:
                        step.then = _spending(step.then, spend("give back"))
                    yield step
        if left.get("renewal"):
            yield _renewing(node, worker, held, put, spend)
    elif worker.phase in (FRESH, POPPED):
        yield from calling("takes", Call(following, (), 1))
    elif any(score <= node.clock_ms for score in view.queues[worker.queue].marker.values()):
        yield Step(
            f"{worker.name} pops the marker",
            Request("pop", (keys_of(worker.queue).marker,), ()),
            lambda reply: put(worker._replace(phase=POPPED)),
        )
    if left.get("ghost") and worker.last is not None and worker.pending is None:
        last = worker.last
        yield Step(
            f"{worker.name}'s last request arrives again",
            settle_request(worker, last),
            lambda reply: node._replace(budget=spend("ghost")),
            last,
            worker,
            is_repeated=True,
        )
    if left.get("death") and (worker.held or worker.pending or worker.phase == POPPED):
        fresh = Worker(worker.name, worker.queue, worker.dead_letters, worker.life + 1)
        yield Step(f"{worker.name} dies", _NOTHING, lambda reply: put(fresh, budget=spend("death")))


def _spending(then: Callable[[Any], Node], budget: tuple[int, ...]) -> Callable[[Any], Node]:
    def spent(reply: Any) -> Node:
        node = then(reply)
        return node._replace(
            budget=tuple(min(a, b) for a, b in zip(node.budget, budget, strict=True))
        )

    return spent


def _advancing(
    node: Node,
    worker: Worker,
    held: Held,
    put: Callable[..., Node],
    left: dict[str, int],
    spend: Callable[[str], tuple[int, ...]],
) -> Iterator[Step]:
    advanced = worker._replace(held=(held._replace(is_advanced=True), *worker.held[1:]))
    request = advance_request(worker, held, node.clock_ms)
    name = f"{worker.name} advances {held.job_id}"
    if request is None:
        yield Step(name, _NOTHING, lambda reply: put(advanced))
        return
    yield Step(name, request, lambda reply: put(advanced))
    if left.get("lost"):
        yield Step(
            f"{name}, reply lost", request, lambda reply: node._replace(budget=spend("lost"))
        )


def _renewing(
    node: Node,
    worker: Worker,
    held: Held,
    put: Callable[..., Node],
    spend: Callable[[str], tuple[int, ...]],
) -> Step:
    command = leasing.renew(keys_of(worker.queue), [(held.job_id, held.token)], lock_ms=LOCK_MS)

    def then(reply: Any) -> Node:
        if not reply[0]:
            return node._replace(budget=spend("renewal"))
        rest = tuple(one for one in worker.held if one != held)
        return put(worker._replace(held=rest), budget=spend("renewal"))

    name = f"{worker.name} renews {held.job_id}"
    return Step(name, request_of(command), then, held=held.job_id)


def _server_steps(
    universe: Universe,
    node: Node,
    view: View,
    left: dict[str, int],
    spend: Callable[[str], tuple[int, ...]],
) -> Iterator[Step]:
    due = []
    for name, queue in view.queues.items():
        if left.get("expiry"):
            for job_id in queue.locks:
                yield Step(
                    f"the lock of {job_id} expires",
                    Request("expire", (f"{queue.base}:{job_id}:lock",), ()),
                    lambda reply: node._replace(budget=spend("expiry")),
                )
        if queue.order.get("active") or queue.stalled:
            yield Step(f"sweep {name}", _sweep(name), lambda reply: node)
        if queue.lanes_held:
            yield Step(f"look after lanes of {name}", _recover(name), lambda reply: node)
        due += [score // 4096 for score in queue.scores.get("delayed", {}).values()]
    if due and max(due) > node.clock_ms and node.clock_ms < START_MS + universe.ticks * TICK_MS:
        later = int(min(at for at in due if at > node.clock_ms)) // 1000 * 1000 + 1000
        yield Step("time passes", _NOTHING, lambda reply: node._replace(clock_ms=later))


def _client_steps(
    universe: Universe,
    node: Node,
    view: View,
    left: dict[str, int],
    spend: Callable[[str], tuple[int, ...]],
) -> Iterator[Step]:
    if node.open is not None:
        index, request = node.open
        client = universe.clients[index]
        yield Step(
            f"{client.name} again",
            request,
            _constant(node._replace(open=None)),
            may_remove=client.may_remove,
            is_silent=client.is_silent,
        )
    for index, client in enumerate(universe.clients):
        command = None if node.used >> index & 1 else client.make(view)
        if command is None:
            continue
        after = node._replace(used=node.used | 1 << index)
        yield Step(
            client.name,
            request_of(command),
            _constant(after),
            may_remove=client.may_remove,
            is_silent=client.is_silent,
        )
        if left.get("lost") and node.open is None:
            again = (index, request_of(command, resent=True))
            yield Step(
                f"{client.name}, reply lost",
                request_of(command),
                _constant(after._replace(open=again, budget=spend("lost"))),
                may_remove=client.may_remove,
                is_silent=client.is_silent,
            )


def _constant(node: Node) -> Callable[[Any], Node]:
    return lambda reply: node


def _sweep(queue: str) -> Request:
    plan = leasing.sweep(keys_of(queue), interval_ms=SWEEP_EVERY_MS, max_stalled=1)
    return request_of(next(plan))  # type: ignore[arg-type]


def _recover(queue: str) -> Request:
    return request_of(next(lanes.recover(keys_of(queue))))  # type: ignore[arg-type]


def _names(held: Held) -> Iterator[int]:
    return (i for i in range(0, len(held.words), 2) if held.words[i] == b"name")


def _bytes(names: Sequence[str]) -> list[bytes]:
    return [name.encode() for name in names]


# ---------------------------------------------------------------------------- does it end?


def _drain(universe: Universe, machine: Machine, node: Node) -> None:
    """Fresh workers, no more faults: everything comes to an end."""
    state, clock_ms = node.state, node.clock_ms

    def run(request: Request) -> Any:
        nonlocal state
        (result,) = machine.run(state, clock_ms, [request])
        state = result.state
        return result.reply

    targets = {worker.queue: worker.dead_letters for worker in universe.workers}
    for turn in range(12):
        view = View(state, PREFIX, universe.queues)
        if _is_over(view, targets):
            return
        for name in targets:
            queue = view.queues[name]
            if "paused" in queue.meta:
                run(request_of(next(pausing.resume(keys_of(name)))))  # type: ignore[arg-type]
            for job_id in queue.locks:
                run(Request("expire", (f"{queue.base}:{job_id}:lock",), ()))
            for _ in range(2):
                run(_sweep(name))
        clock_ms += 5 * TICK_MS
        for name, dead_letters in targets.items():
            worker = Worker(f"z{turn}", name, dead_letters)
            for _ in range(6):
                call = Call(worker.request + 1, (), 5)
                worker = after_reply(worker, call, run(settle_request(worker, call)))
                ended = []
                for held in worker.held:
                    if not held.is_advanced:
                        request = advance_request(worker, held, clock_ms)
                        if request is not None:
                            run(request)
                    ended.append((held, DONE))
                if not ended:
                    break
                call = Call(worker.request + 1, tuple(ended), 0)
                worker = after_reply(worker, call, run(settle_request(worker, call)))
    view = View(state, PREFIX, universe.queues)
    if not _is_over(view, targets):
        places = {key: place for key, place in view.places.items() if place not in FINISHED}
        raise Violation(f"it does not come to an end: {places}")


def _is_over(view: View, targets: dict[str, str | None]) -> bool:
    for name in targets:
        queue = view.queues[name]
        for job_id, place in queue.places.items():
            if place not in FINISHED and not job_id.startswith("repeat:"):
                return False
        if any(group["state"] in ("ACTIVE", "COMPENSATING") for group in queue.groups.values()):
            return False
    return True
