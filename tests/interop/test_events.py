"""Events that one party writes and the other reads (wire-format section 10, items 12 to 15)."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest

from tests.helpers import wait_until
from tests.interop.golden import without_class
from tests.interop.peer import NodeError
from tests.interop.scenario import NodeDriver, Step, run
from tests.interop.scenarios import SOON
from tests.interop.support import DOOMED, SURVIVING, event_names, events_of, wait_for_state
from tests.keyspace import keys_under

EVERYTHING: list[Step] = [
    ("add", {"queue": "q", "name": "good", "data": {"n": 1}, "as": "a"}),
    ("add", {"queue": "q", "name": "bad", "data": {}, "as": "b"}),
    ("add", {"queue": "q", "name": "flaky", "data": {}, "attempts": 2, "as": "c"}),
    (
        "work",
        {
            "queue": "q",
            "behaviours": {
                "good": [["progress", 5], ["progress", {"a": [1]}], ["progress", "x"], ["echo"]],
                "bad": [["fail", "it broke"]],
                "flaky": [["fail_until", 1, "not yet"], ["return", None]],
            },
            "until": {"a": "completed", "b": "failed", "c": "completed"},
            **SURVIVING,
        },
    ),
    (
        "add",
        {
            "queue": "q",
            "name": "later",
            "data": {},
            "attempts": 2,
            "delay": SOON,
            "backoff": {"type": "fixed", "delay": SOON},
            "as": "d",
        },
    ),
    (
        "work",
        {
            "queue": "q",
            "behaviours": {"later": [["fail_until", 1, "not yet"], ["return", 7]]},
            "until": {"d": "completed"},
            **SURVIVING,
        },
    ),
    ("pause", {"queue": "q"}),
    ("resume", {"queue": "q"}),
    ("clean", {"queue": "q", "state": "completed", "grace": 0, "limit": 100}),
    ("add", {"queue": "q", "name": "long", "data": {}, "as": "e"}),
    ("crash", {"queue": "q", "behaviours": {"long": [["hang"]]}, "name": "w", **DOOMED}),
    ("expire", {"queue": "q", "job": "e"}),
    ("work", {"queue": "q", "behaviours": {}, "until": {"e": "completed"}, **SURVIVING}),
    ("retry", {"queue": "q", "job": "b"}),
    ("remove", {"queue": "q", "job": "b"}),
    ("drain", {"queue": "q", "delayed": False}),
]


async def test_item_12_a_listener_in_node_cannot_tell_who_did_it(peer, toril, client, prefix):
    async def heard(driver: Any) -> list[dict[str, Any]]:
        await peer.listen("q")
        await run(EVERYTHING, driver, client, prefix)
        written = await client.xlen(f"{prefix}:q:events")

        async def all_heard() -> list[dict[str, Any]] | None:
            recorded = await peer.recorded("q")
            return recorded if len(recorded) >= written else None

        recorded = await wait_until(all_heard, message=f"{written} events are heard")
        await peer.close_all()
        await client.unlink(*await keys_under(client, prefix))
        return _without_ids_and_times(recorded)

    theirs = await heard(NodeDriver(peer))
    ours = await heard(toril)

    assert ours == theirs


@pytest.mark.parametrize("value", [{"n": 1}, None, [], "text", 0, False])
async def test_item_13_waiting_in_node_gets_the_value_toril_returned(value, peer, toril):
    await toril.start_worker("q", {"*": [["sleep", 20], ["return", value]]})

    result = await peer.call("job.addAndWait", queue="q", args=["x", {}], ttl=20_000)

    assert result == value


async def test_item_13_waiting_in_node_is_told_of_torils_failure(peer, toril):
    await toril.start_worker("q", {"*": [["fail", "it broke"]]})

    with pytest.raises(NodeError, match="it broke"):
        await peer.call("job.addAndWait", queue="q", args=["x", {}], ttl=20_000)


async def test_item_13_waiting_in_node_for_what_is_already_finished(peer, toril, client, prefix):
    good = await peer.add("q", "good", {"n": 1})
    bad = await peer.add("q", "bad")
    await toril.start_worker("q", {"bad": [["fail", "it broke"]]})
    await wait_for_state(client, prefix, "q", good, "completed")
    await wait_for_state(client, prefix, "q", bad, "failed")

    wait = "job.waitUntilFinished"
    assert await peer.call(wait, queue="q", jobId=good, ttl=20_000) == {"n": 1}
    with pytest.raises(NodeError, match="it broke"):
        await peer.call(wait, queue="q", jobId=bad, ttl=20_000)


async def test_item_13_waiting_in_node_for_a_job_removed_on_completion(peer, toril):
    running = await toril.start_worker("q", {"*": [["hang"]]})

    args = ["x", {}, {"removeOnComplete": True}]
    waiting = asyncio.create_task(peer.call("job.addAndWait", queue="q", args=args, ttl=20_000))
    # Whoever asks when it is gone is told that it is missing.
    await peer.event("asked", timeout=60)
    await wait_until(lambda: running.handler.holding)
    running.handler.release(value="here")

    assert await waiting == "here"


async def test_item_13_waiting_in_toril_gets_what_bullmq_returned(peer, toril):
    await peer.work("q", {"good": [["sleep", 50], ["return", [1, None]]], "gone": [["return", 2]]})
    queue = toril.queue("q")
    good = await queue.add("good")
    gone = await queue.add("gone", remove_on_complete=True)

    values = await asyncio.gather(
        queue.wait_for(good.id, timeout=60_000), queue.wait_for(gone.id, timeout=60_000)
    )

    assert values == [[1, None], 2]


async def test_item_14_toril_reads_bullmqs_events_even_unknown_ones(peer, toril, client, prefix):
    heard: list[Any] = []

    async def listen(events) -> None:
        async for event in events:
            heard.append(event)  # noqa: PERF401 - read while it grows

    events = toril.events("q", last_event_id="0")
    reading = asyncio.create_task(listen(events))
    job_id = await peer.add("q", "x", {"n": 1})
    await peer.call(
        "events.publish", queue="q", args=[{"eventName": "invented", "someField": "42"}]
    )
    await peer.work("q", {"*": [["progress", {"a": 1}], ["return", {"b": [2]}]]})
    await wait_until(lambda: "drained" in [event.name for event in heard])
    reading.cancel()

    by_name = {event.name: event for event in heard}
    names = [event.name for event in heard if event.name != "invented"]
    assert names == ["added", "waiting", "active", "progress", "completed", "drained"]
    assert by_name["invented"].data["some_field"] == "42"
    assert by_name["progress"].data["data"] == {"a": 1}
    assert by_name["completed"].job_id == job_id
    assert by_name["completed"].data["return_value"] == {"b": [2]}


@pytest.mark.parametrize("value", [math.nan, -math.inf, {"deep": [math.nan]}, object()])
async def test_item_14_what_is_not_json_fails_the_job_and_never_reaches_a_listener(
    value, peer, toril, client, prefix
):
    await peer.listen("q")
    job_id = await peer.add("q", "odd")

    await toril.start_worker("q", {"odd": [["return", value]]})
    await wait_for_state(client, prefix, "q", job_id, "failed")
    after = await peer.add("q", "plain", {"n": 1})
    await wait_for_state(client, prefix, "q", after, "completed")

    async def heard_the_next() -> bool:
        return any(
            event["event"] == "completed" and event["jobId"] == after
            for event in await peer.recorded("q")
        )

    await wait_until(heard_the_next)
    for event in await events_of(client, prefix, "q", "completed"):
        json.loads(event["returnvalue"])
    assert not [event for event in await peer.recorded("q") if event["event"] == "error"]


async def test_item_14_progress_that_is_not_json_is_refused(peer, toril, client, prefix):
    job_id = await peer.add("q", "odd")

    await toril.start_worker("q", {"odd": [["progress", math.nan], ["return", 1]]})
    await wait_for_state(client, prefix, "q", job_id, "failed")

    assert "progress" not in await event_names(client, prefix, "q", job_id)


async def test_events_of_torils_users_reach_node(peer, toril, client, prefix):
    """`publish_event` writes what BullMQ's QueueEventsProducer writes."""
    await peer.listen("q")
    queue = toril.queue("q")
    event_id = await queue.publish_event("shipped", {"orderId": "7", "text": "ä"})
    await queue.publish_event("of a job", {"n": 1}, job_id="41")
    await peer.call(
        "events.publish", queue="q", args=[{"eventName": "shipped", "orderId": "7", "text": "ä"}]
    )

    async def all_heard() -> list[dict[str, Any]] | None:
        recorded = await peer.recorded("q")
        return recorded if len(recorded) == 3 else None

    ours, of_a_job, theirs = await wait_until(all_heard)
    assert ours == {"event": "shipped", "id": event_id, "orderId": "7", "text": "ä"}
    assert ours == theirs | {"id": event_id}
    assert (of_a_job["jobId"], of_a_job["n"]) == ("41", "1")
    rows = [fields for _, fields in await client.xrange(f"{prefix}:q:events")]
    assert rows[0] == rows[2]


async def test_item_15_events_of_our_own_reach_nodes_listeners(peer, toril, client, prefix):
    await peer.listen("q")
    own = {"event": "group:completed", "groupId": "g1", "groupName": "order"}
    await client.xadd(f"{prefix}:q:events", own)
    await toril.start_worker("q")

    result = await peer.call("job.addAndWait", queue="q", args=["x", {"n": 1}], ttl=20_000)

    assert result == {"n": 1}
    custom = [e for e in await peer.recorded("q") if e["event"] == "group:completed"]
    assert [(e["groupId"], e["groupName"]) for e in custom] == [("g1", "order")]


def _without_ids_and_times(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names: dict[str, str] = {}
    result = []
    for event in events:
        plain = {k: v for k, v in event.items() if k != "id" and not k.startswith(("x.", "toril"))}
        if "jobId" in plain:
            plain["jobId"] = names.setdefault(plain["jobId"], f"#{len(names) + 1}")
        if "failedReason" in plain:
            plain["failedReason"] = without_class(plain["failedReason"])
        if plain["event"] == "delayed":
            assert isinstance(plain["delay"], int)
            plain["delay"] = "a time"
        result.append(plain)
    return result
