"""What may happen in a moment: each worker's next act, each client's, each fault."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.model.actors import (
    DONE,
    FRESH,
    GIVE_BACK,
    GONE,
    IDLE,
    LIMIT,
    LOCK_MS,
    POPPED,
    Call,
    Held,
    Worker,
    advance_request,
    after_reply,
    begun_after,
    keys_of,
    settle_request,
)
from tests.model.couriers import Courier, acts_of
from tests.model.machine import NOTHING, START_MS, Request, request_of
from tests.model.view import View
from tests.model.world import (
    CONFIRMATION,
    DEATH,
    EXPIRY,
    GHOST,
    GIVING_BACK,
    LEAVING,
    LOST,
    RENEWAL,
    Client,
    Node,
    World,
)
from toril.protocol import lanes, leasing, settling

SWEEP_EVERY_MS = 30_000
DEEDS = ("renew", "pause", "resume", "promote", "retry", "remove", "setLane", "upsertScheduler")
NUMBERED = (
    *("add", "addFlow", "addGroup", "upsertScheduler"),
    *("clean", "cleanGroups", "drain", "drainLane", "promoteAll", "retryAll"),
    *("remove", "removeScheduler", "freeDeduplication"),
)
"""Calls that are made once however often they arrive."""
TICK_MS = 1000
REMOVING = {"cancelMembers", "removeMember", "removeLetter", "remove", "bury"}
"""Parcels by which jobs may vanish where they arrive."""


@dataclass
class Step:
    """One thing that can happen in a moment."""

    name: str
    request: Request
    then: Callable[[Any], Node]
    """The moment after it, but for the server's state, given the reply."""
    call: Call | None = None
    worker: Worker | None = None
    may_remove: bool = False
    is_silent: bool = False
    is_repeated: bool = False
    held: str = ""
    confirmed: str = ""
    """The line of a worker whose last reply is said to have arrived."""
    first_answer: bytes = b""
    """What the reply said that was lost."""
    verbs: frozenset[str] = frozenset()
    """What a courier delivers."""
    is_front: bool = False
    """Does what comes back stand before the others?"""
    is_heard: bool = False
    """Does the reply reach a worker, whose courier then has the parcels that it brings?"""

    @property
    def act(self) -> Hashable:
        """All that a check reads of it but the request; what else its worker knows is not there."""
        worker = self.worker and (self.worker.name, self.worker.life, self.worker.queue)
        says = (self.is_repeated, self.is_front, self.is_silent, self.may_remove)
        return (self.name, self.call, worker, says, self.held, self.confirmed, self.first_answer)

    @property
    def is_deed(self) -> bool:
        """Is it something that was asked for, so that doing nothing may be wrong?"""
        return self.request.script in DEEDS


def steps_of(world: World, node: Node, view: View) -> Iterator[Step]:
    moment = _Moment(world, node)
    for index, worker in enumerate(node.workers):
        yield from _worker_steps(moment, view, index, worker)
    yield from _server_steps(moment, view)
    yield from _client_steps(moment, view)
    yield from _courier_steps(moment, view)


class _Moment:
    """A node, and what it becomes."""

    def __init__(self, world: World, node: Node) -> None:
        self.world = world
        self.node = node
        self._names = world.names_of_faults
        self._left = dict(zip(self._names, node.left, strict=True))

    def may(self, fault: str) -> bool:
        return self._left.get(fault, 0) > 0

    def after(self, fault: str = "", **changes: Any) -> Node:
        """The moment after a fault, if any, and these changes."""
        if fault:
            changes["left"] = tuple(
                amount - (name == fault)
                for name, amount in zip(self._names, self.node.left, strict=True)
            )
        return self.node._replace(**changes)

    def with_worker(self, index: int, worker: Worker, fault: str = "") -> Node:
        workers = self.node.workers
        return self.after(fault, workers=(*workers[:index], worker, *workers[index + 1 :]))


def _worker_steps(moment: _Moment, view: View, index: int, worker: Worker) -> Iterator[Step]:
    if worker.pending is not None:
        yield from _calling(moment, index, worker, "asks again", worker.pending, is_repeated=True)
    elif worker.held:
        yield from _holding(moment, index, worker, worker.held[0])
    elif worker.phase in (FRESH, POPPED):
        yield from _calling(moment, index, worker, "takes", _taking(worker))
    elif worker.phase == IDLE:
        if view.queues[worker.queue].marker:
            popped = worker._replace(phase=POPPED, due_ms=0)
            yield Step(
                f"{worker.name} pops the marker",
                Request("pop", (keys_of(worker.queue).marker,), ()),
                lambda reply: moment.with_worker(index, popped),
            )
        if 0 < worker.due_ms <= moment.node.clock_ms:
            yield from _calling(moment, index, worker, "looks again", _taking(worker))
    if moment.may(GHOST) and worker.last is not None and worker.pending is None:
        yield Step(
            f"{worker.name}'s last request arrives again",
            settle_request(worker, worker.last),
            lambda reply: moment.after(GHOST),
            worker.last,
            worker,
            is_repeated=True,
        )
    if moment.may(DEATH) and (worker.held or worker.pending or worker.phase == POPPED):
        reborn = worker.reborn()
        yield Step(
            f"{worker.name} dies", NOTHING, lambda reply: moment.with_worker(index, reborn, DEATH)
        )


def _taking(worker: Worker) -> Call:
    return Call(worker.request + 1, (), worker.habits.takes)


def _calling(
    moment: _Moment,
    index: int,
    worker: Worker,
    what: str,
    call: Call,
    *,
    is_repeated: bool = False,
    fault: str = "",
) -> Iterator[Step]:
    request = settle_request(worker, call)
    name = f"{worker.name} {what}"
    is_front = any(how in (GIVE_BACK, LIMIT) for _, how in call.ended)

    def begun(reply: Any) -> frozenset[str]:
        is_new = moment.world.has_groups and not is_repeated
        return begun_after(moment.node.begun, worker, call, reply) if is_new else moment.node.begun

    def then(reply: Any) -> Node:
        after = after_reply(worker, call, reply)
        if fault == LEAVING:
            after = after._replace(phase=GONE)
        return moment.with_worker(index, after, fault)._replace(begun=begun(reply))

    yield Step(
        name,
        request,
        then,
        call,
        worker,
        is_repeated=is_repeated,
        is_front=is_front,
        is_heard=True,
    )
    if moment.may(LOST) and not fault:
        waiting = worker._replace(pending=call, request=call.request, phase=FRESH, due_ms=0)
        yield Step(
            f"{name}, reply lost",
            request,
            lambda reply: moment.with_worker(index, waiting, LOST)._replace(begun=begun(reply)),
            call,
            worker,
            is_repeated=is_repeated,
            is_front=is_front,
        )


def _holding(moment: _Moment, index: int, worker: Worker, held: Held) -> Iterator[Step]:
    following = worker.request + 1
    if not held.is_advanced:
        yield from _advancing(moment, index, worker, held)
    else:
        for how in (DONE, *moment.world.ends.get(held.told.name, ())):
            ended = ((held, how), *((other, DONE) for other in worker.held[1:]))
            name = f"{how} {held.job_id}"
            call = Call(following, ended, worker.habits.takes)
            yield from _calling(moment, index, worker, name, call)
            if moment.may(LEAVING):
                call = Call(following, ended, 0)
                yield from _calling(moment, index, worker, f"{name}, leaves", call, fault=LEAVING)
        if moment.may(GIVING_BACK):
            call = Call(following, ((held, GIVE_BACK),), 0)
            name = f"{GIVE_BACK} {held.job_id}"
            yield from _calling(moment, index, worker, name, call, fault=GIVING_BACK)
            if moment.may(LEAVING):
                yield from _calling(moment, index, worker, f"{name}, leaves", call, fault=LEAVING)
    if moment.may(RENEWAL):
        yield _renewing(moment, index, worker, held)
    if moment.may(CONFIRMATION):
        yield _confirming(moment, worker, held)


def _advancing(moment: _Moment, index: int, worker: Worker, held: Held) -> Iterator[Step]:
    advanced = worker._replace(held=(held._replace(is_advanced=True), *worker.held[1:]))
    request = advance_request(worker, held, moment.node.clock_ms)
    name = f"{worker.name} advances {held.job_id}"
    yield Step(name, request or NOTHING, lambda reply: moment.with_worker(index, advanced))
    if moment.may(LOST) and request is not None:
        yield Step(f"{name}, reply lost", request, lambda reply: moment.after(LOST))


def _renewing(moment: _Moment, index: int, worker: Worker, held: Held) -> Step:
    command = leasing.renew(keys_of(worker.queue), [(held.job_id, held.token)], lock_ms=LOCK_MS)
    rest = worker._replace(held=tuple(one for one in worker.held if one != held))
    return Step(
        f"{worker.name} renews {held.job_id}",
        request_of(command, is_spread=worker.habits.is_spread),
        lambda reply: moment.with_worker(index, rest if reply[0] else worker, RENEWAL),
        held=held.job_id,
    )


def _confirming(moment: _Moment, worker: Worker, held: Held) -> Step:
    """Another line of the worker says that this one's last reply has arrived."""
    command = settling.settle(
        keys_of(worker.queue),
        [],
        settling.Take(count=0, token="", lock_ms=LOCK_MS),
        flight=f"{worker.name}{worker.life}-1",
        request=1,
        confirmations=[(worker.flight, worker.request)],
    )
    return Step(
        f"{worker.name} confirms {held.job_id}",
        request_of(command, is_spread=worker.habits.is_spread),
        lambda reply: moment.after(CONFIRMATION),
        held=held.job_id,
        confirmed=worker.flight,
    )


def _server_steps(moment: _Moment, view: View) -> Iterator[Step]:
    node = moment.node
    due = [worker.due_ms for worker in node.workers]
    for name, queue in view.queues.items():
        if moment.may(EXPIRY):
            for key in queue.expiring:
                yield Step(
                    f"{key} expires",
                    Request("delete", (key,), ()),
                    lambda reply: moment.after(EXPIRY),
                )
        if queue.order.get("active") or queue.stalled:
            request = sweep_request(name, is_spread=moment.world.is_spread)
            yield Step(f"sweep {name}", request, lambda reply: node)
        if queue.lanes_held or queue.lanes_index:
            for part in ("held", "index", "kept"):
                request = _recovery(name, part, moment.world.is_spread)
                yield Step(f"look after lanes of {name}: {part}", request, lambda reply: node)
        due += [int(score) // 4096 for score in queue.scores.get("delayed", {}).values()]
        due += [int(score) for score in queue.lanes_later.values()]
        due += [int(score) for score in queue.parcels_due.values()]
        due += [int(group.get("x.undoDeadline", 0)) for group in queue.groups.values()]
    later = [at for at in due if at > node.clock_ms]
    if later and node.clock_ms < START_MS + moment.world.ticks * TICK_MS:
        until = -(-min(later) // TICK_MS) * TICK_MS
        yield Step("time passes", NOTHING, lambda reply: node._replace(clock_ms=until))


def _client_steps(moment: _Moment, view: View) -> Iterator[Step]:
    node = moment.node
    if node.open is not None:
        index, request, answer = node.open
        client = moment.world.clients[index]
        step = _client_step(client, "again", request, lambda _: node._replace(open=None))
        step.first_answer = answer
        step.is_repeated = True
        yield step
    for index, client in enumerate(moment.world.clients):
        command = None if node.used >> index & 1 else client.make(view)
        if command is None:
            continue
        flight, used = f"client{index}", node.used | 1 << index
        if isinstance(command, Request):
            yield _client_step(client, "", command, _always(node._replace(used=used)))
            continue
        is_spread = moment.world.is_spread
        request = request_of(command, flight=flight, is_spread=is_spread)
        yield _client_step(client, "", request, _always(node._replace(used=used)))
        if moment.may(LOST) and node.open is None:
            again = request_of(command, resent=True, flight=flight, is_spread=is_spread)
            then = _open(moment.after(LOST, used=used), index, again)
            yield _client_step(client, "reply lost", request, then)
        if moment.may(GHOST) and node.open is None and request.script in NUMBERED:
            then = _open(moment.after(GHOST, used=used), index, request)
            yield _client_step(client, "arrives again later", request, then)


def _always(node: Node) -> Callable[[Any], Node]:
    return lambda reply: node


def _open(node: Node, index: int, request: Request) -> Callable[[Any], Node]:
    def then(reply: Any) -> Node:
        answer = reply if isinstance(reply, bytes) else repr(reply).encode()
        return node._replace(open=(index, request, answer))

    return then


def _client_step(client: Client, how: str, request: Request, then: Callable[[Any], Node]) -> Step:
    return Step(
        f"{client.name} {how}".strip(),
        request,
        then,
        may_remove=client.may_remove,
        is_silent=client.is_silent,
    )


def _courier_steps(moment: _Moment, view: View) -> Iterator[Step]:
    """Couriers are alike: of two that have the same one goes on."""
    couriers = moment.node.couriers
    for index, courier in enumerate(couriers):
        if courier in couriers[:index]:
            continue
        others = (*couriers[:index], *couriers[index + 1 :])
        for act in acts_of(courier, view, moment.node.clock_ms):
            if not act.fault or moment.may(act.fault):
                yield Step(
                    f"a courier {act.name}",
                    act.request,
                    _carried(moment.after(act.fault), others, act.then),
                    may_remove=bool(act.verbs & REMOVING),
                    verbs=act.verbs,
                )


def _carried(
    node: Node, others: tuple[Courier, ...], then: Callable[[Any], Courier]
) -> Callable[[Any], Node]:
    return lambda reply: node._replace(couriers=tuple(sorted((*others, then(reply)), key=repr)))


def sweep_request(queue: str, *, is_spread: bool) -> Request:
    plan = leasing.sweep(keys_of(queue), interval_ms=SWEEP_EVERY_MS, max_stalled=1)
    return request_of(next(plan), is_spread=is_spread)  # type: ignore[arg-type]


def _recovery(queue: str, part: str, is_spread: bool) -> Request:
    command = next(lanes.recover(keys_of(queue), parts=(part,)))
    return request_of(command, is_spread=is_spread)  # type: ignore[arg-type]
