"""Four small worlds over two slots, in which couriers may do the next thing at any time, or die.

The other worlds live in one slot. Here each queue is a slot of its own, as scripts see it: their
hash tags differ. Every order of what happens is tried, and from every state honest couriers must
bring it to a good end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.model.actors import FAIL, LOCK_MS, Habits, Held, keys_of, outcome_of, stored, told
from tests.model.machine import START_MS, Machine, request_of
from tests.model.states import EMPTY, Cell, State
from tests.model.view import PREFIX
from tests.proving import amount
from tests.servers import Server
from toril import Compensation, FlowJob, GroupJob, NewJob
from toril.protocol import (
    adding,
    flows,
    groups,
    moving,
    parceling,
    replaying,
    scripts,
    settling,
    starting,
)
from toril.protocol.command import Command
from toril.protocol.keys import Keys
from toril.protocol.new_group import new_group
from toril.protocol.parceling import Parcel
from toril.protocol.sending import PARCELS
from toril.protocol.settling import Settled, Take

Q, OTHER = "{a}q", "{b}other"
TICK_MS = 2_000
MOST_STATES = amount(1_500, 60_000)


class Courier(NamedTuple):
    """What a courier holds, and whether it knows that its target has it."""

    source: str = ""
    parcels: tuple[Parcel, ...] = ()
    answers: tuple[int | str, ...] | None = None


class Moment(NamedTuple):
    state: State = EMPTY
    clock_ms: int = START_MS
    couriers: tuple[Courier, ...] = (Courier(), Courier())
    done: tuple[str, ...] = ()
    """What has happened that happens once."""
    held: Held | None = None
    calls: int = 0
    ticks: int = 2
    losses: int = 1


class Problem(Exception):
    """Something that must not be."""


class World:
    """Runs commands as on a cluster; a kind of world says what may happen and what must hold."""

    queues = (Q, OTHER)

    def __init__(self, machine: Machine, *, carries: bool = False) -> None:
        self.machine = machine
        self.carries = carries
        """Do replies bring parcels? Then a courier has them, if one is free."""

    def run(self, moment: Moment, command: Command[Any]) -> tuple[Moment, Any]:
        told = {"spread": True, **({"carries": True} if self.carries else {})}
        on_cluster = msgspec.structs.replace(command, args={**command.args, **told})
        result = self.machine.run(moment.state, moment.clock_ms, request_of(on_cluster, flight="f"))
        reply = result.reply
        after = moment._replace(state=result.state)
        if isinstance(reply, list) and len(reply) in (2, 4) and reply[0] == PARCELS:
            if self.carries:
                after = give(after, command.keys[0], parceling.handed(*reply[2:]).parcels)
            reply = reply[1]
        return after, command.parse(reply)

    def take(self, moment: Moment, queue: str, habits: Habits, *ended: Settled) -> Moment:
        number = moment.calls + 1
        moment = moment._replace(calls=number)
        take = Take(count=0 if ended else 1, token=f"t{number}", lock_ms=LOCK_MS)
        dead_letters = keys_of(habits.dead_letters) if habits.dead_letters else None
        command = settling.settle(
            keys_of(queue), ended, take, flight="w", request=number, dead_letters=dead_letters
        )
        moment, reply = self.run(moment, command)
        if not reply.jobs:
            return moment._replace(held=None)
        words = tuple(reply.jobs[0])
        return moment._replace(held=Held(words[-1].decode(), f"t{number}", told(words[:-1])))

    def end(self, moment: Moment, queue: str, how: str, habits: Habits) -> Moment:
        held = moment.held
        assert held is not None
        outcome = outcome_of(queue, held, how, habits)
        settled = Settled(held.job_id, held.token, outcome, stored(queue, held))
        return self.take(moment, queue, habits, settled)

    def begin(self) -> Moment:
        raise NotImplementedError

    def deeds(self, moment: Moment) -> Iterator[tuple[str, Callable[[], Moment]]]:
        """What may happen now, beside what couriers do."""
        raise NotImplementedError

    def check(self, moment: Moment) -> None:
        """What must hold in every state."""

    def finish(self, moment: Moment) -> Moment:
        """What honest workers do at the end."""
        return moment

    def check_end(self, moment: Moment) -> None:
        raise NotImplementedError


def give(moment: Moment, source: str, parcels: tuple[Parcel, ...]) -> Moment:
    """Let a courier have what a reply brought; if none is free, whoever had it has died."""
    free = Courier()
    if not parcels or free not in moment.couriers:
        return moment
    couriers = list(moment.couriers)
    couriers[couriers.index(free)] = Courier(source.removeprefix(f"{PREFIX}:"), parcels)
    return moment._replace(couriers=tuple(couriers))


def cells(moment: Moment) -> dict[str, Cell]:
    return {cell.key: cell for cell in moment.state}


def content(moment: Moment, queue: str, rest: str) -> list[str]:
    """The members of a list, a set or a sorted set, or the fields of a hash."""
    cell = cells(moment).get(f"{PREFIX}:{queue}:{rest}")
    if cell is None:
        return []
    if cell.kind.startswith("zset"):
        return list(cell.scores)
    return list(cell.pairs) if cell.kind.startswith("hash") else cell.content


def undelivered(moment: Moment, source: str, target: str) -> list[str]:
    received = content(moment, target, "toril:received")
    return [one for one in content(moment, source, "toril:parcels") if one not in received]


def courier_steps(world: World, moment: Moment) -> Iterator[tuple[str, Callable[[], Moment]]]:
    for number, courier in enumerate(moment.couriers):

        def put(after: Moment, now: Courier, number: int = number) -> Moment:
            couriers = list(after.couriers)
            couriers[number] = now
            return after._replace(couriers=tuple(sorted(couriers, key=repr)))

        if not courier.parcels:
            for source in (Q, OTHER):

                def fetch(source: str = source, put: Any = put) -> Moment:
                    after, (parcels, _) = world.run(moment, parceling.fetch(keys_of(source)))
                    return put(after, Courier(source, tuple(parcels)) if parcels else Courier())

                yield f"fetch from {source}", fetch
            continue
        if courier.answers is None:

            def deliver(courier: Courier = courier, put: Any = put, lost: bool = False) -> Moment:
                target = keys_at(courier.parcels[0].target)
                after, answers = world.run(moment, parceling.deliver(target, courier.parcels))
                if lost:
                    return put(after, courier)._replace(losses=moment.losses - 1)
                return put(after, courier._replace(answers=tuple(answers)))

            yield "deliver", deliver
            if moment.losses:
                yield "deliver, reply lost", lambda deliver=deliver: deliver(lost=True)
        else:

            def collect(courier: Courier = courier, put: Any = put) -> Moment:
                assert courier.answers is not None
                done = [
                    parcel.id
                    for parcel, answer in zip(courier.parcels, courier.answers, strict=True)
                    if answer == 0
                ]
                command = parceling.collect(keys_of(courier.source), done)
                return put(world.run(moment, command)[0], Courier())

            yield "collect", collect
        yield "die", lambda put=put: put(moment, Courier())


def keys_at(base: str) -> Keys:
    return keys_of(base.removeprefix(f"{PREFIX}:"))


def steps(world: World, moment: Moment) -> Iterator[tuple[str, Callable[[], Moment]]]:
    yield from world.deeds(moment)
    yield from courier_steps(world, moment)
    if moment.ticks:
        yield (
            "time passes",
            lambda: moment._replace(clock_ms=moment.clock_ms + TICK_MS, ticks=moment.ticks - 1),
        )


def come_to_an_end(world: World, moment: Moment) -> Moment:
    """Honest couriers and workers, with all the time in the world."""
    for _ in range(6):
        moment = moment._replace(clock_ms=moment.clock_ms + 70_000)
        for source in world.queues:
            moment, (parcels, _) = world.run(moment, parceling.fetch(keys_of(source)))
            for parcel in parcels:
                moment, answers = world.run(
                    moment, parceling.deliver(keys_at(parcel.target), [parcel])
                )
                if answers == [0]:
                    moment, _ = world.run(moment, parceling.collect(keys_of(source), [parcel.id]))
        moment = world.finish(moment)
    for queue in world.queues:
        for rest in ("parcels", "parcels-due", "in-transit", "refused"):
            if left := content(moment, queue, f"toril:{rest}"):
                raise Problem(f"{rest} of {queue} are left at the end: {left}")
    return moment


def explore(world: World, most: int = MOST_STATES) -> int:
    """Try every order; returns how many moments there were."""
    first = world.begin()
    seen = {first}
    waiting = deque([(first, ())])
    ended: set[Any] = set()
    while waiting:
        moment, path = waiting.popleft()
        try:
            world.check(moment)
            fate = (moment.state, moment.held, moment.calls)
            if fate not in ended:
                ended.add(fate)
                world.check_end(come_to_an_end(world, moment))
            for name, step in steps(world, moment):
                after = step()
                if after not in seen and len(seen) < most:
                    seen.add(after)
                    waiting.append((after, (*path, name)))
        except Problem as problem:
            raise Problem(f"{problem}, after {', '.join(path)}") from problem
    return len(seen)


class Letters(World):
    """A job fails for good, its letter goes to another slot and comes back."""

    habits = Habits(dead_letters=OTHER)

    def begin(self) -> Moment:
        job = NewJob("job", {"n": 1}, job_id="x", timestamp=START_MS, attempts=1)
        command = adding.add(keys_of(Q), [adding.prepare(job, "x")])
        moment, _ = self.run(Moment(), command)
        return self.take(moment, Q, self.habits)

    def deeds(self, moment: Moment) -> Iterator[tuple[str, Callable[[], Moment]]]:
        if moment.held is not None:
            yield (
                "fail",
                lambda: self.end(moment, Q, FAIL, self.habits)._replace(done=("fail",)),
            )
        letters = content(moment, OTHER, "wait")
        if letters and "replay" not in moment.done:
            command = replaying.replay(keys_of(OTHER), letters[0], "again", Q)
            yield (
                "replay",
                lambda: self.run(moment, command)[0]._replace(done=(*moment.done, "replay")),
            )

    def check(self, moment: Moment) -> None:
        jobs = [
            *content(moment, Q, "active"),
            *content(moment, Q, "wait"),
            *content(moment, OTHER, "wait"),
            *undelivered(moment, Q, OTHER),
            *undelivered(moment, OTHER, Q),
        ]
        if len(jobs) != 1:
            raise Problem(f"the job is in {len(jobs)} places: {jobs}")

    def check_end(self, moment: Moment) -> None:
        self.check(moment)


class Family(World):
    """A parent here, a child elsewhere that fails, runs again, and completes."""

    habits = Habits()

    def begin(self) -> Moment:
        child = FlowJob(
            "child",
            {"n": 1},
            queue_name=OTHER,
            job_id="c",
            ignore_dependency_on_failure=True,
            timestamp=START_MS,
        )
        root = FlowJob("parent", queue_name=Q, job_id="p", timestamp=START_MS, children=[child])
        return self.run(Moment(), flows.add(flows.prepare([root], PREFIX, lambda: "?")))[0]

    def deeds(self, moment: Moment) -> Iterator[tuple[str, Callable[[], Moment]]]:
        def note(name: str, after: Moment) -> Moment:
            return after._replace(done=(*moment.done, name))

        if moment.held is not None:
            if "fail" not in moment.done:
                yield "fail", lambda: note("fail", self.end(moment, OTHER, FAIL, self.habits))
            yield "complete", lambda: note("end", self.end(moment, OTHER, "done", self.habits))
        elif "c" in content(moment, OTHER, "wait"):
            yield "take", lambda: note("take", self.take(moment, OTHER, self.habits))
        elif "c" in content(moment, OTHER, "failed") and "retry" not in moment.done:
            command = moving.retry(keys_of(OTHER), "c", call="retry c")
            yield "retry", lambda: note("retry", self.run(moment, command)[0])

    def check(self, moment: Moment) -> None:
        places = [*content(moment, Q, "waiting-children"), *content(moment, Q, "wait")]
        if places != ["p"]:
            raise Problem(f"the parent is in {len(places)} places")
        has_ended = bool({"fail", "end"} & set(moment.done))
        if "p" in content(moment, Q, "wait") and not has_ended:
            raise Problem("the parent runs before its child has ended")

    def finish(self, moment: Moment) -> Moment:
        if moment.held is None and "c" in content(moment, OTHER, "wait"):
            moment = self.take(moment, OTHER, self.habits)
        if moment.held is not None:
            moment = self.end(moment, OTHER, "done", self.habits)
        return moment

    def check_end(self, moment: Moment) -> None:
        if "p" not in content(moment, Q, "wait"):
            raise Problem("the parent waits for ever")
        if left := content(moment, Q, "p:dependencies"):
            raise Problem(f"the parent still waits for {left}")
        has_completed = "c" in content(moment, OTHER, "completed")
        if has_completed and not content(moment, Q, "p:processed"):
            raise Problem("the parent has not heard what its child returned")


class Saga(World):
    """A group here with a member here and one elsewhere; either fails, or somebody cancels it."""

    habits = Habits()
    queues = (Q, OTHER, f"{Q}:compensation", f"{OTHER}:compensation")
    group_id = "g"
    places = {"m": Q, "n": OTHER}
    """The slot of each member is an axis."""

    def begin(self) -> Moment:
        undo = Compensation("undo", attempts=1, backoff=None)
        members = [
            GroupJob("job", queue_name=name, job_id=job_id, timestamp=START_MS, compensation=undo)
            for job_id, name in self.places.items()
        ]
        group = new_group("order", members, None, queue_name=Q)
        command = starting.create(PREFIX, group, self.group_id, ["m", "n"])
        return self.run(Moment(ticks=1), command)[0]

    def deeds(self, moment: Moment) -> Iterator[tuple[str, Callable[[], Moment]]]:
        def note(name: str, after: Moment) -> Moment:
            return after._replace(done=(*moment.done, name))

        done = set(moment.done)
        if moment.held is not None:
            queue = self.places[moment.held.job_id]
            how = moment.held.job_id
            if not {"m fails", "n fails"} & done:
                yield (
                    "fail",
                    lambda: note(f"{how} fails", self.end(moment, queue, FAIL, self.habits)),
                )
            yield (
                "complete",
                lambda: note(f"{how} ends", self.end(moment, queue, "done", self.habits)),
            )
            return
        for queue in sorted(set(self.places.values())):
            if content(moment, queue, "wait"):
                yield f"take from {queue}", lambda queue=queue: self.begin_next(moment, queue)
        if "cancel" not in done and not {"m fails", "n fails"} & done:
            command = groups.cancel(keys_of(Q), self.group_id, request="r", reason="enough")
            if self.field(moment, "state") == "ACTIVE":
                yield "cancel", lambda: note("cancel", self.run(moment, command)[0])

    def begin_next(self, moment: Moment, queue: str) -> Moment:
        after = self.take(moment, queue, self.habits)
        taken = () if after.held is None else (f"take {after.held.job_id}",)
        return after._replace(done=(*moment.done, *taken))

    def field(self, moment: Moment, name: str) -> str:
        cell = cells(moment).get(f"{PREFIX}:{Q}:groups:{self.group_id}")
        return "" if cell is None else cell.pairs.get(name, "")

    def check(self, moment: Moment) -> None:
        for job_id in ("m", "n"):
            if moment.done.count(f"take {job_id}") > 1:
                raise Problem(f"member {job_id} ran twice")
        has_turned = self.field(moment, "state") != "ACTIVE" and "cancel" in moment.done
        if (
            has_turned
            and not content(moment, Q, "toril:parcels")
            and content(moment, OTHER, "wait")
        ):
            raise Problem("a member waits although its group was cancelled")
        undone = [
            *content(moment, f"{Q}:compensation", "wait"),
            *content(moment, f"{OTHER}:compensation", "wait"),
        ]
        if len(set(undone)) != len(undone):
            raise Problem(f"something is undone twice: {undone}")
        for job_id, number in (("m", 0), ("n", 1)):
            if f"g-c{number}" in undone and f"{job_id} ends" not in moment.done:
                raise Problem(f"member {job_id} is undone and was never done")

    def finish(self, moment: Moment) -> Moment:
        """Workers complete what there is, and undo what must be undone."""
        for queue in (Q, OTHER, f"{Q}:compensation", f"{OTHER}:compensation"):
            if moment.held is not None:
                queue = self.places[moment.held.job_id]
            elif content(moment, queue, "wait"):
                moment = self.take(moment, queue, self.habits)
                if moment.held is not None and moment.held.job_id in ("m", "n"):
                    moment = moment._replace(done=(*moment.done, f"take {moment.held.job_id}"))
            if moment.held is not None:
                name = moment.held.job_id
                moment = self.end(moment, queue, "done", self.habits)
                moment = moment._replace(done=(*moment.done, f"{name} ends"))
        return moment

    def check_end(self, moment: Moment) -> None:
        state, done = self.field(moment, "state"), moment.done
        for job_id in ("m", "n"):
            if done.count(f"take {job_id}") > 1:
                raise Problem(f"member {job_id} ran twice")
        for number, job_id in enumerate(("m", "n")):
            times = done.count(f"g-c{number} ends")
            wanted = int(state == "FAILED" and f"{job_id} ends" in done)
            if times != wanted:
                raise Problem(f"member {job_id} was undone {times} times, not {wanted}; {state}")
        if {"m ends", "n ends"} <= set(done) and "cancel" not in done:
            if state != "COMPLETED":
                raise Problem(f"everything is done, and the group is {state}")
        elif state != "FAILED":
            raise Problem(f"the group is {state} at the end")


class Apart(Saga):
    """The same, but both members are elsewhere: the owner has no job of its own."""

    places = {"m": OTHER, "n": OTHER}


WORLDS = {
    "letters": Letters,
    "a family": Family,
    "a group": Saga,
    "a group whose jobs are all elsewhere": Apart,
}


@pytest.fixture(scope="module")
def model_server():
    with Server() as server:
        yield server


@pytest.mark.parametrize("carries", [False, True], ids=["fetched", "handed over"])
@pytest.mark.parametrize("name", WORLDS)
def test_nothing_is_lost_or_done_twice_in_any_order(name, carries, model_server):
    machine = Machine(model_server)
    moments = explore(WORLDS[name](machine, carries=carries))
    machine.close()

    print(f"{name}: {moments} moments")
    assert moments > 500


PLANTED = {
    "a parcel is removed before it is delivered": (
        "letters",
        "rooms/parcels",
        'redis.call("ZADD", due, clock.stamp(now + put_off_ms), id)',
        "parcels.forget(base, { id })",
    ),
    "a parcel is removed when it is handed over": (
        "letters",
        "rooms/parcels",
        '  if transit then redis.call("HSET", in_transit, transit, id) end',
        '  if memory.handed then redis.call("HDEL", all, id) end',
        "handed over",
    ),
    "what was delivered is not remembered": (
        "letters",
        "rooms/deliveries",
        "if #ids == 0 then return end",
        "do return end",
    ),
    "a parcel is not written": (
        "letters",
        "rooms/parcels",
        'if transit then redis.call("HSET", in_transit, transit, id) end',
        'redis.call("HDEL", all, id)',
    ),
    "the end of a child overtakes the news that it runs again": (
        "a family",
        "rooms/deliveries",
        "if body.after and not",
        "if false and not",
    ),
    "the end of a member elsewhere is not reported": (
        "a group",
        "rooms/groups",
        "    remotes.ended(membership, job, state, ended)",
        "    return",
    ),
    "a cancel overtakes the member that it cancels": (
        "a group",
        "rooms/remotes",
        "reason = reason, after = #after > 0 and after or nil })",
        "reason = reason })",
    ),
    "a member that was cancelled elsewhere is not told of": (
        "a group",
        "rooms/remotes",
        'remotes.ended(ends[i].membership, job, "cancelled", ends[i])',
        "",
    ),
    "the parent does not wait for a child elsewhere": (
        "a family",
        "rooms/flows",
        'if root.parent_key then redis.call("SADD", root.parent_key .. ":dependencies", key) end',
        "",
    ),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug, model_server):
    name, file, line, instead, *rest = PLANTED[bug]
    library = scripts.library()
    text = library.text(file)
    assert text.count(line) == 1
    machine = Machine(model_server, library.with_texts({file: text.replace(line, instead)}))

    with pytest.raises(Problem) as found:
        explore(WORLDS[name](machine, carries=bool(rest)))
    machine.close()
    print(f"{bug}: {found.value}")
