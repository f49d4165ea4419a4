"""Planted bugs that the explorer does not find, by name."""

from __future__ import annotations

from tests.model.tested import ARGUED

# ruff: noqa: E501

EQUIVALENT: dict[str, str] = {
    **ARGUED,
    "changePriority: without places.wake(queue, gate)": "a job that waits was announced when it began to",
    "rooms/places: without places.wake(queue, gate)": "who lets due jobs in takes one and wakes the next worker, or a limit holds him back and he looks again when it ends; who waits was told when they are due",
}
"""Those that change nothing that anybody can see, and why; they do not count."""

SURVIVORS: frozenset[str] = frozenset(
    {
        # Locks expire here when a step says so, not after a time, so a longer time changes nothing;
        # test_a_job_that_arrives_late_is_locked_anew looks at it.
        'settle: without redis.call("PEXPIRE", job .. ":lock", a.lock_ms)',
        # No world is large enough to meet these limits; the budgets of scripts have tests of their
        # own, and test_a_job_that_kills_whoever_reads_it_is_given_up looks at the last one.
        "rooms/groups: 250000 for 250",
        "rooms/groups: 20000 for 20",
        "rooms/groups: 500000000 for 500000",
        "rooms/places: 200000 for 200",
        "rooms/takes: 500000000 for 500000",
        "rooms/laneTakes: 100000 for 100",
        "sweep: 3000 for 3",
        # Nobody here confirms an older reply, or asks again for a job that others have taken over;
        # test_a_confirmation_is_about_the_reply_with_its_number and
        # test_a_job_that_arrives_late_is_locked_anew do.
        "settle: true for string.sub(record, -DIGITS) == call[2]",
        'settle: true for redis.pcall("GET", job .. ":lock") == a.token',
    }
)
"""Those that no check finds."""
