"""Events of the users' own: what is sent, and what is refused before it is."""

from __future__ import annotations

import pytest

from toril.errors import InvalidInputError, PayloadError
from toril.protocol import publishing
from toril.protocol.command import Resend
from toril.protocol.keys import Keys
from toril.protocol.publishing import MOST_FIELDS, RESERVED

KEYS = Keys("bull", "q")


def test_fields_are_written_as_they_are_given_and_values_as_text():
    command = publishing.publish(KEYS, "shipped", {"orderId": "7", "n": 7, "ok": None}, job_id="4")

    assert command.args == {
        "name": "shipped",
        "fields": ["jobId", "4", "orderId", "7", "n", "7", "ok", "null"],
    }
    assert command.resend is Resend.NEVER
    assert command.parse(b"17-0") == "17-0"


@pytest.mark.parametrize("name", [*sorted(RESERVED), "group:failed", "", None, "\ud800"])
def test_names_of_others_are_refused(name):
    with pytest.raises(InvalidInputError):
        publishing.publish(KEYS, name, None)


@pytest.mark.parametrize(
    "data",
    [
        {"event": 1},
        {"id": 1},
        {"": 1},
        {1: 1},
        {"a": "\udfff"},
        {f"{n}": n for n in range(MOST_FIELDS + 1)},
    ],
)
def test_fields_that_mislead_are_refused(data):
    with pytest.raises(InvalidInputError):
        publishing.publish(KEYS, "x", data)


def test_values_that_are_no_json_are_refused():
    with pytest.raises(PayloadError):
        publishing.publish(KEYS, "x", {"a": object()})


def test_trimming_may_be_done_twice():
    command = publishing.trim(KEYS, 5)

    assert command.words == ("XTRIM", KEYS.events, "MAXLEN", 5)
    assert command.resend is Resend.SAME
