from __future__ import annotations

FOUND: dict[str, str] = {
    "rooms/endings: without hear(page.ends, entry[2])": "tests/features/test_group_beyond.py::test_a_member_that_is_gone_is_looked_up_in_the_events",
    'rooms/endings: without redis.call("HSET", key, field, "", "x.asks", "job " .. id .. " is gone, and the log of events does not tell how it ended")': "tests/features/test_group_mends.py::test_when_the_log_does_not_reach_back_the_group_waits_for_a_person",
    'rooms/endings: without redis.call("ZADD", groups.asking(owner), clock.stamp(now), group_id)': "tests/features/test_group_upkeep.py::test_a_person_is_asked_until_somebody_has_said_how_a_member_ended",
    'rooms/endings: without redis.call("HSET", key, field, found.last)': "tests/features/test_group_mends.py::test_the_end_of_a_member_is_found_however_far_back_it_was_told",
    "rooms/endings: without ask(key, field, id, now)": "tests/features/test_group_mends.py::test_when_the_log_does_not_reach_back_the_group_waits_for_a_person",
    'rooms/endings: without redis.call("ZREM", groups.asking(owner), group_id)': "tests/features/test_group_upkeep.py::test_nobody_is_asked_about_a_member_of_a_group_that_is_being_undone",
}

EQUIVALENT: dict[str, str] = {}
