"""Groups of three: undone as a whole, or completed as a whole.

Members one and two can be undone, three cannot. Each attempt ends well or badly; the group may be
cancelled, and somebody may run a completed member again by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tests.model.actors import Worker, keys_of
from tests.model.slots import COMPENSATION, OF_MEMBERS, Layout, Q
from tests.model.view import PREFIX, View
from tests.model.world import DEATH, EXPIRY, FAULTS, LOST, Client, Placed, World, failing
from tests.model.worlds.common import (
    REMOVES_ORPHANS,
    add,
    by_bullmq,
    first,
    removes,
    retried_by_bullmq,
    two,
)
from toril import GroupJob, GroupSignal
from toril.options import Keep
from toril.protocol import groups, moving, starting
from toril.protocol.command import Command
from toril.protocol.new_group import Compensation, new_group

QUEUES = (Q, COMPENSATION)
MEMBERS = ("one", "two", "three")
FAILING = failing("one", "two", "undo-one")
ONE_WORKER = (Worker("a", Q), Worker("c", COMPENSATION))
TWO_WORKERS = (*two(), Worker("c", COMPENSATION))


def group(
    order: str = "parallel",
    *,
    names: Sequence[str] = MEMBERS,
    keep: Keep | None = None,
    **options: Any,
) -> Placed:
    jobs = [(name, f"j{n + 1}", options) for n, name in enumerate(names)]
    more = {"compensation_queue": "{queue}:compensation", "late": True, "keep": keep}
    return _placed(jobs, undone=MEMBERS[:2], order=order, timeout=None, **more)


def _placed(
    jobs: Sequence[tuple[str, str, dict[str, Any]] | GroupSignal],
    undone: Sequence[str] = (),
    *,
    name: str = "order",
    seed: str | None = None,
    **options: Any,
) -> Placed:
    """A group of these jobs (name, id and options) and signals, wherever each of them is."""
    undo = {one: Compensation(f"undo-{one}", {}, attempts=1, backoff=None) for one in undone}
    ids = [f"j{n + 1}" for n in range(len(jobs))]

    def make(layout: Layout) -> Command[Any]:
        members = [
            job
            if isinstance(job, GroupSignal)
            else GroupJob(job[0], {"n": job[0]}, queue_name=layout.home(job[1]), **job[2])
            for job in jobs
        ]
        ends = {
            option: msgspec.structs.replace(value, queue_name=layout.home(option))
            for option, value in options.items()
            if isinstance(value, GroupJob)
        }
        made = new_group(name, members, undo or None, queue_name=Q, **{**options, **ends})
        return starting.create(PREFIX, made, "g", ids, **({"seed": seed} if seed else {}))

    return make


CANCEL = Client(
    "cancel the group",
    lambda view: groups.cancel(keys_of(Q), "g", request="r"),
    may_remove=True,
)


def staged(*, pivot: bool = False, signal: bool = False, timeout: int | None = None) -> Placed:
    """Three members, each after the one before: the second may be the pivot, or a signal."""
    two: Any = ("two", "j2", {"after": ["one"], "inputs": {"x": "one"}, "pivot": pivot})
    if signal:
        two = GroupSignal("two", after=["one"], timeout=2000)
    undone = MEMBERS[:1] if pivot or signal else MEMBERS[:2]
    jobs = [("one", "j1", {}), two, ("three", "j3", {"after": ["two"]})]
    return _placed(jobs, undone, seed="j", timeout=timeout)


def joined() -> Placed:
    """The third member waits for the first and the second."""
    jobs = [("one", "j1", {}), ("two", "j2", {}), ("three", "j3", {"after": ["one", "two"]})]
    return _placed(jobs, MEMBERS[:2], name="joined", seed="j")


def pair(name: str = "order", *, pivot: bool = False, **options: Any) -> Placed:
    """Two members, one after the other; the first is the pivot, or can be undone."""
    jobs = [("one", "j1", {"pivot": pivot}), ("two", "j2", {"after": ["one"]})]
    return _placed(jobs, () if pivot else MEMBERS[:1], name=name, seed="j", **options)


def beside(**options: Any) -> Placed:
    """Two members side by side that can be undone."""
    jobs = [(name, f"j{n + 1}", {}) for n, name in enumerate(MEMBERS[:2])]
    return _placed(jobs, MEMBERS[:2], name="beside", **options)


def awaited() -> Placed:
    """A signal, and a member after it."""
    return _placed([GroupSignal("two", timeout=2000), ("one", "j2", {"after": ["two"]})], seed="j")


def _of_group(make: Any) -> Any:
    """What can be asked of a group as long as there is one."""
    return lambda view: make() if "g" in view.queues[Q].groups else None


LOOK = Client(
    "look after the group", _of_group(lambda: groups.reconcile(keys_of(Q), everything=True)), True
)
AGAIN = Client("start it again", lambda view: staged()(view.layout))
RETRY_GROUP = Client(
    "retry the group",
    _of_group(lambda: groups.retry_group(keys_of(Q), "g", request="rg")),
    may_remove=True,
    is_silent=True,
)
UNDO_MORE = Client(
    "retry the compensation",
    _of_group(lambda: groups.retry_compensation(keys_of(Q), "g", request="rc")),
    may_remove=True,
    is_silent=True,
)


RESOLVE = Client(
    "resolve the group",
    _of_group(lambda: groups.resolve(keys_of(Q), "g", "by hand", request="rs")),
    may_remove=True,
)


def _signal(state: str, request: str) -> Client:
    return Client(
        f"signal {state} {request}",
        _of_group(
            lambda: groups.settle_member(keys_of(Q), "g", "two", state, b"1", request=request)
        ),
        True,
    )


def _run_again(view: View) -> Any:
    for name in OF_MEMBERS:
        done = view.queues[name].order.get("completed") if name in view.queues else None
        if done:
            return moving.retry(keys_of(name), done[0], call="by hand", force=True)
    return None


BY_HAND = Client("run a member again", _run_again)


STAGED = World(
    "a group of three stages",
    QUEUES,
    TWO_WORKERS,
    (staged(),),
    (CANCEL, AGAIN),
    ends=failing("one", "two", "three", "undo-one"),
    faults=((LOST, 1), (DEATH, 1), (EXPIRY, 1)),
    may_remove=True,
)
UNDONE_IN_STAGES = World(
    "three stages that are undone",
    QUEUES,
    TWO_WORKERS,
    (staged(),),
    (UNDO_MORE, LOOK),
    ends=failing("three", "undo-two"),
    faults=((LOST, 1), (DEATH, 1)),
    may_remove=True,
)
LIMITED = World(
    "three stages with a time limit",
    QUEUES,
    TWO_WORKERS,
    (staged(timeout=2000),),
    (LOOK, LOOK._replace(name="look again")),
    ends=failing("two", "undo-one"),
    faults=((LOST, 1), (DEATH, 1), (EXPIRY, 1)),
    may_remove=True,
)
GIVEN, REFUSED = _signal("completed", "s1"), _signal("failed", "s2")
SIGNALLED = World(
    "three stages and a signal",
    QUEUES,
    TWO_WORKERS,
    (staged(signal=True),),
    (GIVEN, REFUSED, CANCEL, LOOK),
    ends=failing("one", "three", "undo-one"),
    faults=((LOST, 1), (DEATH, 1)),
    may_remove=True,
)
JOINED = World(
    "two stages, the second after two",
    QUEUES,
    TWO_WORKERS,
    (joined(),),
    (CANCEL,),
    ends=failing("one", "three", "undo-one"),
    faults=((LOST, 1), (DEATH, 1)),
    may_remove=True,
)
AGAIN_BY_HAND = World(
    "three stages, and one runs again",
    QUEUES,
    ONE_WORKER,
    (staged(),),
    (BY_HAND, LOOK),
    ends=failing("three"),
    faults=((LOST, 1), (DEATH, 1)),
    may_remove=True,
)
PIVOT = World(
    "three stages and a pivot",
    QUEUES,
    TWO_WORKERS,
    (staged(pivot=True),),
    (CANCEL, RETRY_GROUP, LOOK),
    ends=failing("one", "two", "three", "undo-one"),
    faults=((LOST, 1), (DEATH, 1), (EXPIRY, 1)),
    may_remove=True,
)


GROUP = World(
    "a group of three",
    QUEUES,
    TWO_WORKERS,
    (group(),),
    (CANCEL,),
    ends=FAILING,
    faults=((LOST, 1), (DEATH, 1), (EXPIRY, 1)),
    may_remove=True,
)

ALONE = World(
    "a group of three and one worker",
    QUEUES,
    ONE_WORKER,
    (group(),),
    (CANCEL, BY_HAND),
    ends=FAILING,
    faults=FAULTS,
    may_remove=True,
)

BACKWARDS = World(
    "a group undone backwards",
    QUEUES,
    TWO_WORKERS,
    (group("reverse"),),
    (CANCEL,),
    ends=failing("two", "undo-two"),
    faults=((LOST, 1), (DEATH, 1)),
    may_remove=True,
)

LARGE = World(
    "a group of five",
    QUEUES,
    ONE_WORKER,
    (group(names=("one", "two", "three", "three", "three")), add("x"), add("y")),
    (CANCEL, removes("j5")),
    ends=FAILING,
    faults=((LOST, 1), (EXPIRY, 1)),
    may_remove=True,
)

FORGOTTEN = World(
    "a group that is forgotten",
    QUEUES,
    ONE_WORKER,
    (group(keep=Keep(count=0)),),
    (CANCEL, BY_HAND),
    ends=FAILING,
    faults=((LOST, 1), (DEATH, 1), (EXPIRY, 1)),
    may_remove=True,
)

BESIDE = World(
    "a group beside BullMQ",
    QUEUES,
    ONE_WORKER,
    (group(),),
    (REMOVES_ORPHANS, retried_by_bullmq("j1", "completed"), retried_by_bullmq("j2")),
    ends=FAILING,
    faults=((DEATH, 1), (EXPIRY, 1)),
    may_remove=True,
)


def _undo_again(view: View) -> Any:
    queue = f"{view.layout.home('j1')}:compensation"
    if "g-c0" not in view.queues[queue].order.get("failed", ()):
        return None
    return moving.retry(keys_of(queue), "g-c0", call="undo it again")


BROKEN = World(
    "a group that could not be undone",
    QUEUES,
    ONE_WORKER,
    (group(names=("one", "two")),),
    (
        retried_by_bullmq("g-c0"),
        Client("undo it again", _undo_again),
    ),
    ends=failing("two", "undo-one"),
    faults=((LOST, 1), (DEATH, 1)),
    may_remove=True,
)


def _again(client: Client, make: Any) -> Client:
    """The same, asked by a second operator."""
    return client._replace(name=f"{client.name} too", make=_of_group(make))


OPERATORS = World(
    "two operators and a group that could not be undone",
    QUEUES,
    ONE_WORKER,
    (group(names=("one", "two")),),
    (
        UNDO_MORE,
        _again(UNDO_MORE, lambda: groups.retry_compensation(keys_of(Q), "g", request="rc2")),
        RESOLVE,
        LOOK,
    ),
    ends=failing("two", "undo-one"),
    faults=((LOST, 1),),
    may_remove=True,
)
BLOCKED = World(
    "two operators and a blocked group",
    QUEUES,
    ONE_WORKER,
    (pair(pivot=True),),
    (
        RETRY_GROUP,
        _again(RETRY_GROUP, lambda: groups.retry_group(keys_of(Q), "g", request="rg2")),
        RESOLVE,
        LOOK,
    ),
    ends=failing("two"),
    faults=((LOST, 1), (DEATH, 1)),
    may_remove=True,
)


def _one_later() -> Placed:
    """Three members side by side, the last of them delayed."""
    jobs = [("one", "j1", {}), ("two", "j2", {}), ("three", "j3", {"delay": 1000})]
    return _placed(jobs, MEMBERS[:2])


NODE_RUNS = (
    by_bullmq("bullTake", "j1", place="wait"),
    by_bullmq("bullEnd", "j1", "completed", '"result of j1"', place="active"),
    by_bullmq("bullEnd", "j1", "failed", "no", place="active"),
)
NODE = World(
    "a group and a program of BullMQ",
    QUEUES,
    ONE_WORKER,
    (_one_later(),),
    (
        *NODE_RUNS,
        by_bullmq("bullRemove", "j2"),
        by_bullmq("bullPromote", "j3", place="delayed"),
        retried_by_bullmq("j1", "completed"),
        LOOK,
        LOOK._replace(name="look again"),
    ),
    ends=failing("two", "undo-one"),
    faults=((DEATH, 1), (EXPIRY, 1)),
    may_remove=True,
)
NODE_IN_STAGES = World(
    "three stages and a program of BullMQ",
    QUEUES,
    ONE_WORKER,
    (staged(),),
    (
        *NODE_RUNS,
        retried_by_bullmq("j1"),
        by_bullmq("bullRemove", "j2"),
        LOOK,
        LOOK._replace(name="look again"),
    ),
    ends=failing("two", "three", "undo-one"),
    faults=((DEATH, 1), (EXPIRY, 1)),
    may_remove=True,
)


def _clean(view: View) -> Any:
    ended = view.keys.get(f"{PREFIX}:{Q}:toril:groups-ended")
    return first(groups.clean(keys_of(Q), grace_ms=0, limit=0)) if ended is not None else None


CLEAN = Client("clean groups", _clean, is_silent=True)
FORGOTTEN_IN_STAGES = World(
    "three stages that are forgotten",
    QUEUES,
    ONE_WORKER,
    (staged(),),
    (CLEAN, AGAIN, CANCEL, BY_HAND, retried_by_bullmq("j1", "completed"), retried_by_bullmq("j3")),
    ends=failing("three"),
    faults=((LOST, 1), (DEATH, 1)),
    may_remove=True,
)

WORLDS = (
    *(NODE, NODE_IN_STAGES, FORGOTTEN_IN_STAGES),
    *(GROUP, ALONE, BACKWARDS, LARGE, FORGOTTEN, BESIDE, BROKEN),
    *(STAGED, UNDONE_IN_STAGES, LIMITED, SIGNALLED, JOINED, AGAIN_BY_HAND, PIVOT),
    *(OPERATORS, BLOCKED),
)
