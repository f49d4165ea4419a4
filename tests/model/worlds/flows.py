"""Flows: a parent waits for its children."""

from __future__ import annotations

from typing import Any

from tests.model.actors import FAIL, WAIT, keys_of
from tests.model.machine import START_MS
from tests.model.slots import Layout, Q
from tests.model.view import PREFIX, View
from tests.model.world import DEATH, EXPIRY, LEAVING, LOST, Client, Placed, World, failing
from tests.model.worlds.common import add, first, removes, two
from toril import FlowJob, NewJob
from toril.protocol import adding, flows, moving, removing
from toril.protocol.command import Command


def _flow(parent: dict[str, Any] | None = None, **policy: Any) -> Placed:
    def make(layout: Layout) -> Command[Any]:
        children = [
            FlowJob("fails", {"n": "c1"}, queue_name=layout.home("c1"), job_id="c1", **policy),
            FlowJob("job", {"n": "c2"}, queue_name=layout.home("c2"), job_id="c2"),
        ]
        return family(layout, children, **(parent or {}))

    return make


def family(layout: Layout, children: list[FlowJob], name: str = "parent", **options: Any) -> Any:
    """A parent and its children; each is where it is at home."""
    root = FlowJob(
        name, {"n": "p"}, queue_name=layout.home("p"), job_id="p", children=children, **options
    )
    return flows.add(flows.prepare([root], PREFIX, iter(("f0", "f1", "f2")).__next__))


FLOW = World(
    "a parent and two children",
    (Q,),
    two(),
    (_flow(fail_parent_on_failure=True),),
    (removes("c2"),),
    ends=failing("fails"),
    starts_idle=True,
)

RETRY = Client(
    "retry c1", lambda view: moving.retry(keys_of(view.layout.home("c1")), "c1", call="retry c1")
)
WITH_CHILDREN = Client(
    "remove p and its children",
    lambda view: first(removing.remove(keys_of(Q), "p", children=True)),
    may_remove=True,
)

GOES_ON = World(
    "a parent that goes on",
    (Q,),
    two(),
    (_flow({"delay": 1000}, continue_parent_on_failure=True),),
    (RETRY, WITH_CHILDREN),
    ends=failing("fails"),
    faults=((LOST, 1), (EXPIRY, 1), (LEAVING, 1)),
    starts_idle=True,
)

IGNORES = World(
    "a parent that ignores a failure",
    (Q,),
    two(),
    (_flow({"lane": "l"}, ignore_dependency_on_failure=True),),
    (RETRY, WITH_CHILDREN),
    ends=failing("fails"),
    faults=((LOST, 1), (EXPIRY, 1), (LEAVING, 1)),
    starts_idle=True,
)

FAILS_LATE = World(
    "a delayed parent in a lane",
    (Q,),
    two(),
    (_flow({"delay": 1000, "lane": "l"}, fail_parent_on_failure=True),),
    (RETRY, removes("c1")),
    ends={"fails": (FAIL,), "parent": (WAIT,)},
    faults=((DEATH, 1), (EXPIRY, 1), (LEAVING, 1)),
    starts_idle=True,
)


def late_child(view: View) -> Any:
    """A child that is added by itself; if its parent is elsewhere, through the parent's slot."""
    job = NewJob("fails", {"n": "c"}, job_id="c", timestamp=START_MS, fail_parent_on_failure=True)
    here, above = (keys_of(view.layout.home(job_id)) for job_id in ("c", "p"))
    prepared = adding.prepare(job, "c", ("p", above.base))
    if view.layout.is_spread and here != above:
        return flows.add([flows.PreparedNode(here, prepared, None)], None, above)
    return adding.add(here, [prepared])


WAITS = World(
    "a parent that waits for a late child",
    (Q,),
    two(),
    (add("p", "parent", attempts=2), add("w")),
    (Client("add c", late_child), removes("c")),
    ends={"fails": (FAIL,), "parent": (WAIT, FAIL)},
    faults=((LOST, 1), (DEATH, 1), (EXPIRY, 1), (LEAVING, 1)),
    starts_idle=True,
)

WORLDS = (FLOW, GOES_ON, IGNORES, FAILS_LATE, WAITS)
