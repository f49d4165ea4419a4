from __future__ import annotations

FOUND: dict[str, str] = {
    "retryCompensation: without requests.remember(queue, a.request, clock.digits(count))": "tests/features/test_group_beyond.py::test_a_repair_that_is_sent_again_happens_once",
    'retryCompensation: "LPUSH" for "RPUSH" (2)': "tests/features/test_group_beyond.py::test_in_reverse_order_repairs_keep_to_it",
    'retryCompensation: without redis.call("DEL", job .. ":lock")': "tests/features/test_group_leftovers.py::test_a_compensation_that_is_made_anew_has_no_lock_of_the_old_one",
    'retryCompensation: without redis.call("HDEL", compensations, job)': "tests/features/test_group_leftovers.py::test_what_cannot_be_undone_again_yet_has_not_failed",
    'retryCompensation: without redis.call("HSET", compensations, job, "pending")': "tests/features/test_group_mends.py::test_a_compensation_that_a_dashboard_retries_belongs_to_its_group",
    'retryCompensation: without redis.call("RPUSH", group .. ":tried", unpack(under_way))': "tests/features/test_group_leftovers.py::test_a_compensation_that_was_under_way_can_be_retried_once_more",
    'retryCompensation: without stages.removeLetter(group, "x.letter." .. order[i], group .. ":c" .. order[i], budget)': "tests/features/test_group_mends.py::test_retrying_a_compensation_takes_its_letter",
    'retryCompensation: without remotes.remove(group .. ":c" .. number, job)': "tests/features/parcels/test_groups.py::test_compensations_elsewhere_that_failed_are_tried_again",
}

EQUIVALENT: dict[str, str] = {
    'retryCompensation: "LPUSH" for "RPUSH"': "several are under way only where undoing goes side by side, and there the order of the list decides nothing; in reverse order it has one entry",
}
