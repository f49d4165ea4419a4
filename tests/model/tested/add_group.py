from __future__ import annotations

FOUND: dict[str, str] = {
    "addGroup: without writeAll(record.stage, later)": "tests/features/test_group_stages.py::test_a_producer_may_mind_the_time_limits",
    "addGroup: without stages.share(base, one, now + math.max(a.timeout_ms or 0, a.gates and SHARED_MS or 0))": "tests/features/test_group_mends.py::test_the_look_for_due_groups_is_one_command",
}

EQUIVALENT: dict[str, str] = {}
