"""What somebody with bad intentions, or bad luck, sends: it is answered with a page, always."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from tests.dashboard.conftest import HOST, Visitor
from tests.dashboard.test_pages import ODD
from tests.dashboard.test_security import PASSWORD, log_in, stream_of
from tests.features.dead_letters.forging import forge
from tests.helpers import wait_until
from toril import NewJob, Queue, UnrecoverableError, Worker
from toril.dashboard import User
from toril.dashboard.actions import ACTIONS, MOST_SELECTED
from toril.dashboard.app import MOST_FIELDS
from toril.dashboard.security import COOKIE

Visit = Callable[..., Visitor]
ANSWERS = (200, 303, 400, 404, 409)
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}
SECRET = "41111111"


@pytest.fixture
async def queue(queue: Queue) -> Queue:
    await queue.add("charge", {"card": SECRET}, job_id="one")
    return queue


async def state_of(client: Any, prefix: str) -> dict[str, bytes | None]:
    """All that is stored, to see that nothing was changed."""
    keys = [key async for key in client.scan_iter(match=f"{prefix}:*", count=1000)]
    return {str(key): await client.dump(key) for key in keys}


async def test_every_action_answers_whatever_its_fields_hold(visit: Visit, queue: Queue):
    visitor = visit()
    fields = ("id", "lane", "state", "member", "note", "operation", "to", "name", "result", "data")
    numbers = (
        "max",
        "duration",
        "concurrency",
        "weight",
        "rate",
        "delay",
        "every",
        "limit",
        "cron",
    )
    for verb in sorted(ACTIONS):
        for number, odd in enumerate(ODD):
            text = odd.encode("utf-8", "replace").decode()
            sent = dict.fromkeys(fields + (numbers if number % 3 else ()), text)
            name = text if number % 2 else "pay"
            answer = await visitor.do(verb, sure=bool(number % 4), **{**sent, "queue": name})
            assert answer.status_code in ANSWERS, (verb, odd, answer.text[-300:])


HUGE = ["9" * 15 + "w", "9" * 18 + "d", "0.0000001ms", "999999999999999", "1" * 20]


@pytest.mark.parametrize("huge", HUGE)
async def test_times_beyond_all_calendars_are_refused(visit: Visit, queue: Queue, huge: str):
    visitor = visit()
    for path in (
        f"/dead-letters?queue=pay&since={huge}",
        f"/dead-letters?queue=pay&until={huge}",
        f"/export?queue=pay&state=dead-letters&as=csv&since={huge}",
        f"/queue?queue=pay&minutes={huge}&start={huge}",
    ):
        assert (await visitor.get(path)).status_code in ANSWERS, path
    for verb, fields in (
        ("add", {"name": "x", "delay": huge}),
        ("add", {"name": "x", "priority": huge}),
        ("add", {"name": "x", "attempts": huge}),
        ("rate-limit", {"max": huge, "duration": huge}),
        ("purge", {"since": huge}),
        ("replay-all", {"until": huge, "rate": huge}),
        ("lane-settings", {"lane": "a", "weight": huge, "max": "1", "duration": huge}),
        ("change-schedule", {"id": "none", "every": huge}),
    ):
        answer = await visitor.do(verb, queue="pay", **fields)
        assert answer.status_code in ANSWERS, (verb, answer.text[-300:])


async def test_giant_filters_are_looked_for_and_not_found(visit: Visit, queue: Queue):
    visitor = visit()
    giant = "(a+)+$" * 600
    for page, names in (
        ("/queue", ("name", "id", "lane", "group", "text")),
        ("/dead-letters", ("name", "failed_reason", "fingerprint", "source_queue")),
        ("/export", ("name", "id", "text")),
        ("/", ("q",)),
        ("/search", ("q",)),
        ("/groups", ("start",)),
    ):
        query = {"queue": "pay", "state": "waiting", "as": "json", **dict.fromkeys(names, giant)}
        if page == "/groups":
            query["state"] = ""
        answer = await visitor.get(page, params=query)
        assert answer.status_code in (200, 404), (page, answer.status_code)
        assert SECRET not in answer.text


@pytest.mark.parametrize(
    "form", ["[" * 100_000, '{"a":' * 50_000, "1e400", '"\\ud800"', "\x00", "{"]
)
async def test_data_that_is_no_good_json_is_refused(visit: Visit, queue: Queue, form: str):
    visitor = visit()
    for verb, fields in (
        ("add", {"name": "x", "data": form}),
        ("edit-retry", {"id": "one", "data": form}),
        ("replay", {"id": "one", "data": form}),
        ("complete-member", {"id": "g", "member": "m", "result": form}),
    ):
        answer = await visitor.do(verb, queue="pay", **fields)
        assert answer.status_code in ANSWERS, (verb, form[:10], answer.text[-300:])
    assert (await queue.get_job("one")).data == {"card": SECRET}


async def test_broken_forms_are_refused_whole(visit: Visit, queue: Queue, client: Any, prefix: str):
    visitor = visit()
    await visitor.get("/")
    kind = {"Content-Type": "application/x-www-form-urlencoded", **SAME_ORIGIN}
    token = visitor.token
    before = await state_of(client, prefix)
    many = "&".join(f"id=j{n}" for n in range(MOST_FIELDS + 1))
    bodies = [
        (f"token={token}&queue=pay&{many}", kind, 400),
        (f"queue=pay&token={token[:-1]}", kind, 403),
        (f"queue=pay&token=x&token={token}", kind, 403),
        (f"queue=pay&TOKEN={token}", kind, 403),
        (f"queue=pay;token={token}", kind, 403),
        (b"queue=pay&token=" + b"\xff" * 64, kind, 400),
        ("%%%=%zz&\x00", kind, 403),
        ("", kind, 403),
        (json.dumps({"token": token}), {**kind, "Content-Type": "application/json"}, 415),
        (f"queue=pay&token={token}", {**kind, "Content-Type": "text/plain"}, 415),
        (f"queue=pay&token={token}", {**kind, "Content-Type": "multipart/form-data"}, 415),
        (b"queue=pay&x=" + b"a" * (5 * 1024 * 1024), kind, 413),
    ]  # fmt: skip
    for body, headers, status in bodies:
        answer = await visitor.http.post("/do/pause", content=body, headers=headers)
        assert answer.status_code == status, (body[:40], answer.status_code)
    ticked = "&".join(f"id=j{n}" for n in range(MOST_SELECTED + 1))
    answer = await visitor.http.post(
        "/do/remove", content=f"token={token}&queue=pay&confirmed=yes&{ticked}", headers=kind
    )
    assert answer.status_code == 400
    assert await state_of(client, prefix) == before


async def test_a_token_is_worth_nothing_in_another_session_or_after_it(
    visit: Visit, queue: Queue, client: Any, prefix: str
):
    visitor = visit(password=PASSWORD)
    await log_in(visitor)
    cookie, token = visitor.http.cookies[COOKIE], visitor.token
    await visitor.post("/logout")
    replayed = await visitor.http.post(
        "/do/pause",
        data={"token": token, "queue": "pay"},
        headers={**SAME_ORIGIN, "Cookie": f"{COOKIE}={cookie}"},
    )
    assert replayed.status_code == 401
    visitor.http.cookies.clear()
    await log_in(visitor)
    replayed = await visitor.http.post(
        "/do/pause", data={"token": token, "queue": "pay"}, headers=SAME_ORIGIN
    )
    assert replayed.status_code == 403
    assert not await queue.is_paused()


async def test_no_other_method_changes_anything(
    visit: Visit, queue: Queue, client: Any, prefix: str
):
    visitor = visit()
    await visitor.get("/")
    before = await state_of(client, prefix)
    fields = {"queue": "pay", "id": "one", "token": visitor.token, "confirmed": "yes"}
    for verb in ("pause", "remove"):
        for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FOO"):
            for how in ({"params": fields}, {"data": fields}):
                answer = await visitor.http.request(
                    method, f"/do/{verb}", headers=SAME_ORIGIN, **how
                )
                assert answer.status_code in (404, 405), (method, answer.status_code)
        overriding = {**SAME_ORIGIN, "X-HTTP-Method-Override": "POST", "X-Method-Override": "POST"}
        answer = await visitor.http.get(f"/do/{verb}", params=fields, headers=overriding)
        assert answer.status_code == 404
        for path in (f"/{verb}", f"/queue/do/{verb}", f"/do/do/{verb}", f"/do/%2e%2e/{verb}"):
            answer = await visitor.http.post(path, data=fields, headers=SAME_ORIGIN)
            assert answer.status_code == 404, path
    for path in ("/", "/queue?queue=pay", "/live", "/export?queue=pay&state=waiting&as=csv"):
        answer = await visitor.http.post(path, data=fields, headers=SAME_ORIGIN)
        assert answer.status_code == 404, path
    assert await state_of(client, prefix) == before


async def test_a_stream_is_not_kept_open_by_asking_for_its_head(visit: Visit, queue: Queue):
    visitor = visit()
    async with asyncio.timeout(30):
        answer = await visitor.http.head("/live")
    assert answer.status_code == 405
    assert not visitor.app._pages._live


async def test_streams_are_counted_when_they_are_let_in(
    visit: Visit, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    """A hundred who come at the same moment: as many are let in as may be, and all are let go."""
    monkeypatch.setattr("toril.dashboard.app.MOST_PAGES_LIVE_OF_ONE", 5)
    app = visit().app
    all_of_them = await asyncio.gather(*(stream_of(app, "greedy") for _ in range(100)))

    statuses = [sent[0]["status"] for _, sent in all_of_them]
    assert statuses.count(200) == 5
    assert statuses.count(503) == 95

    for task, _ in all_of_them:
        task.cancel()
    await asyncio.gather(*(task for task, _ in all_of_them), return_exceptions=True)
    assert not app._pages._live


async def test_a_stream_whose_visitor_is_gone_before_it_begins_is_not_counted(
    visit: Visit, queue: Queue
):
    visitor = visit()
    await visitor.get("/")
    headers = [(b"host", HOST.encode()), (b"cookie", f"{COOKIE}=x".encode())]
    scope = {"type": "http", "method": "GET", "path": "/live", "raw_path": b"/live"}
    scope |= {"query_string": b"", "headers": headers, "client": ("127.0.0.1", 1)}
    scope |= {"scheme": "http", "root_path": "", "server": ("127.0.0.1", 8787)}

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise OSError("gone")

    for _ in range(20):
        async with asyncio.timeout(30):
            with suppress(OSError, ClientDisconnect):
                await visitor.app(scope, receive, send)
    assert not visitor.app._pages._live


async def test_a_reader_looks_and_listens_and_nothing_else(
    visit: Visit, queue: Queue, client: Any, prefix: str
):
    app = visit(authenticate=lambda request: User("eve", "read")).app
    visitor = Visitor(app)
    await visitor.get("/")
    before = await state_of(client, prefix)
    for verb in [*ACTIONS, "nothing", "../pause", ""]:
        for sure in (True, False):
            answer = await visitor.do(
                verb, sure=sure, queue="pay", id="one", state="waiting", lane="a", name="x"
            )
            assert answer.status_code == 403, verb
            assert "confirm" not in answer.text, verb
    assert await state_of(client, prefix) == before
    for path in ("/", "/queue?queue=pay", "/job?queue=pay&id=one", "/log"):
        assert "/do/" not in (await visitor.get(path)).text.replace('/do/retry" class="list"', "")
    task, sent = await stream_of(app, "x")
    await wait_until(lambda: any(b"tick" in one.get("body", b"") for one in sent))
    told = b"".join(one.get("body", b"") for one in sent).decode()
    assert SECRET not in told
    assert all(isinstance(version, int) for version in json.loads(
        told.partition("event: tick\ndata: ")[2].partition("\n")[0]
    ).values())  # fmt: skip
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await visitor.http.aclose()


async def test_an_open_page_is_told_nothing_when_the_app_around_it_no_longer_lets_in(
    visit: Visit, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("toril.dashboard.app.LISTENER_CHECKED_S", 0.0)
    users = [User("eve", "read")]
    app = visit(authenticate=lambda request: users[0] if users else None).app
    task, sent = await stream_of(app, "x")
    await wait_until(lambda: any(b"tick" in one.get("body", b"") for one in sent))

    users.clear()
    told = len(sent)
    await queue.add("a", {})

    await asyncio.wait_for(task, 60)
    assert not any(b"tick" in one.get("body", b"") for one in sent[told:])


async def test_two_operators_do_the_same_at_once(visit: Visit, queue: Queue):
    app = visit().app
    one, two = Visitor(app), Visitor(app, ("127.0.0.1", 5001))
    await queue.add_bulk([NewJob("x", job_id=f"j{n}") for n in range(300)])
    await one.get("/"), await two.get("/")

    answers = await asyncio.gather(
        *(who.do("remove-all", queue="pay", state="waiting") for who in (one, two)),
        *(who.do("remove", queue="pay", id=f"j{n}") for who in (one, two) for n in range(20)),
        *(who.do("cancel-all", queue="pay", state="waiting") for who in (one, two)),
    )

    assert {answer.status_code for answer in answers} <= {303, 409}

    async def all_over() -> bool:
        page = (await one.get("/log")).text
        return "of about" not in page

    await wait_until(all_over)
    counts = await queue.get_job_counts()
    assert counts["waiting"] == 0
    for who in (one, two):
        await who.http.aclose()


async def test_a_job_that_vanishes_between_the_list_and_the_button(visit: Visit, queue: Queue):
    visitor = visit()
    await visitor.get("/queue?queue=pay")
    await queue.remove("one")
    for verb, fields in (
        ("retry", {}), ("promote", {}), ("remove", {}), ("cancel", {}), ("replay", {}),
        ("edit-retry", {"data": "{}"}), ("replay", {"data": "{}"}),
    ):  # fmt: skip
        answer = await visitor.do(verb, queue="pay", id="one", **fields)
        assert answer.status_code in (303, 400, 404, 409), (verb, answer.text[-300:])
        assert await queue.get_job("one") is None, verb
    answer = await visitor.http.post(
        "/do/retry",
        data={"queue": "pay", "id": ["one", "two"], "token": visitor.token, "confirmed": "yes"},
        headers=SAME_ORIGIN,
    )
    assert answer.status_code == 303
    assert "0 of 2 done" in (await visitor.get(answer.headers["location"])).text


async def test_a_name_writes_no_header(visit: Visit, url: str, prefix: str, client: Any):
    name = 'a"b;filename=x.exe'
    async with Queue(name, connection=url, prefix=prefix) as queue:
        await queue.add("x", {"a": "=cmd()"})
    visitor = visit()
    for form in ("csv", "json"):
        answer = await visitor.get(
            "/export", params={"queue": name, "state": "waiting", "as": form}
        )
        said = answer.headers["content-disposition"]
        assert said.count('"') == 2
        assert ".exe" not in said.rpartition(".")[2]
        assert answer.headers["x-content-type-options"] == "nosniff"
    for odd in ("a\r\nSet-Cookie: x=y", "a\nb", "é\u2028"):
        for path, query in (
            ("/export", {"queue": odd, "state": "waiting", "as": "csv"}),
            ("/export", {"queue": name, "state": odd, "as": "csv"}),
            ("/search", {"q": odd}),
        ):
            answer = await visitor.get(path, params=query)
            assert "x=y" not in answer.headers.get("set-cookie", "")
            assert answer.status_code in (200, 303, 404)
        done = await visitor.do("pause", queue=name, back=f"/{odd}")
        assert "\n" not in done.headers["location"]
        assert "x=y" not in done.headers.get("set-cookie", "")


BROKEN = [
    '{"card": "%s",}', '{"card": "%s"', '{"card": NaN, "x": "%s"', "[" * 3000 + '"%s"',
]  # fmt: skip


@pytest.mark.parametrize("broken", range(len(BROKEN)))
async def test_a_payload_that_cannot_be_read_is_masked_whole(
    visit: Visit, queue: Queue, client: Any, prefix: str, broken: int
):
    """Who can break the JSON of a job must not get round ``redact=`` by it."""
    text = BROKEN[broken] % SECRET
    await client.hset(f"{prefix}:pay:one", "data", text)
    for redact in (["card"], lambda name, value: "hidden" if name == "card" else value):
        visitor = visit(redact=redact)
        for path in (
            "/job?queue=pay&id=one",
            "/queue?queue=pay&state=waiting",
            "/export?queue=pay&state=waiting&as=json",
            "/export?queue=pay&state=waiting&as=csv",
            "/flow?queue=pay&id=one",
            "/search?q=one",
        ):
            assert SECRET not in (await visitor.http.get(path, follow_redirects=True)).text, path
    shown = (await visit().get("/job?queue=pay&id=one")).text
    assert SECRET in shown, "without redact= it is shown as it is"
    await client.hset(f"{prefix}:pay:one", "data", "{}")


async def test_what_is_masked_is_found_by_no_search_filter_or_export(
    visit: Visit, queue: Queue, url: str, prefix: str, client: Any
):
    async def fail(job: Any) -> None:
        await job.report({"card": SECRET})
        raise UnrecoverableError("no")

    async with Worker("pay", fail, connection=url, prefix=prefix):

        async def is_failed() -> bool:
            return await queue.get_state("one") == "failed"

        await wait_until(is_failed)
    await queue.upsert_job_scheduler(
        "nightly", every=3_600_000, template=NewJob("x", {"card": SECRET})
    )
    await forge(client, prefix, "dead", 3, source="pay")
    visitor = visit(redact=["card"])
    for path in (
        "/queue?queue=pay&state=failed",
        f"/queue?queue=pay&state=failed&text={SECRET}",
        "/job?queue=pay&id=one",
        "/schedules",
        "/workers",
        "/log",
        "/export?queue=pay&state=failed&as=json",
        "/export?queue=pay&state=failed&as=csv",
        "/export?queue=pay&state=delayed&as=json",
        "/dead-letters?queue=dead",
        "/export?queue=dead&state=dead-letters&as=json",
    ):
        answer = await visitor.get(path)
        assert answer.status_code == 200
        page = answer.text.replace(f"text={SECRET}", "").replace(f'value="{SECRET}"', "")
        assert SECRET not in page, path
    task, sent = await stream_of(visitor.app, "x")
    await wait_until(lambda: any(b"tick" in one.get("body", b"") for one in sent))
    assert SECRET.encode() not in b"".join(one.get("body", b"") for one in sent)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_masked_dead_letter_is_not_repaired_blindly(
    visit: Visit, queue: Queue, client: Any, prefix: str
):
    await forge(client, prefix, "dead", 1, source="pay")
    visitor = visit(redact=True)
    async with Queue("dead", connection=queue._connection, prefix=prefix) as letters:
        [letter] = await letters.get_dead_letter_jobs()
        refused = await visitor.do("replay", queue="dead", id=letter.id, data='"••••••"')
        assert refused.status_code == 400
        assert await letters.get_dead_letter_count() == 1
