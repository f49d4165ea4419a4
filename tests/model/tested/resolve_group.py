from __future__ import annotations

FOUND: dict[str, str] = {
    "resolveGroup: without requests.remember(queue, a.request)": "tests/features/test_group_stages.py::test_a_resolution_that_is_sent_again_skips_nothing_more",
    "resolveGroup: without requests.remember(queue, a.request) (2)": "tests/features/test_group_beyond.py::test_what_two_operators_did_to_a_group_is_known_although_it_is_sent_again",
    "resolveGroup: without groups.close(known, now)": "tests/features/test_group_traces.py::test_repair_and_resolving_are_told_once_when_they_are_sent_again",
    'resolveGroup: without groups.emit(known, "group:resolved", "note", a.note) (2)': "tests/features/test_group_beyond.py::test_a_group_is_resolved_with_a_note",
    'resolveGroup: without redis.call("HDEL", group, "x.asks")': "tests/features/test_group_leftovers.py::test_a_resolved_group_asks_for_nothing_and_waits_for_nothing",
    'resolveGroup: without redis.call("HSET", group, "state", "FAILED", "updatedAt", now, "x.note", a.note)': "tests/features/test_group_beyond.py::test_a_group_is_resolved_with_a_note",
    'resolveGroup: without redis.call("HSET", group, "x.note", a.note)': "tests/features/test_group_stages.py::test_a_blocked_group_is_resolved_by_hand",
    'resolveGroup: without redis.call("UNLINK", group .. ":undo", group .. ":stage", group .. ":signals", group .. ":retreat")': "tests/features/test_group_leftovers.py::test_a_resolved_group_asks_for_nothing_and_waits_for_nothing",
    'resolveGroup: without redis.call("ZREM", groups.asking(base), known.id)': "tests/features/test_group_leftovers.py::test_a_resolved_group_asks_for_nothing_and_waits_for_nothing",
    'resolveGroup: without stages.log(known, now, "resolved", "", a.note)': "tests/features/test_group_leftovers.py::test_that_a_group_was_resolved_is_in_its_timeline",
    'resolveGroup: without stages.log(known, now, "resolved", "", a.note) (2)': "tests/features/test_group_leftovers.py::test_that_a_group_was_resolved_is_in_its_timeline",
}

EQUIVALENT: dict[str, str] = {}
