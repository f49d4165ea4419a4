from __future__ import annotations

FOUND: dict[str, str] = {
    'resolveGroup: true for redis.call("HGET", group, "x.request") == a.request': "tests/features/test_group_stages.py::test_a_blocked_group_is_resolved_by_hand",
    'resolveGroup: without redis.call("HSET", group, "state", "FAILED", "updatedAt", now, "x.note", a.note, "x.request", a.request)': "tests/features/test_group_beyond.py::test_a_group_is_resolved_with_a_note",
    'resolveGroup: without redis.call("HSET", group, "x.note", a.note, "x.request", a.request)': "tests/features/test_group_stages.py::test_a_blocked_group_is_resolved_by_hand",
}

EQUIVALENT: dict[str, str] = {}
