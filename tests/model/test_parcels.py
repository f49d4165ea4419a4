"""The worlds over several slots find what they are for: bugs in what crosses slots.

The worlds themselves are explored with the others (`test_interleavings.py`). Which worlds have a
twin over several slots is checked here: the others, told that they are on a cluster, leave nothing.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.model import ordinary
from tests.model.actors import DONE, Call, after_reply, keys_of, settle_request
from tests.model.couriers import Courier, collect_request, deliver_request, fetch_request
from tests.model.explorer import explore
from tests.model.machine import START_MS, Machine, Request, request_of
from tests.model.slots import OTHER, Q
from tests.model.states import EMPTY
from tests.model.view import PREFIX, view_of
from tests.model.violation import Violation
from tests.model.world import World
from tests.model.worlds import IN_ONE_SLOT, SPREAD
from tests.model.worlds.groups import staged
from tests.model.worlds.spread import spread
from tests.proving import amount
from tests.servers import Server
from toril import GroupJob
from toril.protocol import groups, scripts, starting
from toril.protocol.command import Command
from toril.protocol.new_group import new_group

FEW = amount(150, 5_000)
"""Steps for a world in which nothing crosses slots."""
MOST, SEEDS = amount(10_000, 60_000), 6
"""Steps, and how often they are tried, until a planted bug must have been found."""
ALONE = [name for name, world in IN_ONE_SLOT.items() if f"{name}, spread" not in SPREAD]


@pytest.fixture(scope="module")
def model_server():
    with Server() as server:
        yield server


@pytest.mark.parametrize("name", ALONE)
def test_a_world_of_one_queue_is_the_same_on_a_cluster(name, model_server):
    machine = Machine(model_server)
    world = spread(IN_ONE_SLOT[name])

    findings = explore(world, machine, most=FEW, is_deep=True)
    machine.close()

    assert len(world.queues) == 1, f"{name} has several queues and no twin"
    assert not [step for step in findings.steps if "a courier" in step]


def test_every_world_of_several_queues_has_a_twin():
    several = {name for name, world in IN_ONE_SLOT.items() if len(world.queues) > 1}

    assert {f"{name}, spread" for name in several} <= SPREAD.keys()


@pytest.mark.parametrize("name", ["one letter, spread", "a group of three stages, spread"])
def test_replies_bring_parcels_in_the_worlds(name, model_server):
    machine = Machine(model_server)
    findings = explore(SPREAD[name], machine, most=1_000, is_deep=True)
    machine.close()

    assert findings.steps["a reply brings parcels"] > 0


def test_what_is_told_of_a_job_twice_in_a_millisecond_is_two_parcels(model_server):
    """The second had the id of the first: it replaced it, and then waited for itself."""
    world = SPREAD["a group of three stages, spread"]
    machine = Machine(model_server)
    state = machine.run(EMPTY, START_MS, _sent(staged()(world.layout))).state

    def run(request: Request) -> Any:
        nonlocal state
        result = machine.run(state, START_MS, request)
        state = result.state
        return result.reply

    def carry(source: str) -> None:
        courier = Courier().fetched(source, run(fetch_request(source)))
        while courier.parcels and not courier.has_delivered:
            some = courier.next_slice()
            courier = courier.answered(some, run(deliver_request(some)))
        if courier.parcels:
            run(collect_request(courier))

    worker = next(worker for worker in world.workers if worker.queue == OTHER)
    carry(Q)
    call = Call(1, (), 1)
    worker = after_reply(worker, call, run(settle_request(worker, call)))
    run(settle_request(worker, Call(2, ((worker.held[0], DONE),), 0)))
    run(_sent(groups.reconcile(keys_of(Q), everything=True)))
    carry(Q)

    told = view_of(state, world.layout).queues[OTHER].parcels
    assert [parcel.verb for parcel in told.values()] == ["memberEnded", "memberEnded"]
    assert {parcel.body.get("after") for parcel in told.values()} - told.keys() == {None}
    machine.close()


def test_the_limits_of_two_groups_of_one_millisecond_are_two_parcels(model_server):
    """The second replaced the first: nobody was told of a limit that is due soon."""
    machine = Machine(model_server)
    state = EMPTY
    for number, limit in enumerate((1_000, 60_000)):
        member = GroupJob("one", queue_name=OTHER)
        made = new_group("order", [member], None, queue_name=Q, timeout=limit)
        create = starting.create(PREFIX, made, f"g{number}", [f"j{number}"])
        state = machine.run(state, START_MS, _sent(create)).state
    machine.close()

    left = view_of(state, SPREAD["a group of three, spread"].layout).queues[Q].parcels.values()
    shared = [parcel.body["first_ms"] for parcel in left if parcel.verb == "shareGroups"]
    assert sorted(shared) == [1_000, 60_000]


def _sent(command: Command[Any]) -> Request:
    return request_of(command, is_spread=True)


# Each has the world or the ordinary test that finds it, the file, the line, and what stands there.
PLANTED = {
    "a parcel is removed before it is delivered": (
        "one letter",
        "rooms/parcels",
        'redis.call("ZADD", due, clock.stamp(now + put_off_ms), id)',
        "parcels.forget(base, { id })",
    ),
    "a parcel is removed when a reply brings it": (
        "one letter",
        "rooms/parcels",
        'if transit then redis.call("HSET", in_transit, transit, id) end',
        'if memory.handed then redis.call("HDEL", all, id) end',
    ),
    "what was delivered is not remembered": (
        "one letter",
        "rooms/deliveries",
        "if #ids == 0 then return end",
        "do return end",
    ),
    "what was delivered is done again": (
        "one letter",
        "rooms/deliveries",
        "known[id] = scores[i] ~= false end",
        "known[id] = false end",
    ),
    "a member that was delivered is let in again": (
        "a group that is forgotten",
        "rooms/deliveries",
        "known[id] = scores[i] ~= false end",
        "known[id] = false end",
    ),
    "a parcel is not written": (
        "one letter",
        "rooms/parcels",
        'if transit then redis.call("HSET", in_transit, transit, id) end',
        'redis.call("HDEL", all, id)',
    ),
    "a courier that dies takes its parcels along": (
        "a group of three",
        "rooms/parcels",
        'redis.call("ZADD", due, clock.stamp(now + put_off_ms), id)',
        'redis.call("ZREM", due, id)',
    ),
    "the order of the parcels about a job is ignored": (
        "a group of three",
        "rooms/deliveries",
        "if body.after and not",
        "if false and not",
    ),
    "the end of a child overtakes the news that it runs again": (
        "a parent that ignores a failure",
        "rooms/parents",
        "body.after = told and parcels.isHere(told)",
        "body.after = false and parcels.isHere(told)",
    ),
    "a removal overtakes the child that it removes": (
        "a parent that goes on",
        "rooms/removals",
        "slice = slice, after = child.after })",
        "slice = slice })",
    ),
    "the parent does not wait for a child elsewhere": (
        "a parent and two children",
        "rooms/flows",
        'if root.parent_key then redis.call("SADD", root.parent_key .. ":dependencies", key) end',
        "",
    ),
    "the end of a member elsewhere is not reported": (
        "a group of three",
        "rooms/groups",
        "    remotes.ended(membership, job, state, ended)",
        "    return",
    ),
    "a cancel overtakes the member that it cancels": (
        "a group of three",
        "rooms/remotes",
        "reason = reason, after = #after > 0 and after or nil })",
        "reason = reason })",
    ),
    "a member that was cancelled elsewhere is not told of": (
        "a group of three",
        "rooms/remotes",
        'remotes.ended(ends[i].membership, job, "cancelled", ends[i])',
        "",
    ),
    "the id of a compensation is drawn where it arrives": (
        "a group undone backwards",
        "rooms/remotes",
        "  local job = body.job\n",
        '  local job = body.job\n  if string.find(job.id, "g-c") then job.id = now .. job.id end\n',
    ),
    "two reports in one millisecond have one id": (
        "three stages with a time limit",
        "rooms/remotes",
        'return membership .. "\\n" .. (told or "")',
        "return membership",
    ),
    "that a job was cancelled overtakes its end": (
        "tests/features/parcels/test_groups.py::test_a_cancelled_member_does_not_overtake_its_own_end",
        "rooms/remotes",
        "ends[i].told = body.reason, told_of[job]",
        "ends[i].told = body.reason, nil",
    ),
    "an end that is reported twice counts twice": (
        "three stages that are undone",
        "rooms/groups",
        '  if status ~= "pending" and status ~= "awaited" then return end\n',
        "",
    ),
}


QUICK = (
    "a parcel is removed before it is delivered",
    "a parcel is removed when a reply brings it",
    "what was delivered is not remembered",
    "a cancel overtakes the member that it cancels",
    "the id of a compensation is drawn where it arrives",
    "an end that is reported twice counts twice",
)
"""Those of `make test`: one for each promise."""


@pytest.mark.parametrize("bug", amount(QUICK, tuple(PLANTED)))
def test_a_planted_bug_is_found(bug, model_server):
    name, file, line, instead = PLANTED[bug]
    library = scripts.library()
    text = library.text(file)
    assert text.count(line) == 1
    if name.startswith("tests/"):
        assert ordinary.fails(name, json.dumps([file, line, instead]))
        return
    machine = Machine(model_server, library.with_texts({file: text.replace(line, instead)}))

    with pytest.raises(Violation) as found:
        _look_for(SPREAD[f"{name}, spread"], machine)
    machine.close()
    print(f"{bug}: {found.value}")


def _look_for(world: World, machine: Machine) -> None:
    for seed in reversed(range(SEEDS)):  # the last finds all of QUICK, the first does not
        explore(world, machine, most=MOST, seed=seed, is_deep=True, drain_share=0.05)
