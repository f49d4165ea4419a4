"""Flows: a parent waits for its children."""

from __future__ import annotations

from typing import Any

from tests.model.actors import FAIL, WAIT, keys_of
from tests.model.machine import START_MS
from tests.model.view import PREFIX, View
from tests.model.world import DEATH, EXPIRY, LEAVING, LOST, Client, World, failing
from tests.model.worlds.common import add, first, removes, two
from toril import FlowJob, NewJob
from toril.protocol import adding, flows, moving, removing


def _flow(parent: dict[str, Any] | None = None, **policy: Any) -> Any:
    counter = iter(f"f{n}" for n in range(9))
    root = FlowJob(
        "parent",
        {"n": "p"},
        queue_name="q",
        job_id="p",
        **(parent or {}),
        children=[
            FlowJob("fails", {"n": "c1"}, queue_name="q", job_id="c1", **policy),
            FlowJob("job", {"n": "c2"}, queue_name="q", job_id="c2"),
        ],
    )
    return flows.add(flows.prepare([root], PREFIX, lambda: next(counter)))


FLOW = World(
    "a parent and two children",
    ("q",),
    two(),
    (_flow(fail_parent_on_failure=True),),
    (removes("c2"),),
    ends=failing("fails"),
    starts_idle=True,
)

RETRY = Client("retry c1", lambda view: moving.retry(keys_of("q"), "c1", call="retry c1"))
WITH_CHILDREN = Client(
    "remove p and its children",
    lambda view: first(removing.remove(keys_of("q"), "p", children=True)),
    may_remove=True,
)

GOES_ON = World(
    "a parent that goes on",
    ("q",),
    two(),
    (_flow({"delay": 1000}, continue_parent_on_failure=True),),
    (RETRY, WITH_CHILDREN),
    ends=failing("fails"),
    faults=((LOST, 1), (EXPIRY, 1), (LEAVING, 1)),
    starts_idle=True,
)

IGNORES = World(
    "a parent that ignores a failure",
    ("q",),
    two(),
    (_flow({"lane": "l"}, ignore_dependency_on_failure=True),),
    (RETRY, WITH_CHILDREN),
    ends=failing("fails"),
    faults=((LOST, 1), (EXPIRY, 1), (LEAVING, 1)),
    starts_idle=True,
)

FAILS_LATE = World(
    "a delayed parent in a lane",
    ("q",),
    two(),
    (_flow({"delay": 1000, "lane": "l"}, fail_parent_on_failure=True),),
    (RETRY, removes("c1")),
    ends={"fails": (FAIL,), "parent": (WAIT,)},
    faults=((DEATH, 1), (EXPIRY, 1), (LEAVING, 1)),
    starts_idle=True,
)


def late_child(view: View) -> Any:
    job = NewJob("fails", {"n": "c"}, job_id="c", timestamp=START_MS, fail_parent_on_failure=True)
    return adding.add(keys_of("q"), [adding.prepare(job, "c", ("p", f"{PREFIX}:q"))])


WAITS = World(
    "a parent that waits for a late child",
    ("q",),
    two(),
    (add("p", "parent", attempts=2), add("w")),
    (Client("add c", late_child), removes("c")),
    ends={"fails": (FAIL,), "parent": (WAIT, FAIL)},
    faults=((LOST, 1), (DEATH, 1), (EXPIRY, 1), (LEAVING, 1)),
    starts_idle=True,
)

WORLDS = (FLOW, GOES_ON, IGNORES, FAILS_LATE, WAITS)
