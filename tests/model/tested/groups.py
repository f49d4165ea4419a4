from __future__ import annotations

FOUND: dict[str, str] = {
    'rooms/groups: without redis.call("UNLINK", key, key .. ":jobs", key .. ":plan", key .. ":undo", key .. ":results", key .. ":compensations", key .. ":tried", key .. ":stage", key .. ":signals", key .. ":log", key .. ":retreat")': "tests/features/test_group_beyond.py::test_finished_groups_stay_until_they_are_cleaned",
    'rooms/groups: without redis.call("RENAME", key, gone)': "tests/features/test_group_mends.py::test_waiting_for_a_group_tells_how_it_ended_although_it_is_forgotten",
    'rooms/groups: without redis.call("PEXPIRE", gone, KNOWN_MS)': "tests/features/test_group_mends.py::test_waiting_for_a_group_tells_how_it_ended_although_it_is_forgotten",
    "rooms/groups: without groups.forget(owner, id)": "tests/features/test_group_mends.py::test_waiting_for_a_group_tells_how_it_ended_although_it_is_forgotten",
    'rooms/groups: without stages.announce(group, state == "COMPLETED" and "on_completed" or "on_failed", now)': "tests/features/test_group_stages.py::test_a_job_is_added_when_the_group_completes",
    'rooms/groups: without redis.call("RPUSH", group.key .. ":undo", unpack(held))': "tests/features/test_group_damage.py::test_a_compensation_waits_until_its_queue_is_repaired[parallel-wait]",
    "rooms/groups: without retreats.remember(group)": "tests/features/test_group_retreats.py::test_a_step_back_costs_the_same_in_a_chain_of_a_thousand",
    'rooms/groups: without redis.call("RPUSH", group.key .. ":undo", unpack(undone))': "tests/features/test_group_beyond.py::test_a_step_that_may_be_half_done_is_undone_when_it_fails",
    'rooms/groups: without redis.call("HSET", group.key, "x.undoDeadline", at)': "tests/features/test_group_stages.py::test_undoing_has_a_time_limit",
    'rooms/groups: without redis.call("HSET", group.key, "x.overdue", "1", "x.asks", "undoing was not done within its time limit")': "tests/features/test_group_stages.py::test_undoing_has_a_time_limit",
    'rooms/groups: without endGroup(group, "FAILED_COMPENSATION", now)': "tests/features/test_group_stages.py::test_undoing_has_a_time_limit",
    "rooms/groups: without cancelMembers(group, released, cause.reason)": "tests/features/test_group_cancel.py::test_cancelling_undoes_what_is_done_and_removes_what_waits",
    'rooms/groups: without stages.log(group, now, "compensating", cause.label, cause.reason)': "tests/features/test_group_stages.py::test_results_and_the_timeline_are_told",
    "rooms/groups: without limitUndoing(group, now)": "tests/features/test_group_stages.py::test_undoing_has_a_time_limit",
    'rooms/groups: without redis.call("HSET", group.key .. ":results", number, ended.value, number .. ".at", clock.stamp(now))': "tests/features/test_group_stages.py::test_results_and_the_timeline_are_told",
    'rooms/groups: without redis.call("HSET", group.key .. ":results", number .. ".at", clock.stamp(now), number .. ".why", ended.value)': "tests/features/test_group_stages.py::test_results_and_the_timeline_are_told",
    "rooms/groups: without noteEnd(group, number, state, ended, now)": "tests/features/test_group_stages.py::test_results_and_the_timeline_are_told",
    "rooms/groups: without retreats.memberEnded(group, number, status, is_undone)": "tests/features/test_group_retreats.py::test_a_member_that_ends_late_sets_free_what_stands_before_it[True]",
    "rooms/groups: without stages.keep(group, now)": "tests/features/test_group_stages.py::test_a_pivot_that_completes_after_the_group_turned_blocks_it",
    'rooms/groups: without endGroup(group, "FAILED", now) (3)': "tests/features/test_group_stages.py::test_undoing_that_ends_late_ends_the_group",
    "rooms/groups: without retreats.recall(group) (2)": "tests/features/test_group_retreats.py::test_a_step_back_costs_the_same_in_a_chain_of_a_thousand",
    'rooms/groups: without redis.call("HSET", key .. ":results", "c" .. number .. ".at", clock.stamp(now))': "tests/features/test_group_stages.py::test_results_and_the_timeline_are_told",
    "rooms/groups: without retreats.settled(group, number)": "tests/features/test_group_retreats.py::test_a_step_back_costs_the_same_in_a_chain_of_a_thousand",
    "rooms/groups: without stages.revive(group, job, status, now)": "tests/features/test_group_stages.py::test_a_blocking_job_may_be_retried_by_hand",
    'rooms/groups: without redis.call("HSET", key .. ":plan", first, cmsgpack.pack(member))': "tests/features/test_group_mends.py::test_a_completed_member_that_is_forced_is_undone_twice",
    'rooms/groups: without redis.call("HSET", key .. ":results", first, redis.call("HGET", key .. ":results", number) or "null")': "tests/features/test_group_mends.py::test_a_completed_member_that_is_forced_is_undone_twice",
    'rooms/groups: without redis.call("HSET", job, "x.forced", "1")': "tests/features/test_group_mends.py::test_a_member_of_a_forgotten_group_does_not_run",
}

EQUIVALENT: dict[str, str] = {
    'rooms/groups: without redis.call("ZREM", openGroups(owner), id)': "a group that is forgotten has ended, and was taken out of the open ones then",
    "rooms/groups: without stages.forgetPlan(group)": "only `retry` and `retryAll` run a member again, and neither reads the plan; what is remembered of it ends with the call",
}
