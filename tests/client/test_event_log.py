"""Events of the user's own, and a shorter log."""

from __future__ import annotations

import pytest

from toril import InvalidInputError, PayloadError, QueueEvents
from toril.errors import InvalidOptionError
from toril.protocol.publishing import MOST_FIELDS, RESERVED
from toril.sync import Queue as BlockingQueue


async def test_an_event_of_ones_own_reaches_listeners(queue, url, prefix):
    async with QueueEvents("q", connection=url, prefix=prefix) as events:
        event_id = await queue.publish_event(
            "shipped", {"order": 7, "text": "7", "nested": {"ä": [1, None]}}, job_id="41"
        )
        bare = await queue.publish_event("empty")

        first, second = await anext(events), await anext(events)

    assert (first.name, first.id, first.job_id) == ("shipped", event_id, "41")
    assert first.data == {"order": "7", "text": "7", "nested": '{"ä":[1,null]}'}
    assert (second.name, second.id, second.job_id, second.data) == ("empty", bare, None, {})


@pytest.mark.parametrize(
    ("name", "data", "job_id"),
    [
        *((name, {}, None) for name in sorted(RESERVED)),
        ("group:completed", {}, None),
        ("", {}, None),
        ("x", {"event": "completed"}, None),
        ("x", {"jobId": "41"}, None),
        ("x", {"": 1}, None),
        ("x", {7: 1}, None),
        ("x", {f"{n}": n for n in range(MOST_FIELDS + 1)}, None),
        ("x\ud800", {}, None),
        ("x", {"a": "\ud800"}, None),
        ("x", {"\ud800": 1}, None),
        ("x", {}, "\ud800"),
    ],
)
async def test_what_would_mislead_listeners_is_refused(name, data, job_id, queue, client):
    with pytest.raises(InvalidInputError):
        await queue.publish_event(name, data, job_id=job_id)

    assert await client.xlen(queue.keys.events) == 0


async def test_a_value_that_is_no_json_is_refused(queue):
    with pytest.raises(PayloadError, match="field 'a' of event 'x'"):
        await queue.publish_event("x", {"a": object()})


async def test_the_log_keeps_its_length(queue, client):
    await client.hset(queue.keys.meta, "opts.maxLenEvents", 100)
    for n in range(400):
        await queue.publish_event("tick", {"n": n})

    assert await client.xlen(queue.keys.events) < 250


async def test_the_log_is_trimmed(queue, client):
    for n in range(10):
        await queue.publish_event("tick", {"n": n})

    assert await queue.trim_events(3) == 7
    assert [fields["n"] for _, fields in await client.xrange(queue.keys.events)] == ["7", "8", "9"]
    assert await queue.trim_events(3) == 0
    assert await queue.trim_events(0) == 3
    for wrong in (-1, 1.5, "3"):
        with pytest.raises(InvalidOptionError):
            await queue.trim_events(wrong)


def test_the_blocking_client_has_them_too(url, prefix):
    with BlockingQueue("q", connection=url, prefix=prefix) as queue:
        queue.publish_event("shipped", {"order": 7})
        assert queue.trim_events(0) == 1
