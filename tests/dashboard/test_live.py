"""What open pages cost: one look a second for all of them, and none for nobody."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.conftest import Visitor, served
from tests.dashboard.world import World
from tests.helpers import let_pass, wait_until
from toril import Connection, NewJob, Queue
from toril.client.finder import Finder
from toril.dashboard import dashboard, live
from toril.dashboard.audit import KEPT_S, MOST_ENTRIES, AuditLog
from toril.dashboard.beside import SHARE, Beside
from toril.dashboard.live import Pulse
from toril.dashboard.reading import Desk
from toril.dashboard.redacting import Redactor
from toril.dashboard.sharing import FRESH_S, Shared
from toril.protocol.glancing import Glance

COUNTS = (
    *("waiting", "active", "prioritized", "delayed", "waiting_children", "completed", "failed"),
    *("lanes", "groups", "events_added"),
)
ROOT = Path(__file__).parent.parent.parent


async def commands(client: Any) -> int:
    """How many commands the server has had."""
    stats = await client.info("stats")
    return int(stats["total_commands_processed"])


@pytest.mark.first
async def test_a_hundred_visitors_of_a_page_cost_as_much_as_one(
    visit: Callable[..., Visitor], shop: World, client: Any
):
    visitor = visit()
    for path in ("/", "/queue?queue=pay&state=failed", "/job?queue=pay&id=fails", "/workers"):
        await visitor.get(path)
        visitor.app._pages._desk.shared.forget()
        before = await commands(client)
        await visitor.get(path)
        of_one = await commands(client) - before
        visitor.app._pages._desk.shared.forget()
        before = await commands(client)
        answers = await asyncio.gather(*(visitor.get(path) for _ in range(100)))
        of_all = await commands(client) - before

        assert all(answer.status_code == 200 for answer in answers)
        # A slow machine takes more than a moment for them, and then some are read again.
        assert of_all <= 5 * of_one + 5, path


async def test_of_very_many_queues_each_is_looked_at_in_its_turn(
    url: str, prefix: str, client: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(live, "LOOKED_AT_ONCE", 10)
    monkeypatch.setattr(live, "SAMPLE_S", 600.0)  # a sample is a change too
    connection = Connection(url)
    names = [f"q{number:02}" for number in range(25)]
    for name in names:
        await client.hset(f"{prefix}:{name}:meta", "version", "toril")
    finder = Finder(connection, prefix)
    pulse = Pulse(connection, prefix, finder, every_s=0.05)
    told = [""]

    async def listen() -> None:
        async for one in pulse.listen():
            told[:] = [one]

    listener = asyncio.create_task(listen())
    try:
        await wait_until(lambda: set(pulse.queues) == {*names}, 60)
        async with Queue(names[-1], connection=url, prefix=prefix) as last:
            await last.add("x")
            await wait_until(lambda: f'"{names[-1]}": 1' in told[-1], 60)
            assert names[0] not in told[-1], "what has not changed is not told"
        await wait_until(lambda: '"": 25' in told[-1], 60)
        seen: list[int] = []
        monkeypatch.setattr(connection, "run_all", counted(connection.run_all, seen))
        await wait_until(lambda: len(seen) >= 9, 60)
        # Now and then the finder asks one thing too.
        assert {*seen} - {1} == {5, 10}, "as many as one turn has"
    finally:
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)
        await pulse.close()
        await finder.close()
        await connection.close()


def counted(run_all: Any, seen: list[int]) -> Any:
    async def run(commands: Any) -> Any:
        seen.append(len(commands))
        return await run_all(commands)

    return run


def test_a_queue_at_rest_keeps_two_samples_and_none_of_an_hour_ago():
    watched = live.Watched()
    quiet = Glance(**dict.fromkeys(COUNTS, 0), is_paused=False, events=[])
    for second in range(0, 3 * 3600, 5):
        watched.note(quiet, 1_000_000.0 + second)

    assert len(watched.samples) == 2
    assert watched.samples[-1].at_s - watched.samples[0].at_s <= 3600


async def test_all_listeners_share_one_look_and_hear_at_most_once_a_second(url: str, prefix: str):
    connection = Connection(url)
    pulse = Pulse(connection, prefix, Finder(connection, prefix), every_s=0.1)
    told: list[float] = []
    tell = pulse._tell

    def note(event: str, data: str) -> None:
        told.append(time.monotonic())
        tell(event, data)

    pulse._tell = note  # type: ignore[method-assign]
    heard: list[list[str]] = [[] for _ in range(50)]

    async def listen(news: list[str]) -> None:
        async for one in pulse.listen():
            assert one.startswith("event: tick"), one
            news.append(one)

    async with Queue("pay", connection=connection, prefix=prefix) as queue:
        await queue.add("first")
        listeners = [asyncio.create_task(listen(news)) for news in heard]
        began, looks = time.monotonic(), pulse.looks
        while pulse.looks - looks < 4 or min(len(news) for news in heard) < 3:
            assert time.monotonic() - began < 60
            await queue.add_bulk([NewJob("more") for _ in range(20)])
            await let_pass(0.005, "the listeners have their turn")
        looked, most = pulse.looks - looks, (time.monotonic() - began) / 0.1 + 2
        for task in listeners:
            task.cancel()
        await asyncio.gather(*listeners, return_exceptions=True)

        assert looked <= most
        assert all(later - one >= 0.09 for one, later in pairwise(told))
        assert max(len(news) for news in heard) <= len(told), "once for each look"
        await wait_until(lambda: pulse._task is None, 60)
        after = pulse.looks
        await let_pass(0.3, "three looks would fit in")
        assert pulse.looks == after, "nobody listens"
    await connection.close()


@pytest.mark.parametrize("turns", range(5))
async def test_a_page_that_is_closed_as_it_hears_something_is_closed(
    turns: int, url: str, prefix: str
):
    """`asyncio.wait_for` of Python 3.11 forgets a cancellation that comes as its wait ends."""
    connection = Connection(url)
    pulse = Pulse(connection, prefix, Finder(connection, prefix), every_s=600)

    async def listen() -> None:
        async for _ in pulse.listen():
            pass

    listener = asyncio.create_task(listen())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert pulse._listeners

    pulse._tell("tick", "{}")
    for _ in range(turns):
        await asyncio.sleep(0)
    listener.cancel()

    await asyncio.wait([listener], timeout=30)
    assert listener.cancelled()
    assert not pulse._listeners
    await pulse.close()
    await connection.close()


async def test_a_hundred_open_pages_of_a_busy_queue_are_read_for_once(
    url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
):
    """What the server is asked and what a page hears follow the clock, not the pages or events."""
    app: Any = dashboard(connection=url, prefix=prefix)
    reads: list[float] = []
    heard: list[list[float]] = [[] for _ in range(100)]
    read = Desk._queue_page

    async def noting(desk: Desk, name: str) -> Any:
        reads.append(time.monotonic())
        return await read(desk, name)

    monkeypatch.setattr(Desk, "_queue_page", noting)

    async def open_page(port: int, times: list[float]) -> None:
        live, _ = await _ask(port, "/live")
        reader, writer = await _ask(port, "/queue?queue=pay")
        while True:
            if (await live.readline()).startswith(b"data: "):
                times.append(time.monotonic())
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200")
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))
                writer.write(b"GET /queue?queue=pay HTTP/1.1\r\nHost: localhost\r\n\r\n")

    async with Queue("pay", connection=url, prefix=prefix) as queue, served(app) as base:
        await queue.add("first")
        began = time.monotonic()
        port = int(base.rpartition(":")[2])
        pages = [asyncio.create_task(open_page(port, times)) for times in heard]
        added = 0
        while time.monotonic() - began < 2.5 or added < 100 or not all(times for times in heard):
            assert time.monotonic() - began < 60
            assert not any(page.done() for page in pages)
            await queue.add_bulk([NewJob("more") for _ in range(25)])
            added += 25
            await let_pass(0.05, "the queue is busy, and the machine is not")
        passed = time.monotonic() - began
        looks, read_for = app._pages._desk.pulse.looks, len(reads)
        for page in pages:
            page.cancel()
        await asyncio.gather(*pages, return_exceptions=True)

    assert added >= 100
    assert looks <= passed + 2, "one reader for all pages"
    assert read_for <= 1 + looks + passed / FRESH_S, "after a look with news, or when it is old"
    assert all(len(times) <= passed + 1 for times in heard)


async def _ask(port: int, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return reader, writer


async def test_what_fails_is_asked_again_and_what_many_ask_is_asked_once():
    shared, asked = Shared(), 0

    async def answer() -> int:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.01)
        if asked == 1:
            raise ValueError("not now")
        return asked

    first = await asyncio.gather(
        *(shared.get("key", answer) for _ in range(5)), return_exceptions=True
    )
    assert [type(one) for one in first] == [ValueError] * 5
    assert await asyncio.gather(*(shared.get("key", answer) for _ in range(5))) == [2] * 5
    waiting = asyncio.create_task(shared.get("other", answer))
    await asyncio.sleep(0)
    waiting.cancel()
    assert await shared.get("other", answer) == 3, "who leaves takes nobody's answer away"


async def test_who_is_told_of_a_change_is_not_shown_what_was_asked_for_before(
    url: str, prefix: str
):
    connection = Connection(url)
    desk = Desk(connection, prefix, Redactor(()))
    shown: list[int] = []

    async def count() -> int:
        return await desk.queue("pay").get_waiting_count()

    async def follow() -> None:
        async for _ in desk.pulse.listen():
            shown[:] = [await desk.shared.get("page", count)]

    async with Queue("pay", connection=url, prefix=prefix) as queue:
        await queue.add("first")
        assert await desk.shared.get("page", count) == 1
        assert await desk.shared.get("slow", count, fresh_s=600.0) == 1
        await queue.add("second")
        following = asyncio.create_task(follow())
        await wait_until(lambda: shown)
        assert shown == [2], "although the page was asked for a moment ago"
        assert await desk.shared.get("slow", count, fresh_s=600.0) == 1
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await queue.obliterate(force=True)
    await desk.close()
    await connection.close()


async def test_what_takes_long_is_looked_for_beside_the_pages():
    now = [0.0]
    beside, go, found = Beside(lambda: now[0]), asyncio.Event(), 0

    async def find(note: Callable[[int], None]) -> int:
        nonlocal found
        note(7)
        await go.wait()
        now[0] += 1.0
        found += 1
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toril.dashboard.beside.WAIT_S", 0.0)
        for _ in range(3):
            known = await beside.known("key", 0, find)
            await asyncio.sleep(0)
            assert (known.value, known.is_whole) == (0, False)
    assert known.done == 7
    go.set()
    for _ in range(3):
        known = await beside.known("key", 0, find)
        assert (known.value, known.is_whole) == (1, True), "one search for all"
    now[0] += SHARE - 1.5
    assert (await beside.known("key", 0, find)).value == 1, "it took a second, so not so soon"
    now[0] += 2.0
    assert (await beside.known("key", 0, find)).value == 2
    beside.forget()
    assert (await beside.known("key", 0, find)).value == 3

    async def fails(note: Callable[[int], None]) -> int:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            await beside.known("other", 0, fails)
    await beside.close()


async def test_what_is_noted_is_bounded_in_number_and_time(url: str, prefix: str, client: Any):
    connection = Connection(url)
    audit = AuditLog(connection, prefix)
    for number in range(3):
        entry = await audit.write("pay", who="ann", what=f"w{number}" * 400, outcome="done")
    key = f"{prefix}:pay:toril:dashboard-log"
    assert 0 < await client.ttl(key) <= KEPT_S
    pipeline = client.pipeline(transaction=False)
    for _ in range(MOST_ENTRIES + 300):
        pipeline.xadd(key, {"who": "x"})
    await pipeline.execute()
    await audit.write("pay", who="bob", what="last", outcome="done")

    assert await client.xlen(key) <= MOST_ENTRIES + 100
    newest = await audit.newest(["pay", "none"])
    assert (newest[0].who, newest[0].what) == ("bob", "last")
    for wrong in ("", "x", "1", "1-", "-1", "+", "1-1-1", "٣-1", "9" * 50 + "-1"):
        assert await audit.one("pay", wrong) is None
    assert entry
    await connection.close()


def test_nothing_of_it_is_imported_by_others():
    code = (
        "import sys, toril, toril.cli.main, toril.testing;"
        "print([name for name in ('starlette', 'jinja2', 'uvicorn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_vendored_is_what_was_checked():
    check = [sys.executable, str(ROOT / "tools/vendor_dashboard.py"), "--check"]
    assert subprocess.run(check, capture_output=True, check=False).returncode == 0
