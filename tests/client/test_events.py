"""Listening to a queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import toril.sync
from tests.helpers import let_pass, until_blocked, wait_until
from toril import ManualWorker, Queue, QueueEvents, Worker
from toril.client.background import Background
from toril.errors import InvalidOptionError, ServerRefusalError, WaitTimeoutError

MakeEvents = Callable[..., QueueEvents]


@pytest.fixture
async def make_events(url: str, prefix: str) -> AsyncIterator[MakeEvents]:
    opened: list[QueueEvents] = []

    def make(name: str = "q", **options: Any) -> QueueEvents:
        opened.append(QueueEvents(name, **{"connection": url, "prefix": prefix, **options}))
        return opened[-1]

    yield make
    for events in opened:
        await events.close()


async def take(events: QueueEvents, count: int, timeout: float = 60.0) -> list[Any]:
    heard = []
    async with asyncio.timeout(timeout):
        while len(heard) < count:
            heard.append(await anext(events))
    return heard


async def run_one(url: str, prefix: str, queue: Queue, name: str = "x", **options: Any) -> str:
    async def handle(job):
        if job.name == "bad":
            raise ValueError("it broke")
        await job.report({"done": 50})
        return {"n": [1]}

    async with Worker("q", handle, connection=url, prefix=prefix):
        job = await queue.add(name, **options)

        async def has_ended() -> bool:
            return await queue.get_state(job.id) in ("completed", "failed", None)

        await wait_until(has_ended)
    return job.id


async def test_a_jobs_life_is_heard_in_order(queue, make_events, url, prefix):
    async with make_events() as events:
        job_id = await run_one(url, prefix, queue)

        heard = await take(events, 6)

    names = ["added", "waiting", "active", "progress", "completed", "drained"]
    assert [event.name for event in heard] == names
    assert {event.job_id for event in heard[:5]} == {job_id}
    assert heard[3].data == {"data": {"done": 50}}
    assert heard[4].data == {"return_value": {"n": [1]}, "prev": "active"}


async def test_what_happened_before_is_not_heard(queue, make_events):
    await queue.add("before")
    async with make_events() as events:
        job = await queue.add("after")

        assert {event.job_id for event in await take(events, 2)} == {job.id}


async def test_reading_from_the_beginning_and_from_an_event(queue, make_events):
    jobs = [await queue.add("x") for _ in range(3)]

    first = await take(make_events(last_event_id="0"), 6)
    rest = await take(make_events(last_event_id=first[3].id), 2)

    assert [event.job_id for event in first] == [job.id for job in jobs for _ in range(2)]
    assert rest == first[4:]


async def test_iterating_goes_on_where_it_was_left(queue, make_events):
    async with make_events() as events:
        await queue.add("x")
        async for event in events:
            assert event.name == "added"
            break

        assert (await take(events, 1))[0].name == "waiting"


async def test_callbacks_plain_and_async_by_name_and_by_job(queue, make_events, url, prefix):
    called: list[tuple[str, str]] = []

    async def asynchronous(event) -> None:
        await asyncio.sleep(0)
        called.append(("async", event.name))

    events = make_events()
    events.on("completed", lambda event: called.append(("plain", event.name)))
    events.on("completed", asynchronous)
    events.on("failed:good", lambda event: called.append(("never", event.name)))
    events.on("completed:good", lambda event: called.append(("job", event.job_id)))
    async with events:
        await run_one(url, prefix, queue, job_id="good")
        await wait_until(lambda: len(called) == 3)

    assert called == [("plain", "completed"), ("async", "completed"), ("job", "good")]


async def test_a_callback_that_fails_hurts_nobody(queue, make_events):
    called: list[str] = []

    def broken(event) -> None:
        raise RuntimeError("mine")

    async with make_events() as events:
        events.on("*", broken)
        events.on("*", lambda event: called.append(event.name))
        await queue.add("x")

        await wait_until(lambda: called == ["added", "waiting"])


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_callback_that_awaits_what_was_cancelled_hurts_nobody(kind, queue, make_events):
    """Regression: it ended the listener without a word, and no event was heard any more."""
    called: list[str] = []
    cancelled = asyncio.get_running_loop().create_future()
    cancelled.cancel()

    async def asynchronous(event) -> None:
        await cancelled

    async with make_events() as events:
        events.on("*", asynchronous if kind == "async" else lambda event: cancelled.result())
        events.on("*", lambda event: called.append(event.name))
        await queue.add("x")

        await wait_until(lambda: called == ["added", "waiting"])


async def test_who_closes_and_is_cancelled_meanwhile_hears_of_it(queue, make_events):
    """Regression: it was taken for the end of the listener, so the caller went on."""
    has_begun, is_told, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def lingering(event) -> None:
        has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            is_told.set()
            await may_end.wait()

    async with make_events() as events:
        events.on("added", lingering)
        await queue.add("x")
        await has_begun.wait()
        closing = asyncio.create_task(events.close())
        await is_told.wait()
        closing.cancel()
        await asyncio.wait([closing], timeout=60)

        assert closing.cancelled()
        assert events._connection.is_closed
        may_end.set()


@pytest.mark.parametrize("kind", [Queue, ManualWorker])
async def test_who_is_cancelled_while_a_listener_ends_leaves_no_connection(
    kind, url, prefix, monkeypatch
):
    async def be_cancelled(background) -> None:
        raise asyncio.CancelledError

    closed = kind("q", connection=url, prefix=prefix)
    if kind is Queue:
        await closed.add("x", job_id="job")
        with pytest.raises(WaitTimeoutError):
            await closed.wait_for("job", timeout=1)
    with monkeypatch.context() as patched:
        patched.setattr(Background, "stop", be_cancelled)
        with pytest.raises(asyncio.CancelledError):
            await closed.close()

    assert closed._connection.is_closed
    for listening in closed._listenings.values() if kind is Queue else ():
        await listening.close()


async def test_callbacks_and_iteration_each_hear_everything(queue, make_events):
    called: list[str] = []
    async with make_events() as events:
        events.on("*", lambda event: called.append(event.id))
        await queue.add("x")

        heard = await take(events, 2)
        await wait_until(lambda: called == [event.id for event in heard])


async def test_a_callback_taken_off_is_not_called(queue, make_events):
    called: list[str] = []
    both: list[str] = []
    async with make_events() as events:
        events.on("added", called.append)
        events.on("added", both.append)
        events.off("added", called.append)
        await queue.add("x")

        await wait_until(lambda: both)
    assert called == []


async def test_a_lost_connection_loses_no_event(queue, make_events, client):
    heard: list[str | None] = []

    async with make_events() as events:
        events.on("added", lambda event: heard.append(event.job_id))
        jobs = []
        for _ in range(5):
            jobs += [(await queue.add("x")).id for _ in range(20)]
            # Not the test's own connection, but the listener's.
            for row in await client.client_list():
                if row["name"].endswith(":qe"):
                    await client.client_kill_filter(_id=row["id"])

        await wait_until(lambda: len(heard) >= 100)
    assert heard == jobs


async def test_a_restarted_server_goes_on_where_it_was(start_server):
    server = start_server({"appendonly": "yes", "appendfsync": "always"}, tcp=True)
    async with (
        Queue("q", connection=server.url) as queue,
        QueueEvents("q", connection=server.url) as events,
    ):
        first = await queue.add("x")
        await take(events, 1)
        await asyncio.to_thread(server.restart)
        second = await queue.add("x")

        heard = await take(events, 3)

    assert [event.job_id for event in heard] == [first.id, second.id, second.id]


async def test_unknown_events_and_bad_json_pass_through(queue, make_events, client, prefix):
    async with make_events() as events:
        key = f"{prefix}:q:events"
        await client.xadd(key, {"event": "invented", "someField": "42"})
        await client.xadd(key, {"event": "completed", "jobId": "1", "returnvalue": "{oops"})
        await client.xadd(key, {"nonsense": "1"})
        job = await queue.add("x")

        heard = await take(events, 4)

    assert heard[0].data == {"some_field": "42"}
    assert heard[1].data == {"return_value": "{oops"}
    assert heard[3].job_id == job.id


async def test_closing_ends_the_iteration(make_events):
    events = make_events()
    ended = asyncio.Event()

    async def iterate() -> None:
        async for _ in events:
            pass
        ended.set()

    task = asyncio.create_task(iterate())
    await asyncio.sleep(0)
    await events.close()

    async with asyncio.timeout(60):
        await ended.wait()
    await task


async def test_the_connection_has_bullmqs_name(make_events, client, prefix):
    events = make_events("q")
    await events.__aenter__()

    names = [row["name"] for row in await client.client_list()]

    assert f"{prefix}:cQ==:qe" in names


@pytest.mark.parametrize(
    "place", ["$", "now", "-1", "1-", "", str(2**64), f"1-{2**64}", "9" * 5000]
)
async def test_a_place_that_does_not_exist_is_refused(make_events, place):
    with pytest.raises(InvalidOptionError, match="not an event id"):
        make_events(last_event_id=place)


async def test_listening_is_no_polling(queue, start_server):
    """FIFO-14: a quiet queue costs one blocking call in ten seconds."""
    server = start_server(tcp=True)
    async with QueueEvents("q", connection=server.url) as events:
        events.on("*", print)
        with server.client() as raw:

            def blocked() -> bool:
                return raw.info("clients")["blocked_clients"] == 1

            await wait_until(blocked)
            before = raw.info("commandstats")
            await let_pass(0.3, "who polls would be counted")
            after = raw.info("commandstats")
    assert before.get("cmdstat_xread") == after.get("cmdstat_xread")


@pytest.mark.no_audit("the log is damaged on purpose")
@pytest.mark.parametrize("since", [None, "0"])
async def test_a_log_that_is_no_stream_is_told_to_whoever_reads_it(since, queue, client, url):
    """It had been tried again for ever, and `toril events` never ended."""
    await client.delete(queue.keys.events)
    await client.set(queue.keys.events, "no stream")
    options = {"connection": url, "prefix": queue.keys.prefix, "last_event_id": since}

    with pytest.raises(ServerRefusalError, match="another kind"):
        async with asyncio.timeout(60), QueueEvents("q", **options) as events:
            await anext(events)

    def read_blocking() -> None:
        with toril.sync.QueueEvents("q", **options) as events:
            next(events)

    with pytest.raises(ServerRefusalError, match="another kind"):
        await asyncio.wait_for(asyncio.to_thread(read_blocking), 60)


@pytest.mark.no_audit("the log is damaged on purpose")
async def test_a_log_that_is_damaged_while_it_is_read_is_read_on_when_it_is_mended(
    queue, client, url, caplog
):
    await queue.add("first")
    options = {"connection": url, "prefix": queue.keys.prefix, "last_event_id": "0"}
    async with QueueEvents("q", **options) as events:
        seen = [await anext(events), await anext(events)]
        assert seen[0].name == "added"
        reading = asyncio.create_task(anext(events))
        await until_blocked(client)

        await client.set(queue.keys.events, "no stream")
        await wait_until(lambda: "cannot be read" in caplog.text)
        await client.delete(queue.keys.events)
        await queue.add("second")

        assert (await asyncio.wait_for(reading, 60)).name == "added"
