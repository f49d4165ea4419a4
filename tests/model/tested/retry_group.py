from __future__ import annotations

FOUND: dict[str, str] = {
    'retryGroup: without redis.call("HDEL", group .. ":stage", number .. ".early")': "tests/features/test_group_stages.py::test_a_signal_that_had_failed_before_its_turn_is_awaited_again",
    "retryGroup: without requests.remember(queue, a.request, clock.digits(count))": "tests/features/test_group_stages.py::test_a_retry_that_is_sent_again_leaves_alone_what_failed_since",
    'retryGroup: without stages.removeLetter(group, "x.letter.m" .. number, nil, budget)': "tests/features/test_group_stages.py::test_the_dead_letter_of_a_blocking_job_belongs_to_its_group",
    'retryGroup: without redis.call("DEL", job .. ":lock")': "tests/features/test_group_upkeep.py::test_a_member_that_is_made_anew_has_no_lock_of_the_old_one",
    "retryGroup: without removeJob(membership, job)": "tests/features/test_group_stages.py::test_after_the_pivot_a_failure_blocks_the_group",
    'retryGroup: without redis.call("HDEL", group .. ":results", number .. ".at", number .. ".why", number .. ".request")': "tests/features/test_group_upkeep.py::test_a_signal_that_failed_is_told_anew_in_a_group_that_is_retried",
    'retryGroup: without groups.emit(known, "group:retrying", "count", clock.digits(count))': "tests/features/test_group_upkeep.py::test_a_group_that_is_retried_says_so_and_forgets_the_failure",
    'retryGroup: without stages.log(known, now, "retrying")': "tests/features/test_group_upkeep.py::test_a_group_that_is_retried_says_so_and_forgets_the_failure",
    "retryGroup: without remotes.remove(membership, job)": "tests/features/parcels/test_groups.py::test_a_blocked_group_runs_its_members_elsewhere_again",
    'retryGroup: without groups.memberEnded(group, one[2], one[1], one[3], "completed", one[4], now)': "tests/features/test_group_mends.py::test_a_blocking_member_that_completed_elsewhere_does_not_run_again",
}

EQUIVALENT: dict[str, str] = {}
