"""Planted bugs that ordinary tests find, and which test: each was tried."""

from __future__ import annotations

# ruff: noqa: E501

TESTED: dict[str, str] = {
    "addGroup: without stages.share(base, one, now + math.max(a.timeout_ms or 0, a.gates and SHARED_MS or 0))": "tests/features/test_group_mends.py::test_the_look_for_due_groups_is_one_command",
    "addGroup: without writeAll(record.stage, later)": "tests/features/test_group_stages.py::test_a_producer_may_mind_the_time_limits",
    'resolveGroup: true for redis.call("HGET", group, "x.request") == a.request': "tests/features/test_group_stages.py::test_a_blocked_group_is_resolved_by_hand",
    'resolveGroup: without redis.call("HSET", group, "state", "FAILED", "updatedAt", now, "x.note", a.note, "x.request", a.request)': "tests/features/test_group_beyond.py::test_a_group_is_resolved_with_a_note",
    'resolveGroup: without redis.call("HSET", group, "x.note", a.note, "x.request", a.request)': "tests/features/test_group_stages.py::test_a_blocked_group_is_resolved_by_hand",
    "rooms/retreats: without clear(group, number)": "tests/features/test_group_retreats.py::test_any_graph_is_undone_by_both_versions_in_turn[14]",
    'rooms/retreats: without keep("g" .. clock.digits(gate), clock.digits(found))': "tests/features/test_group_retreats.py::test_any_graph_is_undone_by_both_versions_in_turn[14]",
    'rooms/retreats: without keep("o" .. number, "")': "tests/features/test_group_retreats.py::test_the_way_back_is_gone_with_the_group",
    "rooms/retreats: without keep(number, clock.digits(found))": "tests/features/test_group_retreats.py::test_any_graph_is_undone_by_both_versions_in_turn[14]",
    "rooms/retreats: without note(number)": "tests/features/test_group_stages.py::test_undoing_has_a_time_limit",
    'rooms/retreats: without note(string.match(undone[i], "(%d+)$"))': "tests/features/test_group_retreats.py::test_any_graph_is_undone_by_both_versions_in_turn[23]",
    "rooms/retreats: without offer(group.way, freed[1])": "tests/features/test_group_retreats.py::test_any_graph_is_undone_by_both_versions_in_turn[2]",
    "rooms/retreats: without offer(group.way, waiting[i])": "tests/features/test_group_retreats.py::test_any_graph_is_undone_by_both_versions_in_turn[14]",
    "rooms/retreats: without offer(group.way, number)": "tests/features/test_group_retreats.py::test_any_graph_is_undone_by_both_versions_in_turn[18]",
    'rooms/retreats: without redis.call("HSET", group.key .. ":retreat", "was", was, "ready", group.way.ready)': "tests/features/test_group_retreats.py::test_a_step_back_costs_the_same_in_a_chain_of_a_thousand",
    'rooms/retreats: without redis.call("HSET", key, unpack(written, first, math.min(first + 999, #written)))': "tests/features/test_group_retreats.py::test_the_way_back_is_gone_with_the_group",
    'rooms/retreats: without redis.call("PEXPIRE", key, KEPT_MS)': "tests/features/test_group_retreats.py::test_the_way_back_is_gone_with_the_group",
    "rooms/retreats: without retreats.settled(group, number)": "tests/features/test_group_retreats.py::test_a_member_that_ends_late_sets_free_what_stands_before_it",
}
