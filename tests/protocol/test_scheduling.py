"""Schedulers without a server: when there is a next iteration, and what it carries."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.protocol.test_flows import follow
from toril.errors import InvalidOptionError
from toril.options import CHILD_POLICIES, NewJob, Schedule
from toril.protocol import scheduling
from toril.protocol.job import Job
from toril.protocol.keys import Keys

KEYS = Keys("bull", "q")
NOW = 1_800_000_000_000


def iteration(repeat, **opts):
    text = msgspec.json.encode({"repeat": repeat, "jobId": "old", "delay": 5, **opts})
    fields = {b"name": b"n", b"data": b"{}", b"opts": text, b"rjk": b"s"}
    return Job("bull", "q", f"repeat:s:{NOW}", fields)


def first_command(plan):
    command = next(plan)
    return command, msgspec.json.decode(command.payloads[0])


def test_the_next_iteration_carries_the_schedule_and_counts():
    job = iteration({"every": 1000, "count": 4, "offset": 7}, attempts=3, priority=2)

    command, opts = first_command(scheduling.advance(KEYS, job, NOW))

    assert command.args["every"] == 1000
    assert (command.args["job_id"], command.args["priority"]) == (f"repeat:s:{NOW}", 2)
    assert opts == {
        "attempts": 3,
        "priority": 2,
        "repeat": {"every": 1000, "count": 5, "offset": 7},
        "repeatJobKey": "s",
    }


def test_a_pattern_goes_on_after_the_iteration_that_was_taken():
    repeat = {"pattern": "0 * * * *", "tz": "UTC", "count": 1}
    taken_early = iteration(repeat, prevMillis=NOW + 3_600_000)

    command, _ = first_command(scheduling.advance(KEYS, taken_early, NOW))

    assert command.args["next_ms"] == NOW + 2 * 3_600_000


@pytest.mark.parametrize(
    "repeat",
    [
        {"every": 1000, "count": 3, "limit": 3},
        {"every": 1000, "count": 1, "endDate": NOW - 1},
        {"every": 1000, "count": 1, "endDate": "2020-01-01T00:00:00.000Z"},
        {"pattern": "0 0 * * *", "count": 9, "limit": 9},
    ],
)
def test_a_schedule_that_is_over_asks_for_nothing(repeat):
    assert follow(scheduling.advance(KEYS, iteration(repeat), NOW)) is None


def test_a_schedule_is_found_with_the_scheduler_when_the_job_lost_it():
    fields = {b"name": b"n", b"opts": b"{}", b"rjk": b"s"}
    plan = scheduling.advance(KEYS, Job("bull", "q", f"repeat:s:{NOW}", fields), NOW)
    command = next(plan)
    assert command.words == ("HGETALL", "bull:q:repeat:s")

    command = plan.send(command.parse([b"pattern", b"0 * * * *", b"tz", b"UTC", b"ic", b"7"]))

    assert command.args["next_ms"] == NOW + 3_600_000
    assert msgspec.json.decode(command.payloads[0])["repeat"]["count"] == 8


def test_an_upsert_asks_the_server_for_its_time_first():
    schedule = Schedule(cron="0 * * * *", limit=3)
    plan = scheduling.upsert(KEYS, "s", schedule, NewJob("n", {"a": 1}, attempts=2))
    clock = next(plan)
    assert clock.script is not None
    assert clock.script.name == "clock"

    command = plan.send(clock.parse(NOW))

    assert command.args["next_ms"] == NOW + 3_600_000
    assert command.args["fields"] == ["tz", "UTC", "limit", "3", "pattern", "0 * * * *"]
    data, opts, template = map(msgspec.json.decode, command.payloads)
    assert (data, template) == ({"a": 1}, {"attempts": 2})
    assert opts["repeat"] == {"count": 1, "pattern": "0 * * * *", "tz": "UTC", "limit": 3}
    job = command.parse([b"repeat:s:5", 100, NOW])
    assert (job.id, job.name, job.delay, job.scheduler_id) == ("repeat:s:5", "n", 100, "s")


def test_an_end_that_is_past_is_refused():
    plan = scheduling.upsert(KEYS, "s", Schedule(every=5, end=NOW - 1), NewJob("n"))
    clock = next(plan)
    with pytest.raises(InvalidOptionError, match="past"):
        plan.send(clock.parse(NOW))


def test_what_bullmq_5_repeated_is_no_scheduler():
    listed = follow(
        scheduling.many(KEYS, 0, -1),
        [b"old", b"5", b"new", b"7"],
        [[b"name", b"x"], [b"name", b"y", b"ic", b"2", b"every", b"50"]],
    )

    assert [(one.id, one.next_at, one.iterations, one.every) for one in listed] == [
        ("new", 7, 2, 50)
    ]


@pytest.mark.parametrize("policy", CHILD_POLICIES)
def test_a_template_has_no_policy_for_a_parent_that_it_cannot_have(policy):
    """Regression: it was dropped without a word."""
    template = NewJob("n", **{policy: True})

    with pytest.raises(InvalidOptionError, match=f"cannot have {policy}"):
        next(scheduling.upsert(KEYS, "s", Schedule(every=1000), template))


def test_a_template_in_a_lane_waits_for_late_ones_and_so_do_its_later_jobs():
    template = NewJob("n", lane="l", ordering_delay=500)
    plan = scheduling.upsert(KEYS, "s", Schedule(every=1000), template)
    next(plan)

    first = plan.send(NOW)
    again, opts = first_command(
        scheduling.advance(KEYS, iteration({"every": 1000}, lane="l", orderingDelay=500), NOW)
    )

    assert first.args["ordering_delay"] == 500
    assert (again.args["ordering_delay"], opts["orderingDelay"]) == (500, 500)


def a_scheduler(**values: Any) -> scheduling.JobScheduler:
    known: dict[str, Any] = dict.fromkeys(scheduling.JobScheduler.__struct_fields__)
    known |= {"id": "s", "name": "n", "next_at": 1_700_000_100_000, "iterations": 2}
    return scheduling.JobScheduler(**(known | values))


def test_when_a_scheduler_was_due_last():
    assert scheduling.due_before(a_scheduler(every=60_000)) == 1_700_000_040_000
    assert scheduling.due_before(a_scheduler(every=60_000, iterations=1)) is None
    assert scheduling.due_before(a_scheduler(cron="*/5 * * * *")) == 1_699_999_800_000
    assert scheduling.due_before(a_scheduler(cron="every now and then")) is None
    assert scheduling.due_before(a_scheduler(cron="* * * * *", tz="Mars/Olympus")) is None
    assert scheduling.iteration_id("s", 5) == "repeat:s:5"
