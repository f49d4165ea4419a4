"""More scenarios that BullMQ and Toril must leave the same data behind for: every dedup mode.

A scenario in ``ONLY_V6`` uses what BullMQ 5 does not have.
"""

from __future__ import annotations

from typing import Any

from tests.interop.scenario import Step
from tests.interop.scenarios import DEDUPLICATION as DELAYED_OWNERS

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
