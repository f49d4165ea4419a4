"""Corners: moments that the other worlds reach late or never, each from close by.

Each is explored wide, those over several slots deep: what is dangerous there takes more steps.
"""

from __future__ import annotations

from typing import Any

from tests.model.actors import FAIL, HOLD_LANE, WAIT, Habits, Worker, keys_of
from tests.model.machine import START_MS, Request
from tests.model.slots import COMPENSATION, WRITTEN, Layout, Q
from tests.model.view import PREFIX, View
from tests.model.world import (
    DEATH,
    EXPIRY,
    GHOST,
    GIVING_BACK,
    LEAVING,
    LOST,
    RENEWAL,
    Client,
    Placed,
    World,
    failing,
)
from tests.model.worlds.common import (
    REMOVES_ORPHANS,
    add,
    adds,
    by_bullmq,
    first,
    removes,
    retried_by_bullmq,
    two,
)
from tests.model.worlds.deduplication import LAST
from tests.model.worlds.flows import family, late_child
from tests.model.worlds.groups import (
    CANCEL,
    GIVEN,
    LOOK,
    NODE_RUNS,
    QUEUES,
    REFUSED,
    RESOLVE,
    RETRY_GROUP,
    UNDO_MORE,
    awaited,
    beside,
    group,
    pair,
    staged,
)
from tests.model.worlds.schedulers import schedule
from tests.model.worlds.spread import spread
from toril import Backoff, Deduplication, FlowJob, GroupJob
from toril.options import Keep, RateLimit
from toril.protocol import (
    dead_letters,
    lanes,
    limiting,
    moving,
    pausing,
    removing,
    replaying,
)

ONE = (Worker("a", Q),)
LEAVES = ((LEAVING, 1),)
RESUME = Client("resume", lambda view: first(pausing.resume(keys_of(Q))), is_silent=True)


ENDS = {
    when: GroupJob("after", {"n": when}, queue_name=Q) for when in ("on_completed", "on_failed")
}


def _resumed(what: str, *given: Any) -> World:
    """The workers found the queue paused, and nobody else tells them of what is there."""
    paused = (*given, first(pausing.pause(keys_of(Q))))
    return _corner(f"resumed with {what}", paused, RESUME, starts_idle=True)


def _corner(name: str, given: tuple[Any, ...], *clients: Client, **more: Any) -> World:
    return World(name, (Q,), more.pop("workers", two()), given, clients, **{"faults": (), **more})


def _promote(job_id: str) -> Client:
    return Client(
        f"promote {job_id}",
        lambda view: moving.promote(keys_of(Q), job_id, call=f"promote {job_id}"),
    )


def _family(*, parent: str = "parent", other: str = "job", **policy: Any) -> Placed:
    def make(layout: Layout) -> Any:
        children = [
            FlowJob("fails", {"n": "c1"}, queue_name=layout.home("c1"), job_id="c1", **policy),
            FlowJob(other, {"n": "c2"}, queue_name=layout.home("c2"), job_id="c2", **policy),
        ]
        return family(layout, children, parent)

    return make


def _remove_a_slice(view: View) -> Any:
    """One of the family, once none of the children is pending."""
    if f"{PREFIX}:{Q}:p:dependencies" in view.keys:
        return None
    return first(removing.remove(keys_of(Q), "p", children=True, slice_size=1))


SLICES = tuple(Client(f"remove slice {n}", _remove_a_slice, may_remove=True) for n in (1, 2))


def _lane_limit(most: int) -> Any:
    return first(lanes.set_rate_limit(keys_of(Q), RateLimit(most, 1000), "l"))


def _letter(job_id: str) -> tuple[Any, Request]:
    """A dead letter of the queue "q", as if a worker had buried it."""
    meta = f'{{"originalJobId":"{job_id}","originalTimestamp":5,"sourceQueue":"{Q}"}}'
    note = f'{{"size":{len(meta)},"source":"{Q}","why":"","fp":"f"}}'
    fields = ("data", f'{{"n":"{job_id}","_dlqMeta":{meta}}}', "x.letter", note)
    return add(job_id, queue=WRITTEN), Request("write", (f"{PREFIX}:{WRITTEN}:{job_id}",), fields)


def _operator(name: str, slices: int) -> tuple[Client, ...]:
    """Somebody who replays all letters, one in a slice; each slice follows the one before."""
    every = dead_letters.Filter()
    keys, run = keys_of(WRITTEN), dead_letters.Run("replay", name, every)

    def slice_of(step: int) -> Any:
        def make(view: View) -> Any:
            record = f"{PREFIX}:{WRITTEN}:toril:replay-{name}"
            if step > 0 and record not in view.keys:
                return None
            walk = dead_letters.Walk(step=step, done=step, not_after=START_MS + 1000)
            return replaying.replay_slice(keys, walk, every, [f"{name}-{step}"], run=run)

        return make

    return tuple(
        Client(f"{name} replays {step}", slice_of(step), may_remove=True) for step in range(slices)
    )


FROM_ANOTHER = Request(
    "write",
    (f"{PREFIX}:{Q}:dn:d",),
    (
        "name",
        "other",
        "data",
        "{}",
        "opts",
        "{}",
        "jid",
        "o",
        "pk",
        f"{PREFIX}:{Q}:gone",
        "pd",
        "{}",
    ),
)

AGAIN = ((LOST, 1), (GHOST, 1))
KEEPS_NOTHING = Habits(keeps=Keep(count=0))


def _comes_again(what: str, *clients: Client, given: tuple[Any, ...] = (), **more: Any) -> World:
    """The job may have run and gone when the call arrives a second time."""
    more = {"workers": two(KEEPS_NOTHING), "may_remove": True, "faults": AGAIN, **more}
    return _corner(f"{what} comes again", given, *clients, **more)


COMING_AGAIN = (
    _comes_again("an add", adds("x"), adds("y", priority=1)),
    _comes_again(
        "an add that a job is there for",
        adds("y", deduplication=Deduplication("d")),
        adds("x"),
        given=(add("x", deduplication=Deduplication("d")),),
    ),
    _comes_again("a child", Client("add c", late_child), given=(add("p", "parent"),)),
    _comes_again("a flow", Client("add a flow", lambda view: _family()(view.layout))),
    _comes_again("a schedule", Client("schedule", lambda view: schedule()), ticks=0),
    World(
        "a group comes again",
        QUEUES,
        (Worker("a", Q, KEEPS_NOTHING), Worker("c", COMPENSATION, KEEPS_NOTHING)),
        (),
        (
            Client(
                "add a group",
                lambda view: group(names=("one", "two"), keep=Keep(count=0))(view.layout),
            ),
        ),
        ends=failing("two"),
        faults=AGAIN,
        may_remove=True,
    ),
)

WORLDS = (
    *COMING_AGAIN,
    _resumed("a job", add("x")),
    _corner(
        "BullMQ retries a lane backwards",
        (add("x", "fails", lane="l", attempts=1), add("y", "fails", lane="l", attempts=1)),
        retried_by_bullmq("y"),
        retried_by_bullmq("x"),
        REMOVES_ORPHANS,
        workers=ONE,
        ends=failing("fails"),
    ),
    _resumed("a delayed job", add("x", delay=1000)),
    _resumed("a delayed job of a lane", add("x", lane="l", delay=1000)),
    _corner("promoted", (add("x", delay=1000),), _promote("x"), starts_idle=True),
    _corner("two priorities", (add("x", priority=2), add("y", priority=1))),
    _corner(
        "back to the front",
        (add("y"), add("z"), add("x", "retries", lifo=True, attempts=2)),
        ends=failing("retries"),
        faults=LEAVES,
    ),
    _corner("given back", (add("x"),), faults=((GIVING_BACK, 1), (LEAVING, 1))),
    _corner(
        "a place is free again",
        (limiting.set_concurrency(keys_of(Q), 1), add("x"), add("y")),
        faults=LEAVES,
    ),
    _corner("renewed", (add("x"),), faults=((EXPIRY, 1), (RENEWAL, 1))),
    _corner(
        "back to the lane",
        (
            add("x", "retries", lane="l", attempts=2, backoff=Backoff.fixed(0)),
            add("y", "later", lane="m", backoff=Backoff.fixed(1000), attempts=2),
        ),
        ends=failing("retries", "later"),
        faults=LEAVES,
    ),
    _corner(
        "removed from a lane",
        (add("x", lane="l", delay=1000),),
        removes("x"),
        starts_idle=True,
    ),
    _corner(
        "a lane is stopped",
        (add("x", lane="l"), add("y", lane="l")),
        Client("pause l", lambda view: lanes.pause(keys_of(Q), "l")),
        Client("resume l", lambda view: lanes.resume(keys_of(Q), "l")),
    ),
    _corner(
        "a handler holds its lane",
        (add("x", "holds", lane="l"), add("y", lane="l"), add("o", lane="o")),
        adds("z", lane="l"),
        removes("y"),
        ends={"holds": (HOLD_LANE,)},
        faults=((LEAVING, 1), (EXPIRY, 1)),
    ),
    _corner(
        "lanes in turn",
        (add("x", lane="l"), add("y", lane="l"), add("z", lane="l")),
        adds("o", lane="o"),
        workers=ONE,
        faults=LEAVES,
    ),
    _corner(
        "the limit of a lane is lowered",
        (_lane_limit(2), add("x", lane="l"), add("y", lane="l")),
        Client("lower the limit", lambda view: _lane_limit(1)),
        faults=LEAVES,
        ticks=0,
    ),
    _corner(
        "a parent comes to the front",
        (_family(fail_parent_on_failure=True), add("w")),
        ends=failing("fails"),
        faults=LEAVES,
    ),
    _corner(
        "a parent is let go by a removal",
        (_family(), add("w")),
        removes("c1"),
        removes("c2"),
        workers=ONE,
    ),
    _corner(
        "a parent is announced",
        (_family(ignore_dependency_on_failure=True),),
        ends=failing("fails"),
        faults=LEAVES,
    ),
    _corner(
        "a child fails while its parent runs",
        (add("p", "parent"),),
        Client("add c", late_child),
        ends={"fails": (FAIL,), "parent": (WAIT,)},
    ),
    _corner(
        "a parent that waited in vain waits again",
        (add("p", "parent"),),
        Client("add c", late_child),
        ends={"parent": (WAIT,)},
        workers=ONE,
        faults=((EXPIRY, 1),),
    ),
    _corner(
        "a family is removed in slices",
        (_family(other="fails", fail_parent_on_failure=True),),
        *SLICES,
        ends=failing("fails"),
        workers=ONE,
    ),
    _corner(
        "a family whose failures are ignored is removed in slices",
        (_family(other="fails", ignore_dependency_on_failure=True),),
        *SLICES,
        ends=failing("fails"),
        workers=ONE,
    ),
    _corner(
        "the newest alone waits for its turn",
        (add("x", deduplication=LAST), FROM_ANOTHER),
        adds("y", deduplication=LAST),
        faults=LEAVES,
    ),
    _corner(
        "replaced while another one waits",
        (add("x", "fails", attempts=2, backoff=Backoff.fixed(1000), deduplication=LAST),),
        adds("y", deduplication=LAST),
        adds("z", delay=1000, deduplication=Deduplication("d", replace=True))._replace(
            may_remove=True
        ),
        ends=failing("fails"),
    ),
    _corner(
        "a schedule for idle workers",
        (),
        Client("schedule", lambda view: schedule()),
        starts_idle=True,
        ticks=0,
    ),
    World(
        "two operators replay the same letters",
        (Q, WRITTEN),
        ONE,
        tuple(command for n in "wxyz" for command in _letter(n)),
        (*_operator("a", 2), *_operator("b", 1)),
        faults=((LOST, 2), (LEAVING, 1)),
        may_remove=True,
        ticks=0,
    ),
    World(
        "undone backwards after a stall",
        QUEUES,
        (*two(), Worker("c", COMPENSATION)),
        (group("reverse"),),
        ends=failing("three"),
        faults=((EXPIRY, 1),),
        may_remove=True,
    ),
    World(
        "tried again while it is undone",
        QUEUES,
        (*two(), Worker("c", COMPENSATION)),
        (group(names=("one", "two"), attempts=2),),
        ends=failing("one", "two"),
        faults=(),
        may_remove=True,
    ),
    World(
        "a member that BullMQ ended is removed",
        QUEUES,
        (*ONE, Worker("c", COMPENSATION)),
        (group(names=("one", "two")),),
        (*NODE_RUNS, removes("j1"), LOOK),
        ends=failing("two"),
        faults=(),
        may_remove=True,
    ),
    World(
        "blocked behind a pivot",
        QUEUES,
        ONE,
        (pair(pivot=True),),
        (RETRY_GROUP, RESOLVE),
        ends=failing("two"),
        faults=((LOST, 1),),
        may_remove=True,
        ticks=0,
    ),
    World(
        "a pivot of which nobody knows",
        QUEUES,
        two(),
        (pair(pivot=True, timeout=1000),),
        (LOOK, RETRY_GROUP),
        ends=failing("two"),
        faults=((EXPIRY, 2),),
        may_remove=True,
    ),
    World(
        "cancelled while nobody knows of the pivot",
        QUEUES,
        (*ONE, Worker("c", COMPENSATION)),
        (staged(pivot=True),),
        (CANCEL, RETRY_GROUP, LOOK),
        ends=failing("two"),
        faults=((DEATH, 1), (EXPIRY, 1)),
        may_remove=True,
        ticks=0,
    ),
    World(
        "a signal that comes twice or never",
        QUEUES,
        ONE,
        (awaited(),),
        (GIVEN, REFUSED, LOOK),
        ends=failing("one"),
        faults=((LOST, 1),),
        may_remove=True,
    ),
    World(
        "undone too late",
        QUEUES,
        (*ONE, Worker("c", COMPENSATION)),
        (pair(undo_timeout=1000),),
        (LOOK, UNDO_MORE),
        ends=failing("two", "undo-one"),
        faults=(),
        may_remove=True,
    ),
    World(
        "undone too late while a member runs",
        QUEUES,
        (*ONE, Worker("c", COMPENSATION)),
        (beside(undo_timeout=1000),),
        (CANCEL, LOOK),
        faults=(),
        may_remove=True,
        ticks=1,
    ),
    World(
        "blocked, and BullMQ retries what blocks it",
        QUEUES,
        ONE,
        (pair(pivot=True),),
        (
            retried_by_bullmq("j2"),
            by_bullmq("bullTake", "j2", place="wait"),
            by_bullmq("bullEnd", "j2", "completed", '"result of j2"', place="active"),
            RETRY_GROUP,
            LOOK,
        ),
        ends=failing("two"),
        faults=((LOST, 1),),
        may_remove=True,
    ),
    World(
        "a job at the end of a group",
        QUEUES,
        (*ONE, Worker("c", COMPENSATION)),
        (pair(timeout=2000, **ENDS),),
        (LOOK,),
        ends=failing("one", "two", "undo-one"),
        faults=((LOST, 1),),
        may_remove=True,
    ),
)


_ELSEWHERE = {
    "a child comes again": ("c",),
    "a flow comes again": ("c1",),
    "a group comes again": ("j2",),
    "a parent comes to the front": ("c1",),
    "a parent is let go by a removal": ("c1", "c2"),
    "a parent is announced": ("c1", "c2"),
    "a child fails while its parent runs": ("c",),
    "a parent that waited in vain waits again": ("c",),
    "two operators replay the same letters": (),
    "undone backwards after a stall": ("j1", "j3"),
    "tried again while it is undone": ("j2",),
    "a member that BullMQ ended is removed": ("j1",),
    "blocked behind a pivot": ("j2",),
    "a pivot of which nobody knows": ("j1",),
    "cancelled while nobody knows of the pivot": ("j2",),
    "a signal that comes twice or never": ("j2",),
    "undone too late": ("j1",),
    "undone too late while a member runs": ("j2",),
    "a job at the end of a group": ("j1", "on_completed", "on_failed"),
}
"""The corners in which something may cross slots, and the jobs that are in another one."""


def spread_twins() -> tuple[World, ...]:
    of = {world.name: world for world in WORLDS}
    return tuple(spread(of[name], *jobs) for name, jobs in _ELSEWHERE.items())
