"""A page is drawn anew without taking anything from under the reader's hand, and misses no news."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.dashboard.conftest import served
from tests.dashboard.test_browser import new_page, wait_for
from tests.helpers import wait_until
from toril import Connection, Queue
from toril.client.finder import Finder
from toril.dashboard import dashboard
from toril.dashboard.live import Pulse

PAGE = "/queue?queue=pay&state=waiting"
LINK, SUMMARY = "table.jobs >> text=first", "summary >> text=Add a job"
COUNT_ANSWERS = "answers = 0; document.addEventListener('htmx:beforeSwap', () => { answers += 1; })"


class Held:
    """What a page asks for comes when it is let through."""

    def __init__(self, page: Any, kind: str) -> None:
        self._page = page
        self._kind = kind
        self._asked: list[Any] = []
        page.route("**/*", self._meet)

    def _meet(self, route: Any) -> None:
        if route.request.resource_type == self._kind:
            self._asked.append(route)
        else:
            route.continue_()

    def wait(self) -> None:
        for _ in range(1200):
            if self._asked:
                return
            self._page.wait_for_timeout(50)
        pytest.fail("the page asks for nothing")

    def let_through(self) -> None:
        """Lets one answer come, and waits until the page has met it."""
        self.wait()
        before = self._page.evaluate("answers")
        self._asked.pop(0).continue_()
        wait_for(self._page, "(before) => answers > before", before)


def press(page: Any, selector: str) -> None:
    page.locator(selector).scroll_into_view_if_needed()
    page.hover(selector)
    page.mouse.down()


@pytest.mark.parametrize(
    ("selector", "is_clicked"),
    [
        (LINK, lambda page: page.wait_for_url("**/job?*")),
        (SUMMARY, lambda page: page.wait_for_selector("details.box[open]")),
    ],
    ids=["link", "summary"],
)
async def test_a_page_that_is_drawn_anew_takes_nobody_a_click(
    chromium: Any, url: str, prefix: str, selector: str, is_clicked: Callable[[Any], Any]
):
    def scenario(browser: Any) -> None:
        page = new_page(browser)
        held = Held(page, "xhr")
        page.goto(base + PAGE)
        page.evaluate(COUNT_ANSWERS)
        held.wait()  # while something is pressed, the page asks for nothing
        press(page, selector)
        held.let_through()
        page.mouse.up()
        is_clicked(page)
        page.context.close()

    async with (
        Queue("pay", connection=url, prefix=prefix) as queue,
        served(dashboard(connection=url, prefix=prefix)) as base,
    ):
        await queue.add("x", job_id="first")
        await chromium(scenario)


@pytest.mark.parametrize(
    ("selector", "to"),
    [(SUMMARY, (400, 5)), (SUMMARY, (-50, -50)), (LINK, (400, 5)), (LINK, (-50, -50))],
    ids=["elsewhere", "outside", "dragged", "dragged out"],
)
async def test_however_a_press_ends_the_page_then_shows_what_came_meanwhile(
    chromium: Any, url: str, prefix: str, selector: str, to: tuple[int, int]
):
    loop = asyncio.get_running_loop()

    def scenario(browser: Any) -> str:
        page = new_page(browser)
        held = Held(page, "xhr")
        page.goto(base + PAGE)
        page.evaluate(COUNT_ANSWERS)
        held.wait()  # while something is pressed, the page asks for nothing
        press(page, selector)
        asyncio.run_coroutine_threadsafe(queue.add("x", job_id="second"), loop).result(60)
        held.let_through()
        meanwhile: str = page.inner_text("table.jobs")
        page.mouse.move(*to, steps=5)
        page.mouse.up()
        held.let_through()
        page.wait_for_selector("table.jobs >> text=second")
        page.context.close()
        return meanwhile

    async with (
        Queue("pay", connection=url, prefix=prefix) as queue,
        served(dashboard(connection=url, prefix=prefix)) as base,
    ):
        await queue.add("x", job_id="first")
        assert "second" not in await chromium(scenario)


async def test_all_are_selected_in_the_moment_in_which_the_page_is_drawn_anew(
    chromium: Any, url: str, prefix: str
):
    """It settles a moment after the new rows can be seen, and clicked."""
    click = (
        "document.addEventListener('htmx:afterSwap', () => document.querySelector('#all').click())"
    )

    def scenario(browser: Any) -> int:
        page = new_page(browser)
        held = Held(page, "xhr")
        page.goto(base + PAGE)
        page.evaluate(COUNT_ANSWERS)
        page.evaluate(click)
        held.let_through()
        wait_for(page, "document.querySelector('#all').checked")
        ticked: int = page.evaluate("document.querySelectorAll('[name=id]:checked').length")
        page.context.close()
        return ticked

    async with (
        Queue("pay", connection=url, prefix=prefix) as queue,
        served(dashboard(connection=url, prefix=prefix)) as base,
    ):
        await queue.add("x", job_id="first")
        await queue.add("x", job_id="second")
        assert await chromium(scenario) == 2


async def test_what_is_told_before_a_page_is_ready_is_shown_when_it_is(
    chromium: Any, url: str, prefix: str
):
    """A job that came after the page was read, and a script that holds up whoever listens to it."""
    loop = asyncio.get_running_loop()
    slow = '<script src="/static/slow.js" defer></script></head>'

    def scenario(browser: Any) -> None:
        page = new_page(browser, timezone_id="Asia/Tokyo")
        scripts: dict[str, Any] = {}

        def read(route: Any) -> None:
            answer = route.fetch()
            asyncio.run_coroutine_threadsafe(queue.add("x", job_id="second"), loop).result(60)
            route.fulfill(response=answer, body=answer.text().replace("</head>", slow))
            page.unroute("**/queue?*")

        page.route("**/queue?*", read)
        page.route("**/slow.js", lambda route: scripts.update(slow=route))
        page.goto(base + PAGE, wait_until="commit")
        page.wait_for_selector(LINK)
        page.wait_for_selector("#zone >> text=Tokyo")  # our script has run
        page.wait_for_timeout(1500)  # what is told before the page is ready has been
        scripts["slow"].fulfill(body="", content_type="text/javascript")
        page.wait_for_selector("table.jobs >> text=second")
        page.context.close()

    async with (
        Queue("pay", connection=url, prefix=prefix) as queue,
        served(dashboard(connection=url, prefix=prefix)) as base,
    ):
        await queue.add("x", job_id="first")
        await chromium(scenario)


@pytest.fixture
def search_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toril.client.finder.AGAIN_S", 0.0)
    monkeypatch.setattr("toril.client.finder.SHARE", 0)


@pytest.mark.usefixtures("search_often")
async def test_a_queue_that_vanishes_and_returns_is_told_of_under_a_new_number(
    url: str, prefix: str
):
    """A page takes the number that it has for no change: neither a whole has one twice."""
    connection = Connection(url)
    finder = Finder(connection, prefix)
    pulse = Pulse(connection, prefix, finder, every_s=0.01)
    told: dict[str, list[int]] = {"mail": [], "{mail-0}": [], "{mail-1}": []}

    async def listen() -> None:
        async for _ in pulse.listen():
            for name, version in pulse._versions().items():
                if name and told[name][-1:] != [version]:
                    told[name].append(version)

    def tells(*names: str) -> Callable[[], bool]:
        """Has each a number that it has not had before?"""
        before = {name: len(told[name]) for name in names}
        return lambda: all(len(told[name]) > count for name, count in before.items())

    listener = asyncio.create_task(listen())
    async with (
        Queue("{mail-0}", connection=url, prefix=prefix) as first,
        Queue("{mail-1}", connection=url, prefix=prefix) as other,
    ):
        await first.add("x")
        await other.add("x")
        await wait_until(lambda: {first.name, other.name} <= set(pulse.queues))
        news = tells(first.name, other.name, "mail")
        await first.add("x")
        await other.add("x")
        await wait_until(news)
        for _ in range(2):
            await first.obliterate(force=True)
            await wait_until(lambda: first.name not in pulse.queues)
            news = tells("mail")
            await other.add("x")
            await wait_until(news)
            news = tells(first.name, "mail")
            await first.add("x")
            await wait_until(news)
    listener.cancel()
    await asyncio.gather(listener, return_exceptions=True)
    await pulse.close()
    await finder.close()
    await connection.close()

    for numbers in told.values():
        assert all(later > one for one, later in pairwise(numbers)), told
