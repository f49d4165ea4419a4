"""What happens between a page and its button: others press it, things are gone, servers change."""

from __future__ import annotations

import asyncio
import html
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.dashboard.conftest import Visitor, served
from tests.dashboard.world import World, world
from tests.features.dead_letters.forging import forge
from tests.helpers import wait_until
from tests.servers import Server
from toril import Queue
from toril.dashboard import dashboard
from toril.dashboard.actions import ACTIONS
from toril.dashboard.security import SESSION_S

Visit = Callable[..., Visitor]


TOO_LATE = ("retry-group", "fail-member")
"""Their groups have gone on by the button before."""


def pressed(shop: World) -> dict[str, dict[str, str]]:
    """Every button of the pages of one group, one lane, one schedule and one letter."""
    return {
        "cancel-group": {"id": shop.group},
        "retry-compensation": {"id": shop.stuck_group},
        "resolve-group": {"id": shop.blocked_group, "note": "by hand"},
        "retry-group": {"id": shop.blocked_group},
        "complete-member": {"id": shop.staged_group, "member": "approval", "result": "1"},
        "fail-member": {"id": shop.staged_group, "member": "approval", "note": "no"},
        "pause-lane": {"lane": shop.lane},
        "resume-lane": {"lane": shop.lane},
        "lane-settings": {"lane": shop.lane, "weight": "2"},
        "drain-lane": {"lane": shop.lane},
        "run-schedule": {"id": "nightly"},
        "pause-schedule": {"id": "nightly"},
        "resume-schedule": {"id": "nightly"},
        "change-schedule": {"id": "nightly", "every": "10m"},
        "remove-schedule": {"id": "nightly"},
        "replay": {"queue": "dead", "id": shop.letter},
        "edit-retry": {"id": "fails", "data": "{}"},
        "promote": {"id": "later"},
    }


async def test_two_operators_press_each_button_at_the_same_moment(visit: Visit, shop: World):
    """One of them is told that it is done, the other the same or why not; nothing is done twice."""
    app = visit().app
    people = [Visitor(app), Visitor(app, ("127.0.0.1", 5001))]
    for who in people:
        await who.get("/")

    for verb, fields in pressed(shop).items():
        answers = await asyncio.gather(*(who.do(verb, **{"queue": "pay", **fields})
                                         for who in people))  # fmt: skip
        statuses = sorted(answer.status_code for answer in answers)
        assert statuses[0] == 303 or verb in TOO_LATE, (verb, answers[0].text[-300:])
        assert statuses[1] in (303, 400, 404, 409), (verb, statuses)

    counts = await shop.queue.get_job_counts()
    names = [job.name for job in await shop.queue.get_jobs()]
    assert names.count("fails again") == 1, "one letter is one job again"
    assert sum(job.name == "report" for job in await shop.queue.get_jobs("waiting")) <= 2
    assert counts["delayed"] == 0
    info = await shop.queue.get_group_state(shop.stuck_group)
    assert info is not None
    for who in people:
        await who.http.aclose()


@pytest.mark.no_audit("much is removed by hand")
async def test_what_is_forgotten_between_page_and_button_is_said_to_be_gone(
    visit: Visit, shop: World, client: Any, prefix: str
):
    visitor = visit()
    buttons = pressed(shop)
    buttons |= {"stop": {"operation": "x"}, "purge": {"queue": "dead"}}
    for path in shop.paths:
        await visitor.get(path)
    # Everything goes but the names of the queues.
    kept = [f"{prefix}:{name}:meta" for name in ("pay", "dead")]
    keys = [key async for key in client.scan_iter(f"{prefix}:*") if key not in kept]
    await client.unlink(*keys)

    for verb, fields in buttons.items():
        answer = await visitor.do(verb, **{"queue": "pay", **fields})
        assert answer.status_code in (303, 400, 404, 409), (verb, answer.text[-400:])
    for path in shop.paths:
        answer = await visitor.get(path)
        assert answer.status_code in (200, 303, 404), (path, answer.text[-400:])
    assert await shop.queue.get_job_counts("waiting", "delayed", "failed") == {
        "waiting": 0, "delayed": 0, "failed": 0,
    }  # fmt: skip


BYTES = b"\xff\xfe<script>alert(1)</script>\x00\x1b[31m\xe2\x80\xae"


@pytest.mark.no_audit("much is broken by hand")
async def test_bytes_that_are_no_text_are_shown_wherever_they_stand(
    visit: Visit, shop: World, raw: Any, prefix: str
):
    """In lane names, group names, reasons and steps, schedules, logs, and the log of changes."""
    group = f"{prefix}:pay:groups:{shop.blocked_group}"
    await raw.hset(group, mapping={"name": BYTES, "reason": BYTES, "asks": BYTES, "note": BYTES})
    await raw.rpush(f"{group}:log", b"5\n" + BYTES + b"\n" + BYTES + b"\n" + BYTES, BYTES, b"")
    await raw.hset(f"{group}:results", mapping={"0.why": BYTES, "0.at": BYTES, "1.why": BYTES})
    await raw.hset(f"{prefix}:pay:fails", mapping={"failedReason": BYTES, "stacktrace": BYTES,
                   "name": BYTES, "pb": BYTES, "progress": BYTES, "rjk": BYTES})  # fmt: skip
    await raw.rpush(f"{prefix}:pay:fails:logs", BYTES)
    await raw.hset(f"{prefix}:pay:repeat:nightly", mapping={"name": BYTES, "tz": BYTES})
    await raw.hset(f"{prefix}:pay:lanes:settings", BYTES, b'{"paused":true}')
    await raw.zadd(f"{prefix}:pay:lanes", {BYTES: 1})
    await raw.xadd(f"{prefix}:pay:toril:dashboard-log", {"who": BYTES, "what": BYTES, BYTES: "x"})
    visitor = visit()

    for path in shop.paths:
        answer = await visitor.get(path)
        assert answer.status_code in (200, 409), (path, answer.text[-500:])
        assert "<script>alert" not in answer.text, path
        assert "\x1b" not in answer.text, path
        assert "\u202e" not in html.unescape(answer.text), path


@pytest.fixture
async def raw(url: str) -> AsyncIterator[Any]:
    import redis.asyncio

    async with redis.asyncio.Redis.from_url(url) as client:
        yield client


async def test_very_large_dead_letters_make_a_page_shorter(
    visit: Visit, client: Any, prefix: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("toril.dashboard.reading.MOST_BYTES_READ", 100)
    await forge(client, prefix, "dead", 60, source="pay")
    visitor, path, pages, seen = visit(), "/dead-letters?queue=dead", 0, set()

    while path:
        page = html.unescape((await visitor.get(path)).text)
        seen |= {one.partition('"')[0] for one in page.split('name="id" value="')[1:]}
        pages += 1
        before, found, _ = page.partition('" rel="next"')
        path = before.rpartition('href="')[2] if found else ""

    assert (pages, len(seen)) == (3, 60)


async def test_a_server_swapped_under_it_is_used_as_it_is(start_server: Callable[..., Server]):
    """Another server at the same address, without our functions and data: no page is wrong."""
    server = start_server(tcp=True)
    app: Any = dashboard(connection=server.url)
    visitor = Visitor(app)
    async with Queue("pay", connection=server.url) as queue:
        await queue.add("x", job_id="one")
    assert "one" in (await visitor.get("/queue?queue=pay&state=waiting")).text
    server.stop()

    away = await visitor.do("pause", queue="pay")
    assert away.status_code == 503
    assert "cannot be used" in away.text
    server.start()
    async with Queue("mail", connection=server.url) as queue:
        await queue.add("y", job_id="two")

    async def is_seen() -> bool:
        page = await visitor.get("/")
        return page.status_code == 200 and "mail" in page.text

    await wait_until(is_seen)
    assert (await visitor.do("retry", queue="pay", id="one")).status_code == 404
    answer = await visitor.do("pause", queue="mail")
    assert answer.status_code == 303, answer.text
    async with Queue("mail", connection=server.url) as queue:
        assert await queue.is_paused()
    await visitor.http.aclose()
    await app.close()


async def test_a_session_that_ends_between_page_and_button_changes_nothing(
    visit: Visit, queue: Queue
):
    await queue.add("x", job_id="one")
    visitor = visit(password="long enough")
    await visitor.get("/login")
    await visitor.post("/login", password="long enough")
    now = [0.0]
    guard = visitor.app._guard
    guard._clock = lambda: now[0] + 1e12
    question = await visitor.do("remove", sure=False, queue="pay", id="one")
    assert question.status_code == 401
    assert "session has ended" in question.text
    assert (await visitor.do("remove", queue="pay", id="one")).status_code == 401
    assert await queue.get_state("one") == "waiting"
    assert SESSION_S < 1e12

    await visitor.get("/login")
    await visitor.post("/login", password="long enough")
    assert (await visitor.do("remove", queue="pay", id="one")).status_code == 303
    assert await queue.get_state("one") is None


@pytest.mark.parametrize("confirmed", ["", "YES", "no", "yes ", "true", "1", "on"])
async def test_only_the_button_confirms(visit: Visit, queue: Queue, confirmed: str):
    await queue.add("x", job_id="one")
    visitor = visit()
    await visitor.get("/")

    answer = await visitor.do("remove", sure=False, queue="pay", id="one", confirmed=confirmed)

    assert answer.status_code == 200
    assert "Are you sure?" in answer.text
    assert await queue.get_state("one") == "waiting"


async def test_every_destructive_action_asks_with_a_number_and_the_queue(visit: Visit, shop: World):
    destructive = {
        "remove": {"id": "works"}, "cancel": {"id": "later"}, "drain-lane": {"lane": shop.lane},
        "remove-all": {"state": "failed"}, "cancel-all": {"state": "delayed"},
        "purge": {"queue": "dead"}, "cancel-group": {"id": shop.group},
        "resolve-group": {"id": shop.stuck_group, "note": "x"},
        "remove-schedule": {"id": "nightly"},
        "complete-member": {"id": shop.staged_group, "member": "approval"},
        "fail-member": {"id": shop.staged_group, "member": "approval", "note": "x"},
    }  # fmt: skip
    assert set(destructive) <= set(ACTIONS)
    visitor = visit()
    before = await shop.queue.get_job_counts()
    for verb, fields in destructive.items():
        queue = fields.get("queue", "pay")
        answer = await visitor.do(verb, sure=False, **{"queue": "pay", **fields})
        question = html.unescape(answer.text).partition('<p class="notice')[2].partition("</p>")[0]
        assert answer.status_code == 200, verb
        assert f"the queue '{queue}'" in question, (verb, question)
        assert any(letter.isdigit() for letter in question), (verb, question)
    assert await shop.queue.get_job_counts() == before
    assert await shop.queue.get_job_scheduler("nightly") is not None
    assert "Nothing was changed here yet" in (await visitor.get("/log")).text


async def test_reload_and_back_repeat_nothing(chromium: Any, url: str, prefix: str, shop: World):
    def scenario(browser: Any) -> list[str]:
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(60_000)
        posts: list[str] = []
        page.on("request", lambda one: posts.append(one.url) if one.method == "POST" else None)
        page.goto(f"{base}/queue?queue=pay&state=waiting")
        page.click("summary:has-text('Add a job')")
        page.fill("main [name=name]:visible >> nth=-1", "once")
        page.click("text=Add the job")
        page.wait_for_selector(".notice.good")
        page.reload()
        page.go_back()
        page.go_forward()
        page.goto(f"{base}/job?queue=pay&id=later")
        page.click("main button:text-is('Remove')")
        page.click("form.confirm button")
        page.wait_for_selector(".notice.good")
        page.reload()
        sent = len(posts)
        page.goto(f"{base}/job?queue=pay&id=later")
        gone = page.inner_text("main")
        context.close()
        return [str(sent), gone]

    async with served(dashboard(connection=url, prefix=prefix)) as base:
        sent, gone = await chromium(scenario)

    assert sent == "3", "the job, the question and its answer"
    names = [job.name for job in await shop.queue.get_jobs("waiting")]
    assert names.count("once") == 1
    assert "There is no job 'later'" in gone


async def test_a_form_that_is_sent_again_is_refused_or_says_that_nothing_was_left_to_do(
    visit: Visit, shop: World
):
    """The Back button, and the same form once more."""
    visitor = visit()
    for verb, fields in pressed(shop).items():
        sent = {"queue": "pay", **fields}
        await visitor.do(verb, **sent)
        again = await visitor.do(verb, **sent)
        assert again.status_code in (303, 400, 404, 409), (verb, again.text[-300:])
    log = html.unescape((await visitor.get("/log")).text)
    assert "Traceback" not in log
    assert sum(job.name == "fails again" for job in await shop.queue.get_jobs()) == 1


async def test_hostile_names_survive_every_button(visit: Visit, url: str, prefix: str):
    """What the page puts into its hidden fields comes back as it was."""
    text = "\u202e\"'><b>&amp;%2F\\é"
    async with world(url, prefix, text) as hostile:
        visitor = visit()
        name = hostile.queue.name
        for verb, fields in {
            "pause-lane": {"lane": hostile.lane},
            "remove-schedule": {"id": f"nightly{hostile.text}"},
            "promote": {"id": f"later{hostile.text}"},
            "remove": {"id": f"works{hostile.text}"},
            "cancel-group": {"id": hostile.group},
        }.items():
            answer = await visitor.do(verb, queue=name, **fields)
            assert answer.status_code == 303, (verb, answer.text[-400:])
        lane = await hostile.queue.get_lane(hostile.lane)
        assert lane is not None
        assert lane.is_paused
        assert await hostile.queue.get_job_schedulers() == []
        assert await hostile.queue.get_state(f"later{hostile.text}") == "waiting"
        assert await hostile.queue.get_job(f"works{hostile.text}") is None
