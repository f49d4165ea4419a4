"""``toril monitor``: through its pilot, by the commands it sends, and once in a real terminal."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from tests.cli.conftest import Toril
from tests.cli.terminal import Terminal
from tests.features.dead_letters.forging import forge
from tests.helpers import not_run, wait_until, wait_until_sync
from tests.servers import Cluster, Server
from toril import (
    Compensation,
    FlowProducer,
    GroupJob,
    NewJob,
    Queue,
    UnrecoverableError,
    Worker,
)
from toril.cli.monitor.app import MonitorApp, chosen_key
from toril.cli.monitor.dialogs import ConfirmScreen, HelpScreen
from toril.cli.monitor.letters import LetterSurvey
from toril.cli.monitor.rows import event_rows
from toril.cli.monitor.table import Table
from toril.cli.monitor.watcher import MOST_QUEUES, MOST_ROWS, QueueWatch, View, Watcher
from toril.cli.monitor.whole import WholeScreen
from toril.client.connection import Connection
from toril.protocol.command import plain
from toril.protocol.discovering import KEYS_PER_SCAN
from toril.protocol.events import Event
from toril.protocol.keys import Keys


@asynccontextmanager
async def monitor(
    url: str, prefix: str, *names: str, size: tuple[int, int] = (80, 24)
) -> AsyncIterator[tuple[MonitorApp, Pilot[None]]]:
    connection = Connection(url, patience_s=0.0)
    watcher = Watcher(connection, prefix, names, time.monotonic)
    app = MonitorApp(watcher, connection, label=url, interval_s=0.1)
    async with app.run_test(size=size) as pilot:
        yield app, pilot
    await watcher.close()
    await connection.close()


def cells(app: MonitorApp, table: str) -> list[list[str]]:
    found = app.query_one(f"#{table}", DataTable)
    return [[str(cell) for cell in found.get_row_at(row)] for row in range(found.row_count)]


def text(app: MonitorApp, widget: str) -> str:
    return str(app.query_one(f"#{widget}", Static).render())


def told(app: MonitorApp) -> str:
    return " ".join(one.message for one in app._notifications)


async def shows(pilot: Pilot[None], question: Callable[[], Any]) -> None:
    """Wait until the screen answers yes; the app goes on meanwhile."""

    async def ask() -> Any:
        await pilot.pause()
        try:
            return question()
        except IndexError:  # the row that is asked about is not there yet
            return False

    await wait_until(ask, timeout=30, every=0.02)


async def test_counts_lanes_and_the_last_update_are_shown_and_follow(url: str, prefix: str):
    """FIFO-25: counts, unique lanes, the list of active lanes, the last update."""
    started, go = asyncio.Event(), asyncio.Event()

    async def handler(job: Any) -> None:
        started.set()
        await go.wait()

    options: dict[str, Any] = {"connection": url, "prefix": prefix}
    async with Queue("orders", **options) as queue:
        await queue.add_bulk([NewJob("sync", lane=f"user:{n % 2}") for n in range(6)])
        await queue.add("later", delay=3_600_000)
        async with Worker("orders", handler, concurrency=2, worker_name="anna", **options):
            await started.wait()
            async with monitor(url, prefix) as (app, pilot):
                await shows(pilot, lambda: cells(app, "queues"))
                await shows(
                    pilot, lambda: "active 2  waiting 4  delayed 1  total 7" in text(app, "summary")
                )
                assert "unique lanes 2" in text(app, "summary")
                await shows(pilot, lambda: len(cells(app, "view")) == 2)
                table = app.query_one("#view", DataTable)
                assert table.virtual_size.width <= 80, "no column is cut off"
                assert {row[5] for row in cells(app, "view")} == {"user:0", "user:1"}
                assert {row[6] for row in cells(app, "view")} == {"anna"}

                await pilot.press("2")
                await shows(pilot, lambda: len(cells(app, "view")) == 2)
                assert {row[1] for row in cells(app, "view")} == {"running"}
                assert {row[2] for row in cells(app, "view")} == {"2"}
                await shows(pilot, lambda: "user:0" in text(app, "note"))
                assert "active lanes: " in text(app, "note")
                assert re.search(r"last update \d\d:\d\d:\d\d", text(app, "status"))

                go.set()
                await shows(pilot, lambda: cells(app, "queues")[0][4] == "6")
                await shows(pilot, lambda: "unique lanes 0" in text(app, "summary"))
                watch = app.watcher.queues["orders"]
                assert sum(watch.pace.per_second) > 0
                assert watch.pace.runs_ms
                await pilot.press("5")
                await shows(pilot, lambda: "completed" in [row[1] for row in cells(app, "view")])


async def test_a_table_that_was_drawn_too_early_is_drawn_again():
    """On a busy machine a paint may come before the columns have their width."""
    table = Table()

    class Shown(App[None]):
        def compose(self) -> ComposeResult:
            yield table

    def drawn() -> str:
        lines = range(table.size.height)
        return "\n".join("".join(part.text for part in table.render_line(y)) for y in lines)

    async with Shown().run_test(size=(80, 24)) as pilot:
        table.add_columns("a", "b")
        await pilot.pause()
        table.add_row("a long word", "another one")

        assert "a long word" not in drawn(), "it is drawn before the columns are measured"
        await shows(pilot, lambda: "a long word  another one" in drawn())


async def test_groups_show_their_states_and_members(url: str, prefix: str):
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        await flow.add_group(
            "order",
            [GroupJob("charge", queue_name="payments"), GroupJob("reserve", queue_name="stock")],
            {"charge": Compensation("refund")},
        )
    async with monitor(url, prefix, "payments") as (app, pilot):
        await pilot.press("3")
        await shows(pilot, lambda: cells(app, "view"))
        (row,) = cells(app, "view")
        assert row[1:3] == ["order", "ACTIVE"]
        await shows(pilot, lambda: "charge · pending   reserve · pending" in text(app, "note"))


async def test_a_group_that_is_undone_shows_what_is(url: str, prefix: str):
    """SAGA-31: whoever looks at a broken group sees which member could not be undone."""

    async def handle(job: Any) -> None:
        if job.name in ("reserve", "refund"):
            raise UnrecoverableError("no")

    options: dict[str, Any] = {"connection": url, "prefix": prefix}
    async with FlowProducer(**options) as flow, Queue("pay", **options) as queue:
        node = await flow.add_group(
            "order",
            [GroupJob(name, queue_name="pay") for name in ("charge", "book", "reserve")],
            {name: Compensation(undo) for name, undo in (("charge", "refund"), ("book", "free"))},
        )
        async with Worker("pay", handle, **options), Worker("pay:compensation", handle, **options):
            await queue.wait_for_group(node.group_id, timeout=30_000)
    async with monitor(url, prefix, "pay") as (app, pilot):
        await pilot.press("3")
        line = "charge ✓ completed, NOT UNDONE   book ✓ completed, undone   reserve ✗ failed"
        await shows(pilot, lambda: line in text(app, "note"))


def whole(app: MonitorApp) -> str:
    """What stands on the screen that Enter opened; nothing before it is there."""
    if not isinstance(app.screen, WholeScreen) or not app.screen.query("#text"):
        return ""
    return str(app.screen.query_one("#text", Static).render())


async def test_a_failed_job_is_seen_with_its_reason_and_whole_and_retried(url: str, prefix: str):
    async def handle(job: Any) -> None:
        await job.log("asking the bank")
        raise ValueError("no such card")

    options: dict[str, Any] = {"connection": url, "prefix": prefix}
    async with Queue("pay", **options) as queue:
        await queue.add("charge", {"amount": 99}, job_id="order-7", attempts=2)
        await queue.add("charge", {"amount": 98}, job_id="order-8")
        async with Worker("pay", handle, worker_name="anna", **options):
            await wait_until(lambda: _has_failed(queue, 2))

        async with monitor(url, prefix, "pay") as (app, pilot):
            await pilot.press("6")
            await shows(pilot, lambda: len(cells(app, "view")) == 2)
            rows = {row[0]: row for row in cells(app, "view")}
            assert rows["order-7"][3] == "2"
            assert "no such card" in rows["order-7"][4]
            table = app.query_one("#view", DataTable)
            assert table.virtual_size.width <= 80, "no column is cut off"

            await pilot.press("enter")
            assert app.focused is table, "Enter on a queue goes down to its jobs"
            while chosen_key(table) != "order-7":
                await pilot.press("down")
                await pilot.pause()
            await pilot.press("enter")
            await shows(pilot, lambda: "order-7" in whole(app))
            text = whole(app)
            assert re.search(r"why\s+.*failed", text)
            assert re.search(r"attempts\s+2 of 2 made", text)
            assert re.search(r"worker\s+anna", text)
            assert "Failed attempt 2" in text
            assert "Traceback" in text
            assert "test_monitor.py" in text
            assert '"amount": 99' in text
            assert "asking the bank" in text

            await queue.add_log("order-7", "somebody looks")
            await shows(pilot, lambda: "somebody looks" in whole(app))
            await pilot.press("escape")
            await shows(pilot, lambda: not isinstance(app.screen, WholeScreen))
            await pilot.press("r")
            await shows(pilot, lambda: isinstance(app.screen, ConfirmScreen))
            await pilot.press("y")
            await shows(pilot, lambda: [row[0] for row in cells(app, "view")] == ["order-8"])
            assert await queue.get_state("order-7") == "waiting"


async def _has_failed(queue: Queue, count: int) -> bool:
    return await queue.get_failed_count() == count


async def test_enter_shows_the_job_of_every_view(url: str, prefix: str):
    """One that runs, a lane's holder, that of an event, the example of a kind of dead letters."""
    started, go = asyncio.Event(), asyncio.Event()

    async def handle(job: Any) -> None:
        if job.name == "dies":
            raise UnrecoverableError("no")
        started.set()
        await go.wait()

    options: dict[str, Any] = {"connection": url, "prefix": prefix}
    async with Queue("pay", **options) as queue, Queue("dead", **options) as dead:
        await queue.add("dies", job_id="dies")
        async with Worker("pay", handle, dead_letter_queue="dead", **options):
            await wait_until(dead.get_dead_letter_count)
            await queue.add("runs", job_id="runs", lane="one")
            await started.wait()
            [letter] = await dead.get_dead_letter_jobs()
            try:
                await _press_enter(url, prefix, "pay", {"1": "runs", "2": "runs", "5": "runs"})
                await _press_enter(url, prefix, "dead", {"4": letter.id})
            finally:
                go.set()


async def _press_enter(url: str, prefix: str, name: str, expected: dict[str, str]) -> None:
    async with monitor(url, prefix, name) as (app, pilot):
        for key, words in expected.items():
            await pilot.press(key)
            app.query_one("#view").focus()
            await shows(pilot, lambda: cells(app, "view"))
            await pilot.press("enter")
            await shows(pilot, lambda: "attempts" in whole(app))
            assert words in whole(app), key
            await pilot.press("escape")
            await shows(pilot, lambda: not isinstance(app.screen, WholeScreen))


async def test_groups_that_need_a_person_are_seen_first_and_whole(
    toril: Toril, url: str, prefix: str
):
    async def handle(job: Any) -> None:
        if job.name in ("reserve", "refund"):
            raise UnrecoverableError("the warehouse is on fire")

    options: dict[str, Any] = {"connection": url, "prefix": prefix}
    async with FlowProducer(**options) as flow, Queue("pay", **options) as queue:
        node = await flow.add_group(
            "broken",
            [GroupJob(name, queue_name="pay") for name in ("charge", "reserve")],
            {"charge": Compensation("refund")},
        )
        async with Worker("pay", handle, **options), Worker("pay:compensation", handle, **options):
            await queue.wait_for_group(node.group_id, timeout=30_000)
        for number in range(3):
            await flow.add_group(f"newer-{number}", [GroupJob("charge", queue_name="pay")])

        looks = await asyncio.to_thread(lambda: toril("monitor", "--json", "-q", "pay").json)
        assert [look["groups_needing_a_person"] for look in looks] == [1]
        async with monitor(url, prefix) as (app, pilot):
            await shows(pilot, lambda: cells(app, "queues")[0][0] == "pay !")
            await shows(pilot, lambda: "1 NEEDS A PERSON" in text(app, "summary"))
            await pilot.press("3", "tab")
            await shows(pilot, lambda: cells(app, "view")[0][1:3] == ["broken", FAILED_UNDOING])
            assert len(cells(app, "view")) == 4
            await pilot.press("enter")
            await shows(pilot, lambda: "needs a person" in whole(app))
            assert "the warehouse is on fire" in whole(app)
            assert "NOT UNDONE" in whole(app)
            await pilot.press("escape")

            await queue.resolve_group(node.group_id, "paid back by hand")
            await shows(pilot, lambda: cells(app, "queues")[0][0] == "pay")


FAILED_UNDOING = "FAILED_COMPENSATION"


async def test_nothing_is_said_as_nothing(url: str, prefix: str):
    """An empty table alone might be one that has not been filled yet."""
    async with Queue("q", connection=url, prefix=prefix) as queue:
        await queue.add("n", delay=3_600_000)
    async with monitor(url, prefix, "q") as (app, pilot):
        for key, words in (
            ("1", "Nothing runs"),
            ("2", "No lane"),
            ("3", "no groups"),
            ("4", "No dead letters here"),
            ("6", "No failed job"),
        ):
            await pilot.press(key)
            await shows(pilot, lambda words=words: words in text(app, "note"))


async def test_large_numbers_and_long_names_fit_into_80_columns(client: Any, url: str, prefix: str):
    """Nothing is cut off in the middle; a wide screen shows all digits."""
    name = "the-queue-of-the-billing-department"
    base = f"{prefix}:{name}"
    await client.hset(f"{base}:meta", "opts.maxLenEvents", 10)
    ids = {f"j{n}": n for n in range(12_345)}
    await client.lpush(f"{base}:wait", *ids)
    for place in ("completed", "failed", "delayed"):
        await client.zadd(f"{base}:{place}", ids)
    for size, wait in (((80, 24), "12k"), ((200, 60), "12,345")):
        async with monitor(url, prefix, size=size) as (app, pilot):
            await shows(pilot, lambda wait=wait: wait in cells(app, "queues")[0][1])
            watch = app.watcher.queues[name]
            watch.pace.per_second.extend([12_345.0] * 20)
            watch.pace.waits_ms.append(7_384_000.0)
            watch.pace.runs_ms.append(7_384_000.0)
            await shows(pilot, lambda: "2h" in cells(app, "queues")[0][9])
            assert app.query_one("#queues", DataTable).virtual_size.width <= size[0]
            lines = text(app, "summary")
            assert "delayed 12,345" in lines
    await client.delete(
        *(f"{base}:{place}" for place in ("wait", "completed", "failed", "delayed"))
    )


async def test_queues_are_found_at_the_first_look_among_very_many_keys(
    start_server: Callable[..., Server],
):
    """Those with a worker by one command; the others by a search that waits for no tick."""
    server = start_server()
    with server.client() as client:
        keys = 40 * KEYS_PER_SCAN
        client.mset({f"other:{n}": "" for n in range(keys)})
    connection = Connection(server.unix_url, patience_s=0.0)
    options: dict[str, Any] = {"connection": server.unix_url}

    async def handler(job: Any) -> None:
        pass

    async with (
        Queue("alone", **options) as alone,
        Queue("served", **options) as served,
        Worker("served", handler, **options) as worker,
    ):
        gone = Connection(server.unix_url, client_name="bull:Z29uZQ==")
        await gone.run(plain("PING", parse=str, near="bull:"))
        await alone.add("n")
        await served.add("n")
        await wait_until(lambda: worker.is_running)
        watcher = Watcher(connection, "bull", (), time.monotonic)
        finder = watcher._finder
        assert finder is not None
        walks = asyncio.Event()

        async def walk(near: str) -> None:
            walks.set()
            await asyncio.Event().wait()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(finder, "_walk", walk)
            # A look waits only a moment for the search, and the server may need longer.
            await finder.names(patience_s=0.0)
            await asyncio.wait_for(walks.wait(), 60)
            await watcher.tick()
            assert list(watcher.queues) == ["served"], "before anything was walked through"
            assert watcher.is_searching
            await watcher.close()
        names = await finder.names(patience_s=30.0)

        assert names == ["alone", "served"]
        await watcher.tick()
        assert list(watcher.queues) == names
        await gone.close()
    await watcher.close()
    await connection.close()


async def test_a_search_takes_a_small_part_of_the_time(start_server: Callable[..., Server]):
    server = start_server()
    connection = Connection(server.unix_url, patience_s=0.0)
    watcher = Watcher(connection, "bull", (), time.monotonic)
    while watcher.is_searching:
        await watcher.tick()
    before = await _calls(connection)
    for _ in range(50):
        await watcher.tick()

    assert (await _calls(connection) - before)["scan"] <= 2, "not again before a second has passed"
    await watcher.close()
    await connection.close()


async def test_dead_letters_are_replayed_and_purged_after_a_question(url: str, prefix: str):
    async def fail(job: Any) -> None:
        if job.name == "a":
            raise ValueError("no such card")
        raise TimeoutError("the bank is away")

    options: dict[str, Any] = {"connection": url, "prefix": prefix}
    async with Queue("p", **options) as queue, Queue("p-dlq", **options) as dlq:
        await queue.add_bulk([NewJob(name) for name in "aab"])
        async with Worker("p", fail, dead_letter_queue="p-dlq", **options):
            await wait_until(lambda: dlq.get_dead_letter_count())
            await queue.wait_until_empty(60_000)

        async with monitor(url, prefix, "p-dlq") as (app, pilot):
            await shows(pilot, lambda: cells(app, "queues"))
            await pilot.press("r")
            assert not isinstance(app.screen, ConfirmScreen), "nothing is chosen yet"
            await pilot.press("4")
            await shows(pilot, lambda: [row[0] for row in cells(app, "view")] == ["2", "1"])
            assert "ValueError" in cells(app, "view")[0][1]

            await pilot.press("r")
            await shows(pilot, lambda: isinstance(app.screen, ConfirmScreen))
            await pilot.press("n")
            await shows(pilot, lambda: not isinstance(app.screen, ConfirmScreen))
            assert await dlq.get_dead_letter_count() == 3
            await pilot.press("r")
            await shows(pilot, lambda: isinstance(app.screen, ConfirmScreen))
            await pilot.press("y")
            await wait_until(lambda: queue.get_waiting_count())
            assert await queue.get_waiting_count() == 2
            await shows(pilot, lambda: [row[0] for row in cells(app, "view")] == ["1"])

            await pilot.press("x")
            await shows(pilot, lambda: isinstance(app.screen, ConfirmScreen))
            await pilot.press("y")
            await shows(pilot, lambda: cells(app, "view") == [])
            assert await dlq.get_dead_letter_count() == 0


async def test_keys_choose_pause_freeze_and_help_at_any_size(url: str, prefix: str):
    options: dict[str, Any] = {"connection": url, "prefix": prefix}
    async with Queue("one", **options) as one, Queue("two [b]", **options) as two:
        await one.add("n")
        await two.add("n")
        for size in ((80, 24), (200, 60)):
            async with monitor(url, prefix, size=size) as (app, pilot):
                await shows(
                    pilot, lambda: [r[0] for r in cells(app, "queues")] == ["one", "two [b]"]
                )
                await pilot.press("down")
                await shows(pilot, lambda: text(app, "summary").startswith("two [b]"))
                table = app.query_one("#queues", DataTable)
                assert table.virtual_size.width <= size[0], "no column is cut off"
                await pilot.press("question_mark")
                await shows(pilot, lambda: isinstance(app.screen, HelpScreen))
                await pilot.press("escape")
                await shows(pilot, lambda: not isinstance(app.screen, HelpScreen))

                await pilot.press("p")
                await shows(pilot, lambda: isinstance(app.screen, ConfirmScreen))
                await pilot.press("y")
                await shows(pilot, lambda: "⏸" in cells(app, "queues")[1][0])
                assert await two.is_paused()
                await two.resume()
                await pilot.press("space")
                await shows(pilot, lambda: "frozen" in text(app, "status"))
                await pilot.press("space", "minus")
                await shows(pilot, lambda: "every 0.2s" in text(app, "status"))


async def test_a_queue_that_appears_or_goes_is_noticed_without_keys(url: str, prefix: str):
    async with (
        Queue("first", connection=url, prefix=prefix) as first,
        monitor(url, prefix) as (app, pilot),
    ):
        await shows(pilot, lambda: "There is no queue" in text(app, "note"))
        await first.add("n")
        await shows(pilot, lambda: [row[0] for row in cells(app, "queues")] == ["first"])
        await first.obliterate(force=True)
        await shows(pilot, lambda: cells(app, "queues") == [])


async def test_a_queue_that_goes_while_its_question_is_open_ends_nothing(url: str, prefix: str):
    """Somebody else removed it: the answer found no queue, and a traceback ended the monitor."""
    async with Queue("old", connection=url, prefix=prefix) as queue:
        await queue.add("n")
        async with monitor(url, prefix) as (app, pilot):
            await shows(pilot, lambda: [row[0] for row in cells(app, "queues")] == ["old"])
            await pilot.press("p")
            await shows(pilot, lambda: isinstance(app.screen, ConfirmScreen))
            await queue.obliterate(force=True)
            await shows(pilot, lambda: not app.watcher.queues)
            await pilot.press("y")
            await shows(pilot, lambda: "queue 'old' is gone" in told(app))
            assert app.is_running
        assert not await queue.is_paused(), "nothing was made anew"


async def test_a_server_that_goes_away_is_told_and_found_again(start_server: Callable[..., Server]):
    server = start_server()
    async with Queue("q", connection=server.unix_url) as queue:
        await queue.add("n")
    async with monitor(server.unix_url, "bull", "q") as (app, pilot):
        await shows(pilot, lambda: cells(app, "queues"))
        server.kill()
        await shows(pilot, lambda: "no answer" in text(app, "status"))
        server.start()
        await shows(pilot, lambda: "last update" in text(app, "status"))


async def test_a_server_slower_than_the_interval_is_waited_for(url: str, prefix: str):
    async with Queue("q", connection=url, prefix=prefix) as queue:
        await queue.add("n")
    async with monitor(url, prefix, "q") as (app, pilot):
        tick, most, under_way = app.watcher.tick, 0, 0

        async def slow_tick(*args: Any) -> None:
            nonlocal most, under_way
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.35)
            under_way -= 1
            await tick(*args)

        app.watcher.tick = slow_tick  # type: ignore[method-assign]
        before = app.ticks
        await shows(pilot, lambda: app.ticks >= before + 3)
        assert most == 1


TICKS = 10
COSTS = {
    View.ACTIVE: 1,
    View.LANES: 1,
    View.GROUPS: 2,
    View.LETTERS: 1,
    View.EVENTS: 0,
    View.FAILED: 0,
}


async def test_a_tick_costs_the_same_commands_however_many_jobs_there_are(
    start_server: Callable[..., Server],
):
    server = start_server()
    connection = Connection(server.unix_url, patience_s=0.0)
    async with Queue("a", connection=server.unix_url) as queue:
        async with FlowProducer(connection=server.unix_url) as flow:
            node = await flow.add_group("g", [GroupJob("x", queue_name="a")])
        await Queue("b", connection=connection).add("n")
        costs: list[dict[View, Counter[str]]] = []
        for jobs in (10, 5000):
            plain_ones = [NewJob("n", {"n": n}) for n in range(jobs)]
            await queue.add_bulk(plain_ones + [NewJob("l", lane="one") for _ in range(jobs)])
            watcher = Watcher(connection, "bull", ("a", "b"), time.monotonic)
            for view in View:
                await watcher.tick("a", view, node.group_id)
            costs.append({})
            for view in View:
                await _settle_events(watcher, view, node.group_id)
                before = await _calls(connection)
                for _ in range(TICKS):
                    await watcher.tick("a", view, node.group_id)
                costs[-1][view] = await _calls(connection) - before
        for view, expected in COSTS.items():
            few, many = costs[0][view], costs[1][view]
            assert many["fcall_ro"] == TICKS * (2 + expected), view
            assert many["scan"] == 0, view
            assert many["eval"] + many["keys"] == 0, view
            if view is not View.LETTERS:
                assert few == many, (view, "what scripts do inside is the same, too")
    await connection.close()


async def _settle_events(watcher: Watcher, view: View, group_id: str) -> None:
    """Two ticks, so that no event is left to be read."""
    for _ in range(2):
        await watcher.tick("a", view, group_id)


async def _calls(connection: Connection) -> Counter[str]:
    """How often the server ran each command, those inside scripts included."""
    info: bytes = await connection.run(plain("INFO", "commandstats", parse=lambda reply: reply))
    found: Counter[str] = Counter()
    for line in info.decode().splitlines():
        name, colon, facts = line.partition(":")
        if colon and not name.startswith("cmdstat_info"):
            found[name.removeprefix("cmdstat_")] = int(facts.split("calls=")[1].split(",")[0])
    return found


async def test_one_look_is_printed_for_programs(toril: Toril, url: str, prefix: str):
    async with Queue("q", connection=url, prefix=prefix) as queue:
        await queue.add("n", lane="one")

        (look,) = await asyncio.to_thread(lambda: toril("monitor", "--json").json)

        assert (look["queue"], look["waiting"], look["lanes"], look["total"]) == ("q", 1, 1, 1)
        refused = await asyncio.to_thread(toril, "monitor")
        assert (refused.code, "needs a terminal" in refused.err) == (2, True)


def opens(terminal: Terminal) -> bool:
    """Is the whole job shown? The first Enter goes from the queues to the jobs."""
    terminal.press("Enter")
    return bool(re.search(r"why +\S", terminal.screen()))


def test_it_runs_in_a_real_terminal(cli_env: dict[str, str], url: str, prefix: str):
    if not Terminal.is_available():
        not_run("tmux is missing, so no real terminal was driven")
    from toril.sync import Queue as BlockingQueue

    names = ("TORIL_URL", "TORIL_PREFIX", "PYTHONPATH")
    env = {name: cli_env[name] for name in names} | {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
    command = [sys.executable, "-m", "toril", "monitor", "--interval", "200ms"]
    with BlockingQueue("payments", connection=url, prefix=prefix) as queue:
        queue.add_bulk([NewJob("charge") for _ in range(1234)])
        queue.add("refund", {"amount": 5}, job_id="doomed")
        queue.cancel("doomed", reason="\x1b[41mby hand")
        with Terminal(command, env) as terminal:

            def shows(text: str) -> None:
                wait_until_sync(lambda: text in terminal.screen(), every=0.1, message=text)

            shows("total 1,234")
            shows("Quit")
            lines = terminal.screen().splitlines()
            assert "prefix" in lines[0]
            assert len(lines) == 24
            assert all(len(line) <= 80 for line in lines)

            terminal.press("5")
            shows('{"name": "charge"}')
            terminal.press("?")
            shows("pause the chosen queue")
            terminal.press("Escape")
            wait_until_sync(lambda: "pause the chosen" not in terminal.screen(), every=0.1)
            terminal.press("6")
            shows("\\x1b[41mby hand")
            wait_until_sync(lambda: opens(terminal), every=0.3)
            shows('"amount": 5')
            terminal.press("Escape")
            shows("1,234")
            terminal.press("q")
            wait_until_sync(lambda: not terminal.is_running, every=0.1)


async def test_the_queues_of_a_cluster_are_found_on_all_of_its_nodes(
    cluster: Cluster, toril: Toril
):
    url = cluster.url.replace("redis://", "redis+cluster://")
    names = [f"{{{tag}}}" for tag in ("a", "b", "c", "d", "e", "f")]
    assert len({cluster.owner(cluster.slot_of(name)) for name in names}) == 3
    for name in names:
        async with Queue(name, connection=url) as queue:
            await queue.add("n")
    connection = Connection(url, patience_s=1.0)
    watcher = Watcher(connection, "bull", (), time.monotonic)
    while watcher.is_searching:
        await watcher.tick()
    await watcher.tick()
    await watcher.close()
    await connection.close()

    listed = await asyncio.to_thread(
        lambda: toril("queues", "--url", url, "--prefix", "bull", "--json")
    )
    assert [row["queue"] for row in listed.json] == names
    assert list(watcher.queues) == names
    assert all(watch.glance and watch.glance.waiting == 1 for watch in watcher.queues.values())
    for name in names:
        async with Queue(name, connection=url) as queue:
            await queue.obliterate(force=True)


async def test_a_cluster_is_watched_where_the_prefix_has_a_hash_tag(cluster: Cluster):
    url = cluster.url.replace("redis://", "redis+cluster://")
    connection = Connection(url, patience_s=1.0)
    async with Queue("q", connection=url, prefix="{shop}") as queue:
        await queue.add("n", lane="one")
        watcher = Watcher(connection, "{shop}", (), time.monotonic)
        await wait_until(lambda: _found(watcher))
        for view in View:
            await watcher.tick("q", view)

        glance = watcher.queues["q"].glance
        assert glance is not None
        assert (glance.waiting, glance.lanes) == (1, 1)
        assert [lane.name for lane in watcher.details.lanes] == ["one"]
        await queue.obliterate(force=True)
    await watcher.close()
    await connection.close()


async def test_a_queue_with_partitions_is_watched_on_a_cluster(cluster: Cluster):
    url = cluster.url.replace("redis://", "redis+cluster://")
    connection = Connection(url, patience_s=1.0)
    async with Queue("mail", connection=url, prefix="w", partitions=3) as queue:
        await queue.add_bulk([NewJob("send", job_id=f"j-{n}") for n in range(12)])
        watcher = Watcher(connection, "w", ("mail",), time.monotonic)
        await watcher.tick("mail")
        glance = watcher.queues["mail"].glance
        assert glance is not None
        assert glance.waiting == 12
        assert list(watcher.queues) == ["mail"]
        await queue.obliterate(force=True)
    await watcher.close()
    await connection.close()


async def _found(watcher: Watcher) -> bool:
    await watcher.tick()
    return bool(watcher.queues)


async def test_the_partitions_of_a_queue_are_one_row(url: str, prefix: str):
    options = {"connection": url, "prefix": prefix, "partitions": 3}
    running = asyncio.Event()

    async def handle(job: Any) -> None:
        running.set()
        await asyncio.sleep(60)

    async with Queue("mail", **options) as queue, Queue("{mail}-dlq", **options) as letters:
        await queue.add_bulk([NewJob("send", lane=f"l{n}") for n in range(12)])
        await letters.add("x")
        async with Worker("mail", handle, concurrency=2, **options) as worker:
            await asyncio.wait_for(running.wait(), 60)
            async with monitor(url, prefix) as (app, _):
                await wait_until(lambda: len(cells(app, "queues")) == 2)
                await wait_until(lambda: cells(app, "queues")[0][2] == "2")
                assert [row[0] for row in cells(app, "queues")] == ["mail", "{mail}-dlq"]
                assert cells(app, "queues")[0][1] == "10"
                watcher = app.watcher
                await watcher.tick("mail", View.ACTIVE)
                assert len(watcher.details.active) == 2
                await watcher.tick("mail", View.LANES)
                assert len(watcher.details.lanes) == 12
                await watcher.tick("mail", View.GROUPS, "none")
                assert watcher.details.groups == []
                assert {event.name for event in watcher.queues["mail"].events} >= {"added"}
            await worker.close(timeout=0)


async def test_the_newest_failures_of_all_partitions_are_shown(url: str, prefix: str, client: Any):
    """Those of the first partitions took all the room, however old they were."""
    async with Queue("mail", connection=url, prefix=prefix, partitions=3) as queue:
        await queue.add("send")
        now_ms = int(time.time() * 1000)
        for number, part in enumerate(queue.partitions):
            pipeline = client.pipeline(transaction=False)
            for job in range(MOST_ROWS):
                at = now_ms - 3_600_000 + 1000 * job + number
                fields = {"name": "send", "failedReason": "no", "finishedOn": at}
                pipeline.hset(f"{part.keys.base}:j{number}-{job}", mapping=fields)
                pipeline.zadd(f"{part.keys.base}:failed", {f"j{number}-{job}": at})
            await pipeline.execute()

        async with monitor(url, prefix) as (app, _):
            await wait_until(lambda: len(cells(app, "queues")) == 1)
            await app.watcher.tick("mail", View.FAILED)
            shown = [job.id for job in app.watcher.details.failed]

    assert len(shown) == MOST_ROWS
    assert shown[:4] == ["j2-99", "j1-99", "j0-99", "j2-98"]


async def _answer_yes(app: MonitorApp, pilot: Pilot[None], key: str) -> str:
    """Press a key that asks, say yes, and return the question."""
    await pilot.press(key)
    await shows(pilot, lambda: isinstance(app.screen, ConfirmScreen))
    question = app.screen.question
    await pilot.press("y")
    await shows(pilot, lambda: not isinstance(app.screen, ConfirmScreen))
    return question


async def test_a_named_queue_is_watched_with_its_partitions(url: str, prefix: str, client: Any):
    """It was looked for as a plain queue; pausing it made one, and paused nothing else."""
    async with (
        Queue("mail", connection=url, prefix=prefix, partitions=3) as queue,
        monitor(url, prefix, "mail") as (app, pilot),
    ):
        await shows(pilot, lambda: cells(app, "queues"))
        await queue.add_bulk([NewJob("send", job_id=f"j-{n}") for n in range(12)])
        await shows(pilot, lambda: cells(app, "queues")[0][1] == "12")
        await _answer_yes(app, pilot, "p")
        await wait_until(queue.is_paused)
        await shows(pilot, lambda: "⏸" in cells(app, "queues")[0][0])
        assert len(cells(app, "queues")) == 1
    assert await client.exists(f"{prefix}:mail:meta") == 0


async def test_a_plain_queue_beside_partitions_is_a_row_of_its_own(url: str, prefix: str):
    options = {"connection": url, "prefix": prefix}
    async with Queue("mail", partitions=3, **options) as queue, Queue("mail", **options) as plain:
        await queue.add_bulk([NewJob("send", job_id=f"j-{n}") for n in range(12)])
        await plain.add("send")
        for names in ((), ("mail",)):
            async with monitor(url, prefix, *names) as (app, pilot):
                await shows(pilot, lambda: len(cells(app, "queues")) == 2)
                await shows(pilot, lambda: cells(app, "queues")[1][1] == "1")
                assert [row[:2] for row in cells(app, "queues")] == [
                    ["mail", "12"],
                    ["mail (plain)", "1"],
                ]
                await pilot.press("down")
                await pilot.pause()
                assert "'mail: plain'" in await _answer_yes(app, pilot, "p")
                await wait_until(plain.is_paused)
                assert not any([await part.is_paused() for part in queue.partitions])
                await plain.resume()


async def test_enter_shows_a_group_of_a_queue_with_partitions(url: str, prefix: str):
    async with FlowProducer(connection=url, prefix=prefix, partitions={"mail": 4}) as flows:
        members = [GroupJob(name, queue_name="mail") for name in ("a", "b")]
        await flows.add_group("g", members, group_id="order-1")
    async with monitor(url, prefix, "mail") as (app, pilot):
        await pilot.press("3")
        await shows(pilot, lambda: [row[0] for row in cells(app, "view")] == ["order-1"])
        await pilot.press("enter", "enter")
        await shows(pilot, lambda: whole(app) not in ("", "Reading…"))
        assert "is gone" not in whole(app)
        assert re.search(r"id\s+order-1", whole(app))
        assert whole(app).count(" in {mail-") == 2


@pytest.mark.no_audit("damaged by hand")
async def test_damaged_numbers_of_partitions_stop_nobody(
    url: str, prefix: str, client: Any, toril: Toril
):
    for stem in ("a", "b", "c"):
        async with Queue(f"{{{stem}-0}}", connection=url, prefix=prefix) as part:
            await part.add("x")
    await client.set(f"{prefix}:a:toril:partitions", "99999999")
    await client.hset(f"{prefix}:b:toril:partitions", "x", "y")
    await client.set(f"{prefix}:c:toril:partitions", "\xff,-1>")

    rows = (await asyncio.to_thread(toril, "queues", "--json")).json
    async with monitor(url, prefix) as (app, _):
        await wait_until(lambda: len(cells(app, "queues")) == 3)

    assert [(row["queue"], row["waiting"]) for row in rows] == [
        ("{a-0}", 1),
        ("{b-0}", 1),
        ("{c-0}", 1),
    ]


async def test_news_of_a_table_may_come_after_the_screen_was_closed(url: str, prefix: str):
    async with Queue("q", connection=url, prefix=prefix) as queue:
        await queue.add("x")
        async with monitor(url, prefix) as (app, _):
            await wait_until(lambda: len(cells(app, "queues")) == 1)
            table = app.query_one("#queues", DataTable)
    row = next(iter(table.rows))

    app.on_data_table_row_highlighted(DataTable.RowHighlighted(table, 0, row))


def test_an_event_of_a_year_that_no_calendar_has_is_a_row_like_others():
    watch = QueueWatch(Keys("bull", "q"))
    watch.events.append(Event("strange", "300000000000000-0"))

    (row,) = event_rows(watch).values()

    assert [str(cell) for cell in row[:2]] == ["300000000000000-0", "strange"]


@pytest.mark.parametrize("key", ["x", "r"])
async def test_letters_that_died_after_they_were_counted_stay(
    url: str, prefix: str, client: Any, key: str
):
    """Somebody says yes to 3 letters; those of the outage that began meanwhile went, too."""
    await forge(client, prefix, "p-dlq", 3, source="p")
    async with Queue("p-dlq", connection=url, prefix=prefix) as dlq:
        async with monitor(url, prefix, "p-dlq") as (app, pilot):
            await shows(pilot, lambda: cells(app, "queues"))
            await pilot.press("4")
            await shows(pilot, lambda: [row[0] for row in cells(app, "view")] == ["3"])
            await pilot.press(key)
            await shows(pilot, lambda: isinstance(app.screen, ConfirmScreen))
            await forge(client, prefix, "p-dlq", 2, source="p")
            for number in (4, 5):
                await client.hset(f"{prefix}:p-dlq:{number}", "timestamp", 1_710_000_000_000)
            await pilot.press("y")
            await shows(pilot, lambda: ": 3 dead letters" in told(app))

        assert await dlq.get_dead_letter_count() == 2


async def test_letters_of_other_programs_are_not_taken_for_none(url: str, prefix: str, client: Any):
    """The monitor does not read them; it said that there were none."""
    await forge(client, prefix, "p-dlq", 3, source="p")
    for number in (1, 2, 3):
        await client.hdel(f"{prefix}:p-dlq:{number}", "x.letter")
    async with monitor(url, prefix, "p-dlq", size=(120, 30)) as (app, pilot):
        await shows(pilot, lambda: cells(app, "queues"))
        await pilot.press("4")
        await shows(pilot, lambda: "3 other jobs; toril dlq summary p-dlq" in text(app, "note"))

        await forge(client, prefix, "p-dlq", 1, source="p")
        await shows(pilot, lambda: [row[0] for row in cells(app, "view")] == ["1"])
        await shows(pilot, lambda: "3 other jobs not counted" in text(app, "note"))


async def test_a_count_that_has_lost_its_place_begins_anew(url: str, prefix: str, client: Any):
    """It went on to add, so in a storm that retention follows it grew without an end."""
    await forge(client, prefix, "p-dlq", 1000, source="p")
    survey = LetterSurvey("p-dlq", [Keys(prefix, "p-dlq")])
    async with Queue("p-dlq", connection=url, prefix=prefix) as dlq:
        connection = Connection(url)
        survey.note(await connection.run(survey.next_command()))
        survey.note(await connection.run(survey.next_command()))
        await client.rpop(f"{prefix}:p-dlq:wait", 850)
        await client.delete(*(f"{prefix}:p-dlq:{number}" for number in range(1, 851)))
        while not survey.is_complete:
            survey.note(await connection.run(survey.next_command()))
        await connection.close()

        (group,) = survey.groups.values()
        assert group.count == await dlq.get_dead_letter_count() == 150


async def test_a_snapshot_says_how_many_queues_it_leaves_out(
    toril: Toril, prefix: str, client: Any
):
    for number in range(MOST_QUEUES + 2):
        await client.hset(f"{prefix}:q{number}:meta", "opts.maxLenEvents", 10)

    done = await asyncio.to_thread(toril, "monitor", "--json")

    assert len(done.json) == MOST_QUEUES
    assert done.err == "toril: 2 more queues left out; choose with --queue\n"
