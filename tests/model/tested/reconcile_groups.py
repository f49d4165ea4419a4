from __future__ import annotations

FOUND: dict[str, str] = {
    "reconcileGroups: without hear(page.ends, entry[2])": "tests/features/test_group_beyond.py::test_a_member_that_is_gone_is_looked_up_in_the_events",
    'reconcileGroups: without redis.call("HSET", key, field, "", "x.asks", "job " .. id .. " is gone, and the log of events does not tell how it ended")': "tests/features/test_group_mends.py::test_when_the_log_does_not_reach_back_the_group_waits_for_a_person",
    'reconcileGroups: without redis.call("HSET", key, field, last)': "tests/features/test_group_mends.py::test_the_end_of_a_member_is_found_however_far_back_it_was_told",
    "reconcileGroups: without ask(work, key, field, id)": "tests/features/test_group_mends.py::test_when_the_log_does_not_reach_back_the_group_waits_for_a_person",
    "reconcileGroups: without groups.memberEnded(key, member.kind, member.number, ended.job, ended.state, ended, work.now)": "tests/features/test_group_beyond.py::test_members_that_ended_unnoticed_are_settled",
    "reconcileGroups: without groups.compensationEnded(key, number, ended.job, ended.state, nil, work.now)": "tests/features/test_group_beyond.py::test_members_that_ended_unnoticed_are_settled",
    'reconcileGroups: without redis.call("ZADD", index, "XX", due, id)': "tests/features/test_group_beyond.py::test_a_group_is_looked_at_again_when_its_time_is_up",
    "reconcileGroups: without reconcile(work, key)": "tests/features/test_group_beyond.py::test_members_that_ended_unnoticed_are_settled",
    'reconcileGroups: without redis.call("ZADD", base .. ":groups", "NX", created, id)': "tests/features/test_group_beyond.py::test_an_index_that_another_tool_deleted_is_written_again",
    'reconcileGroups: without redis.call("HDEL", key, "x.asks")': "tests/features/test_group_damage.py::test_one_damaged_group_does_not_keep_the_others_from_being_looked_at[:compensations]",
    "reconcileGroups: without lookAgain(work, open, id, known.state, math.min(due or math.huge, now + a.look_again_ms))": "tests/features/test_group_beyond.py::test_a_group_is_looked_at_again_when_its_time_is_up",
    'reconcileGroups: without redis.pcall("HSET", key, "x.asks", DAMAGED .. words)': "tests/features/test_group_damage.py::test_one_damaged_group_does_not_keep_the_others_from_being_looked_at[:compensations]",
    'reconcileGroups: without redis.call("ZADD", groups.asking(work.base), clock.stamp(work.now), id)': "tests/features/test_group_damage.py::test_one_damaged_group_does_not_keep_the_others_from_being_looked_at[:compensations]",
}

EQUIVALENT: dict[str, str] = {}
