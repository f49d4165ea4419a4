from __future__ import annotations

FOUND: dict[str, str] = {
    "rooms/members: 1000000 for 1000": "tests/features/test_group_leftovers.py::test_no_more_than_a_thousand_children_are_removed_in_one_call",
    'rooms/members: without deduplication.forget(of, id, redis.call("HGET", child, "deid"))': "tests/features/test_group_leftovers.py::test_a_child_of_a_cancelled_member_gives_its_deduplication_id_back",
    "rooms/members: without jobs.delete(child)": "tests/features/test_group_mends.py::test_a_member_that_waits_for_its_children_is_cancelled_with_them[one]",
    'rooms/members: without journal.emit(of, "removed", "jobId", id, "prev", place)': "tests/features/test_group_leftovers.py::test_children_of_a_cancelled_member_go_with_theirs",
    'rooms/members: without redis.call("HSET", queue.base .. ":" .. id, "defa", members.CANCELLED)': "tests/features/test_group_mends.py::test_a_cancelled_member_is_never_a_letter",
    'rooms/members: without redis.call("ZREM", queue[name], unpack(found))': "tests/features/test_group_compensation.py::test_with_nothing_done_there_is_nothing_to_undo",
    "rooms/members: without removeChildren(of, child, budget)": "tests/features/test_group_leftovers.py::test_children_of_a_cancelled_member_go_with_theirs",
    "rooms/members: without removeChildren(queue, job, budget)": "tests/features/test_group_mends.py::test_a_member_that_waits_for_its_children_is_cancelled_with_them[one]",
}

EQUIVALENT: dict[str, str] = {}
