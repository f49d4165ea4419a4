"""In a real browser: every page looks right, follows what happens, and obeys no text of a job."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from tests.dashboard.conftest import served
from tests.dashboard.world import World, world
from tests.helpers import wait_until
from tests.servers import Server
from toril import FlowProducer, GroupJob, NewJob, Queue, Worker
from toril.dashboard import dashboard, showing
from toril.dashboard.security import HEADERS

STYLE = Path(showing.__file__).parent / "static" / "style.css"
AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
SERIOUS = """(only) => {
    const asked = {resultTypes: ['violations']};
    const minor = axe._audit.rules.filter((rule) => ['minor', 'moderate'].includes(rule.impact));
    if (only) asked.runOnly = {type: 'rule', values: only};
    else asked.rules = Object.fromEntries(minor.map((rule) => [rule.id, {enabled: false}]));
    return axe.run(document, asked).then((found) => found.violations
        .filter((one) => ['serious', 'critical'].includes(one.impact))
        .map((one) => `${one.id}: ${one.nodes[0].html.slice(0, 150)}`));
}"""
"""Said in the page: to send all that axe notes about a page takes as long as to find it. What a
rule finds has the impact of the rule, so those that find nothing serious are left out."""
COLOURS = ["color-contrast", "link-in-text-block"]
"""The rules that look at colours: nothing else is different in the dark (see the test of that)."""

SHORT = (
    "\u202e\"'><img/src=x/onerror=pwned(1)><svg/onload=pwned(2)>"
    "<b/hx-get=//evil.test/x/hx-trigger=load></b>${7*7}{{7*7}}&lt;"
)
LONG = (
    "</script><script>pwned(3)</script></textarea></title></style></pre><script>pwned(4)</script>"
    '<a href="javascript:pwned(5)" autofocus onfocus="pwned(6)">x</a><form action="//evil.test">'
    '<iframe src="//evil.test"></iframe><link rel=stylesheet href="//evil.test/x.css">'
    '<meta http-equiv=refresh content="0;url=//evil.test"><base href="//evil.test/">'
    "\x1b[31m\x1b]8;;http://evil.test\x07\u2066\u200f\u200b\x00\r\n --> ]]> '; pwned(7); //"
)


class Watch:
    """Notes whatever a page does that it should not."""

    def __init__(self, page: Any, base: str) -> None:
        self.page = page
        self.seen: list[str] = []
        page.expose_function("pwned", lambda number=0: self.seen.append(f"script {number} ran"))
        page.expose_function("violated", lambda what: self.seen.append(f"policy: {what}"))
        page.add_init_script(
            "document.addEventListener('securitypolicyviolation',"
            " (event) => violated(`${event.violatedDirective} ${event.blockedURI}`))"
        )
        page.on("dialog", lambda dialog: (self.seen.append("dialog"), dialog.dismiss()))
        page.on("pageerror", lambda error: self.seen.append(f"error: {error}"))
        page.on("console", self._hear)
        page.on("request", lambda request: self._asked(request.url, base))

    def _asked(self, url: str, base: str) -> None:
        if not url.startswith(f"{base}/"):
            self.seen.append(f"asked {url}")

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.seen.append(f"console: {message.text}")


GREY = (
    "(({opacity, filter}) => `${opacity} ${filter}`)"
    "(getComputedStyle(document.querySelector('main')))"
)


CANVAS = "document.querySelector('figure.chart canvas')"


def wait_for(page: Any, condition: str, *given: Any) -> Any:
    """What the condition says as soon as it holds.

    Unlike ``wait_for_function``, which a page's policy stops at its second look.
    """
    deadline = time.monotonic() + 60
    while not (found := page.evaluate(condition, *given)):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(50)
    return found


def new_page(browser: Any, **options: Any) -> Any:
    """A page of a visitor of its own; what it waits for may take long on a busy machine."""
    page = browser.new_context(**options).new_page()
    page.set_default_timeout(60_000)
    return page


def too_wide(page: Any) -> int:
    """By how many pixels the page has to be moved sideways."""
    wide: int = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return wide


async def many_members(url: str, prefix: str) -> list[str]:
    """Pages with partitions, and those of a group with very many members."""
    options: dict[str, Any] = {"connection": url, "prefix": prefix}
    async with (
        Queue("mail", partitions=16, **options) as mail,
        FlowProducer(partitions={"mail": 16}, **options) as flows,
    ):
        await mail.add_bulk([NewJob("x", lane=f"lane-{n % 40}") for n in range(120)])
        jobs = [GroupJob("x", queue_name="pay", key=f"member-{n}") for n in range(150)]
        large = await flows.add_group("large", jobs)
    return [
        "/queue?queue=mail&state=waiting",
        "/lanes?queue=mail",
        "/groups?queue=pay",
        f"/group?queue=pay&id={large.group_id}&start=100&step=100",
    ]


class Inspector:
    """Looks at the page that is open: at all widths, with axe, and at its colours in the dark."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.problems: list[str] = []
        page.add_init_script(AXE)

    def inspect(self, path: str) -> None:
        for width in (360, 1400):
            self._widen(path, width)
            for scheme in ("light", "dark"):
                self._audit(path, width, scheme)
        self._widen(path, 3840)

    def _widen(self, path: str, width: int) -> None:
        self.page.set_viewport_size({"width": width, "height": 800})
        if (wide := too_wide(self.page)) > 0:
            self.problems.append(f"{path} is {wide} px too wide at {width} px")

    def _audit(self, path: str, width: int, scheme: str) -> None:
        self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        # evaluate() is not subject to the page's policy, an inline script would be.
        found = self.page.evaluate(SERIOUS, COLOURS if scheme == "dark" else None)
        self.problems += [f"{path} at {width} px, {scheme}: {one}" for one in found]


@pytest.mark.parametrize("half", [0, 1])
async def test_every_page_is_fit_for_everybody(
    chromium: Any, url: str, prefix: str, client: Any, shop: World, half: int
):
    """At 360 px and 1400 px, in light and in dark: no serious finding of axe.

    Nor sideways scrolling, up to 4k, nor anything fetched from elsewhere.
    """
    counted = f"{prefix}:pay:metrics:completed"
    await client.hset(counted, mapping={"count": 30, "prevTS": int(time.time() * 1000)})
    await client.rpush(f"{counted}:data", *range(1, 31))
    paths = [*shop.paths, *await many_members(url, prefix), "/no-such-page"]

    def look(browser: Any) -> list[str]:
        page = new_page(browser, viewport={"width": 1400, "height": 800}, bypass_csp=False)
        inspector, watch = Inspector(page), Watch(page, base)
        for path in paths[half::2]:
            page.goto(base + path, wait_until="domcontentloaded")
            if path in ("/", "/queue?queue=pay&state=waiting"):
                page.wait_for_selector("figure.chart canvas")
            inspector.inspect(path)
        page.goto(f"{base}/job?queue=pay&id=works", wait_until="domcontentloaded")
        page.click("main button:text-is('Remove')")
        page.wait_for_selector("form.confirm")
        inspector.inspect("the question whether")
        missing = [one for one in watch.seen if "404" in one]
        page.context.close()
        return inspector.problems + [one for one in watch.seen if one not in missing]

    async with served(dashboard(connection=url, prefix=prefix)) as base:
        assert await chromium(look) == []


def test_the_dark_changes_nothing_but_colours():
    """What axe says of anything else in the light holds in the dark as well."""
    found = re.findall(
        r"prefers-color-scheme: dark\) \{\s*:root \{([^{}]*)\}\s*\}", STYLE.read_text()
    )
    elsewhere = [
        path.name
        for path in STYLE.parents[1].rglob("*.*")
        if path.suffix in (".css", ".html", ".py") and b"prefers-color-scheme" in path.read_bytes()
    ]

    assert elsewhere == [STYLE.name]
    assert STYLE.read_text().count("prefers-color-scheme") == len(found) == 1
    for line in found[0].split(";")[:-1]:
        assert re.fullmatch(r"--[\w-]+: #[0-9a-f]{6}", line.strip()), line


async def test_what_is_serious_is_found_in_the_light_and_colours_in_the_dark(chromium: Any):
    """The audit of every page would say nothing as well if axe did not look."""
    text = "<html lang=en><title>t</title><main><h1>t</h1><p style='color: {}'>text</p>{}</main>"

    def look(browser: Any) -> list[str]:
        inspector = Inspector(new_page(browser))
        inspector.page.goto("about:blank")
        for words in (("#000", "<h4>a heading of a rule that is moderate</h4>"), ("#eee", "<img>")):
            inspector.page.set_content(text.format(*words))
            inspector.inspect("it")
        inspector.page.context.close()
        return [problem.partition(": <")[0] for problem in inspector.problems]

    assert sorted(await chromium(look)) == [
        f"it at {width} px, {what}"
        for width in (1400, 360)
        for what in ("dark: color-contrast", "light: color-contrast", "light: image-alt")
    ]


async def test_the_login_is_fit_for_everybody(chromium: Any, url: str, prefix: str):
    def look(browser: Any) -> list[str]:
        inspector = Inspector(new_page(browser, bypass_csp=False))
        inspector.page.goto(base)
        inspector.inspect("the login")
        inspector.page.fill("input[type=password]", "wrong")
        inspector.page.click("button.primary")
        inspector.page.wait_for_selector("[role=alert]")
        inspector.inspect("a wrong password")
        inspector.page.context.close()
        return inspector.problems

    async with served(dashboard(connection=url, prefix=prefix, password="long enough")) as base:
        assert await chromium(look) == []


async def test_a_chart_follows_the_window_and_the_colours(
    chromium: Any, url: str, prefix: str, client: Any, shop: World
):
    counted = f"{prefix}:pay:metrics:completed"
    await client.hset(counted, mapping={"count": 30, "prevTS": int(time.time() * 1000)})
    await client.rpush(f"{counted}:data", *range(1, 31))

    def look(browser: Any) -> None:
        page = new_page(browser, viewport={"width": 1400, "height": 800})
        page.goto(base)
        # In one look: the next news of the queue replaces the chart.
        light = wait_for(page, f"{CANVAS}?.clientWidth > 1000 && {CANVAS}.toDataURL()")
        page.set_viewport_size({"width": 360, "height": 800})
        wait_for(page, f"{CANVAS}?.clientWidth <= 360")
        page.set_viewport_size({"width": 1400, "height": 800})
        wait_for(page, f"{CANVAS}?.clientWidth > 1000")
        page.emulate_media(color_scheme="dark")
        wait_for(page, f"(before) => {CANVAS} && {CANVAS}.toDataURL() !== before", light)
        wait_for(page, "document.querySelectorAll('figure.chart canvas').length === 1")
        page.context.close()

    async with served(dashboard(connection=url, prefix=prefix)) as base:
        await chromium(look)


def visit_all(page: Any, base: str, paths: list[str], watch: Watch) -> list[str]:
    """Open every page; returns their texts, and notes in ``watch`` what looks like an injection."""
    shown: list[str] = []
    for path in paths:
        answer = page.goto(base + path)
        if not answer.ok:
            watch.seen.append(f"{path}: {answer.status}")
        shown.append(page.inner_text("body"))
        if (wide := too_wide(page)) > 0:
            watch.seen.append(f"{path} is {wide} px too wide")
        if page.evaluate("document.querySelectorAll('main img, main svg, iframe').length"):
            watch.seen.append(f"{path}: markup became elements")
    return shown


async def test_no_text_of_a_job_is_obeyed(chromium: Any, url: str, prefix: str):
    async with (
        world(url, prefix, SHORT, long=LONG) as hostile,
        served(dashboard(connection=url, prefix=prefix)) as base,
    ):
        # What people type is hostile too, and so is what others typed.
        await hostile.queue.pause_lane(hostile.lane)

        def attack(browser: Any) -> tuple[list[str], list[str]]:
            page = new_page(browser, viewport={"width": 360, "height": 800})
            watch = Watch(page, base)
            shown = visit_all(page, base, hostile.paths, watch)
            page.goto(base + hostile.paths[6])
            page.check("#all")
            page.click("text=Remove selected")
            shown.append(page.inner_text("body"))
            page.click("main button.danger")
            shown.append(page.inner_text("body"))
            page.goto(f"{base}/log")
            shown.append(page.inner_text("body"))
            page.wait_for_timeout(200)
            page.context.close()
            return watch.seen, shown

        seen, shown = await chromium(attack)

    assert seen == []
    for text in shown:
        assert "\u202e" not in text
        assert "\x1b" not in text
    assert any("\\u202e" in text for text in shown)
    assert any("<script>pwned(3)</script>" in text for text in shown), "it is shown, not dropped"
    assert any("${7*7}{{7*7}}&lt;" in text for text in shown), "nor evaluated"


@pytest.mark.parametrize("has_policy", [True, False], ids=["policy", "no policy"])
async def test_an_injection_that_is_planted_is_caught(
    chromium: Any, url: str, prefix: str, monkeypatch: pytest.MonkeyPatch, has_policy: bool
):
    """The check above would fail: a filter that forgets to escape, with and without the policy."""
    real = showing.make_environment

    def careless() -> Any:
        environment = real()
        environment.filters["short"] = lambda value, most=80: Markup(str(value))
        return environment

    monkeypatch.setattr(showing, "make_environment", careless)
    if not has_policy:
        monkeypatch.delitem(HEADERS, "Content-Security-Policy")

    async with Queue("pay", connection=url, prefix=prefix) as queue:
        await queue.add(f"x{LONG}{SHORT}", job_id="one")
        async with served(dashboard(connection=url, prefix=prefix)) as base:

            def attack(browser: Any) -> list[str]:
                page = new_page(browser)
                watch = Watch(page, base)
                page.goto(f"{base}/queue?queue=pay&state=waiting", wait_until="commit")
                deadline = time.monotonic() + 60
                while time.monotonic() < deadline and not is_caught(watch.seen):
                    page.wait_for_timeout(50)
                page.context.close()
                return watch.seen

            def is_caught(seen: list[str]) -> bool:
                if has_policy:
                    return any("policy: script-src" in one for one in seen)
                return "script 3 ran" in seen and any("asked" in one for one in seen)

            assert is_caught(await chromium(attack))


async def test_an_operator_puts_things_right(chromium: Any, url: str, prefix: str, shop: World):
    """The way from the overview to a job that failed, with the mouse and the keys."""

    def scenario(browser: Any) -> dict[str, str]:
        page = new_page(browser, viewport={"width": 1400, "height": 900})
        seen: dict[str, str] = {}
        page.goto(base)
        for key in "jjkj":
            page.keyboard.press(key)
        page.keyboard.press("Enter")
        page.wait_for_url("**/queue?queue=pay")
        page.click("table.jobs >> text=fails")
        seen["why"] = page.inner_text(".why")
        page.click("text=Edit and retry")
        page.fill("textarea[name=data]", '{"order": 7}')
        page.click("text=Save and retry")
        seen["said"] = page.inner_text(".notice.good")
        page.wait_for_load_state("load")  # the keys are heard from then on
        page.keyboard.press("/")
        page.keyboard.type("later")
        page.keyboard.press("Enter")
        page.wait_for_url("**/job?queue=pay&id=later")
        page.click("button:has-text('Cancel')")
        seen["question"] = page.inner_text("main .notice")
        page.click("button:has-text('Cancel 1')")
        seen["cancelled"] = page.inner_text(".notice.good")
        page.context.close()
        return seen

    async with served(dashboard(connection=url, prefix=prefix)) as base:
        seen = await chromium(scenario)

    assert "no money" in seen["why"]
    assert "data replaced, retried" in seen["said"]
    assert "Cancel 1 job of the queue 'pay'?" in seen["question"]
    job = await shop.queue.get_job("fails")
    assert job is not None
    assert job.data == {"order": 7}
    assert await shop.queue.get_state("later") == "failed"


async def test_without_javascript_it_is_read_and_used(
    chromium: Any, url: str, prefix: str, shop: World
):
    def scenario(browser: Any) -> str:
        page = new_page(browser, java_script_enabled=False)
        for path in shop.paths[:3]:
            page.goto(base + path)
        page.goto(f"{base}/queue?queue=pay&state=failed")
        page.click("text=Pause")
        said: str = page.inner_text(".notice.good")
        page.context.close()
        return said

    async with served(dashboard(connection=url, prefix=prefix)) as base:
        assert "pause the queue of pay: paused" in await chromium(scenario)
    assert await shop.queue.is_paused()


async def test_a_page_follows_what_happens_and_outlives_its_server(
    chromium: Any, start_server: Callable[..., Server]
):
    server = start_server(tcp=True)
    address = server.url
    steps: dict[str, asyncio.Event] = {name: asyncio.Event() for name in ("open", "grey", "back")}
    loop = asyncio.get_running_loop()

    def reached(name: str) -> None:
        loop.call_soon_threadsafe(steps[name].set)

    def scenario(browser: Any) -> list[str]:
        page = new_page(browser)
        seen: list[str] = []
        page.goto(f"{base}/queue?queue=pay&state=waiting")
        page.wait_for_selector("table.jobs >> text=first")
        coloured = page.evaluate(GREY)
        reached("open")
        page.wait_for_selector("table.jobs >> text=second")
        reached("grey")
        page.wait_for_selector("body.gone")
        wait_for(page, f"(before) => {GREY} !== before", coloured)
        seen += [page.inner_text("#gone"), page.inner_text("table.jobs")]
        reached("back")
        page.wait_for_selector("table.jobs >> text=third")
        wait_for(page, f"(before) => {GREY} === before", coloured)
        seen.append(str(page.is_visible("#gone")))
        page.context.close()
        return seen

    async with (
        Queue("pay", connection=address) as queue,
        served(dashboard(connection=address)) as base,
    ):
        await queue.add("first")
        running = asyncio.ensure_future(chromium(scenario))
        await asyncio.wait_for(steps["open"].wait(), 60)
        await queue.add("second")
        await asyncio.wait_for(steps["grey"].wait(), 60)
        server.stop()
        await asyncio.wait_for(steps["back"].wait(), 60)
        server.start()
        # The server keeps nothing on disk: what it has now is another queue of the same name.
        await queue.add("third")
        told, kept, is_told = await running

    assert "does not answer" in told
    assert "second" in kept, "the last figures stay"
    assert is_told == "False"


async def test_login_in_a_browser(chromium: Any, url: str, prefix: str, shop: World):
    def scenario(browser: Any) -> list[str]:
        page = new_page(browser)
        page.goto(base)
        page.fill("input[type=password]", "wrong")
        page.click("button.primary")
        seen = [page.inner_text("[role=alert]")]
        page.fill("input[type=password]", "long enough")
        page.click("button.primary")
        seen.append(page.inner_text("h1"))
        page.click("text=Log out")
        seen.append(page.inner_text("h1"))
        seen.append(json.dumps(page.evaluate("document.cookie")))
        page.context.close()
        return seen

    async with served(dashboard(connection=url, prefix=prefix, password="long enough")) as base:
        assert await chromium(scenario) == ["That is not the password.", "Queues", "Log in", '""']


async def test_pages_follow_no_tab_that_is_hidden(
    chromium: Any, url: str, prefix: str, shop: World
):
    app: Any = dashboard(connection=url, prefix=prefix)

    def scenario(browser: Any) -> None:
        page = new_page(browser)
        page.goto(base)
        wait_for(page, "performance.getEntriesByType('resource').length > 0")
        page.evaluate(
            "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        page.wait_for_timeout(300)
        page.context.close()

    async with served(app) as base:
        await chromium(scenario)
        await wait_until(lambda: app._pages._live.total() == 0, 60)


HIDE = (
    "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
    "document.dispatchEvent(new Event('visibilitychange'))"
)


ASKED_AT_MS = (
    "performance.getEntriesByType('resource')"
    ".filter(({initiatorType}) => initiatorType === 'xmlhttprequest')"
    ".map(({startTime}) => startTime)"
)
"""When the page was asked for again."""


async def test_the_log_of_a_running_job_is_followed_while_somebody_looks(
    chromium: Any, url: str, prefix: str
):
    """A row of a log is no event; the page of a job that runs asks for it once a second."""
    rows = {name: asyncio.Event() for name in ("second", "third", "end")}
    loop = asyncio.get_running_loop()

    async def work(job: Any) -> None:
        await job.log("row one")
        await rows["second"].wait()
        await job.log("row two")
        await rows["third"].wait()
        await job.log("row three")
        await rows["end"].wait()

    def scenario(browser: Any) -> tuple[float, int]:
        page = new_page(browser)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{base}/job?queue=pay&id=slow")
        page.wait_for_selector("pre.log >> text=row one")
        loop.call_soon_threadsafe(rows["second"].set)
        page.wait_for_selector("pre.log >> text=row two")
        # By the browser's clock: what it tells may come late, and several things at once.
        before = len(page.evaluate(ASKED_AT_MS))
        four_more = f"(before) => (({ASKED_AT_MS}).length > before + 4) && {ASKED_AT_MS}"
        at_ms = wait_for(page, four_more, before)  # nothing happens that is an event
        apart_s = (at_ms[before + 4] - at_ms[before]) / 4000
        page.evaluate(HIDE % "true")
        page.wait_for_timeout(1500)  # what was on its way has arrived
        before = len(asked)
        loop.call_soon_threadsafe(rows["third"].set)
        page.wait_for_timeout(3000)
        hidden = len(asked) - before
        page.evaluate(HIDE % "false")
        page.wait_for_selector("pre.log >> text=row three")
        page.context.close()
        return apart_s, hidden

    async with (
        Queue("pay", connection=url, prefix=prefix) as queue,
        served(dashboard(connection=url, prefix=prefix)) as base,
    ):
        await queue.add("x", job_id="slow")
        async with Worker("pay", work, connection=url, prefix=prefix):
            await wait_until(lambda: _is_active(queue, "slow"))
            apart_s, hidden = await chromium(scenario)
            rows["end"].set()
    assert apart_s > 0.7, "no more than about once a second"
    assert hidden == 0, "nobody looks"


async def _is_active(queue: Queue, job_id: str) -> bool:
    return await queue.get_state(job_id) == "active"
