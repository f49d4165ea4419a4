from __future__ import annotations

FOUND: dict[str, str] = {
    "addGroup: without writeAll(record.stage, later)": "tests/features/test_group_stages.py::test_a_producer_may_mind_the_time_limits",
    "addGroup: without stages.insert(homes, job.base, job, ARGV[job.payload], ARGV[job.payload + 1], now, base)": "tests/features/test_group_completion.py::test_a_group_is_completed_when_its_last_job_is",
    'addGroup: without redis.call("SADD", base .. ":de", "groups")': "tests/features/test_group_upkeep.py::test_bullmq_takes_no_key_of_a_group_for_a_job",
    'addGroup: "SREM" for "SADD"': "tests/features/test_group_upkeep.py::test_bullmq_takes_no_key_of_a_group_for_a_job",
    'addGroup: without redis.call("SADD", source .. ":de", "compensation")': "tests/features/test_group_upkeep.py::test_bullmq_takes_no_key_of_a_group_for_a_job",
    'addGroup: "SREM" for "SADD" (2)': "tests/features/test_group_upkeep.py::test_bullmq_takes_no_key_of_a_group_for_a_job",
    "addGroup: without stages.share(base, one, now + math.max(a.timeout_ms or 0, a.gates and SHARED_MS or 0), a.timeout_ms)": "tests/features/test_group_mends.py::test_the_look_for_due_groups_is_one_command",
    "addGroup: without startMembers(record, base, a, ARGV, now)": "tests/features/test_group_completion.py::test_a_group_is_completed_when_its_last_job_is",
    "addGroup: without stages.begin(record.group, a.jobs, now)": "tests/features/test_group_stages.py::test_a_producer_may_mind_the_time_limits",
}

EQUIVALENT: dict[str, str] = {}
