from __future__ import annotations

FOUND: dict[str, str] = {
    'retryGroup: true for last["x.request"] == a.request': "tests/features/test_group_stages.py::test_after_the_pivot_a_failure_blocks_the_group",
}

EQUIVALENT: dict[str, str] = {}
