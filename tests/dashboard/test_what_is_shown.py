"""What the design promises for each page is on it, with what a person needs to follow it."""

from __future__ import annotations

import asyncio
import html
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.conftest import Visitor, served
from tests.dashboard.world import World
from tests.helpers import wait_until
from toril import FlowProducer, GroupJob, NewJob, Queue, UnrecoverableError, Worker
from toril.dashboard import dashboard
from toril.dashboard.reading import GROUPS_COUNTED

Visit = Callable[..., Visitor]
ROOT = Path(__file__).parent.parent.parent


async def text_of(visitor: Visitor, path: str) -> str:
    answer = await visitor.get(path)
    assert answer.status_code == 200, answer.text
    return html.unescape(answer.text)


def cells(page: str, start: str) -> list[str]:
    """The cells of the row that begins with this text, without markup."""
    body = page.partition("<tbody>")[2]
    rows = [row for row in body.split("<tr>") if f">{start}</a>" in row]
    if not rows:
        return []
    found = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", rows[0], re.DOTALL)
    return [" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in found]


@pytest.mark.no_audit("a job's time is changed by hand")
async def test_the_overview_has_counts_rates_ages_failures_workers_and_a_chart(
    visit: Visit, queue: Queue, url: str, prefix: str, client: Any
):
    async def work(job: Any) -> None:
        if job.name == "bad":
            raise UnrecoverableError("no")

    async with Worker("pay", work, connection=url, prefix=prefix):
        await queue.add_bulk([NewJob("good"), NewJob("good"), NewJob("bad")])
        await wait_until(lambda: _finished(queue, 3))
        await queue.pause()
        await queue.add("x", job_id="old")
        await queue.add("later", delay=3_600_000)
        added = int(time.time() * 1000) - (3 * 24 + 5) * 3_600_000 - 1_800_000
        await client.hset(f"{prefix}:pay:old", "timestamp", added)
        for name, count in (("completed", 120), ("failed", 60)):
            key = f"{prefix}:pay:metrics:{name}"
            await client.hset(key, mapping={"count": 9, "prevTS": int(time.time() * 1000)})
            await client.rpush(f"{key}:data", count)
        visitor = visit()

        async def row() -> list[str]:
            visitor.app._pages and visitor.app._pages._desk.forget()
            found = cells(await text_of(visitor, "/"), "pay")
            return found if found[-1:] == ["1"] else []

        shown = await wait_until(row)
        page = await text_of(visitor, "/")

    name, waiting, active, delayed, failed, done, _, out, oldest, _ = shown
    assert name.startswith("pay paused")
    assert (waiting, active, delayed, failed, done) == ("1", "0", "1", "1", "2")
    assert out in ("3.0", "0.0"), "as the workers counted, unless a minute ended meanwhile"
    assert oldest == "3d 5h ago"
    assert "Jobs per minute, all queues: 120 completed, 60 failed" in page
    times = re.findall(r'data-times="([^"]*)"', page)[0].split(",")
    assert int(times[-1]) - int(times[0]) == 59 * 60, "the last hour"


async def _finished(queue: Queue, count: int) -> bool:
    counts = await queue.get_job_counts("completed", "failed")
    return sum(counts.values()) >= count


async def test_what_comes_and_goes_is_told_per_second_while_somebody_looks(
    visit: Visit, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("toril.dashboard.live.SAMPLE_S", 0.2)
    monkeypatch.setattr("toril.dashboard.live.EVERY_S", 0.05)
    await queue.add("x")
    visitor = visit()
    await visitor.get("/")
    pulse = visitor.app._pages._desk.pulse
    pulse._every_s = 0.05
    heard = asyncio.create_task(_hear(pulse))
    try:

        async def is_counted() -> bool:
            await queue.add("x")
            visitor.app._pages._desk.forget()
            rate = cells(await text_of(visitor, "/"), "pay")[6]
            return bool(re.search(r"[1-9]", rate))

        await wait_until(is_counted)
    finally:
        heard.cancel()
        await asyncio.gather(heard, return_exceptions=True)


async def _hear(pulse: Any) -> None:
    async for _ in pulse.listen():
        pass


async def test_the_doctor_speaks_first_and_in_words(visit: Visit, shop: World):
    visitor = visit()

    async def is_told() -> bool:
        return '<details class="finding ' in (await visitor.get("/")).text

    await wait_until(is_told)
    page = await text_of(visitor, "/")
    finding = page.partition('<details class="finding ')[2].partition("</details>")[0]
    assert page.index('class="finding ') < page.index("<table")
    said = re.sub(r"<[^>]*>", "", finding)
    assert re.search(r"→ \w+ .*\(D\d+\)", said, re.DOTALL), "what to do"
    assert len(said.split()) > 15, "and what is wrong, and why that matters"


@pytest.mark.no_audit("a job's time is changed by hand")
async def test_jobs_are_paged_and_filtered_by_all_that_is_promised(
    visit: Visit, queue: Queue, url: str, prefix: str, client: Any
):
    async with FlowProducer(connection=url, prefix=prefix) as flows:
        group = await flows.add_group("g", [GroupJob("member", queue_name="pay")])
    await queue.add_bulk([NewJob("many", job_id=f"j{n:03}") for n in range(119)])
    await queue.add("special", job_id="rare-one", lane="a lane")
    await client.hset(f"{prefix}:pay:j007", "timestamp", 1_000)
    visitor = visit()

    async def ids(query: str, state: str = "waiting") -> list[str]:
        page = await text_of(visitor, f"/queue?queue=pay&state={state}&{query}")
        return re.findall(r'type="checkbox" name="id" value="([^"]*)"', page)

    first, second, third = [await ids(f"start={start}") for start in (0, 50, 100)]
    assert (len(first), len(second)) == (50, 50)
    assert len({*first, *second, *third}) == len(first + second + third) == 121
    assert await ids("name=special") == ["rare-one"]
    assert await ids("id=are-o") == ["rare-one"]
    assert await ids("lane=a+lane") == ["rare-one"]
    assert await ids(f"group={group.group_id}") == [group.jobs[0].id]
    assert "j007" in await ids("id=j007")
    assert "j007" not in await ids("id=j007&minutes=10"), "it was added long ago"
    assert await ids("text=nothing") == []

    async def fail(job: Any) -> None:
        raise UnrecoverableError("no MONEY" if job.id == "rare-one" else "tired")

    async with Worker("pay", fail, connection=url, prefix=prefix):
        await wait_until(lambda: _finished(queue, 121))
    assert await ids("text=money", "failed") == ["rare-one"]
    assert await ids("text=money&minutes=10", "failed") == ["rare-one"]


async def test_a_job_is_shown_whole_and_leads_to_its_relatives(visit: Visit, shop: World):
    visitor = visit()

    failed = await text_of(visitor, "/job?queue=pay&id=fails")
    done = await text_of(visitor, "/job?queue=pay&id=works")
    later = await text_of(visitor, "/job?queue=pay&id=later")
    child = await text_of(visitor, "/job?queue=pay&id=pack")
    parent = await text_of(visitor, "/job?queue=pay&id=ship")
    in_lane = await text_of(visitor, "/job?queue=pay&id=l0")
    letter = await text_of(visitor, f"/job?queue=dead&id={shop.letter}")
    [member] = await shop.queue.get_group_jobs(shop.group)
    in_group = await text_of(visitor, f"/job?queue=pay&id={member.job_id}")

    assert "no money" in failed.partition('class="why">')[2].partition("</p>")[0], "why"
    assert "UnrecoverableError" in failed.partition("Attempts that failed")[2], "the stack"
    assert '"card": "4111"' in done.partition("<h2>Data")[2]
    assert '"paid"' in done.partition("<h2>Result")[2]
    assert "began" in done.partition("<h2>Log")[2]
    assert 'value="40"' in done.partition("<dt>Progress")[2]
    assert '"delay": 3600000' in later.partition("<summary>Options")[2]
    assert 'href="/job?queue=pay&id=ship"' in child.partition("<dt>Parent")[2]
    assert 'href="/flow?queue=pay&id=ship"' in parent.partition("<dt>Flow")[2]
    assert 'href="/lane?queue=pay&lane=lane"' in in_lane
    assert f'href="/group?queue=pay&id={shop.group}"' in in_group
    dead = letter.partition("<h2>Dead letter")[2]
    assert 'href="/queue?queue=pay"' in dead
    assert "/dead-letters?queue=dead&fingerprint=" in dead


async def test_dead_letters_are_grouped_with_their_age_and_a_sample(visit: Visit, shop: World):
    visitor = visit()

    async def is_counted() -> bool:
        return "Counting:" not in await text_of(visitor, "/dead-letters?queue=dead")

    await wait_until(is_counted)
    page = await text_of(visitor, "/dead-letters?queue=dead")

    group = page.partition('<details class="box letter">')[2].partition("</details>")[0]
    assert re.search(r'<b class="n bad">1</b> <code>.+</code>', group)
    assert re.search(r"first (now|.* ago), last (now|.* ago)", group)
    assert "no money" in group
    assert "world.py" in group, "its stack"


async def test_groups_are_counted_by_state(
    visit: Visit, shop: World, monkeypatch: pytest.MonkeyPatch
):
    visitor = visit()

    async def states(path: str) -> dict[str, str]:
        page = await text_of(visitor, path)
        tabs = page.partition('aria-label="States">')[2].partition("</nav>")[0]
        return dict(re.findall(r">([a-z ]+) <b>([0-9,]+)</b>", tabs))

    expected = {
        "active": "2",
        "blocked": "1",
        "compensating": "0",
        "completed": "0",
        "failed": "0",
        "failed compensation": "1",
    }

    async def are_counted() -> bool:
        """They are counted beside the page, which shows how far that is."""
        return await states("/groups") == await states("/groups?queue=pay") == expected

    await wait_until(are_counted)
    assert "Counted by state" not in await text_of(visitor, "/groups")

    assert GROUPS_COUNTED == 10_000
    monkeypatch.setattr("toril.dashboard.reading.GROUPS_COUNTED", 2)
    monkeypatch.setattr("toril.dashboard.reading.MOST_ROWS", 2)
    visitor.app._pages._desk.forget()

    async def are_some() -> bool:
        return sum(map(int, (await states("/groups")).values())) == 2

    await wait_until(are_some)
    assert "the newest 2 of 4" in await text_of(visitor, "/groups")


async def test_lanes_that_are_halted_or_paused_say_so(
    visit: Visit, queue: Queue, url: str, prefix: str
):
    async def fail(job: Any) -> None:
        raise UnrecoverableError("no")

    await queue.add("x", lane="ends", job_id="head", on_exhausted="halt")
    await queue.add("x", lane="ends")
    async with Worker("pay", fail, connection=url, prefix=prefix):
        await wait_until(lambda: _finished(queue, 1))
    await queue.add("x", lane="rests")
    await queue.pause_lane("rests")
    visitor = visit()

    async def is_found() -> bool:
        return "<h2>Stopped</h2>" in await text_of(visitor, "/lanes?queue=pay")

    await wait_until(is_found)
    page = await text_of(visitor, "/lanes?queue=pay")
    assert cells(page, "ends") == ["ends", "halted", "1", "head"]
    assert cells(page, "rests") == ["rests", "paused", "1", ""]


async def test_workers_say_who_where_which_version_and_what_they_run(
    visit: Visit, queue: Queue, url: str, prefix: str
):
    go = asyncio.Event()

    async def work(job: Any) -> None:
        await go.wait()

    await queue.add("slow", job_id="it", lane="a")
    async with Worker("pay", work, connection=url, prefix=prefix, worker_name="w1"):
        await wait_until(lambda: _is_running(queue))
        visitor = visit()

        async def is_shown() -> bool:
            return "w1" in await text_of(visitor, "/workers?queue=pay")

        await wait_until(is_shown)
        page = await text_of(visitor, "/workers")
        go.set()

    workers = page.partition('aria-label="Workers of pay"')[2].partition("</table>")[0]
    shown = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", workers.partition("<tbody>")[2])
    assert shown[0] == "w1"
    assert shown[1], "where it connects from"
    assert re.search(r"\d", shown[2]), "since when"
    assert re.search(r"\S \d+\.\d+", shown[3]), "with which client"
    running = page.partition('aria-label="Running jobs of pay"')[2]
    assert 'href="/job?queue=pay&id=it"' in running
    assert 'action="/do/cancel"' in running, "a step to its cancel"
    assert re.search(r"(now|\d+(ms|s| ms) ago)", running)


async def _is_running(queue: Queue) -> bool:
    return await queue.get_state("it") == "active"


async def test_a_flow_is_a_tree_with_states(visit: Visit, shop: World):
    page = await text_of(visit(), "/flow?queue=pay&id=pack")

    tree = page.partition('<ul class="tree">')[2]
    top, below = tree.split("<ul>", 1)
    assert "ship" in top
    assert "waiting children" in top
    assert 'aria-current="true"' in below.partition("</li>")[0], "the one that was asked for"
    assert "waiting</span>" in below


async def test_all_open_pages_share_one_connection_to_the_server(
    visit: Visit, shop: World, client: Any, monkeypatch: pytest.MonkeyPatch
):
    # What is asked beside a page needs a connection too; whether at the same time is chance.
    monkeypatch.setattr("toril.dashboard.reading.DOCTOR_WAIT_S", 600.0)
    monkeypatch.setattr("toril.dashboard.beside.WAIT_S", 600.0)
    monkeypatch.setattr("toril.client.finder.AGAIN_S", 600.0)
    visitor = visit()

    async def connections() -> int:
        names = [one["name"] for one in await client.client_list()]
        return sum(name.startswith("toril-dashboard") for name in names)

    assert await connections() == 0
    await visitor.get("/")
    pulse = visitor.app._pages._desk.pulse
    for path in shop.paths:
        await visitor.get(path)
    of_one = await connections()
    listeners = [asyncio.create_task(_hear(pulse)) for _ in range(50)]
    for path in shop.paths:
        await visitor.get(path)
    await wait_until(lambda: pulse.looks > 1)

    of_many = await connections()

    for one in listeners:
        one.cancel()
    await asyncio.gather(*listeners, return_exceptions=True)
    assert of_many <= of_one + 1 <= 9, "however many pages are open"


async def test_times_are_told_in_the_zone_of_the_reader(
    chromium: Any, url: str, prefix: str, shop: World
):
    def look(browser: Any) -> list[Any]:
        context = browser.new_context(timezone_id="Asia/Tokyo", locale="en-GB")
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.goto(f"{base}/schedules")
        page.wait_for_selector("time[data-local]")
        time = "main td:nth-child(6) time"
        seen = [
            page.inner_text("#zone"),
            page.inner_text(time),
            page.get_attribute(time, "datetime"),
        ]
        # What is drawn anew is never painted with other times. htmx may begin to listen only now.
        after = page.evaluate("""() => new Promise((tell) => {
            const all = (rest) => document.querySelectorAll(`time[datetime]${rest}`).length;
            const change = () => window.htmx.trigger(document.getElementById("main"), "changed");
            const again = setInterval(change, 500);
            document.addEventListener("htmx:afterSwap", () => {
                clearInterval(again);
                tell([all("") > 0, all(":not([data-local])")]);
            });
            setTimeout(() => tell("nothing was drawn"), 60_000);
            change();
        })""")
        seen.append(after)
        context.close()
        return seen

    async with served(dashboard(connection=url, prefix=prefix)) as base:
        zone, shown, exact, after = await chromium(look)

    assert zone == "Asia/Tokyo"
    assert exact.endswith("T03:00:00+00:00")
    assert shown.endswith("12:00:00")
    assert after == [True, 0]


async def test_what_is_unfolded_while_a_page_settles_stays_unfolded(
    chromium: Any, url: str, prefix: str, shop: World
):
    """The page is not drawn a second time: somebody reads it."""

    def look(browser: Any) -> list[Any]:
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.goto(f"{base}/dead-letters?queue=dead")
        page.wait_for_selector("#main details")
        seen: list[Any] = page.evaluate("""() => new Promise((tell) => {
            const change = () => window.htmx.trigger(document.getElementById("main"), "changed");
            const again = setInterval(change, 500);
            const swaps = [];
            document.addEventListener("htmx:afterSwap", () => {
                clearInterval(again);
                document.querySelector("#main details").open = true;
                // Not before: the page may be settling after a swap of its own.
                document.addEventListener("htmx:afterSettle", change, { once: true });
            }, { once: true });
            document.addEventListener("htmx:beforeSwap", (event) => {
                swaps.push(event.detail.shouldSwap);
                if (swaps.length < 2) return;
                tell([...swaps, document.querySelector("#main details").open]);
            });
            setTimeout(() => tell("nothing was drawn"), 60_000);
            change();
        })""")
        context.close()
        return seen

    async with served(dashboard(connection=url, prefix=prefix)) as base:
        seen = await chromium(look)

    assert seen[0] is True
    assert seen[1:] == [False, True]


def test_without_chromium_the_tests_say_so_and_how_to_get_it():
    name = "tests/dashboard/test_browser.py::test_login_in_a_browser"
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", name]

    ended = subprocess.run(
        command, cwd=ROOT, env={"PATH": "/nonexistent"}, capture_output=True, text=True, timeout=300
    )

    assert "NOT RUN" in ended.stdout, ended.stdout + ended.stderr
    assert "apt install chromium" in ended.stdout
