from __future__ import annotations

FOUND: dict[str, str] = {
    "settleMember: true for told_by == a.request": "tests/features/test_group_stages.py::test_a_signal_completes_once",
    'settleMember: without redis.call("HDEL", group, seek, "x.asks")': "tests/features/test_group_upkeep.py::test_a_person_is_asked_until_somebody_has_said_how_a_member_ended",
    'settleMember: without redis.call("ZREM", groups.asking(base), known.id)': "tests/features/test_group_upkeep.py::test_a_person_is_asked_until_somebody_has_said_how_a_member_ended",
    "settleMember: without groups.memberEnded(group, one.kind, one.number, one.job, a.state, ended, now)": "tests/features/test_group_mends.py::test_when_the_log_does_not_reach_back_the_group_waits_for_a_person",
    'settleMember: without redis.call("HSET", group .. ":results", one.number .. ".request", request)': "tests/features/test_group_stages.py::test_the_same_signal_sent_again_is_known",
    "settleMember: without requests.remember(queue, request)": "tests/features/test_group_stages.py::test_the_same_signal_sent_again_is_known_although_its_group_is_forgotten",
}

EQUIVALENT: dict[str, str] = {}
