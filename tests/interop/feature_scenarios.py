"""More scenarios: dedup modes, flows and schedulers, for which both must leave the same data.

A scenario in ``ONLY_V6`` uses what BullMQ 5 does not have.
"""

from __future__ import annotations

import time
from typing import Any

from tests.interop.scenario import Step
from tests.interop.scenarios import DEDUPLICATION as DELAYED_OWNERS
from tests.interop.scenarios import FLOWS as SIMPLE_FLOWS

FAR = 3_600_000
HANG = {"hang": [["hang"]]}


def _add(name: str, deduplication: dict[str, Any], label: str | None = None, **more: Any) -> Step:
    job = {"queue": "q", "name": name, "data": {"n": name}, "deduplication": deduplication, **more}
    return ("add", job | ({"as": label} if label else {}))


def _work(**until: str) -> Step:
    return ("work", {"queue": "q", "behaviours": {}, "until": until})


def _waiting_owner(options: dict[str, Any]) -> list[Step]:
    """Duplicates of an owner that waits, that has run, and a new owner after it."""
    return [
        _add("first", options, "a"),
        _add("second", options),
        _work(a="completed"),
        _add("third", options),
        _add("fourth", options, delay=FAR),
    ]


def _active_owner(options: dict[str, Any], *, finished: int) -> list[Step]:
    """Duplicates that come while the owner runs: the last of them may run after it."""
    return [
        _add("hang", options, "a"),
        (
            "while_active",
            {
                "queue": "q",
                "behaviours": HANG,
                "hold": "a",
                "steps": [_add("second", options), _add("third", options, attempts=2)],
                "finished": finished,
            },
        ),
    ]


_MODES: dict[str, dict[str, Any]] = {
    "simple": {"id": "d"},
    "throttle": {"id": "d", "ttl": FAR},
    "extend": {"id": "d", "ttl": FAR, "extend": True},
    "replace": {"id": "d", "replace": True},
    "replace for a time": {"id": "d", "ttl": FAR, "replace": True},
    "replace and extend": {"id": "d", "ttl": FAR, "replace": True, "extend": True},
}
_KEEPING: dict[str, dict[str, Any]] = {
    "keep the last": {"id": "d", "keep_last_if_active": True},
    "keep the last for a time": {"id": "d", "ttl": FAR, "keep_last_if_active": True},
    "keep the last and replace": {"id": "d", "replace": True, "keep_last_if_active": True},
}

DEDUPLICATION: dict[str, list[Step]] = {
    **DELAYED_OWNERS,
    **{f"{mode}, a waiting owner": _waiting_owner(o) for mode, o in (_MODES | _KEEPING).items()},
    **{f"{mode}, an active owner": _active_owner(o, finished=1) for mode, o in _MODES.items()},
    **{f"{mode}, an active owner": _active_owner(o, finished=2) for mode, o in _KEEPING.items()},
    "replacing twice": [
        _add(name, {"id": "d", "replace": True}, delay=FAR) for name in ("a", "b", "c")
    ],
    "two ids": [_add("a", {"id": "d"}), _add("b", {"id": "e"}), _add("c", {"id": "d"})],
    "a failing owner": [
        _add("bad", {"id": "d"}, "a"),
        (
            "work",
            {"queue": "q", "behaviours": {"bad": [["fail", "no"]]}, "until": {"a": "failed"}},
        ),
        _add("again", {"id": "d"}),
    ],
    "given free by hand": [
        _add("a", {"id": "d"}),
        ("remove_deduplication_key", {"queue": "q", "key": "d"}),
        _add("b", {"id": "d"}),
    ],
    "reschedule": [
        _add("a", {"id": "d", "reschedule": True}, delay=FAR),
        ("tick", {}),
        _add("b", {"id": "d", "reschedule": True}, delay=2 * FAR),
    ],
    "reschedule for a time": [
        _add("a", {"id": "d", "ttl": FAR, "reschedule": True}, delay=FAR),
        ("tick", {}),
        _add("b", {"id": "d", "ttl": FAR, "reschedule": True}, delay=2 * FAR),
    ],
}

ONLY_V6 = {"reschedule", "reschedule for a time"}


def _flow(*children: dict[str, Any], **options: Any) -> Step:
    return (
        "flow",
        {"tree": {"name": "parent", "queue": "p", "options": options, "children": list(children)}},
    )


def _child(name: str, queue: str = "c", **options: Any) -> dict[str, Any]:
    return {"name": name, "queue": queue, "data": {"n": name}, "options": options}


def _run(queue: str, *failing: str, **until: str) -> Step:
    behaviours = {name: [["fail", "it broke"]] for name in failing}
    return ("work", {"queue": queue, "behaviours": behaviours, "until": until})


def _failing(policy: str | None, *, parent: str) -> list[Step]:
    """One child fails under ``policy``, then another one completes."""
    options = {policy: True} if policy else {}
    steps = [
        _flow(_child("bad", **options), _child("good")),
        _run("c", "bad", bad="failed", good="completed"),
    ]
    return [*steps, _run("p", parent=parent)] if parent != "waiting-children" else steps


FLOWS: dict[str, list[Step]] = {
    **SIMPLE_FLOWS,
    "a flow is added": [
        _flow(
            _child("one"),
            _child("two", priority=3),
            _child("three", delay=FAR),
            {**_child("four"), "children": [_child("five", "g"), _child("six", "g", lifo=True)]},
            attempts=3,
            priority=5,
        )
    ],
    "a parent with a delay": [
        _flow(_child("one"), delay=FAR),
        _run("c", one="completed"),
    ],
    "a parent with a priority": [
        _flow(_child("one"), priority=7),
        _run("c", one="completed"),
    ],
    "three generations": [
        _flow({**_child("middle"), "children": [_child("leaf", "g")]}),
        _run("g", leaf="completed"),
        _run("c", middle="completed"),
        _run("p", parent="completed"),
    ],
    "a grandchild fails all above it": [
        _flow(
            {
                **_child("middle", fail_parent_on_failure=True),
                "children": [_child("leaf", "g", fail_parent_on_failure=True)],
            }
        ),
        _run("g", "leaf", leaf="failed"),
        _run("c", middle="failed"),
        _run("p", parent="failed"),
    ],
    "fail the parent": _failing("fail_parent_on_failure", parent="failed"),
    "go on with the parent": _failing("continue_parent_on_failure", parent="completed"),
    "ignore the child": _failing("ignore_dependency_on_failure", parent="completed"),
    "remove the child": _failing("remove_dependency_on_failure", parent="completed"),
    "no policy": _failing(None, parent="waiting-children"),
    "children that are removed": [
        _flow(
            _child("one", remove_on_complete=True),
            _child("bad", remove_on_fail=True, attempts=2),
        ),
        _run("c", "bad", one="gone", bad="gone"),
        _run("p", parent="completed"),
    ],
    "a child retried by hand": [
        _flow(_child("bad")),
        _run("c", "bad", bad="failed"),
        ("retry", {"queue": "c", "job": "bad"}),
        _run("c", bad="completed"),
        _run("p", parent="completed"),
    ],
    "a child is removed": [
        _flow(_child("one"), _child("two")),
        _run("c", one="completed", two="completed"),
        _flow(_child("three"), priority=2),
        ("remove", {"queue": "c", "job": "three"}),
    ],
    "a child that exists": [
        ("add", {"queue": "c", "name": "x", "data": {"n": 1}, "job_id": "shared", "as": "x"}),
        _flow(_child("one", job_id="shared"), _child("two")),
    ],
    "a parent whose child is done already": [
        ("add", {"queue": "c", "name": "x", "data": {"n": 1}, "job_id": "shared", "as": "x"}),
        _run("c", x="completed"),
        _flow(_child("one", job_id="shared")),
    ],
}


NOW = int(time.time() * 1000)


def _schedule(
    schedule: dict[str, Any], label: str | None = None, name: str = "s", **template: Any
) -> Step:
    step = {"queue": "q", "scheduler": name, "schedule": schedule, "template": template}
    return ("upsert_scheduler", step | ({"as": label} if label else {}))


SCHEDULERS: dict[str, list[Step]] = {
    "every": [_schedule({"every": FAR})],
    "every with a template": [
        _schedule({"every": FAR}, name="n", data={"a": [1]}, attempts=3, priority=2)
    ],
    "every with an offset": [_schedule({"every": FAR, "offset": 5000}, remove_on_complete=True)],
    "every from a start on": [
        _schedule({"every": FAR, "start": NOW + FAR, "end": NOW + 9 * FAR, "limit": 3})
    ],
    "cron": [
        _schedule({"cron": "0 9 * * 1-5", "tz": "Europe/Berlin", "limit": 9, "end": NOW + 99 * FAR})
    ],
    "cron with a template": [
        _schedule({"cron": "0 0 1 1 *", "tz": "UTC"}, name="n", data={"a": 1}, attempts=2)
    ],
    "cron at once": [_schedule({"cron": "0 0 1 1 *", "tz": "UTC", "immediately": True}, lifo=True)],
    "several": [
        _schedule({"every": FAR}, name="a"),
        _schedule({"every": 2 * FAR}, name="b"),
        _schedule({"cron": "0 0 1 1 *", "tz": "UTC"}, name="c"),
    ],
    "changing the template keeps the slot": [
        _schedule({"every": FAR, "offset": 5000}, data={"n": 1}),
        _schedule({"every": FAR, "offset": 5000}, data={"n": 2}, priority=3),
    ],
    "changing one that waits keeps the slot": [
        _schedule({"every": FAR}, data={"n": 1}),
        ("tick", {}),
        _schedule({"every": FAR}, data={"n": 2}),
    ],
    "changing the interval": [
        _schedule({"every": FAR, "offset": 5000}, data={"n": 1}),
        _schedule({"every": 2 * FAR}, data={"n": 2}),
    ],
    "changing the pattern": [
        _schedule({"cron": "0 0 1 1 *", "tz": "UTC"}, data={"n": 1}),
        _schedule({"cron": "0 0 1 2 *", "tz": "UTC"}, data={"n": 2}),
    ],
    "an iteration runs": [
        _schedule({"every": FAR}, "a", data={"n": 1}, priority=2),
        _work(a="completed"),
    ],
    "an iteration of a pattern runs": [
        _schedule({"cron": "0 0 1 1 *", "tz": "UTC", "immediately": True}, "a", data={"n": 1}),
        _work(a="completed"),
    ],
    "the last iteration runs": [
        _schedule({"every": FAR, "limit": 1}, "a"),
        _work(a="completed"),
    ],
    "an iteration is retried": [
        _schedule({"every": FAR}, "a", attempts=3),
        (
            "work",
            {
                "queue": "q",
                "behaviours": {"s": [["fail_until", 2, "not yet"]]},
                "until": {"a": "completed"},
            },
        ),
    ],
    "removing": [
        _schedule({"every": FAR, "offset": 5000}, name="a"),
        _schedule({"every": FAR}, name="b"),
        ("remove_scheduler", {"queue": "q", "scheduler": "a"}),
        ("remove_scheduler", {"queue": "q", "scheduler": "b"}),
        ("remove_scheduler", {"queue": "q", "scheduler": "nobody"}),
    ],
    "upserting while paused": [
        ("pause", {"queue": "q"}),
        _schedule({"every": FAR}),
    ],
}
