"""Groups of three: undone as a whole, or completed as a whole.

Members one and two can be undone, three cannot. Each attempt ends well or badly; the group may be
cancelled, and somebody may run a completed member again by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.model.actors import Worker, keys_of
from tests.model.view import PREFIX, View
from tests.model.world import DEATH, EXPIRY, FAULTS, LOST, Client, World, failing
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
from toril.protocol.new_group import Compensation, new_group

QUEUES = ("q", "q:compensation")
MEMBERS = ("one", "two", "three")
FAILING = failing("one", "two", "undo-one")
ONE_WORKER = (Worker("a", "q"), Worker("c", "q:compensation"))
TWO_WORKERS = (*two(), Worker("c", "q:compensation"))


def group(
    order: str = "parallel",
    *,
    names: Sequence[str] = MEMBERS,
    keep: Keep | None = None,
    **options: Any,
) -> Any:
    undo = {
        name: Compensation(f"undo-{name}", {}, attempts=1, backoff=None) for name in MEMBERS[:2]
    }
    made = new_group(
        "order",
        [GroupJob(name, {"n": name}, queue_name="q", **options) for name in names],
        undo,
        queue_name=None,
        compensation_queue="{queue}:compensation",
        order=order,
        late=True,
        keep=keep,
        timeout=None,
    )
    return starting.create(PREFIX, made, "g", [f"j{n + 1}" for n in range(len(names))])


CANCEL = Client(
    "cancel the group",
    lambda view: groups.cancel(keys_of("q"), "g", request="r"),
    may_remove=True,
)


def staged(*, pivot: bool = False, signal: bool = False, timeout: int | None = None) -> Any:
    """Three members, each after the one before: the second may be the pivot, or a signal."""
    one = GroupJob("one", {"n": "one"}, queue_name="q")
    two: Any = GroupJob(
        "two", {"n": "two"}, queue_name="q", after=["one"], inputs={"x": "one"}, pivot=pivot
    )
    if signal:
        two = GroupSignal("two", after=["one"], timeout=2000)
    three = GroupJob("three", {"n": "three"}, queue_name="q", after=["two"])
    mapped = MEMBERS[:1] if pivot or signal else MEMBERS[:2]
    undo = {name: Compensation(f"undo-{name}", {}, attempts=1, backoff=None) for name in mapped}
    made = new_group("order", [one, two, three], undo, timeout=timeout)
    return starting.create(PREFIX, made, "g", ["j1", "j2", "j3"], seed="j")


def joined() -> Any:
    """The third member waits for the first and the second."""
    members = [
        GroupJob("one", {"n": "one"}, queue_name="q"),
        GroupJob("two", {"n": "two"}, queue_name="q"),
        GroupJob("three", {"n": "three"}, queue_name="q", after=["one", "two"]),
    ]
    undo = {
        name: Compensation(f"undo-{name}", {}, attempts=1, backoff=None) for name in MEMBERS[:2]
    }
    made = new_group("joined", members, undo)
    return starting.create(PREFIX, made, "g", ["j1", "j2", "j3"], seed="j")


def pair(name: str = "order", *, pivot: bool = False, **options: Any) -> Any:
    """Two members, one after the other; the first is the pivot, or can be undone."""
    members = [
        GroupJob("one", {"n": "one"}, queue_name="q", pivot=pivot),
        GroupJob("two", {"n": "two"}, queue_name="q", after=["one"]),
    ]
    undo = {} if pivot else {"one": Compensation("undo-one", {}, attempts=1, backoff=None)}
    made = new_group(name, members, undo, **options)
    return starting.create(PREFIX, made, "g", ["j1", "j2"], seed="j")


def awaited() -> Any:
    """A signal, and a member after it."""
    members = [
        GroupSignal("two", timeout=2000),
        GroupJob("one", {"n": "one"}, queue_name="q", after=["two"]),
    ]
    made = new_group("order", members, None)
    return starting.create(PREFIX, made, "g", ["j1", "j2"], seed="j")


def _of_group(make: Any) -> Any:
    """What can be asked of a group as long as there is one."""
    return lambda view: make() if "g" in view.queues["q"].groups else None


LOOK = Client(
    "look after the group", _of_group(lambda: groups.reconcile(keys_of("q"), everything=True)), True
)
AGAIN = Client("start it again", lambda view: staged())
RETRY_GROUP = Client(
    "retry the group",
    _of_group(lambda: groups.retry_group(keys_of("q"), "g", request="rg")),
    may_remove=True,
    is_silent=True,
)
UNDO_MORE = Client(
    "retry the compensation",
    _of_group(lambda: groups.retry_compensation(keys_of("q"), "g", request="rc")),
    may_remove=True,
    is_silent=True,
)


RESOLVE = Client(
    "resolve the group",
    _of_group(lambda: groups.resolve(keys_of("q"), "g", "by hand", request="rs")),
    may_remove=True,
)


def _signal(state: str, request: str) -> Client:
    return Client(
        f"signal {state} {request}",
        _of_group(
            lambda: groups.settle_member(keys_of("q"), "g", "two", state, b"1", request=request)
        ),
        True,
    )


def _run_again(view: View) -> Any:
    done = view.queues["q"].order.get("completed")
    return moving.retry(keys_of("q"), done[0], call="by hand", force=True) if done else None


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
    if "g-c0" not in view.queues["q:compensation"].order.get("failed", ()):
        return None
    return moving.retry(keys_of("q:compensation"), "g-c0", call="undo it again")


BROKEN = World(
    "a group that could not be undone",
    QUEUES,
    ONE_WORKER,
    (group(names=("one", "two")),),
    (
        retried_by_bullmq("g-c0", queue="q:compensation"),
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
        _again(UNDO_MORE, lambda: groups.retry_compensation(keys_of("q"), "g", request="rc2")),
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
        _again(RETRY_GROUP, lambda: groups.retry_group(keys_of("q"), "g", request="rg2")),
        RESOLVE,
        LOOK,
    ),
    ends=failing("two"),
    faults=((LOST, 1), (DEATH, 1)),
    may_remove=True,
)


def _one_later() -> Any:
    """Three members side by side, the last of them delayed."""
    members = [GroupJob(name, {"n": name}, queue_name="q") for name in MEMBERS[:2]]
    members.append(GroupJob("three", {"n": "three"}, queue_name="q", delay=1000))
    undo = {
        name: Compensation(f"undo-{name}", {}, attempts=1, backoff=None) for name in MEMBERS[:2]
    }
    made = new_group("order", members, undo)
    return starting.create(PREFIX, made, "g", ["j1", "j2", "j3"])


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
    ended = view.keys.get(f"{PREFIX}:q:toril:groups-ended")
    return first(groups.clean(keys_of("q"), grace_ms=0, limit=0)) if ended is not None else None


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
