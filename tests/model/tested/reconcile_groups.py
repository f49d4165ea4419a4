from __future__ import annotations

FOUND: dict[str, str] = {
    "reconcileGroups: without groups.memberEnded(key, member.kind, member.number, ended.job, ended.state, ended, work.now)": "tests/features/test_group_beyond.py::test_members_that_ended_unnoticed_are_settled",
    "reconcileGroups: without groups.compensationEnded(key, number, ended.job, ended.state, nil, work.now)": "tests/features/test_group_beyond.py::test_members_that_ended_unnoticed_are_settled",
    'reconcileGroups: "SREM" for "SADD"': "tests/features/test_group_upkeep.py::test_groups_that_have_ended_are_listed_again",
    'reconcileGroups: without redis.call("ZADD", base .. ":groups", "NX", created_at, group_id)': "tests/features/test_group_upkeep.py::test_groups_that_have_ended_are_listed_again",
    'reconcileGroups: without redis.call("ZREM", index, id)': "tests/features/test_group_upkeep.py::test_nobody_looks_after_a_group_without_a_record",
    'reconcileGroups: without redis.call("ZADD", index, "XX", due, id)': "tests/features/test_group_beyond.py::test_a_group_is_looked_at_again_when_its_time_is_up",
    "reconcileGroups: without reconcile(work, key)": "tests/features/test_group_beyond.py::test_members_that_ended_unnoticed_are_settled",
    'reconcileGroups: without redis.call("ZADD", base .. ":groups", "NX", created, id)': "tests/features/test_group_beyond.py::test_an_index_that_another_tool_deleted_is_written_again",
    'reconcileGroups: without redis.call("HDEL", key, "x.asks")': "tests/features/test_group_damage.py::test_one_damaged_group_does_not_keep_the_others_from_being_looked_at[:compensations]",
    'reconcileGroups: without redis.call("ZREM", groups.asking(base), id)': "tests/features/test_group_upkeep.py::test_a_group_that_was_repaired_asks_nobody",
    "reconcileGroups: without lookAgain(work, open, id, known.state, math.min(due or math.huge, now + a.look_again_ms))": "tests/features/test_group_beyond.py::test_a_group_is_looked_at_again_when_its_time_is_up",
    'reconcileGroups: without redis.pcall("HSET", key, "x.asks", DAMAGED .. words)': "tests/features/test_group_damage.py::test_one_damaged_group_does_not_keep_the_others_from_being_looked_at[:compensations]",
    'reconcileGroups: without redis.call("ZADD", groups.asking(work.base), clock.stamp(work.now), id)': "tests/features/test_group_damage.py::test_one_damaged_group_does_not_keep_the_others_from_being_looked_at[:compensations]",
    "reconcileGroups: without lookAgain(work, open, id, true, work.now + a.look_again_ms)": "tests/features/test_group_upkeep.py::test_a_damaged_group_is_not_due_again_at_once",
    "reconcileGroups: without keepFromOrphans(base, open)": "tests/features/test_group_upkeep.py::test_groups_that_have_ended_are_listed_again",
    "reconcileGroups: without noteAway(work, away, statuses[i])": "tests/features/parcels/test_groups.py::test_a_member_that_is_gone_elsewhere_is_found_in_the_events[False]",
    "reconcileGroups: without remotes.seek(key, base, asked)": "tests/features/parcels/test_groups.py::test_a_member_that_is_gone_elsewhere_is_found_in_the_events[False]",
    'reconcileGroups: without seek(key, away, function(job) return "c" .. string.match(job, "(%d+)$") end)': "tests/features/parcels/test_traces.py::test_a_compensation_whose_end_was_lost_is_found",
    "reconcileGroups: without seek(key, away, function(job) return members_away[job].kind .. members_away[job].number end)": "tests/features/parcels/test_groups.py::test_a_member_that_is_gone_elsewhere_is_found_in_the_events[False]",
}

EQUIVALENT: dict[str, str] = {}
