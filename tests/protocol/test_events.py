"""Entries of the event log as values, without a server."""

from __future__ import annotations

import pytest

from toril.protocol.events import Event, decode


def entry(**fields: str) -> list[bytes]:
    return [part.encode() for pair in fields.items() for part in pair]


@pytest.mark.parametrize(
    ("fields", "job_id", "data"),
    [
        ({"event": "waiting", "jobId": "1"}, "1", {}),
        ({"event": "waiting", "jobId": "1", "prev": "active"}, "1", {"prev": "active"}),
        ({"event": "delayed", "jobId": "1", "delay": "17"}, "1", {"delay": 17}),
        ({"event": "delayed", "jobId": "1", "delay": "soon"}, "1", {"delay": "soon"}),
        ({"event": "progress", "jobId": "1", "data": '{"a":[1]}'}, "1", {"data": {"a": [1]}}),
        ({"event": "progress", "jobId": "1", "data": "{oops"}, "1", {"data": "{oops"}),
        (
            {"event": "completed", "jobId": "1", "returnvalue": "null", "prev": "active"},
            "1",
            {"return_value": None, "prev": "active"},
        ),
        ({"event": "completed", "jobId": "1", "returnvalue": "NaN "}, "1", None),
        (
            {"event": "failed", "jobId": "1", "failedReason": '"quoted"'},
            "1",
            {"failed_reason": "quoted"},
        ),
        ({"event": "retries-exhausted", "jobId": "1", "attemptsMade": "3"}, "1", None),
        ({"event": "cleaned", "count": "12"}, None, {"count": 12}),
        ({"event": "drained"}, None, {}),
        (
            {"event": "deduplicated", "jobId": "1", "deduplicatedJobId": "2"},
            "1",
            {"deduplicated_job_id": "2"},
        ),
        ({"event": "group:completed", "groupId": "g"}, None, {"group_id": "g"}),
        ({"event": "invented", "someField": "42", "data": "{"}, None, None),
        ({"someField": "42"}, None, {"some_field": "42"}),
    ],
)
def test_an_entry_becomes_an_event(fields, job_id, data):
    event = decode(b"5-1", entry(**fields))

    assert (event.id, event.name, event.job_id) == ("5-1", fields.get("event", ""), job_id)
    if data is not None:
        assert event.data == data


def test_numbers_are_numbers():
    event = decode(b"5-1", entry(event="retries-exhausted", jobId="1", attemptsMade="3"))

    assert event.data == {"attempts_made": 3}


def test_bytes_that_are_no_text_do_not_stop_the_reader():
    fields = [b"event", b"completed", b"jobId", b"\xff", b"returnvalue", b"\xff\xfe"]

    event = decode(b"5-1", fields)

    assert isinstance(event, Event)
    assert event.name == "completed"
