"""The scenarios that BullMQ and Toril must leave the same data behind for.

Each is a plain list of steps (see ``scenario``). Those in ``PAUSING`` touch a paused queue, where
BullMQ 5 keeps jobs in another list than BullMQ 6 (``V5_DIFFERS``).
"""

from __future__ import annotations

from tests.interop.scenario import Step
from tests.interop.support import DOOMED, SURVIVING

SOON = 60
FAR = 3_600_000

SCENARIOS: dict[str, list[Step]] = {
    "adding": [
        ("add", {"queue": "q", "name": "plain", "data": {"n": 1}}),
        ("add", {"queue": "q", "name": "nothing", "data": {}}),
        (
            "add",
            {"queue": "q", "name": "ünï ☃", "data": {"ключ": ["値", None, {"a": []}]}},
        ),
        ("add", {"queue": "q", "name": "last", "data": {"n": 2}, "lifo": True}),
        ("add", {"queue": "q", "name": "mine", "data": {"n": 3}, "job_id": "order-1"}),
        ("add", {"queue": "q", "name": "again", "data": {"n": 4}, "job_id": "order-1"}),
        (
            "add",
            {
                "queue": "q",
                "name": "options",
                "data": {"n": 5},
                "attempts": 3,
                "backoff": {"type": "exponential", "delay": 250, "jitter": 0.5},
                "keep_logs": 10,
                "stack_trace_limit": 2,
                "size_limit": 5000,
                "remove_on_complete": {"age": 3600, "count": 5},
                "remove_on_fail": 7,
            },
        ),
        ("add", {"queue": "q", "name": "keep", "data": {"n": 6}, "remove_on_complete": False}),
        ("add", {"queue": "q", "name": "gone", "data": {"n": 7}, "remove_on_complete": True}),
    ],
    "adding with priority and delay": [
        ("add", {"queue": "q", "name": "low", "data": {}, "priority": 10}),
        ("add", {"queue": "q", "name": "high", "data": {}, "priority": 1}),
        ("add", {"queue": "q", "name": "low too", "data": {}, "priority": 10}),
        ("add", {"queue": "q", "name": "lowest", "data": {}, "priority": 2_097_151}),
        ("add", {"queue": "q", "name": "later", "data": {}, "delay": FAR}),
        ("add", {"queue": "q", "name": "later still", "data": {}, "delay": 2 * FAR, "priority": 4}),
        ("add", {"queue": "q", "name": "not later", "data": {}, "delay": 0}),
    ],
    "adding in bulk": [
        (
            "add_bulk",
            {
                "queue": "q",
                "new": [
                    {"name": "a", "data": {"n": 1}},
                    {"name": "b", "data": {"n": 2}, "priority": 3},
                    {"name": "c", "data": {"n": 3}, "delay": FAR},
                    {"name": "d", "data": {"n": 4}, "job_id": "bulk-4", "attempts": 2},
                    {"name": "e", "data": {"n": 5}, "job_id": "bulk-4"},
                    {"name": "f", "data": {"n": 6}, "lifo": True},
                ],
            },
        ),
    ],
    "success": [
        ("add", {"queue": "q", "name": "echo", "data": {"n": 1}, "as": "a"}),
        ("add", {"queue": "q", "name": "null", "data": {}, "as": "b"}),
        ("add", {"queue": "q", "name": "text", "data": {}, "as": "c"}),
        (
            "work",
            {
                "queue": "q",
                "behaviours": {
                    "null": [["return", None]],
                    "text": [["return", 'a "quoted" ünï\nline']],
                },
                "until": {"a": "completed", "b": "completed", "c": "completed"},
            },
        ),
    ],
    "order": [
        ("add", {"queue": "q", "name": "p3", "data": {}, "priority": 3, "as": "a"}),
        ("add", {"queue": "q", "name": "p1", "data": {}, "priority": 1, "as": "b"}),
        ("add", {"queue": "q", "name": "p3 too", "data": {}, "priority": 3, "as": "c"}),
        ("add", {"queue": "q", "name": "first", "data": {}, "as": "d"}),
        ("add", {"queue": "q", "name": "second", "data": {}, "as": "e"}),
        ("add", {"queue": "q", "name": "pushed in", "data": {}, "lifo": True, "as": "f"}),
        (
            "work",
            {
                "queue": "q",
                "behaviours": {},
                "until": dict.fromkeys("abcdef", "completed"),
            },
        ),
    ],
    "delayed jobs run": [
        # One after the other: two that are due when somebody looks are let in together.
        ("add", {"queue": "q", "name": "later", "data": {}, "delay": SOON, "as": "a"}),
        ("work", {"queue": "q", "behaviours": {}, "until": {"a": "completed"}}),
        ("add", {"queue": "q", "name": "p", "data": {}, "delay": SOON, "priority": 2, "as": "b"}),
        ("work", {"queue": "q", "behaviours": {}, "until": {"b": "completed"}}),
    ],
    "failure": [
        ("add", {"queue": "q", "name": "bad", "data": {}, "as": "a"}),
        ("add", {"queue": "q", "name": "bad", "data": {}, "attempts": 1, "as": "b"}),
        ("add", {"queue": "q", "name": "dead", "data": {}, "attempts": 5, "as": "c"}),
        (
            "work",
            {
                "queue": "q",
                "behaviours": {"bad": [["fail", "it broke"]], "dead": [["unrecoverable", "never"]]},
                "until": {"a": "failed", "b": "failed", "c": "failed"},
            },
        ),
    ],
    "retry at once": [
        ("add", {"queue": "q", "name": "flaky", "data": {}, "attempts": 3, "as": "a"}),
        (
            "add",
            {"queue": "q", "name": "flaky", "data": {}, "attempts": 3, "priority": 2, "as": "b"},
        ),
        ("add", {"queue": "q", "name": "bad", "data": {}, "attempts": 2, "as": "c"}),
        (
            "add",
            {
                "queue": "q",
                "name": "bad",
                "data": {},
                "attempts": 3,
                "stack_trace_limit": 1,
                "as": "d",
            },
        ),
        (
            "work",
            {
                "queue": "q",
                "behaviours": {
                    "flaky": [["fail_until", 2, "not yet"], ["return", "at last"]],
                    "bad": [["fail", "it broke"]],
                },
                "until": {"a": "completed", "b": "completed", "c": "failed", "d": "failed"},
            },
        ),
    ],
    "retry after a while": [
        (
            "add",
            {
                "queue": "q",
                "name": "flaky",
                "data": {},
                "attempts": 3,
                "backoff": {"type": "fixed", "delay": SOON},
                "as": "a",
            },
        ),
        (
            "work",
            {
                "queue": "q",
                "behaviours": {"flaky": [["fail_until", 2, "not yet"], ["return", 3]]},
                "until": {"a": "completed"},
            },
        ),
    ],
    "waiting for a retry": [
        (
            "add",
            {
                "queue": "q",
                "name": "flaky",
                "data": {},
                "attempts": 3,
                "backoff": {"type": "exponential", "delay": FAR},
                "as": "a",
            },
        ),
        (
            "work",
            {
                "queue": "q",
                "behaviours": {"flaky": [["fail", "not yet"]]},
                "until": {"a": "delayed"},
            },
        ),
    ],
    "what a handler writes": [
        ("add", {"queue": "q", "name": "busy", "data": {"n": 1}, "keep_logs": 2, "as": "a"}),
        (
            "work",
            {
                "queue": "q",
                "behaviours": {
                    "busy": [
                        ["progress", 42],
                        ["progress", {"done": 1, "of": [2]}],
                        ["progress", "half"],
                        ["log", "one"],
                        ["log", "two"],
                        ["log", "three"],
                        ["update_data", {"n": 2, "empty": []}],
                        ["echo"],
                    ]
                },
                "until": {"a": "completed"},
            },
        ),
    ],
    "a job that delays itself": [
        ("add", {"queue": "q", "name": "step", "data": {}, "attempts": 2, "as": "a"}),
        (
            "work",
            {
                "queue": "q",
                "behaviours": {"step": [["delay_once", SOON], ["return", 1]]},
                "until": {"a": "completed"},
            },
        ),
    ],
    "what a client writes": [
        ("add", {"queue": "q", "name": "x", "data": {"n": 1}, "as": "a"}),
        ("update_progress", {"queue": "q", "job": "a", "progress": 7}),
        ("update_progress", {"queue": "q", "job": "a", "progress": {"at": "x"}}),
        ("add_log", {"queue": "q", "job": "a", "row": "first"}),
        ("add_log", {"queue": "q", "job": "a", "row": "second"}),
        ("update_data", {"queue": "q", "job": "a", "data": {"n": [], "m": None}}),
    ],
    "changing places": [
        ("add", {"queue": "q", "name": "a", "data": {}, "as": "a"}),
        ("add", {"queue": "q", "name": "b", "data": {}, "priority": 5, "as": "b"}),
        ("add", {"queue": "q", "name": "c", "data": {}, "priority": 5, "as": "c"}),
        ("add", {"queue": "q", "name": "d", "data": {}, "delay": FAR, "as": "d"}),
        ("add", {"queue": "q", "name": "e", "data": {}, "delay": FAR, "priority": 3, "as": "e"}),
        ("add", {"queue": "q", "name": "f", "data": {}, "delay": FAR, "as": "f"}),
        ("change_priority", {"queue": "q", "job": "a", "priority": 7, "lifo": False}),
        ("change_priority", {"queue": "q", "job": "b", "priority": 0, "lifo": False}),
        ("change_priority", {"queue": "q", "job": "c", "priority": 2, "lifo": True}),
        ("change_priority", {"queue": "q", "job": "d", "priority": 9, "lifo": False}),
        ("change_delay", {"queue": "q", "job": "d", "delay": 2 * FAR}),
        ("promote", {"queue": "q", "job": "e"}),
        ("promote", {"queue": "q", "job": "f"}),
    ],
    "retrying by hand": [
        ("add", {"queue": "q", "name": "bad", "data": {}, "attempts": 2, "as": "a"}),
        ("add", {"queue": "q", "name": "bad", "data": {}, "as": "b"}),
        ("add", {"queue": "q", "name": "good", "data": {}, "as": "c"}),
        (
            "work",
            {
                "queue": "q",
                "behaviours": {"bad": [["fail", "it broke"]]},
                "until": {"a": "failed", "b": "failed", "c": "completed"},
            },
        ),
        ("retry", {"queue": "q", "job": "a"}),
        ("retry", {"queue": "q", "job": "c", "state": "completed"}),
        (
            "work",
            {"queue": "q", "behaviours": {}, "until": {"a": "completed", "c": "completed"}},
        ),
        ("retry_all", {"queue": "q"}),
        ("work", {"queue": "q", "behaviours": {}, "until": {"b": "completed"}}),
    ],
    "removing": [
        ("add", {"queue": "q", "name": "a", "data": {}, "as": "a"}),
        ("add", {"queue": "q", "name": "b", "data": {}, "priority": 1, "as": "b"}),
        ("add", {"queue": "q", "name": "c", "data": {}, "delay": FAR, "as": "c"}),
        ("add", {"queue": "q", "name": "d", "data": {}, "as": "d"}),
        ("add_log", {"queue": "q", "job": "a", "row": "goes too"}),
        ("remove", {"queue": "q", "job": "a"}),
        ("remove", {"queue": "q", "job": "b"}),
        ("remove", {"queue": "q", "job": "c"}),
    ],
    "removing what is finished": [
        ("add", {"queue": "q", "name": "good", "data": {}, "as": "a"}),
        ("add", {"queue": "q", "name": "bad", "data": {}, "as": "b"}),
        ("add", {"queue": "q", "name": "good", "data": {}, "as": "c"}),
        (
            "work",
            {
                "queue": "q",
                "behaviours": {"bad": [["fail", "it broke"]]},
                "until": {"a": "completed", "b": "failed", "c": "completed"},
            },
        ),
        ("remove", {"queue": "q", "job": "b"}),
        ("clean", {"queue": "q", "state": "completed", "grace": 0, "limit": 100}),
        ("clean", {"queue": "q", "state": "failed", "grace": 0, "limit": 100}),
    ],
    "draining": [
        ("add", {"queue": "q", "name": "a", "data": {}}),
        ("add", {"queue": "q", "name": "b", "data": {}, "priority": 1}),
        ("add", {"queue": "q", "name": "c", "data": {}, "delay": FAR}),
        ("drain", {"queue": "q", "delayed": False}),
        ("add", {"queue": "q", "name": "d", "data": {}}),
    ],
    "draining delayed jobs too": [
        ("add", {"queue": "q", "name": "a", "data": {}}),
        ("add", {"queue": "q", "name": "c", "data": {}, "delay": FAR}),
        ("drain", {"queue": "q", "delayed": True}),
    ],
    "retention": [
        ("add", {"queue": "q", "name": "good", "data": {}, "remove_on_complete": True, "as": "a"}),
        ("add", {"queue": "q", "name": "good", "data": {}, "as": "b"}),
        ("add", {"queue": "q", "name": "good", "data": {}, "as": "c"}),
        ("add", {"queue": "q", "name": "good", "data": {}, "remove_on_complete": 2, "as": "d"}),
        ("add", {"queue": "q", "name": "bad", "data": {}, "remove_on_fail": True, "as": "e"}),
        ("add", {"queue": "q", "name": "bad", "data": {}, "remove_on_fail": 1, "as": "f"}),
        ("add", {"queue": "q", "name": "bad", "data": {}, "remove_on_fail": 1, "as": "g"}),
        (
            "add",
            {
                "queue": "q",
                "name": "good",
                "data": {},
                "remove_on_complete": {"age": 3600, "count": 2},
                "as": "h",
            },
        ),
        (
            "work",
            {
                "queue": "q",
                "behaviours": {
                    # Apart, because of jobs that finish in one millisecond the id decides.
                    "good": [["log", "gone with the job"], ["sleep", 3], ["return", 1]],
                    "bad": [["sleep", 3], ["fail", "it broke"]],
                },
                "until": {"a": "gone", "e": "gone", "f": "gone", "g": "failed", "h": "completed"},
            },
        ),
    ],
    "retention of the worker": [
        ("add", {"queue": "q", "name": "good", "data": {}, "as": "a"}),
        ("add", {"queue": "q", "name": "good", "data": {}, "as": "b"}),
        ("add", {"queue": "q", "name": "good", "data": {}, "remove_on_complete": False, "as": "c"}),
        (
            "work",
            {
                "queue": "q",
                "behaviours": {"good": [["sleep", 3], ["echo"]]},
                "remove_on_complete": {"count": 1},
                "until": {"a": "gone", "b": "completed", "c": "completed"},
            },
        ),
    ],
    "promoting all": [
        ("add", {"queue": "q", "name": "a", "data": {}, "delay": FAR, "as": "a"}),
        ("add", {"queue": "q", "name": "b", "data": {}, "delay": 2 * FAR, "as": "b"}),
        ("promote_all", {"queue": "q"}),
        (
            "work",
            {"queue": "q", "behaviours": {}, "until": {"a": "completed", "b": "completed"}},
        ),
    ],
    "paused": [
        ("add", {"queue": "q", "name": "a", "data": {}}),
        ("pause", {"queue": "q"}),
        ("add", {"queue": "q", "name": "b", "data": {}}),
        ("add", {"queue": "q", "name": "c", "data": {}, "priority": 1}),
    ],
    "paused and resumed": [
        ("add", {"queue": "q", "name": "a", "data": {}, "as": "a"}),
        ("pause", {"queue": "q"}),
        ("add", {"queue": "q", "name": "b", "data": {}, "as": "b"}),
        ("add", {"queue": "q", "name": "c", "data": {}, "lifo": True, "as": "c"}),
        ("resume", {"queue": "q"}),
        (
            "work",
            {
                "queue": "q",
                "behaviours": {},
                "until": {"a": "completed", "b": "completed", "c": "completed"},
            },
        ),
    ],
    "a stalled job is recovered": [
        ("add", {"queue": "q", "name": "long", "data": {}, "as": "a"}),
        ("crash", {"queue": "q", "behaviours": {"long": [["hang"]]}, "name": "w", **DOOMED}),
        ("expire", {"queue": "q", "job": "a"}),
        ("work", {"queue": "q", "behaviours": {}, "until": {"a": "completed"}, **SURVIVING}),
    ],
    "a job that stalls too often fails": [
        ("add", {"queue": "q", "name": "long", "data": {}, "attempts": 3, "as": "a"}),
        ("crash", {"queue": "q", "behaviours": {"long": [["hang"]]}, "name": "w", **DOOMED}),
        ("expire", {"queue": "q", "job": "a"}),
        (
            "work",
            {
                "queue": "q",
                "behaviours": {},
                "until": {"a": "failed"},
                "max_stalled_count": 0,
                **SURVIVING,
            },
        ),
    ],
}
"""What every party can do."""

V5_DIFFERS = {"paused"}
"""Scenarios in which BullMQ 5 and 6 leave different data (wire-format section 7.1)."""

V6_LATER: dict[str, list[Step]] = {
    "retrying a prioritized job by hand": [
        ("add", {"queue": "q", "name": "bad", "data": {}, "priority": 3, "as": "a"}),
        (
            "work",
            {"queue": "q", "behaviours": {"bad": [["fail", "no"]]}, "until": {"a": "failed"}},
        ),
        ("retry", {"queue": "q", "job": "a"}),
    ],
}
"""What newer releases of BullMQ 6 do in another way than BullMQ 5 (section 7.5)."""

FLOWS: dict[str, list[Step]] = {
    "a flow completes": [
        (
            "flow",
            {
                "tree": {
                    "name": "parent",
                    "queue": "p",
                    "children": [
                        {"name": "one", "queue": "c", "data": {"n": 1}},
                        {"name": "two", "queue": "c", "data": {"n": 2}},
                    ],
                }
            },
        ),
        (
            "work",
            {"queue": "c", "behaviours": {}, "until": {"one": "completed", "two": "completed"}},
        ),
        ("work", {"queue": "p", "behaviours": {}, "until": {"parent": "completed"}}),
    ],
    "a child fails its parent": [
        (
            "flow",
            {
                "tree": {
                    "name": "parent",
                    "queue": "p",
                    "children": [
                        {
                            "name": "one",
                            "queue": "c",
                            "options": {"fail_parent_on_failure": True},
                        }
                    ],
                }
            },
        ),
        (
            "work",
            {"queue": "c", "behaviours": {"one": [["fail", "no"]]}, "until": {"one": "failed"}},
        ),
        ("work", {"queue": "p", "behaviours": {}, "until": {"parent": "failed"}}),
    ],
}

DEDUPLICATION: dict[str, list[Step]] = {
    f"deduplication: {mode}": [
        (
            "add",
            {"queue": "q", "name": "a", "data": {"n": 1}, "delay": FAR, "deduplication": options},
        ),
        (
            "add",
            {"queue": "q", "name": "b", "data": {"n": 2}, "delay": FAR, "deduplication": options},
        ),
    ]
    for mode, options in {
        "simple": {"id": "d"},
        "throttle": {"id": "d", "ttl": FAR},
        "extend": {"id": "d", "ttl": FAR, "extend": True},
        "replace": {"id": "d", "ttl": FAR, "replace": True},
    }.items()
}
"""BullMQ 5 emits ``debounced`` as well in all of these."""
