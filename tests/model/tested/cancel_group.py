from __future__ import annotations

FOUND: dict[str, str] = {
    'cancelGroup: true for redis.call("HGET", group, "x.request") == a.request': "tests/features/test_group_stages.py::test_after_the_pivot_a_failure_blocks_the_group",
    'cancelGroup: without redis.call("HSET", group, "x.request", a.request)': "tests/features/test_group_cancel.py::test_a_cancel_that_is_sent_again_is_no_error",
}

EQUIVALENT: dict[str, str] = {}
