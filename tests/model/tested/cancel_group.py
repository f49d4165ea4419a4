from __future__ import annotations

FOUND: dict[str, str] = {
    "cancelGroup: without requests.remember(queue, a.request)": "tests/features/test_group_cancel.py::test_a_cancel_that_is_sent_again_is_no_error",
}

EQUIVALENT: dict[str, str] = {}
