from __future__ import annotations

FOUND: dict[str, str] = {
    "rooms/retreats: without clear(group, number)": "tests/features/test_group_retreats.py::test_any_graph_is_undone_by_both_versions_in_turn[14]",
    'rooms/retreats: without keep("g" .. clock.digits(gate), clock.digits(found))': "tests/features/test_group_retreats.py::test_any_graph_is_undone_by_both_versions_in_turn[14]",
    'rooms/retreats: without keep("o" .. number, "")': "tests/features/test_group_retreats.py::test_the_way_back_is_gone_with_the_group",
    "rooms/retreats: without keep(number, clock.digits(found))": "tests/features/test_group_retreats.py::test_any_graph_is_undone_by_both_versions_in_turn[14]",
    "rooms/retreats: without note(number)": "tests/features/test_group_stages.py::test_undoing_has_a_time_limit",
    'rooms/retreats: without note(string.match(undone[i], "(%d+)$"))': "tests/features/test_group_retreats.py::test_any_graph_is_undone_by_both_versions_in_turn[23]",
    "rooms/retreats: without offer(group.way, freed[1])": "tests/features/test_group_retreats.py::test_any_graph_is_undone_by_both_versions_in_turn[2]",
    "rooms/retreats: without offer(group.way, number)": "tests/features/test_group_retreats.py::test_any_graph_is_undone_by_both_versions_in_turn[18]",
    "rooms/retreats: without offer(group.way, waiting[i])": "tests/features/test_group_retreats.py::test_any_graph_is_undone_by_both_versions_in_turn[14]",
    'rooms/retreats: without redis.call("HSET", group.key .. ":retreat", "was", was, "ready", group.way.ready)': "tests/features/test_group_retreats.py::test_a_step_back_costs_the_same_in_a_chain_of_a_thousand",
    'rooms/retreats: without redis.call("HSET", key, unpack(written, first, math.min(first + 999, #written)))': "tests/features/test_group_retreats.py::test_the_way_back_is_gone_with_the_group",
    'rooms/retreats: without redis.call("PEXPIRE", key, KEPT_MS)': "tests/features/test_group_retreats.py::test_the_way_back_is_gone_with_the_group",
    'rooms/retreats: without redis.call("UNLINK", key)': "tests/features/test_group_retreats.py::test_a_way_back_that_is_damaged_is_found_anew[text]",
    "rooms/retreats: without retreats.settled(group, number)": "tests/features/test_group_retreats.py::test_a_member_that_ends_late_sets_free_what_stands_before_it",
}

EQUIVALENT: dict[str, str] = {}
