"""Planted bugs that the explorer does not find, by name."""

from __future__ import annotations

# ruff: noqa: E501

EQUIVALENT: dict[str, str] = {
    "changePriority:31 without wake(queue, gate)": "a job that waits was announced when it began to",
    "includes/deduplication:43 without wakeForLanes(queue, gate)": "every script that ends a job wakes for lanes at its end",
    'includes/groups:39 without redis.call("ZREM", openGroups(owner), id)': "a group that is forgotten has ended, and was taken out of the open ones then",
    "includes/promoteDue:16 without wake(queue, gate)": "who lets due jobs in takes one and wakes the next worker, or a limit holds him back and he looks again when it ends; who waits was told when they are due",
}
"""Those that change nothing that anybody can see, and why; they do not count."""

SURVIVORS: frozenset[str] = frozenset(
    {
        # Locks expire here when a step says so, not after a time, so a longer time changes nothing;
        # test_a_job_that_arrives_late_is_locked_anew looks at it.
        'settle:17 without redis.call("PEXPIRE", job .. ":lock", digits(a.lock_ms))',
    }
)
"""Those that no check finds."""
