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
}

EQUIVALENT: dict[str, str] = {}
